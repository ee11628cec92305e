"""What became of a chunk: every word of Slurm, of the journal and of an attempt's file."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from hpcsweep import slurm
from hpcsweep.store.jobs_file import Cancelled, Queued
from hpcsweep.store.rundir import RunDir, ShardPath
from hpcsweep.store.state import ChunkState
from hpcsweep.tracking import chunk_state, journal
from hpcsweep.tracking.journal import Answer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcsweep.store.rundir import SubmissionDir

NOW = datetime.now(timezone.utc)
# As squeue 22.05 prints them: id, state, reason, nodes, partition, user, times, elapsed, name.
QUEUED = "7_0|{state}|{reason}|l40sn1|gpu|root|2026-11-21T07:33:23|N/A|N/A|0:00|hpcsweep-s"
# As sacct 22.05 printed a task whose node was set down, and its second attempt.
ACCOUNTS = """\
7_0|NODE_FAIL|None|l40sn1|gpu|root|2026-11-21T07:33:23|2026-11-21T07:33:23|2026-11-21T07:33:26|3|0:0|s
7_0|COMPLETED|None|v100n1|gpu|root|2026-11-21T07:33:31|2026-11-21T07:33:39|2026-11-21T07:33:47|8|0:0|s
"""


@pytest.fixture
def submission(tmp_path: Path) -> SubmissionDir:
    """Give a submission of two chunks, of which one went in, an hour ago."""
    made = RunDir(tmp_path / "s").submission("20261121-073323-l40")
    made.path.mkdir(parents=True)
    made.shards.mkdir(parents=True)
    sent = (NOW - timedelta(hours=1)).isoformat()
    made.append_job(Queued(job_id="7", tasks=1, submitted_at=sent))
    return made


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give a function that lets squeue and sacct print recorded lines."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def tell(squeue: str = "", sacct: str = "") -> None:
        for name, text in (("squeue", squeue), ("sacct", sacct)):
            (tmp_path / f"{name}.txt").write_text(text.replace("|", "\x1f"))
            (tmp_path / name).write_text(f"#!/bin/sh\ncat '{tmp_path}/{name}.txt'\n")
            (tmp_path / name).chmod(0o755)

    return tell


def _of(submission: SubmissionDir, chunk: int = 0, newest: Any = None) -> chunk_state.Standing:
    answer = journal.ask([submission])
    return chunk_state.in_slurm(chunk, journal.sent(submission), answer, newest)


@pytest.mark.parametrize("state", slurm.STATES, ids=lambda state: state.name)
def test_every_state_has_an_answer(submission, say, state):
    """Live if and only if Slurm's state is not over; the words are those of the table."""
    say(QUEUED.format(state=state.name, reason="Priority") + "\n")
    found = _of(submission)
    assert found.state.live is not state.over
    assert journal.ask([submission]).live_chunks(submission) == ({0} if not state.over else set())


def test_a_word_of_a_later_slurm_is_live_and_shown(submission, say):
    """Nothing is sent twice because of it."""
    say(QUEUED.format(state="GLIDING", reason="None") + "\n")
    assert _of(submission) == chunk_state.Standing(ChunkState.UNKNOWN, "Slurm says GLIDING")


def test_waiting_in_vain_is_told(submission, say):
    """With what to change."""
    say(QUEUED.format(state="PENDING", reason="PartitionTimeLimit") + "\n")
    assert _of(submission).to_change == "`time` is above the partition's limit"


def test_what_nobody_lists_is_lost_only_after_a_grace_time(submission, say):
    """The last sign of life counts: an attempt that wrote a moment ago."""
    say()
    assert _of(submission).state == "lost"
    shard = ShardPath(submission.shards, 0, 0)
    shard.overall.write_text("point_id\n")
    assert _of(submission, newest=shard).state == "lost?"
    os.utime(shard.overall, (0, 0))
    shard.env.write_text(json.dumps({"state": "refused", "reason": "wrong device"}))
    assert _of(submission, newest=shard) == chunk_state.Standing(ChunkState.FAILED, "wrong device")
    assert _of(submission, chunk=1).state == "unsent"


def test_a_journal_that_knows_all_is_asked_instead_of_slurm(submission, say):
    """Ends are kept once the queue has forgotten the job; then no program is run any more."""
    say(sacct=ACCOUNTS.replace("COMPLETED", "FAILED"))
    answer = journal.ask([submission])
    assert [job.state.name for job in answer.attempts] == ["NODE_FAIL", "FAILED"]
    journal.record(submission, answer)
    assert journal.sent(submission).over == {0: "FAILED"}
    say("nonsense", "nonsense")
    assert journal.ask([submission]) == Answer()
    assert _of(submission).state == "failed"


def test_cancelled_tasks_leave_a_trace(submission, say):
    """Slurm 22.05 keeps none of those that were cancelled while they waited."""
    say()
    submission.append_job(Cancelled(cancelled="0", at=journal.now()))
    assert _of(submission).state == "cancelled"
    assert journal.sent(submission).targets([0]) == ["7_[0]"]
