"""What became of a chunk: every word of Slurm and of an attempt's file."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from hpcsweep import slurm
from hpcsweep.store.rundir import ShardPath
from hpcsweep.store.state import ChunkState
from hpcsweep.tracking import chunk_state, journal

if TYPE_CHECKING:
    from hpcsweep.store.rundir import SubmissionDir


# As squeue 22.05 prints them: id, state, reason, nodes, partition, user, times, elapsed, name.
QUEUED = "7_0|{state}|{reason}|l40sn1|gpu|root|2026-11-21T07:33:23|N/A|N/A|0:00|hpcsweep-s"


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
