"""`submit --again` on a real Slurm: a new run, never beside one that is still queued."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpcsweep.errors import Refused
from hpcsweep.store import ledger, runs
from labtools import SIX, furnished, unfinished, wait_for_the_end

if TYPE_CHECKING:
    from pathlib import Path

    from lab import Lab

pytestmark = pytest.mark.no_second_try

MORE = "launcher: submitit\ncpus_per_task: 2\nsbatch_options: [--hold]\n"


def test_a_run_begins_when_the_one_before_has_its_rows(cluster: Lab, tmp_path: Path):
    """What is queued is no reason to send it once more; then every point has a row in each run."""
    desk = furnished(tmp_path, SIX, MORE)
    command = ("submit", "s.yaml", "--cluster", "v100", "--again")
    first = desk.run(*command)
    assert "run 1: 6 points" in first.stdout, first.stderr
    for number in (2, 3):
        beside = desk.run(*command)
        assert "queued or running" in beside.stdout + beside.stderr
        assert beside.returncode in {0, Refused.exit_code}
        held = {str(job.id.job) for job in unfinished()}
        cluster.run("scontrol", "release", *held)
        wait_for_the_end(cluster)
        if number == 2:
            assert "run 2: 6 points" in desk.run(*command).stdout
    measured = [ledger.statuses(one.dir) for one in runs.runs_of(desk.sweep("s"))]
    assert [len(found) for found in measured] == [6, 6]
