"""Jobs that an earlier version put into the queue of a real Slurm are run by this one.

The program was replaced while they waited. `acceptance/recorded` holds what the earlier version
left: the job script as it sent it, and what submitit pickled.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from labtools import wait_for_the_end
from localruns import Desk
from paths import TESTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab import Lab

RECORDED = TESTS / "acceptance" / "recorded"
RECORDED_IN = b"/tmp/hpcsweep-recorded-000000000000"  # in scripts, and in pickles


@pytest.fixture
def desk() -> Iterator[Desk]:
    """Give a copy of the recorded folder, in a place whose name is as long as it was there.

    submitit pickles the path with its length.
    """
    folder = Path(tempfile.gettempdir()) / f"hpcsweep-recorded-{uuid4().hex[:12]}"
    assert len(str(folder)) == len(RECORDED_IN)
    shutil.copytree(RECORDED / "desk", folder)
    for sweep in ("waiting", "waiting_submitit"):
        shutil.copytree(RECORDED / "results" / sweep, folder / "results" / sweep)
        # git keeps no empty folder: the log of sbatch goes into the first, rows into the second
        (submission,) = (folder / "results" / sweep / "submissions").iterdir()
        (submission / "logs").mkdir(exist_ok=True)
        (folder / "results" / sweep / "shards" / submission.name).mkdir(parents=True, exist_ok=True)
    for path in folder.rglob("*"):
        if path.suffix in (".sbatch", ".sh", ".pkl"):  # a manifest has a checksum
            path.write_bytes(path.read_bytes().replace(RECORDED_IN, str(folder).encode()))
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    yield Desk(folder)
    shutil.rmtree(folder)


def queued(lab: Lab, desk: Desk, sweep: str, script: str, *arguments: str) -> None:
    """Put a script into the queue as the earlier version did, and write its id where it did."""
    submission = next((desk.results / sweep / "submissions").iterdir())
    options = [f"--chdir={submission}", "--requeue", "--array=0-1", "--partition=gpu"]
    answer = lab.run("sbatch", "--parsable", *options, str(submission / script), *arguments)
    number = answer.stdout.strip().partition(";")[0]
    for path in submission.glob("logs/submitit/6_*"):
        path.rename(path.with_name(f"{number}_{path.name.partition('_')[2]}"))
    journal = submission / "jobs.jsonl"
    sending, sent = map(json.loads, journal.read_text().splitlines())
    sent["job_id"] = number
    for entry in (sending, sent):
        del entry["crc"]  # a line without a checksum is read, too
        entry["controller"] = controller(lab)
    journal.write_text(f"{json.dumps(sending)}\n{json.dumps(sent)}\n")


def controller(lab: Lab) -> str:
    """Return the address of slurmctld as this version would write it."""
    settings = dict(
        line.split("=", 1)
        for line in (lab.directory / "slurm.conf").read_text().splitlines()
        if "=" in line and not line.startswith("#")
    )
    return f"{settings['SlurmctldHost'].partition('(')[0]}:{settings['SlurmctldPort']}"


@pytest.mark.parametrize(
    ("sweep", "script"),
    [
        ("waiting", "job.sbatch"),
        ("waiting_submitit", "logs/submitit/6_submission.sh"),
    ],
)
def test_what_the_earlier_version_queued_runs(cluster: Lab, desk: Desk, sweep: str, script: str):
    """Every point has its row, and nothing is sent a second time."""
    queued(cluster, desk, sweep, script, *(["0"] if sweep == "waiting" else []))
    launcher = "sbatch" if sweep == "waiting" else "submitit"
    profile = desk.folder / "cluster_profiles" / f"by_{launcher}.yaml"
    profile.parent.mkdir()
    profile.write_text(
        f"launcher: {launcher}\ngpu: v100\npartition: gpu\nconstraint: gpu2v100\n"
        f"gres: 'gpu:1'\npython: {desk.folder}/python\nmax_points_per_chunk: 4\ntime: 30\n"
    )
    again = desk.run("submit", f"{sweep}.yaml", "--cluster", f"by_{launcher}")
    assert (again.returncode, "nothing to measure" in again.stdout) == (0, True), again.stderr
    wait_for_the_end(cluster)
    assert desk.run("status", sweep).returncode == 0
    done = desk.run("collect", sweep)
    assert (done.returncode, "8 points (8 ok)" in done.stdout) == (0, True), done.stdout
    assert "the same command" not in done.stderr
