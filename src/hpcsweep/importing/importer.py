"""Imports a path: results of hpcsweep, bundled or not, tables, a find-db, or a trace.

What was imported are submissions like any other, so `collect` merges them. Their manifests say
where they come from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hpcsweep import files
from hpcsweep.errors import UsageError
from hpcsweep.importing import arrival, bundle_file, finddb, folder, predecessor, table, trace
from hpcsweep.store import locks
from hpcsweep.store.folders import SweepDir

BringInto = Callable[[SweepDir], tuple[str, tuple[str, ...]]]  # returns source and notes


@dataclass(frozen=True)
class Imported:
    """What was imported, and into which sweep."""

    sweep_dir: SweepDir
    source: str
    notes: tuple[str, ...]


def bring(
    results: Path, path: Path, name: str = "", device: str = "", columns: str = ""
) -> Imported:
    """Import a folder, tables, find-db or trace as a sweep; `device` is that of what names none.

    `columns` names the map of the columns of another program's table.

    `UsageError` where it is neither or the sweep has other points, `ResultsError` where a file
    cannot be read or written.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    arrival.remove_leftovers(results)
    plain, bring_into = _kind(path, device, columns)
    name = name or plain
    if not files.may_name_a_sweep(name):
        raise UsageError(f"no sweep can have the name '{name}': --as {files.SWEEP_NAMES}")
    sweep_dir = SweepDir(results / name)
    with files.errors_named(), locks.held(sweep_dir, "import"):
        return Imported(sweep_dir, *bring_into(sweep_dir))


def _kind(path: Path, device: str, columns: str) -> tuple[str, BringInto]:
    """Return the name of the sweep that a path becomes, and what brings it there."""
    if columns:
        of_table = table.read_columns(columns)
        if not path.is_file():
            raise UsageError(f"{path}: --columns goes with one table, a CSV file")
        stem = path.name.split(".", 1)[0]
        return stem, partial(table.bring, path, device=device, columns=of_table)
    if bundle_file.is_one(path):
        return bundle_file.name_of(path), partial(folder.copy_bundle, path)
    for kind in (finddb, trace):
        plain = kind.sweep_name(path)
        if plain and path.is_file():
            return plain, partial(kind.bring, path, device=device)
    plain = path.resolve().name.removesuffix(path.suffix)
    theirs = folder.find(path)
    if theirs:
        return plain, partial(folder.copy, theirs.path)
    return plain, partial(predecessor.bring, path, device=device)
