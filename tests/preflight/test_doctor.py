"""The doctor finds what is wrong, says what to do, and imports nothing heavy to do so."""

from __future__ import annotations

import json
import shlex
import sys

import pytest

from hpcsweep.measure.machine import torch_report
from hpcsweep.preflight import doctor
from hpcsweep.spec import profile


def by_what(findings):
    """Return findings by what was looked at."""
    return {finding.what: finding for finding in findings}


def test_this_environment_is_fit(desk):
    """The tests could not run otherwise: torch and torchvision are a pair, results writable."""
    found = by_what(doctor.examine(None, desk.results))
    assert found["torch"].level == "ok", found["torch"]
    assert found["results"].level == "ok"
    assert found["python"].level == "ok"


def test_a_results_path_that_cannot_be_written_fails(desk):
    """The check writes, since permissions alone do not tell."""
    (desk.folder / "file").write_text("")
    found = by_what(doctor.examine(None, desk.folder / "file" / "results"))
    assert found["results"].level == "fail"
    assert "--results" in found["results"].do


def test_a_wrong_pair_is_told(monkeypatch):
    """Torchvision itself says which torch it needs."""
    monkeypatch.setattr("importlib.metadata.requires", lambda _: ["numpy", "torch==2.4.1"])
    wrong = doctor._pairing("2.5.0+cu121", "0.19.1")
    assert wrong.level == "fail"
    assert "goes with torch 2.4.1" in wrong.do
    assert doctor._pairing("2.4.1+cu121", "0.19.1").level == "ok"


@pytest.mark.slow
def test_torch_is_imported_in_a_process_of_its_own(desk):
    """The process that really runs; what it says is tried in this one every day."""
    found = by_what(doctor.examine(None, desk.results, deep=True))
    assert found["torch import"].level == "ok"


def test_without_torch_the_deep_look_names_the_extra(desk, monkeypatch):
    """No process is started in vain."""
    monkeypatch.setitem(sys.modules, "torch", None)
    found = by_what(doctor.examine(None, desk.results, deep=True))["torch import"]
    assert (found.level, found.do) == ("fail", "pip install 'hpcsweep[measure]'")


def test_what_the_process_says_is_what_the_doctor_reads(desk, monkeypatch):
    """Its line of JSON, here without another import of torch."""
    python = desk.folder / "python"
    said = json.dumps(torch_report.report())
    python.write_text(f"#!/bin/sh\n[ $2 = {torch_report.__name__} ] && echo {shlex.quote(said)}\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    found = by_what(doctor.examine(None, desk.results, deep=True))
    assert found["torch import"].level == "ok"


def test_a_broken_installation_is_a_finding(desk, monkeypatch):
    """Not a crash: the last line of what the process said."""
    python = desk.folder / "python"
    python.write_text("#!/bin/sh\necho 'ImportError: libcudart.so.12' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    found = by_what(doctor.examine(None, desk.results, deep=True))["torch import"]
    assert (found.level, found.detail) == ("fail", "ImportError: libcudart.so.12")


@pytest.mark.parametrize(
    ("refused", "level", "told"),
    [("", "ok", "Tesla V100"), ("torch 9.9 has no code for 'Tesla V100'", "fail", "no code")],
)
def test_what_torch_says_of_the_gpu_is_told(desk, monkeypatch, refused, level, told):
    """The process answers as a worker on that machine would; here a script answers for it."""
    seen = {"threads": 4, "mkldnn": True, "gpu": "Tesla V100 (sm_70)", "refused": refused}
    python = desk.folder / "python"
    python.write_text(f"#!/bin/sh\necho {shlex.quote(json.dumps(seen))}\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    gpu = by_what(doctor.examine(None, desk.results, deep=True))["gpu"]
    assert (gpu.level, told in gpu.detail) == (level, True)


def test_a_cluster_profile_needs_a_cluster(desk, monkeypatch):
    """Without sbatch the profile cannot be checked, and that is a failure."""
    monkeypatch.setattr("hpcsweep.slurm.available", lambda: False)
    found = by_what(doctor.examine(profile.load("l40"), desk.results))
    assert found["slurm"].level == "fail"
    assert "login node" in found["slurm"].do


def test_a_profile_whose_jobs_would_lack_torch_is_told(desk, monkeypatch):
    """Where it names a Python of its own, that one is not ours to judge."""
    desk.spec("gpu: v100\n", "plain.yaml")
    desk.spec("gpu: v100\npython: /opt/python\n", "own.yaml")
    monkeypatch.setattr("hpcsweep.slurm.available", lambda: False)
    monkeypatch.setitem(sys.modules, "torch", None)
    plain, own = (
        doctor.examine(profile.load(desk.folder / name), desk.results)
        for name in ("plain.yaml", "own.yaml")
    )
    assert [one.what for one in plain if one.level == "warn" and "torch" in one.detail]
    assert not [one.what for one in own if one.level == "warn" and "torch" in one.detail]
    assert by_what(own)["[measure]"].do == "pip install 'hpcsweep[measure]'"


def test_json_and_exit_code(desk):
    """Pure JSON on stdout."""
    done = desk.run_process("doctor", "--json")
    assert done.returncode == 0
    assert {"level", "what", "detail", "do", "where"} == set(
        json.loads(done.stdout)["machines"][0]["findings"][0]
    )
