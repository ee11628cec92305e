"""Refusing machines that are not what the profile promised."""

from __future__ import annotations

import json
import re

import pytest
import torch

from hpcsweep.errors import Refused
from hpcsweep.measure.machine import fit
from hpcsweep.measure.machine.gpu_telemetry import Telemetry


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
    with pytest.raises(Refused, match=r"promises gpu 'v100'.*(driver|CUDA)") as told:
        fit.device_for({"gpu": "v100"})
    assert "gres" not in str(told.value)  # which only a job has


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_job_that_was_given_no_gpu_is_told_about_gres(monkeypatch):
    """Slurm empties CUDA_VISIBLE_DEVICES where no GPU was asked for; a person may unset it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(Refused, match="ask for a GPU with gres"):
        fit.device_for({"gpu": "l40"})
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(Refused, match=r"CUDA_VISIBLE_DEVICES='' hides every GPU; unset it$"):
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


@pytest.mark.parametrize("gpu", ["l40", "h100", "v100"])
def test_rows_never_say_another_gpu_than_the_device_is(gpu):
    """Where no `gpu_name` says what is meant; a name of the user's own is no claim."""
    fit.check_label("NVIDIA L40S", "l40s")
    fit.check_label("NVIDIA L40S", "mine")
    with pytest.raises(Refused, match=rf"gpu '{gpu}', the first GPU here is 'NVIDIA L40S'"):
        fit.check_label("NVIDIA L40S", gpu)


@pytest.mark.gpu
def test_a_profile_of_another_gpu_is_refused_by_the_worker():
    """The device is the first one that CUDA shows to the process."""
    first = re.escape(torch.cuda.get_device_name())
    with pytest.raises(Refused, match=f"gpu 'mi250', the first GPU here is '{first}'"):
        fit.device_for({"gpu": "mi250"})
    assert fit.device_for({"gpu": "mi250", "gpu_name": first}).type == "cuda"


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


def test_it_says_the_same_of_a_machine_without_a_gpu():
    """As JSON; `test_doctor` runs the process that prints it."""
    assert json.loads(json.dumps(fit.report())).keys() == {
        "threads", "mkldnn", "cudnn", "gpu", "refused", "do", "lacking",
    }  # fmt: skip
