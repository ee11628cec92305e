"""What a supervisor says of its attempt, and what cannot be read of it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hpcsweep.errors import Unread
from hpcsweep.store import attempt
from hpcsweep.store.attempt import AttemptRecord
from hpcsweep.store.folders import ShardPath
from hpcsweep.store.shards import ShardWriter
from hpcsweep.store.state import AttemptState
from waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def shard(tmp_path: Path) -> ShardPath:
    """Return the files of an attempt."""
    return ShardPath(tmp_path, 0, 0)


def test_it_is_read_as_it_was_written(shard: ShardPath) -> None:
    """What the worker says of its machine stands beside it."""
    record = AttemptRecord(
        state=AttemptState.STOPPED, reason="SIGTERM", slurm={"SLURM_JOB_ID": "7"}
    )
    attempt.write_record(shard, record, {"host": "node1", "row": {"gpu": "l40"}})
    found = attempt.read_record(shard)
    assert found == replace(record, row={"gpu": "l40"})
    assert json.loads(shard.env.read_text())["row"] == {"gpu": "l40"}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"state": "asleep"}', '{"state": "done", "slurm": 7}']
)
def test_what_is_damaged_says_nothing(shard: ShardPath, text: str) -> None:
    """The supervisor may be writing, or a disk was full."""
    shard.env.write_text(text)
    assert attempt.read_record(shard) is None


def test_where_there_is_none_nothing_is_said(shard: ShardPath) -> None:
    """No attempt, or one that has not written yet."""
    assert attempt.read_record(shard) is None
    assert attempt.read_record(None) is None


def test_it_beats_while_its_process_lives(shard: ShardPath) -> None:
    """However long a point takes; a file that is gone stops nothing."""
    attempt.start_beating(shard, every=0.01)
    shard.samples.touch()
    os.utime(shard.samples, (0, 0))
    wait_for("beat", lambda: attempt.beats(shard.folder, [shard.samples]))


def test_what_was_not_touched_for_two_minutes_does_not_beat(shard: ShardPath) -> None:
    """By the clock of the file system, whatever this host's clock says."""
    shard.samples.touch()
    now = shard.samples.stat().st_mtime
    for ago, alive in ((0, True), (100, True), (130, False)):
        os.utime(shard.samples, (now - ago, now - ago))
        assert attempt.beats(shard.folder, [shard.samples, shard.layers]) is alive
    assert not attempt.beats(shard.folder, [shard.layers])


def test_a_sign_of_life_that_cannot_be_looked_at_is_no_death(shard: ShardPath) -> None:
    """Else what another host measures is measured here, too."""
    shard.samples.symlink_to(shard.samples)  # ELOOP, as EIO or ESTALE would be
    with pytest.raises(Unread, match="cannot be read"):
        attempt.beats(shard.folder, [shard.samples])


def test_only_attempts_that_may_still_run_are_fenced_off(shard: ShardPath) -> None:
    """The newest of each chunk, unless it said that it ended."""
    others = [ShardPath(shard.folder, 1, 0), ShardPath(shard.folder, 1, 1)]
    for one, state in ((shard, "done"), (others[0], "running"), (others[1], "running")):
        attempt.write_record(one, AttemptRecord(state=AttemptState(state)), {})
    attempt.fence_off([shard, *others])
    assert [path.name for path in shard.folder.glob("*.overall.csv")] == ["1.2.overall.csv"]


@pytest.mark.parametrize("record", [None, '{"state": "runn'])
def test_an_attempt_whose_record_cannot_be_read_is_fenced_off(
    shard: ShardPath, record: str | None
) -> None:
    """It has begun, for its file has a header; what fences it off is empty, and is none."""
    ShardWriter(shard).close()
    if record is not None:
        shard.env.write_text(record)
    attempt.fence_off([shard])
    fence = shard.next_attempt()
    assert fence.overall.exists()
    attempt.fence_off([shard, fence])
    assert not fence.next_attempt().overall.exists()
