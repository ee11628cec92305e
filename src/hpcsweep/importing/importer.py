"""Imports a path: results of hpcsweep, tables of its predecessor, find-db of MIOpen, or a trace.

What was imported are submissions like any other, so `collect` merges them. Their manifests say
where they come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcsweep import files
from hpcsweep.errors import UsageError
from hpcsweep.importing import finddb, folder, predecessor, submission, trace
from hpcsweep.store import locks
from hpcsweep.store.folders import SweepDir


@dataclass(frozen=True)
class Imported:
    """What was imported, and into which sweep."""

    sweep_dir: SweepDir
    source: str
    notes: tuple[str, ...]


def bring(results: Path, path: Path, name: str = "", device: str = "") -> Imported:
    """Import a folder, tables, find-db or trace as a sweep; `device` is that of what names none.

    `UsageError` where it is neither or the sweep has other points, `ResultsError` where a file
    cannot be read or written.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    of_file = next((kind for kind in (finddb, trace) if kind.is_one(path)), None)
    plain = of_file.sweep_name(path) if of_file else path.resolve().name.removesuffix(path.suffix)
    name = name or plain
    if not files.may_name_a_sweep(name):
        raise UsageError(f"no sweep can have the name '{name}': --as {files.SWEEP_NAMES}")
    sweep_dir = SweepDir(results / name)
    theirs = None if of_file else folder.find(path)
    if theirs and sweep_dir.path.exists() and theirs.path.samefile(sweep_dir.path):
        raise UsageError(f"{path}: is that sweep already")
    if not theirs:
        submission.check(sweep_dir)
    with files.errors_named(), locks.held(sweep_dir, "import"):
        if theirs:
            return Imported(sweep_dir, *folder.copy(theirs, sweep_dir))
        return Imported(sweep_dir, *(of_file or predecessor).bring(path, sweep_dir, device))
