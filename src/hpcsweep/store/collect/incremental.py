"""Collect's memory between two runs: by it a collect knows that nothing changed, and reads nothing.

Where something did, all shards are read again: the tables are rewritten whole in any case. The file
is a cache; where it is gone, damaged or of another version, nothing is known.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hpcsweep import __version__, files
from hpcsweep.errors import ResultsError
from hpcsweep.store import typed_json
from hpcsweep.store.folders import ShardPath, SweepDir

_FORMAT: Final = f"10 {__version__}"

Stamp = list[int]  # inode, size, time of the last change in ns; empty: no such file


@dataclass
class CollectMemory:
    """The state of collect after a run."""

    planned: list[str]
    shards: dict[str, list[Stamp]]
    report: dict[str, Any]
    tables: list[Stamp] = field(default_factory=list)

    def is_current(self, sweep_dir: SweepDir, planned: list[str]) -> bool:
        """Say whether neither shards nor tables nor what is planned have changed since."""
        same = self.planned == planned and self.tables == table_stamps(sweep_dir)
        return same and self.shards == stamps(sweep_dir)


def load_memory(sweep_dir: SweepDir) -> CollectMemory | None:
    """Return the memory of the last collect; None where it cannot be used."""
    try:
        record = files.read_json(sweep_dir.collect_index)
        typed_json.prove(record)
        del record["crc"]
        return CollectMemory(**record) if record.pop("format") == _FORMAT else None
    except (ResultsError, ValueError, KeyError, TypeError):
        return None


def save(sweep_dir: SweepDir, memory: CollectMemory) -> None:
    """Write the memory; if the disk is full, the next collect reads everything again."""
    record = {"format": _FORMAT, **vars(memory), "tables": table_stamps(sweep_dir)}
    with suppress(ResultsError), files.replacing(sweep_dir.collect_index) as file:
        file.write(json.dumps(typed_json.sealed(record)).encode())


def stamps(sweep_dir: SweepDir) -> dict[str, list[Stamp]]:
    """Return the stamps of the tables of every shard, by its name below `shards/`.

    Those of layer rows and samples count, too: on a slow network disk they may come late.
    """
    return {
        name_of(shard): [*map(stamp_of, (shard.overall, shard.layers, shard.samples))]
        for shard in sweep_dir.shards()
    }


def table_stamps(sweep_dir: SweepDir) -> list[Stamp]:
    """Return the stamps of the merged tables."""
    return [*map(stamp_of, sweep_dir.merged())]


def stamp_of(path: Path) -> Stamp:
    """Return a file's inode, size and time, which change with the file."""
    try:
        status = os.stat(path)  # noqa: PTH116 - thousands of them
    except OSError:
        return []
    return [status.st_ino, status.st_size, status.st_mtime_ns]


def name_of(shard: ShardPath) -> str:
    """Return a shard's name below `shards/`."""
    return f"{shard.submission}/{shard.chunk}.{shard.attempt}"
