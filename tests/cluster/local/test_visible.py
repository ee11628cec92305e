"""The GPU that a process would get: libraries made for the test answer to the real program."""

from __future__ import annotations

import os
import subprocess

import pytest

from hpcsweep.cluster.local import visible
from hpcsweep.cluster.local.visible import LibraryAnswer

# the first of the GPUs that ROCR_VISIBLE_DEVICES leaves, in its order
_HIP = """
#include <stdio.h>
#include <stdlib.h>
int hipInit(unsigned flags) { return atoi(getenv("ROCR_VISIBLE_DEVICES")) > 1 ? 100 : 0; }
int hipDeviceGet(int *device, int number) { *device = number; return 0; }
int hipDeviceGetName(char *name, int size, int device)
{
    const char *all[] = {"AMD Radeon", "AMD Instinct MI250"};
    return snprintf(name, size, "%s", all[atoi(getenv("ROCR_VISIBLE_DEVICES"))]) < 0;
}
"""


def _library(folder, text):
    """Compile a library; return its path."""
    path = folder / "library.so"
    command = ["gcc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=text, text=True, check=True)
    return str(path)


@pytest.mark.parametrize(
    ("shown", "name", "status"),
    [
        (None, "NVIDIA H100 80GB HBM3", 0),
        ("1", "NVIDIA H100 80GB HBM3", 0),
        ("GPU-00000000", "NVIDIA H100 80GB HBM3", 0),
        ("", "", visible.NO_DEVICE),
        ("-1", "", visible.NO_DEVICE),
    ],
)
def test_the_driver_knows_what_variables_mean(pretend_gpu, monkeypatch, shown, name, status):
    """A number, a UUID, or what hides every GPU."""
    library = str(pretend_gpu.folder / "libcuda.so.1")
    monkeypatch.setattr(visible, "libraries", {"nvidia": [library], "amd": []}.__getitem__)
    env = {n: value for n, value in os.environ.items() if n != "CUDA_VISIBLE_DEVICES"}
    if shown is not None:
        env["CUDA_VISIBLE_DEVICES"] = shown
    said = LibraryAnswer(library=library, name=name, status=status)
    assert visible.ask(env) == {"nvidia": said, "amd": LibraryAnswer()}


@pytest.mark.parametrize(
    ("shown", "name", "status"),
    [("0", "AMD Radeon", 0), ("1", "AMD Instinct MI250", 0), ("7", "", visible.NO_DEVICE)],
)
def test_hip_is_asked_with_the_same_three_calls(tmp_path, monkeypatch, shown, name, status):
    """Which GPU comes first is for HIP to say; the first library that loads is asked."""
    library = _library(tmp_path, _HIP)
    places = {"nvidia": ["libnone.so"], "amd": ["libnone.so", library, "libother.so"]}
    monkeypatch.setattr(visible, "libraries", places.__getitem__)
    said = visible.ask({**os.environ, "ROCR_VISIBLE_DEVICES": shown})
    answer = LibraryAnswer(library=library, name=name, status=status)
    assert said == {"nvidia": LibraryAnswer(), "amd": answer}


@pytest.mark.parametrize("code", ["abort();", "_exit(3);", "sleep(60);"])
def test_a_library_that_ends_or_holds_its_process_is_told_as_such(tmp_path, monkeypatch, code):
    """The process that asks is another one than the command's."""
    monkeypatch.setattr(visible, "_SECONDS", 2.0 if "sleep" in code else 60.0)
    library = _library(tmp_path, f"int cuInit(unsigned flags) {{ {code} }}")
    monkeypatch.setattr(visible, "libraries", {"nvidia": [library], "amd": []}.__getitem__)
    said = visible.ask(os.environ)
    assert said == {"nvidia": LibraryAnswer(library=library, status=-1), "amd": LibraryAnswer()}


def test_torchs_own_copy_of_hip_is_the_first(monkeypatch):
    """Its wheels bring one; that of the machine may be another version, or missing."""
    monkeypatch.setenv("ROCM_PATH", "/opt/mine")
    first, *rest = visible.libraries("amd")
    assert first.endswith("/torch/lib/libamdhip64.so")
    assert rest == ["libamdhip64.so", "/opt/mine/lib/libamdhip64.so"]
    assert list(visible.libraries("nvidia")) == ["libcuda.so.1"]
