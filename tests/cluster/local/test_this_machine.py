"""The device of this machine, by the words of scripts that stand in for the vendors' tools."""

from __future__ import annotations

import platform

import pytest

from hpcsweep.cluster.local import this_machine


@pytest.mark.parametrize(
    ("tool", "text", "device"),
    [
        ("nvidia-smi", "echo NVIDIA H200", "h200"),
        ("nvidia-smi", "echo NVIDIA L40S; echo NVIDIA L40S", "l40s"),
        ("nvidia-smi", "echo Tesla V100-PCIE-32GB", "v100"),
        ("nvidia-smi", "echo NVIDIA H100 PCIe", "h100"),
        ("nvidia-smi", "echo Tesla V100S-PCIE-32GB", "v100s-pcie-32gb"),
        ("nvidia-smi", "echo NVIDIA GeForce RTX 9999", "9999"),
        ("nvidia-smi", "echo 'no devices were found' >&2; exit 6", "cpu"),
        ("rocm-smi", "echo device,Card series; echo card0,AMD Instinct MI250X/MI250", "mi250"),
        ("rocm-smi", "echo device,Card series; echo card0,AMD Radeon", "cpu"),
        ("other", "true", "cpu"),
    ],
)
def test_the_first_gpu_counts_by_the_catalogues_name(tmp_path, monkeypatch, tool, text, device):
    """Without a GPU it is the processor; a GPU that the catalogue lacks has its last word."""
    program = tmp_path / tool
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert this_machine.local_device() == device


def test_a_busy_machine_is_told_with_what_to_do(monkeypatch):
    """Half of the cores in use is too much for timings."""
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("os.getloadavg", lambda: (1.9, 0.0, 0.0))
    assert this_machine.busy() == ""
    monkeypatch.setattr("os.getloadavg", lambda: (7.96, 0.0, 0.0))
    assert this_machine.busy() == (
        "this machine is busy (load 8.0 on 4 cores), so times will be noisy; stop other programs, "
        "or measure on a node of your own"
    )
