"""What keeps torch from a GPU: each cause has words and a remedy of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import pretendgpu
from hpcsweep.errors import Occupied
from hpcsweep.measure.machine import provenance, usable

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
    wrong = usable.problem(provenance.device("cuda"))
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
    device = provenance.Device(torch.device("cuda", 0), "A")
    for said in ("CUDA out of memory", "device(s) is/are busy or unavailable"):

        def refuse(*_args, said=said, **_kwargs):
            raise RuntimeError(said)

        monkeypatch.setattr(torch, "empty", refuse)
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        assert "wait for it" in usable.problem(device).remedy
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        assert "(gres)" in usable.problem(device).remedy


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
    wrong = usable.wrong_library()
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
    told = usable.Unusable("it is full", "wait", Occupied)
    monkeypatch.setattr(usable, "problem", lambda _: told)
    with pytest.raises(Occupied, match=r"^it is full; wait$"):
        usable.check(provenance.device("cpu"))


def test_an_amd_gpu_is_told_by_the_name_of_its_chip(monkeypatch):
    """Features after the name do not matter."""
    properties = SimpleNamespace(gcnArchName="gfx90a:sramecc+:xnack-", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert usable.chip(provenance.Device(torch.device("cuda", 0), "MI250")) == "gfx90a"
