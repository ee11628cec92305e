"""The device of this machine, by libraries and programs that stand in for the vendors'."""

from __future__ import annotations

import platform
import sys

import pytest

from hpcsweep.cluster.local import this_machine, visible
from hpcsweep.cluster.local.visible import LibraryAnswer


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
        monkeypatch.setattr(visible, "ask", lambda _: said)

    return install


def test_what_the_library_says_comes_before_what_a_program_lists(answers, tmp_path):
    """Variables hide and order GPUs, of which `nvidia-smi` knows nothing; a container lacks it."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho NVIDIA L40S; echo NVIDIA H100 PCIe\n")
    program.chmod(0o755)
    answers(nvidia=LibraryAnswer(library="libcuda.so.1", name="NVIDIA H100 PCIe"))
    assert this_machine.local_device().gpu == "h100"
    answers(nvidia=LibraryAnswer(library="libcuda.so.1", status=visible.NO_DEVICE))
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
