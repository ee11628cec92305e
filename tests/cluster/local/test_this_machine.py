"""The device of this machine, by libraries and programs that stand in for the vendors'."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from hpcsweep.cluster.local import this_machine
from hpcsweep.cluster.local.this_machine import LibraryAnswer


@pytest.mark.parametrize(
    ("tool", "text", "device"),
    [
        ("nvidia-smi", "echo NVIDIA L40S; echo NVIDIA L40S", "l40s"),
        ("nvidia-smi", "echo Tesla V100-PCIE-32GB", "v100"),
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
    assert this_machine.local_device().gpu == device


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """Return a function that lets the libraries of NVIDIA and AMD answer; no program lists any."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(platform, "system", lambda: "Linux")

    def install(nvidia=None, amd=None):
        said = {"nvidia": nvidia or LibraryAnswer(), "amd": amd or LibraryAnswer()}
        monkeypatch.setattr(this_machine, "ask_libraries", lambda _: said)

    return install


def test_what_the_library_says_comes_before_what_a_program_lists(answers, tmp_path):
    """Variables hide and order GPUs, of which `nvidia-smi` knows nothing; a container lacks it."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho NVIDIA L40S; echo NVIDIA H100 PCIe\n")
    program.chmod(0o755)
    answers(nvidia=LibraryAnswer(library="libcuda.so.1", name="NVIDIA H100 PCIe"))
    assert this_machine.local_device().gpu == "h100"
    answers(nvidia=LibraryAnswer(library="libcuda.so.1", status=this_machine.NO_DEVICE))
    assert this_machine.local_device().gpu == "cpu"
    answers(
        nvidia=LibraryAnswer(library="libcuda.so.1", status=999)
    )  # torch will say what is wrong
    assert this_machine.local_device().gpu == "l40s"
    program.unlink()
    for name, gpu in (("MI250X/MI250", "mi250"), ("MI250X", "mi250x"), ("MI300X OAM", "mi300x")):
        answers(amd=LibraryAnswer(library="libamdhip64.so", name=f"AMD Instinct {name}"))
        assert this_machine.local_device().gpu == gpu


@pytest.mark.parametrize(
    ("vendor", "said", "env", "node", "unused", "remedy"),
    [
        ("nvidia", LibraryAnswer(), {}, False, "", ""),
        ("nvidia", LibraryAnswer(), {"CUDA_VISIBLE_DEVICES": ""}, False, "", ""),
        ("nvidia", LibraryAnswer(library="c", status=100), {}, False, "", ""),
        (
            "nvidia",
            LibraryAnswer(),
            {},
            True,
            "node is here, the library of its driver is not",
            "--nv",
        ),
        (
            "amd",
            LibraryAnswer(),
            {},
            True,
            "node is here, the library of its driver is not",
            "--rocm",
        ),
        (
            *(
                "nvidia",
                LibraryAnswer(library="c", status=100),
                {"CUDA_VISIBLE_DEVICES": ""},
                False,
            ),
            *("no GPU is seen with CUDA_VISIBLE_DEVICES=''", "unset CUDA_VISIBLE_DEVICES"),
        ),
        (
            *("amd", LibraryAnswer(library="h", status=100), {"ROCR_VISIBLE_DEVICES": "9"}, False),
            *("no GPU is seen with ROCR_VISIBLE_DEVICES='9'", "unset ROCR_VISIBLE_DEVICES"),
        ),
        (
            "nvidia",
            LibraryAnswer(library="c", status=803),
            {},
            True,
            "c finds no GPU (error 803)",
            "smi",
        ),
        (
            *("amd", LibraryAnswer(library="h", name="AMD Radeon"), {}, True),
            *("'AMD Radeon' has no name in the catalogue", "`gpu: NAME`"),
        ),
    ],
)
def test_why_a_gpu_is_not_measured_is_told_with_what_to_do(  # noqa: PLR0917
    answers, tmp_path, monkeypatch, vendor, said, env, node, unused, remedy
):
    """Hidden by a variable, a container without the driver's library, a library that fails."""
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / "node"
    if node:
        place.touch()
    nodes = {"nvidia": (), "amd": (), vendor: (place,)}
    monkeypatch.setattr(this_machine, "_NODES", nodes)
    answers(**{vendor: said})
    here = this_machine.local_device(env)
    assert here.gpu == "cpu"
    assert here.unused.replace(f"{tmp_path}/", "") == unused
    assert remedy in here.remedy


def test_why_nothing_reports_the_gpus_state_is_told_by_another_process(pretend_gpu, monkeypatch):
    """It asks NVML as a worker does; nothing is told where that answers."""
    gpu = pretend_gpu.environment()
    assert this_machine.lacking_telemetry(gpu) == ""
    fails = {**gpu, "PRETEND_FAIL": "nvmlInitWithFlags=12"}
    assert this_machine.lacking_telemetry(fails).startswith("NVML does not start (NVML Shared Lib")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert "ends the process that asks it" in this_machine.lacking_telemetry(gpu)


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
        ("", "", this_machine.NO_DEVICE),
        ("-1", "", this_machine.NO_DEVICE),
    ],
)
def test_the_driver_knows_what_variables_mean(pretend_gpu, monkeypatch, shown, name, status):
    """A number, a UUID, or what hides every GPU."""
    library = str(pretend_gpu.folder / "libcuda.so.1")
    monkeypatch.setattr(
        this_machine, "library_places", {"nvidia": [library], "amd": []}.__getitem__
    )
    env = {n: value for n, value in os.environ.items() if n != "CUDA_VISIBLE_DEVICES"}
    if shown is not None:
        env["CUDA_VISIBLE_DEVICES"] = shown
    said = LibraryAnswer(library=library, name=name, status=status)
    assert this_machine.ask_libraries(env) == {"nvidia": said, "amd": LibraryAnswer()}


@pytest.mark.parametrize(
    ("shown", "name", "status"),
    [("0", "AMD Radeon", 0), ("1", "AMD Instinct MI250", 0), ("7", "", this_machine.NO_DEVICE)],
)
def test_hip_is_asked_with_the_same_three_calls(tmp_path, monkeypatch, shown, name, status):
    """Which GPU comes first is for HIP to say; the first library that loads is asked."""
    library = _library(tmp_path, _HIP)
    places = {"nvidia": ["libnone.so"], "amd": ["libnone.so", library, "libother.so"]}
    monkeypatch.setattr(this_machine, "library_places", places.__getitem__)
    said = this_machine.ask_libraries({**os.environ, "ROCR_VISIBLE_DEVICES": shown})
    answer = LibraryAnswer(library=library, name=name, status=status)
    assert said == {"nvidia": LibraryAnswer(), "amd": answer}


@pytest.mark.parametrize("code", ["abort();", "_exit(3);", "sleep(60);"])
def test_a_library_that_ends_or_holds_its_process_is_told_as_such(tmp_path, monkeypatch, code):
    """The process that asks is another one than the command's."""
    monkeypatch.setattr(this_machine, "_SECONDS", 2.0 if "sleep" in code else 60.0)
    library = _library(tmp_path, f"int cuInit(unsigned flags) {{ {code} }}")
    monkeypatch.setattr(
        this_machine, "library_places", {"nvidia": [library], "amd": []}.__getitem__
    )
    said = this_machine.ask_libraries(os.environ)
    assert said == {"nvidia": LibraryAnswer(library=library, status=-1), "amd": LibraryAnswer()}


def test_torchs_own_copy_of_hip_is_the_first(monkeypatch):
    """Its wheels bring one; that of the machine may be another version, or missing."""
    monkeypatch.setenv("ROCM_PATH", "/opt/mine")
    first, *rest = this_machine.library_places("amd")
    assert first.endswith("/torch/lib/libamdhip64.so")
    assert rest == ["libamdhip64.so", "/opt/mine/lib/libamdhip64.so"]
    assert list(this_machine.library_places("nvidia")) == ["libcuda.so.1"]
