"""The doctor finds what is wrong, says what to do, and imports nothing heavy to do so."""

from __future__ import annotations

import json
import os
import shlex
import sys

import pytest

from hpcsweep.cluster import doctor
from hpcsweep.cluster.local import this_machine
from hpcsweep.cluster.local.this_machine import LocalDevice
from hpcsweep.cluster.slurm.profile_wants import Wants
from hpcsweep.spec import profile


def test_a_log_folder_that_is_not_there_is_told(tmp_path):
    """Slurm would take the job, fail it, and leave no word."""
    there, absent = tmp_path / "there", tmp_path / "absent"
    there.mkdir()
    places = {"output": "p.yaml:3"}
    (wrong,) = doctor.logs(Wants({"output": f"{absent}/%j.out"}, places))
    assert (wrong.level, wrong.where) == ("fail", "p.yaml:3")
    assert str(absent) in wrong.detail
    fine = ("logs/x-%j.out", f"{there}/%j.out", "x.out", "", f"{tmp_path}/%u/x.out", "/dev/null")
    for text in fine:
        assert list(doctor.logs(Wants({"output": text}, places))) == [], text
    relative = Wants({"error": "there/x.err"}, {})  # jobs run in the submission's folder
    assert list(doctor.logs(relative, tmp_path)) == []
    assert len(list(doctor.logs(relative, there))) == 1


def by_what(findings):
    """Return findings by what was looked at."""
    return {finding.what: finding for finding in findings}


def test_what_a_job_would_not_find_is_told_before_the_queue(tmp_path):
    """A login node may lack what the nodes have; on a node, in a job, it is a failure."""
    lacks = tmp_path / "lacks.yaml"
    lacks.write_text(
        "venv: /no/such/venv\npython: /no/such/image.sif\n"
        "env: {HPCSWEEP_DATA: /no/such/data}\ngpu: any\n"
    )
    found = list(doctor.paths(profile.load(lacks), in_job=False))
    assert [(one.level, one.what) for one in found] == [
        ("warn", "venv"), ("warn", "python"), ("warn", "env"),
    ]  # fmt: skip
    assert [one.where for one in found] == [f"{lacks}:{line}" for line in (1, 2, 3)]
    assert "/no/such/venv/bin/activate is not on this machine" in found[0].detail
    assert f"hpcsweep doctor --cluster {lacks.stem}" in found[0].do
    assert {one.level for one in doctor.paths(profile.load(lacks), in_job=True)} == {"fail"}
    wrapper = tmp_path / "in_container.sh"
    named = 'exec apptainer exec --nv "$(dirname "$0")/mine.sif" python "$@"'
    wrapper.write_text(f"#!/bin/bash\n{named}\n")
    lacks.write_text("python: ./in_container.sh\ngpu: any\n")
    (found,) = doctor.paths(profile.load(lacks), in_job=True)
    assert found.detail == f"{tmp_path}/mine.sif is not there"
    fine = tmp_path / "fine.yaml"
    fine.write_text(f"python: {sys.executable}\nenv: {{HPCSWEEP_DATA: {tmp_path}}}\ngpu: any\n")
    assert not list(doctor.paths(profile.load(fine), in_job=True))


def test_this_environment_is_fit(desk):
    """The tests could not run otherwise: torch and torchvision are a pair, results writable."""
    found = by_what(doctor.examine(None, desk.results))
    assert found["torch"].level == "ok", found["torch"]
    assert found["results"].level == "ok"
    assert found["python"].level == "ok"


def test_without_torch_the_deep_look_names_the_extra(desk, monkeypatch):
    """No process is started in vain."""
    monkeypatch.setitem(sys.modules, "torch", None)
    found = by_what(doctor.examine(None, desk.results, deep=True))["torch import"]
    assert (found.level, found.do) == ("fail", "pip install 'hpcsweep[measure]'")


def _python(folder, monkeypatch, text):
    """Let a script answer for the Python that the doctor starts."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(path))


def test_a_broken_installation_is_a_finding(desk, monkeypatch):
    """Not a crash: the last line of what the process said."""
    _python(desk.folder, monkeypatch, "echo 'ImportError: libcudart.so.12' >&2\nexit 1")
    found = by_what(doctor.examine(None, desk.results, deep=True))["torch import"]
    assert (found.level, found.detail) == ("fail", "ImportError: libcudart.so.12")


@pytest.mark.parametrize(
    ("refused", "level", "told"),
    [("", "ok", "Tesla V100"), ("torch 9.9 has no code for 'Tesla V100'", "fail", "no code")],
)
def test_what_torch_says_of_the_gpu_is_told(desk, monkeypatch, refused, level, told):
    """The process answers as a worker on that machine would; here a script answers for it."""
    seen = {"threads": 4, "mkldnn": True, "cudnn": 91900, "gpu": "Tesla V100 (sm_70)"}
    seen |= {"refused": refused, "do": "install another", "lacking": "no NVML"}
    _python(desk.folder, monkeypatch, f"echo {shlex.quote(json.dumps(seen))}")
    found = by_what(doctor.examine(None, desk.results, deep=True))
    gpu = found["gpu"]
    assert (gpu.level, told in gpu.detail) == (level, True)
    assert gpu.do == ("install another" if refused else "")
    assert found["telemetry"].level == "warn"
    assert found["telemetry"].detail.startswith("no NVML; these are off: clock, power, ")


def test_a_cluster_profile_needs_a_cluster(desk, monkeypatch):
    """Without sbatch, such as on a laptop, nobody knows whether it fits, and that is told."""
    monkeypatch.setattr("hpcsweep.cluster.slurm.available", lambda: False)
    found = by_what(doctor.examine(profile.load("l40"), desk.results))
    assert (found["slurm"].level, "not checked" in found["slurm"].detail) == ("warn", True)
    assert "login node" in found["slurm"].do


def test_a_profile_whose_jobs_would_lack_torch_is_told(desk, monkeypatch):
    """Where it names a Python of its own, that one is not ours to judge."""
    desk.spec("gpu: v100\n", "plain.yaml")
    desk.spec("gpu: v100\npython: /opt/python\n", "own.yaml")
    monkeypatch.setattr("hpcsweep.cluster.slurm.available", lambda: False)
    monkeypatch.setitem(sys.modules, "torch", None)
    plain, own = (
        doctor.examine(profile.load(desk.folder / name), desk.results)
        for name in ("plain.yaml", "own.yaml")
    )
    assert [one.what for one in plain if one.level == "warn" and "torch" in one.detail]
    assert not [one.what for one in own if one.level == "warn" and "torch" in one.detail]
    assert by_what(plain)["[measure]"].do == "pip install 'hpcsweep[measure]'"
    assert not {"[measure]", "load", "device"} & by_what(own).keys()  # a login node needs none
    here = by_what(doctor.examine(profile.load("local"), desk.results))
    assert "device" in here


def test_json_and_exit_code(desk):
    """Pure JSON on stdout."""
    done = desk.run_process("doctor", "--json")
    assert done.returncode == 0
    assert {"level", "what", "detail", "do", "where"} == set(
        json.loads(done.stdout)["machines"][0]["findings"][0]
    )


def _gpu_on_path(folder, monkeypatch, name):
    """Put an nvidia-smi on the path that lists a GPU."""
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\necho '{name}'\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_on_a_gpu_its_properties_are_written_beside_the_profile(tmp_path, monkeypatch):
    """What the program tells of the device; a profile of another GPU gets none."""
    _gpu_on_path(tmp_path, monkeypatch, "NVIDIA L40")
    _python(tmp_path, monkeypatch, "[ $1 != -m ] || echo '{\"deviceVer\": 890}'")
    for name in ("l40", "h100"):
        (tmp_path / f"{name}.yaml").write_text(f"launcher: local\ngpu: {name}\n")
    found = by_what(doctor.examine(profile.load(tmp_path / "l40.yaml"), tmp_path))["properties"]
    assert (found.level, "l40.device.json" in found.detail) == ("ok", True)
    written = json.loads((tmp_path / "l40.device.json").read_text())
    assert written == {"deviceVer": 890}
    other = by_what(doctor.examine(profile.load(tmp_path / "h100.yaml"), tmp_path))
    assert "properties" not in other
    (tmp_path / "l40.device.json").unlink()
    _python(tmp_path, monkeypatch, "echo 'a.b.Fails: cuDNN 9 at /x is mute' >&2; exit 1")
    found = by_what(doctor.examine(profile.load(tmp_path / "l40.yaml"), tmp_path))["properties"]
    assert (found.level, "data sheets" in found.do) == ("warn", True)
    assert found.detail == "cuDNN does not tell the device's: cuDNN 9 at /x is mute"
    assert not (tmp_path / "l40.device.json").exists()


def test_a_module_with_another_cudnn_is_told_before_the_queue(tmp_path, monkeypatch):
    """Torch takes no older one than its own, which is only seen on a node."""
    monkeypatch.setattr("hpcsweep.cluster.slurm.available", lambda: False)
    (tmp_path / "l40.yaml").write_text("gpu: l40\nmodules: [gcc/12, cuDNN/8.9]\n")
    found = by_what(doctor.examine(profile.load(tmp_path / "l40.yaml"), tmp_path))["modules"]
    assert (found.level, found.where) == ("warn", f"{tmp_path}/l40.yaml:2")
    assert "'cuDNN/8.9' puts another cuDNN before torch's own" in found.detail


def test_a_gpu_that_is_here_and_not_seen_is_told(monkeypatch, tmp_path):
    """With what to do, in place of the words for a machine without one."""
    unseen = LocalDevice(gpu="cpu", unused="no GPU is seen with X=''", remedy="unset X")
    monkeypatch.setattr(this_machine, "local_device", lambda *_: unseen)
    monkeypatch.setattr("hpcsweep.cluster.slurm.available", lambda: False)
    found = by_what(doctor.examine(None, tmp_path))["device"]
    assert (found.level, found.do) == ("warn", "unset X")
    assert found.detail == "sweeps run on the CPU: no GPU is seen with X=''"
    (tmp_path / "l40.yaml").write_text("gpu: l40\n")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    found = by_what(doctor.examine(profile.load(tmp_path / "l40.yaml"), tmp_path))
    assert "gpu" not in found  # an interactive job need not be on a node of the profile
    monkeypatch.setenv("HPCSWEEP_WORKLOAD", "command")  # in a job of hpcsweep
    found = by_what(doctor.examine(profile.load(tmp_path / "l40.yaml"), tmp_path))["gpu"]
    assert found.detail.startswith("this job sees no GPU (no GPU is seen with X='')")
    assert found.do == "correct `gres` and `constraint`; unset X"


def test_a_local_profile_of_another_gpu_is_told(monkeypatch, tmp_path):
    """Its worker would refuse the machine; a job's words, such as gres, do not help there."""
    monkeypatch.setattr(this_machine, "local_device", lambda *_: LocalDevice(gpu="h100"))
    (tmp_path / "l40.yaml").write_text("launcher: local\ngpu: l40\n")
    found = by_what(doctor.examine(profile.load(tmp_path / "l40.yaml"), tmp_path))["gpu"]
    assert (found.level, found.do) == ("fail", "correct `gpu`")
    assert found.detail == "this machine has: h100; the profile's is l40"
