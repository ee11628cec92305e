"""What `doctor --deep` is told about a GPU: the worker's own answer."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from hpcsweep.measure.machine import torch_report


@pytest.fixture
def pretend(monkeypatch):
    """Return a function that gives this process a GPU whose kernels run, and a build of torch."""

    def install(name, built_for, *, hip=None, **properties):
        properties = SimpleNamespace(multi_processor_count=1, **properties)
        ones = torch.ones
        monkeypatch.setattr(torch, "ones", lambda n, device: ones(n))
        monkeypatch.setattr(torch.version, "hip", hip)
        for answer, value in {
            "is_available": True,
            "current_device": 0,
            "get_device_name": name,
            "get_device_properties": properties,
            "get_arch_list": built_for.split(),
        }.items():
            monkeypatch.setattr(torch.cuda, answer, lambda *_, value=value: value)
        return torch_report.report()

    return install


def test_an_amd_gpu_is_taken_by_the_name_of_its_chip(pretend):
    """Features after the name do not matter; a chip that is not in the list is refused."""
    mi250 = {"gcnArchName": "gfx90a:sramecc+:xnack-", "major": 9, "minor": 0}
    seen = pretend("AMD Instinct MI250", "gfx908 gfx90a", hip="6.2", **mi250)
    assert (seen["refused"], "(gfx90a)" in seen["gpu"]) == ("", True)
    assert "(gfx90a; it has gfx942)" in pretend("MI250", "gfx942", hip="6.2", **mi250)["refused"]


@pytest.mark.parametrize(
    ("built_for", "chip", "taken"),
    [
        ("sm_80 compute_80", (9, 0), True),
        ("sm_90a", (9, 0), True),
        ("sm_90a", (9, 3), False),
        ("sm_75 sm_90", (7, 0), False),
    ],
)
def test_an_nvidia_gpu_is_taken_where_the_worker_takes_it(pretend, built_for, chip, taken):
    """PTX serves later chips; code for one chip serves no other; V100 is too old for new builds."""
    seen = pretend("GPU", built_for, major=chip[0], minor=chip[1])
    assert (seen["refused"] == "") is taken


def test_it_says_the_same_of_a_machine_without_a_gpu():
    """As JSON; `test_doctor` runs the process that prints it."""
    assert json.loads(json.dumps(torch_report.report())).keys() == {
        "threads", "mkldnn", "gpu", "refused",
    }  # fmt: skip
