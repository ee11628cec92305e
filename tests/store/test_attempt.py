"""What a supervisor says of its attempt, and what cannot be read of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from hpcsweep.store import attempt
from hpcsweep.store.attempt import AttemptRecord
from hpcsweep.store.rundir import ShardPath
from hpcsweep.store.state import AttemptState

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
    attempt.write(shard, record, {"host": "node1", "row": {"gpu": "l40"}})
    assert attempt.read(shard) == record
    assert json.loads(shard.env.read_text())["row"] == {"gpu": "l40"}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"state": "asleep"}', '{"state": "done", "slurm": 7}']
)
def test_what_is_damaged_says_nothing(shard: ShardPath, text: str) -> None:
    """The supervisor may be writing, or a disk was full."""
    shard.env.write_text(text)
    assert attempt.read(shard) is None


def test_where_there_is_none_nothing_is_said(shard: ShardPath) -> None:
    """No attempt, or one that has not written yet."""
    assert attempt.read(shard) is None
    assert attempt.read(None) is None
