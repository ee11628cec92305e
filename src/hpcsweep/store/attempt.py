"""What the supervisor of an attempt says of itself: `<chunk>.<attempt>.env.json`.

Standard library only: the supervisor writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcsweep import files
from hpcsweep.errors import ResultsError
from hpcsweep.store import typed_json
from hpcsweep.store.state import AttemptState  # noqa: TC001 - `typed_json` asks for it

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcsweep.store.rundir import ShardPath


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """How far an attempt came, and where it ran."""

    state: AttemptState
    reason: str = ""
    pid: int = 0  # of the supervisor
    node: str = ""
    updated_at: str = ""  # UTC, ISO 8601
    slurm: dict[str, str] = field(default_factory=dict)  # Slurm's environment variables


def write(shard: ShardPath, record: AttemptRecord, machine: Mapping[str, Any]) -> None:
    """Write the record and, beside it, what the worker said about its machine.

    Raises:
        ResultsError: the folder cannot be written.

    """
    files.write_json(shard.env, {**typed_json.write(record), **machine})


def read(shard: ShardPath | None) -> AttemptRecord | None:
    """Return the record of an attempt; None where there is none, or it is damaged."""
    try:
        return typed_json.read(AttemptRecord, files.read_json(shard.env)) if shard else None
    except (ResultsError, ValueError):
        return None
