"""Collect's memory between two runs: by it a collect knows that nothing changed, and reads nothing.

Where something did, all shards are read again: the tables are rewritten whole in any case. The file
is a cache; where it is gone, damaged or of another version, nothing is known.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import files
from hpcsweep.errors import ResultsError
from hpcsweep.store import typed_json
from hpcsweep.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from hpcsweep.store.folders import SweepDir

_FORMAT: Final = f"11 {__version__}"


def state_of(sweep_dir: SweepDir, planned: Sequence[str]) -> str:
    """Return a checksum of what collect reads: what is planned, and the stamps of every shard.

    Those of layer rows and samples count, too: on a slow network disk they may come late.
    """
    tables = ((one.overall, one.layers, one.samples) for one in sweep_dir.shards())
    return _checksum([*planned, *map(_stamps, tables)])


def report_of(sweep_dir: SweepDir, state: str) -> dict[str, Any] | None:
    """Return the report of the last collect, if neither this state nor the tables changed since."""
    try:
        record = files.read_json(sweep_dir.collect_index)
        typed_json.prove(record)
        now = {"format": _FORMAT, "state": state, "tables": _tables(sweep_dir)}
        report: dict[str, Any] = record["report"]
    except (ResultsError, ValueError, KeyError):
        return None
    return report if now.items() <= record.items() else None


def save(sweep_dir: SweepDir, state: str, report: dict[str, Any]) -> None:
    """Write the memory; if the disk is full, the next collect reads everything again."""
    record = {"format": _FORMAT, "state": state, "tables": _tables(sweep_dir), "report": report}
    with suppress(ResultsError), files.replacing(sweep_dir.collect_index) as file:
        file.write(json.dumps(typed_json.sealed(record)).encode())


def _tables(sweep_dir: SweepDir) -> str:
    return _checksum([_stamps(sweep_dir.merged())])


def _checksum(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _stamps(paths: Iterable[Path]) -> str:
    """Return the names, inodes, sizes and times of files, which change with a file."""
    stamps = []
    for path in paths:
        with suppress(OSError):
            status = os.stat(path)  # noqa: PTH116 - thousands of them
            name = f"{path.parent.name}/{path.name}"  # the same from any working directory
            stamps.append(f"{name} {status.st_ino} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(stamps)
