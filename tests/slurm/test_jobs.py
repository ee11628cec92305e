"""Asking for the states of jobs, and cancelling them, where Slurm's answers are odd."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest

from hpcsweep import slurm
from hpcsweep.errors import SchedulerError
from hpcsweep.slurm import Meaning

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


SINCE = datetime(2026, 1, 1, tzinfo=timezone.utc)


def test_an_order_without_an_answer_is_an_error(program: Callable[[str, str], Path]):
    """Nobody may believe that a job was cancelled when Slurm did not say so."""
    program("scancel", "exec sleep 60")
    with pytest.raises(SchedulerError, match="no answer within"):
        slurm.cancel(["1"], timeout=0.3)


def test_nonsense_in_an_answer_is_left_out(program: Callable[[str, str], Path]):
    """Headings of clusters, torn lines, other encodings and unknown states do not stop us."""
    line = r"12_3\037GLIDING\037None\037n\377|,\037N/A\037N/A\037garbage"
    program("squeue", f"printf 'CLUSTER: far\\n\\n{line}\\n12_4\\037RUN'")
    (job,) = slurm.queue(["12"])
    assert (job.id.key, job.state.name, job.state.meaning) == ((12, 3), "GLIDING", Meaning.UNKNOWN)
    assert (job.nodes, job.ended) == ("n\N{REPLACEMENT CHARACTER}|,", None)


def test_very_many_jobs_are_asked_for_by_their_user(
    program: Callable[[str, str], Path], tmp_path: Path
):
    """A command line has an end, so the answer is sifted here instead; it is still one call."""
    line = r"\037RUNNING\037\037n1\037N/A\037N/A\037N/A\n"
    program(
        "squeue", f"echo \"$@\" | head -c 400 >> {tmp_path}/calls\nprintf '5{line}999999{line}'"
    )
    found = slurm.queue(str(job) for job in range(50_000))
    assert [job.id.job for job in found] == [5]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 1
    assert f"--user={os.getuid()}" in calls[0]


def test_nothing_to_ask_asks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No ids, or none that is one, is an empty answer, even where there is no Slurm."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm.queue([]) == []
    assert slurm.queue(["not an id"]) == []
    assert slurm.attempts([], SINCE) == []
    assert slurm.survey([], SINCE) == slurm.Survey({}, ())
    assert slurm.hostnames("") == slurm.hostnames("None assigned") == ()
    assert slurm.hostnames("n1,n2") == ("n1", "n2")
    slurm.cancel([])


@pytest.mark.slow
def test_queue_and_accounts_are_asked_at_the_same_time(program: Callable[[str, str], Path]):
    """A hang of both costs our patience once: each saw the other running before it was ended."""
    meet = 'until [ -e squeue.up ] && [ -e sacct.up ]; do sleep 0.02; done; touch "$0.seen"'
    text = f'cd "${{0%/*}}"; touch "$0.up"; {meet}; exec sleep 60'
    paths = [program(name, text) for name in ("squeue", "sacct")]
    survey = slurm.survey(["1"], SINCE, timeout=2)
    assert [answer.program for answer in survey.unanswered] == ["squeue", "sacct"]
    assert all(path.with_suffix(".seen").exists() for path in paths)


def test_an_array_that_the_accounts_have_not_split_yet_is_not_a_job_of_its_own(
    program: Callable[[str, str], Path],
):
    """Sacct lists a new array as one job without a task; the queue's tasks are the truth."""
    queued = r"12_0\037RUNNING\037\037n1\037N/A\037N/A\037N/A\n"
    past = r"12\037PENDING\037None\037\037N/A\037N/A\037N/A\0370:0\n"
    program("squeue", f"printf '{queued}'")
    program("sacct", f"printf '{past}'")
    assert list(slurm.survey(["12"], SINCE).jobs) == [(12, 0)]


def test_a_list_of_tasks_that_nobody_has_costs_nothing(program: Callable[[str, str], Path]):
    """Slurm says which tasks wait in one line; a broken one may name more than fit into memory."""
    line = r"12_[0-99999999999]\037PENDING\037None\037\037N/A\037N/A\037N/A\0370:0\n"
    program("sacct", f"printf '{line}{line.replace('99999999999', '9999999')}'")
    found = slurm.attempts(["12"], SINCE)
    assert len(found) < 200_000
