"""A site whose Slurm takes its time: users say how long to wait for an answer."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from lab import PATH
from labtools import SIX, furnished, unfinished

if TYPE_CHECKING:
    from pathlib import Path

    from lab import Lab
    from localruns import Desk

PROGRAMS = ("squeue", "sacct", "scontrol", "sinfo", "sacctmgr", "sbatch", "scancel")
ENOUGH = "slurm_timeout = 90\n"
TOO_LITTLE = {"HPCSWEEP_SLURM_TIMEOUT": "1"}
TOLD = "no answer within 1 s (`slurm_timeout = 6` in hpcsweep.toml waits longer)"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: Lab) -> Desk:
    """Give a folder with a sweep, on a machine where each program of Slurm takes two seconds."""
    slow = tmp_path / "bin"
    slow.mkdir()
    for name in PROGRAMS:
        program = slow / name
        program.write_text(f'#!/bin/sh\nsleep 2\nexec {shutil.which(name, path=PATH)} "$@"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow}:{os.environ['PATH']}")
    return furnished(tmp_path / "desk", SIX)


def test_who_waits_longer_for_a_slow_slurm_is_answered(cluster: Lab, desk: Desk):
    """The key of a file and the variable reach each question, and an order; else it is named."""
    desk.spec(ENOUGH, "hpcsweep.toml")
    late = desk.run("doctor", "--cluster", "v100", **TOO_LITTLE)
    assert f"not checked: scontrol: {TOLD}" in " ".join(late.stdout.split())
    checked = desk.run("doctor", "--cluster", "v100")
    assert (checked.returncode, "not checked" in checked.stdout) == (0, False), checked.stdout
    sent = desk.run("submit", "s.yaml", "--cluster", "v100")
    assert (sent.returncode, sent.stderr.count("no answer")) == (0, 0), sent.stderr
    late = desk.run("status", **TOO_LITTLE)
    assert f"not asked: squeue: {TOLD}" in late.stdout
    (submission,) = desk.sweep("s").submissions()
    assert f"s: {submission.id}:0 was pending (when sent), as of " in late.stdout
    assert "not asked" not in desk.run("status").stdout
    refused = desk.run("cancel", "s", **TOO_LITTLE)
    assert (refused.returncode, TOLD in refused.stderr) == (7, True), refused
    assert desk.run("cancel", "s").returncode == 0
    cluster.wait_for("end of the jobs", unfinished, enough=lambda left: not left)
