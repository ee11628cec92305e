"""Refusing machines that are not what the profile promised."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from hpcsweep.errors import Refused
from hpcsweep.measure.machine import fit
from hpcsweep.measure.machine.telemetry import Telemetry


class _Neighbours(Telemetry):
    """A GPU on which others compute for some looks."""

    def __init__(self, looks):
        super().__init__()
        self.looks = looks

    def others(self):
        self.looks -= 1
        return [4711] if self.looks >= 0 else []


def test_a_processor_is_always_there():
    """`gpu: cpu` asks for nothing else, whatever GPU the machine may have."""
    assert fit.device_for({"gpu": "cpu", "gpu_name": ""}).type == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_promised_gpu_that_is_not_there_is_refused():
    """The message names the promise and what to look at."""
    with pytest.raises(Refused, match=r"promises gpu 'v100'.*(driver|CUDA)"):
        fit.device_for({"gpu": "v100"})


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_job_that_was_given_no_gpu_is_told_about_gres(monkeypatch):
    """Slurm empties CUDA_VISIBLE_DEVICES where no GPU was asked for."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    with pytest.raises(Refused, match="gres"):
        fit.device_for({"gpu": "l40"})


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_torch_without_cuda_is_told_apart(monkeypatch):
    """A CPU-only build needs another environment, not another node."""
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(Refused, match="built without CUDA or ROCm"):
        fit.device_for({"gpu": "l40"})


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="this machine has a Metal GPU")
def test_a_metal_gpu_that_is_not_there_is_refused():
    """`mps` on another system says which profile would do."""
    with pytest.raises(Refused, match="gpu is cpu"):
        fit.device_for({"gpu": "mps"})


def test_the_devices_own_name_must_match_the_promise():
    """An L40S pattern refuses an L40; the empty pattern takes anything."""
    fit.check_name("NVIDIA L40S", "L40S?$")
    fit.check_name("anything", "")
    with pytest.raises(Refused, match=r"/V100/, this node has 'NVIDIA L40S'"):
        fit.check_name("NVIDIA L40S", "V100")


def test_a_slice_of_a_gpu_is_refused_unless_it_is_meant():
    """Numbers of a seventh of a GPU do not pass for the whole one's."""
    fit.check_slice("NVIDIA H200", "H200")
    fit.check_slice("NVIDIA H200 MIG 1g.18gb", r"MIG 1g\.18gb$")
    with pytest.raises(Refused, match=r"slice of a GPU.*MIG 1g\.18gb"):
        fit.check_slice("NVIDIA H200 MIG 1g.18gb", "H200")


def test_neighbours_that_leave_are_waited_for():
    """A worker that was just killed still shows for a moment."""
    slept = []
    fit.check_neighbours(_Neighbours(3), slept.append)
    assert len(slept) == 3


def test_neighbours_that_stay_are_refused():
    """After ten seconds the process is named, and what to do."""
    slept = []
    with pytest.raises(Refused, match=r"pid 4711.*--workers 1"):
        fit.check_neighbours(_Neighbours(10**6), slept.append)
    assert sum(slept) == 10


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that this torch supports")
def test_a_real_gpu_is_found_and_held_against_the_promise():
    """Right name: a device; wrong name or too little memory: refused."""
    name = torch.cuda.get_device_name(0)
    assert fit.device_for({"gpu": "any", "gpu_name": ""}).name == name
    with pytest.raises(Refused, match="wrong device"):
        fit.device_for({"gpu": "any", "gpu_name": "Voodoo2"})
    with pytest.raises(Refused, match="promises 100000 GB"):
        fit.device_for({"gpu": "any", "min_memory_gb": 100_000})


@pytest.fixture
def pretend(monkeypatch):
    """Return a function that gives this process a GPU whose kernels run, or do not."""

    def install(name, built_for, *, hip=None, runs=True, **properties):
        properties = SimpleNamespace(multi_processor_count=1, **properties)
        ones = torch.ones

        def kernel(n, device):
            if not runs:
                raise RuntimeError("CUDA error: no kernel image is available\nSearch for it")
            return ones(n)

        monkeypatch.setattr(torch, "ones", kernel)
        monkeypatch.setattr(torch.version, "hip", hip)
        for answer, value in {
            "is_available": True,
            "current_device": 0,
            "get_device_name": name,
            "get_device_properties": properties,
            "get_arch_list": built_for.split(),
        }.items():
            monkeypatch.setattr(torch.cuda, answer, lambda *_, value=value: value)
        return fit.report()

    return install


def test_an_amd_gpu_is_told_by_the_name_of_its_chip(pretend):
    """Features after the name do not matter."""
    mi250 = {"gcnArchName": "gfx90a:sramecc+:xnack-", "major": 9, "minor": 0}
    seen = pretend("AMD Instinct MI250", "gfx908 gfx90a", hip="6.2", **mi250)
    assert (seen["refused"], "(gfx90a)" in seen["gpu"]) == ("", True)


def test_a_gpu_for_which_torch_has_no_code_is_refused(pretend):
    """By the simplest kernel, as a worker finds out; with the chip, and what torch has code for."""
    refused = pretend("V100", "sm_75 sm_90", major=7, minor=0, runs=False)["refused"]
    assert "runs no kernel on 'V100' (sm_70; it has code for sm_75 sm_90)" in refused
    assert "no kernel image is available; where its chip is missing" in refused


def test_it_says_the_same_of_a_machine_without_a_gpu():
    """As JSON; `test_doctor` runs the process that prints it."""
    assert json.loads(json.dumps(fit.report())).keys() == {
        "threads", "mkldnn", "gpu", "refused",
    }  # fmt: skip
