"""Submitting where sbatch hangs, retries, or prints more than an id."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psutil
import pytest

from hpcsweep import slurm
from hpcsweep.errors import SchedulerError
from hpcsweep.slurm import JobId, LimitReached, Unanswered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_submission_that_hangs_may_have_been_accepted(
    program: Callable[[str, str], Path], tmp_path: Path
):
    """The error says so, and says how to look."""
    program("sbatch", "exec sleep 60")
    with pytest.raises(Unanswered, match="may be in the queue") as caught:
        slurm.submit(tmp_path / "job.sh", timeout=0.3)
    assert caught.value.maybe_accepted


def test_sbatch_that_retries_for_ever_is_ended_early(
    program: Callable[[str, str], Path], tmp_path: Path
):
    """At MaxJobCount sbatch sleeps and retries; after `patience` it is a limit, not a time-out."""
    said = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
    program("sbatch", f"echo '{said}' >&2; exec sleep 600")
    with pytest.raises(LimitReached) as caught:
        slurm.submit(tmp_path / "job.sh", timeout=300, patience=0.3)
    assert caught.value.limit == "MaxJobCount"


def test_what_a_sites_script_started_is_ended_with_it(
    program: Callable[[str, str], Path], tmp_path: Path
):
    """An sbatch behind a wrapper must not submit later what we have reported as refused."""
    said = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
    program("sbatch", f"echo '{said}' >&2; sleep 60 & echo $! > {tmp_path}/pid; wait")
    with pytest.raises(LimitReached):
        slurm.submit(tmp_path / "job.sh", timeout=300, patience=0.5)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while _is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_greeting_around_the_job_id_is_not_the_job_id(
    program: Callable[[str, str], Path], tmp_path: Path
):
    """The id is found among a site's own lines; none at all is an open question, not a job."""
    program("sbatch", "echo Welcome; echo '12;far'; echo 'Have a nice day'")
    assert slurm.submit(tmp_path / "job.sh").key == (12, None)
    program("sbatch", "echo Welcome")
    with pytest.raises(Unanswered, match="no job id but 'Welcome'") as caught:
        slurm.submit(tmp_path / "job.sh")
    assert caught.value.maybe_accepted


def test_a_slow_answer_to_a_submission_is_waited_for(
    program: Callable[[str, str], Path], tmp_path: Path
):
    """Only sbatch's own word that it retries shortens our patience."""
    program("sbatch", "sleep 0.6; echo '7;far'")
    job = slurm.submit(tmp_path / "job.sh", timeout=30, patience=0.2)
    assert job == JobId("7;far", 7, cluster="far")


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_answer_without_an_id_is_shown_in_part(
    program: Callable[[str, str], Path], tmp_path: Path
):
    """A site may greet at length, or refuse with its rules."""
    script = tmp_path / "job.sh"
    for code in (0, 1):
        often = "%.0s' $(seq 9999)"
        program("sbatch", f"printf 'Welcome. {often}; printf 'No. {often} >&2; exit {code}")
        with pytest.raises(SchedulerError) as caught:
            slurm.submit(script)
        assert len(str(caught.value)) < 1000
