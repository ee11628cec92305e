"""The doctor finds what is wrong, says what to do, and imports nothing heavy to do so."""

from __future__ import annotations

import json

import pytest

from hpcsweep.preflight import doctor
from hpcsweep.spec import profile
from localruns import Desk


@pytest.fixture
def desk(tmp_path):
    """Return a folder of its own."""
    return Desk(tmp_path)


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


def test_torch_is_imported_in_a_process_of_its_own(desk):
    """A broken installation is a finding, not a crash."""
    found = by_what(doctor.examine(None, desk.results, deep=True))
    assert found["torch import"].level == "ok"


def test_a_gpu_without_code_in_this_torch_is_told():
    """V100 is sm_70; builds for CUDA 13 have dropped it."""
    seen = {"device": "Tesla V100", "capability": [7, 0], "archs": ["sm_75", "sm_90"], "cudnn": 1}
    assert doctor._gpu_code(seen).level == "fail"
    assert doctor._gpu_code({**seen, "capability": [7, 5]}).level == "ok"


def test_a_cluster_profile_needs_a_cluster(desk, monkeypatch):
    """Without sbatch the profile cannot be checked, and that is a failure."""
    monkeypatch.setattr("hpcsweep.slurm.available", lambda: False)
    found = by_what(doctor.examine(profile.load("l40"), desk.results))
    assert found["slurm"].level == "fail"
    assert "login node" in found["slurm"].do


def test_json_and_exit_code(desk):
    """Pure JSON on stdout."""
    done = desk.run("doctor", "--json")
    assert done.returncode == 0
    assert {"level", "what", "detail", "do", "where"} == set(json.loads(done.stdout)[0])
