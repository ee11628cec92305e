"""Provenance."""

from __future__ import annotations

import json
import socket
from types import SimpleNamespace

import pytest
import torch

from hpcsweep.measure.machine import provenance


def test_the_environment_is_plain_json_and_says_what_matters():
    """Host, processor, memory, torch with its build, Python: all that explains a number later."""
    environment = json.loads(json.dumps(provenance.environment(provenance.device("cpu"))))
    assert environment["software"]["torch"] == torch.__version__
    assert environment["software"]["torchvision"]
    assert environment["host"]["name"] == socket.gethostname()
    assert environment["host"]["cpu_model"]
    assert environment["host"]["memory_limit_bytes"] > 1 << 28
    assert environment["device"]["type"] == "cpu"


def test_the_cells_of_a_row_are_of_this_machine():
    """What does not apply to a processor is empty."""
    cells = provenance.row_cells(provenance.device("cpu"), {})
    assert cells.device_name == provenance.cpu_model()
    assert cells.cuda_version is cells.driver_version is None


def test_the_schedulers_words_are_kept(monkeypatch):
    """Slurm's variables and what decides on threads and devices are written down."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURMD_NODENAME", "gpu03")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    environment = provenance.environment(provenance.device("cpu"))
    assert environment["slurm"]["SLURM_JOB_ID"] == "17"
    assert environment["environment"]["OMP_NUM_THREADS"] == "1"
    assert environment["row"]["node"] == "gpu03"
    assert "PATH" not in environment["environment"]


@pytest.mark.parametrize(
    ("name", "uuid", "told"),
    [
        ("NVIDIA H200", "12-34", "GPU-12-34"),
        ("NVIDIA H200 MIG 1g.18gb", "12-34", "MIG-12-34"),
        ("Tesla V100-SXM2-32GB", None, None),
    ],
)
def test_a_gpu_has_the_uuid_that_its_driver_knows(monkeypatch, name, uuid, told):
    """Torch tells the number alone, of a slice the slice's; before 2.5 it tells none."""
    known = {"uuid": uuid} if uuid else {}
    properties = SimpleNamespace(multi_processor_count=132, **known)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: properties)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _index: name)
    assert provenance.device("cuda").uuid == told


@pytest.mark.parametrize(("visible", "number"), [(None, 1), ("5,3", 3), ("5", 1)])
def test_a_gpu_has_the_number_that_its_driver_knows(monkeypatch, visible, number):
    """Torch's second GPU is the driver's fourth, if that is what may be seen."""
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert provenance.driver_index(1) == number


def test_the_bus_of_a_gpu_is_written_as_its_driver_does(monkeypatch):
    """Without the function, which torch does not tell; an older torch tells none of it."""
    told = SimpleNamespace(
        multi_processor_count=132, pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=2
    )
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: told)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _index: "A")
    assert provenance.device("cuda").bus == "0000:c1:02."
    del told.pci_bus_id
    assert provenance.device("cuda").bus == ""
