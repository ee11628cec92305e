"""Measuring in rounds on a real Slurm: a submission for each."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pytest

from hpcsweep.store import rounds
from labtools import furnished, wait_for_the_end
from paths import SUPPORT

if TYPE_CHECKING:
    from pathlib import Path

    from lab import Lab
    from localruns import Desk

SPEC = """\
name: s
workload: noop
axes: {model: [resnet18], input_size: {start: 10, stop: 200, num: 39}}
measure: {sleep_ms: 40}
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Give a folder with a sweep and a profile."""
    steady = json.dumps(str(SUPPORT / "steadysleep"))  # a prediction is about times
    return furnished(tmp_path, SPEC, f"env: {{PYTHONPATH: {steady}}}\n")


def _until(desk: Desk, *more: str, target: str = "90%"):
    return desk.run("submit", "s.yaml", "--cluster", "v100", "--until-error", target, *more)


def test_each_round_is_a_submission_and_the_same_command_sends_the_next(cluster: Lab, desk: Desk):
    """While one is queued nothing is sent; then `status` and the command say how far it is."""
    profile = desk.folder / "cluster_profiles/v100.yaml"
    gate = json.dumps(f"until [ -e {shlex.quote(str(desk.folder / 'go'))} ]; do sleep 0.1; done")
    profile.write_text(f"{profile.read_text()}setup: [{gate}]\n")
    told = _until(desk, target="0.00001%")
    assert told.returncode == 0, told.stderr
    assert "7 points on v100" in told.stdout
    assert "the same command again judges this round" in told.stdout
    assert len(desk.sweep("s").submissions()) == 1
    again = _until(desk, target="0.00001%")
    assert (again.returncode, "nothing to measure" in again.stdout) == (0, True)
    assert len(desk.sweep("s").submissions()) == 1
    (desk.folder / "go").touch()
    wait_for_the_end(cluster)
    assert "held-out error not known yet" in desk.run("status", "s").stdout
    assert _until(desk, target="0.00001%").returncode == 0  # the second round
    wait_for_the_end(cluster)
    told = _until(desk, "--watch")
    assert told.returncode == 0, told.stderr
    assert "measured 10 of 39 points" in told.stdout
    assert "(mean of 8 points), target 90 %: target reached" in told.stdout
    assert "29 points predicted" in told.stdout
    known = rounds.read_rounds(desk.sweep("s"))["v100"].rounds
    assert [len(one.points) for one in known] == [7, 3]
    asked = [point for one in known for point in one.points]
    assert sorted(row["point_id"] for row in desk.rows("s")) == sorted(asked)


def test_a_round_that_is_not_valid_ends_it_until_a_retry(cluster: Lab, desk: Desk):
    """In the queue as on one machine; `status` names the command."""
    fails = "sleep_ms: 4, fail: [{how: contended, attempts: 1}]"
    (desk.folder / "s.yaml").write_text(SPEC.replace("sleep_ms: 40", fails))
    told = _until(desk, "--watch")
    assert told.returncode == 10, told.stdout + told.stderr
    assert "most of its points are not valid" in told.stdout
    assert "these 7 points again: hpcsweep retry s --invalid" in desk.run("status", "s").stdout
    assert (
        "7 points to measure again on v100"
        in desk.run("retry", "s", "--invalid", "--dry-run").stdout
    )
    assert desk.run("retry", "s", "--invalid").returncode == 0
    wait_for_the_end(cluster)
    assert "not valid" not in desk.run("status", "s").stdout.partition("v100: round")[0]
    assert [row["valid"] for row in desk.rows("s")] == ["false"] * 7 + ["true"] * 7
    assert len(desk.sweep("s").submissions()) == 2


@pytest.mark.no_second_try
@pytest.mark.slow
def test_jobs_that_end_without_rows_are_not_sent_for_ever(cluster: Lab, desk: Desk):
    """A setup that fails: two submissions, and then the exit code for missing points."""
    profile = desk.folder / "cluster_profiles/v100.yaml"
    profile.write_text(profile.read_text() + "setup: ['exit 7']\n")
    told = _until(desk, "--watch")
    assert told.returncode == 4, told.stdout + told.stderr
    assert len(desk.sweep("s").submissions()) == 2
    assert "the same command again" in told.stdout
