"""Provenance."""

from __future__ import annotations

import json
import os
import socket

import torch

from hpcsweep import __version__, records
from hpcsweep.measure import machine
from hpcsweep.measure.telemetry import Telemetry


def test_the_environment_is_plain_json_and_says_what_matters():
    """Host, processor, memory, torch with its build, Python: all that explains a number later."""
    environment = json.loads(json.dumps(machine.environment(machine.device("cpu"), Telemetry())))
    assert environment["hpcsweep_version"] == __version__
    assert environment["software"]["torch"] == torch.__version__
    assert environment["software"]["torchvision"]
    assert environment["host"]["name"] == socket.gethostname()
    assert environment["host"]["cpu_model"]
    assert environment["host"]["memory_limit_bytes"] > 1 << 28
    assert environment["device"]["type"] == "cpu"


def test_the_cells_of_a_row_are_columns():
    """The short keys have columns; what does not apply to a processor is empty."""
    cells = machine.row_cells(machine.device("cpu"), Telemetry())
    assert not records.unknown_keys(cells, records.OVERALL_COLUMNS)
    assert cells["device_name"] == machine.cpu_model()
    assert cells["cuda_version"] is cells["driver_version"] is None


def test_the_schedulers_words_are_kept(monkeypatch):
    """Slurm's variables and what decides on threads and devices are written down."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURMD_NODENAME", "gpu03")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    environment = machine.environment(machine.device("cpu"), Telemetry())
    assert environment["slurm"]["SLURM_JOB_ID"] == "17"
    assert environment["environment"]["OMP_NUM_THREADS"] == "1"
    assert environment["row"]["node"] == "gpu03"
    assert "PATH" not in environment["environment"]


def test_the_load_is_the_nodes():
    """The load average is the operating system's."""
    assert machine.load_average() >= 0
    assert len(os.getloadavg()) == 3
