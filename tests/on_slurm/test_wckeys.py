"""A site that takes only jobs with a wckey of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labtools import SIX, arrays, furnished, wait_for_the_end

if TYPE_CHECKING:
    from pathlib import Path

    from lab import Lab
    from labtools import StartCluster

LINES = ("TrackWCKey=yes", "AccountingStorageEnforce=limits,qos,wckeys")


def _wckeys(lab: Lab) -> dict[int, str]:
    """Return the wckey of each job that the queue knows; Slurm marks a user's default by `*`."""
    listed = lab.run("squeue", "-h", "-t", "all", "-O", "ArrayJobID:20,WCKey:20").stdout
    rows = [line.split() for line in listed.splitlines()]
    return {int(job): wckey for job, wckey in rows}


def test_a_wckey_is_sent_where_the_profile_has_one_and_only_there(
    special_cluster: StartCluster, tmp_path: Path
):
    """By either launcher; without one the user's default counts, and never one of submitit."""
    lab = special_cluster(lines=LINES)
    lab.run("sacctmgr", "-i", "add", "user", "root", f"Cluster={lab.options.name}", "wckey=mine")
    given = "sbatch_options: [--wckey=mine]\n"
    for launcher in ("sbatch", "submitit"):
        for more, expected in (("", "*"), (given, "mine")):
            desk = furnished(
                tmp_path / f"{launcher}{expected}", SIX, f"launcher: {launcher}\n{more}"
            )
            sent = desk.run("submit", "s.yaml", "--cluster", "v100")
            assert sent.returncode == 0, sent.stderr
            (submission,) = desk.sweep("s").submissions()
            (array,) = arrays(submission)
            assert _wckeys(lab)[int(array.job_id)].startswith(expected)
            wait_for_the_end(lab)
            assert len(desk.rows("s")) == 6
