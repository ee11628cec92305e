"""Refusing machines that are not what the profile promised."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import pretendgpu
from hpcsweep.errors import Occupied, Refused
from hpcsweep.measure.machine import fit, rig


class _Neighbours:
    """A GPU on which others compute for some looks."""

    def __init__(self, looks):
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


_REPORT = (sys.executable, "-m", "hpcsweep.measure.machine.fit")
_H100 = "'NVIDIA H100 80GB HBM3'"
_OLD_CUDNN = """
#include <stddef.h>
size_t cudnnGetVersion(void) { return 90100; }
int cudnnGetProperty(int which, int *v) { *v = which == 0 ? 9 : which == 1 ? 1 : 0; return 0; }
"""


# the function of the runtime that fails, and its status: what is told, what to do, the exit code
_FAULTS = {
    "cudaMalloc=2": (f"{_H100} is full: CUDA out of memory.", "which process", 11),
    "cudaMalloc=46": (f"{_H100} is busy: another process", "which one", 11),
    "cudaMalloc=719": (f"{_H100} fails at the simplest", "kernel's log", 13),
    "cudaLaunchKernel=209": ("has no code for " + _H100, "another torch", 12),
    "cudaLaunchKernel=719": (f"{_H100} fails at the simplest", "Xid", 13),
    "cudaHostAlloc=1": (f"{_H100} gives no result back", "ulimit -l", 13),
}


@pytest.mark.gpu
@pytest.mark.parametrize(("fault", "told"), _FAULTS.items())
def test_each_cause_has_its_own_words_remedy_and_exit_code(monkeypatch, fault, told):
    """In torch's own errors, on a runtime of which one function fails."""
    if not pretendgpu.is_pretended():
        pytest.skip("a real runtime does not fail on request")
    torch.cuda.empty_cache()  # else nothing would be allocated; nor on the host
    torch._C._host_emptyCache()
    monkeypatch.setenv("PRETEND_FAIL", fault)
    wrong = fit.problem(rig.current_device("cuda"))
    what, remedy, code = told
    assert what in wrong.what
    assert remedy in wrong.remedy
    assert wrong.kind.exit_code == code
    assert "gres" not in wrong.remedy  # which only a job has
    assert ("code" in wrong.what) == (fault == "cudaLaunchKernel=209")


@pytest.mark.slow
def test_the_doctors_process_tells_the_cause_of_a_gpu_that_is_full(pretend_gpu):
    """Not that torch has no code for it."""
    seen = json.loads(pretend_gpu.run(*_REPORT, PRETEND_MEMORY="1000000").stdout)
    assert seen["refused"].startswith(f"{_H100} is full: CUDA out of memory.")
    assert seen["do"].startswith("see with nvidia-smi or rocm-smi which process holds its memory")


def test_a_job_may_ask_for_a_gpu_of_its_own(monkeypatch):
    """With gres; a person at a machine waits."""
    device = rig.Device(torch.device("cuda", 0), "A")
    for said in ("CUDA out of memory", "device(s) is/are busy or unavailable"):

        def refuse(*_args, said=said, **_kwargs):
            raise RuntimeError(said)

        monkeypatch.setattr(torch, "empty", refuse)
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        assert "wait for it" in fit.problem(device).remedy
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        assert "(gres)" in fit.problem(device).remedy


@pytest.mark.slow
def test_another_cudnn_than_torchs_own_is_told_with_what_to_remove(pretend_gpu, tmp_path):
    """Such as by `module load cudnn`: torch compares the versions when it first uses cuDNN."""
    library = tmp_path / "libcudnn.so.9"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", library]
    subprocess.run(command, input=_OLD_CUDNN, text=True, check=True)
    loaded = f"{library}:{pretend_gpu.environment()['LD_PRELOAD']}"
    seen = json.loads(pretend_gpu.run(*_REPORT, LD_PRELOAD=loaded).stdout)
    own = torch.backends.cudnn.version()
    needed = f"{own // 10_000}.{own // 100 % 100}"
    assert seen["refused"].startswith(f"torch was built for cuDNN {needed}.")
    assert "and 9.1.0 is loaded (" in seen["refused"]
    assert str(library) in seen["refused"]
    assert "module load cudnn" in seen["do"]


def test_a_cudnn_without_code_for_an_old_gpu_is_told_in_torchs_words(monkeypatch):
    """Since 9.11 cuDNN has none for GPUs before 7.5, which is no fault of LD_LIBRARY_PATH."""

    def refuses():
        raise RuntimeError("cuDNN version 91100 is not compatible with devices with SM < 7.5. See")

    monkeypatch.setattr(torch.backends.cudnn, "version", refuses)
    wrong = fit.wrong_library()
    assert wrong is not None
    assert wrong.what.startswith("cuDNN version 91100 is not compatible")
    assert "LD_LIBRARY_PATH" not in wrong.remedy


@pytest.mark.slow
def test_a_gpu_that_works_is_none_of_them(pretend_gpu):
    """With its name, what torch has code for, and nothing amiss."""
    seen = json.loads(pretend_gpu.run(*_REPORT).stdout)
    assert seen["gpu"].startswith("NVIDIA H100 80GB HBM3 (sm_90), code for sm_")
    assert (seen["refused"], seen["do"], seen["lacking"]) == ("", "", "")


def test_a_worker_refuses_with_the_cause_and_what_to_do(monkeypatch):
    """In one line."""
    told = fit.Unusable("it is full", "wait", Occupied)
    monkeypatch.setattr(fit, "problem", lambda _: told)
    with pytest.raises(Occupied, match=r"^it is full; wait$"):
        fit.check_usable(rig.current_device("cpu"))


def test_an_amd_gpu_is_told_by_the_name_of_its_chip(monkeypatch):
    """Features after the name do not matter."""
    properties = SimpleNamespace(gcnArchName="gfx90a:sramecc+:xnack-", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert fit.chip(rig.Device(torch.device("cuda", 0), "MI250")) == "gfx90a"
