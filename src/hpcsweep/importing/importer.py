"""Imports a path: results of hpcsweep, bundled or not, tables, a find-db, or a trace.

What was imported are submissions like any other, so `collect` merges them. Their manifests say
where they come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcsweep import files
from hpcsweep.errors import UsageError
from hpcsweep.importing import bundle_file, finddb, folder, predecessor, submission, table, trace
from hpcsweep.store import locks
from hpcsweep.store.folders import SweepDir


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
    submission.remove_leftovers(results)
    if not columns and bundle_file.is_one(path):
        sweep_dir = _sweep_dir(results, name or bundle_file.name_of(path))
        with files.errors_named(), locks.held(sweep_dir, "import"):
            return Imported(sweep_dir, *folder.copy_bundle(path, sweep_dir))
    of_table = table.read_columns(columns) if columns else None
    if of_table and not path.is_file():
        raise UsageError(f"{path}: --columns goes with one table, a CSV or Parquet file")
    kinds = () if of_table else (finddb, trace)
    of_file = next((kind for kind in kinds if kind.is_one(path)), None)
    plain = of_file.sweep_name(path) if of_file else path.resolve().name.removesuffix(path.suffix)
    if of_table:
        plain = path.name.split(".", 1)[0]
    sweep_dir = _sweep_dir(results, name or plain)
    theirs = None if of_file or of_table else folder.find(path)
    if theirs and sweep_dir.path.exists() and theirs.path.samefile(sweep_dir.path):
        raise UsageError(f"{path}: is that sweep already")
    if not theirs:
        submission.check(sweep_dir)
    with files.errors_named(), locks.held(sweep_dir, "import"):
        if of_table:
            return Imported(sweep_dir, *table.bring(path, sweep_dir, device, of_table))
        if theirs:
            return Imported(sweep_dir, *folder.copy(theirs.path, sweep_dir))
        return Imported(sweep_dir, *(of_file or predecessor).bring(path, sweep_dir, device))


def _sweep_dir(results: Path, name: str) -> SweepDir:
    if not files.may_name_a_sweep(name):
        raise UsageError(f"no sweep can have the name '{name}': --as {files.SWEEP_NAMES}")
    return SweepDir(results / name)
