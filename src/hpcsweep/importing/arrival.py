"""Moves submissions that were made aside to their place; a kill at any moment loses no row.

All that is not there yet lies in a hidden folder of the sweep. What a killed import left in it, the
next one finishes or removes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from hpcsweep.errors import HpcsweepError, ResultsError
from hpcsweep.store import folders, locks
from hpcsweep.store.folders import SubmissionDir, SweepDir

# below the folder of files on their way: submissions that are being made, that are whole and must
# come in, and that gave way to those
_READY: Final = "ready"
_MOVING: Final = "moving"
_OLD: Final = "old"


@contextmanager
def arriving(sweep_dir: SweepDir) -> Iterator[SweepDir]:
    """Give a hidden folder for submissions that are not whole yet; the caller holds the lock."""
    _finish(sweep_dir)
    try:
        aside = tempfile.mkdtemp(dir=sweep_dir.path, prefix=folders.IMPORTING)
        yield SweepDir(Path(aside, _READY))
    finally:
        _finish(sweep_dir)


def arrive(made: SubmissionDir, sweep_dir: SweepDir) -> None:
    """Make a submission visible that is whole; one of its name gives way to it."""
    here = sweep_dir.submission(made.id)
    for path in (here.path, here.shards):
        if path.exists() and not os.access(path, os.W_OK):
            raise ResultsError(f"{path}: this user may not replace it; ask its owner to import")
    sync(made.shards)
    sync(made.path)
    moving = SweepDir(made.sweep_dir.path.with_name(_MOVING)).submission(made.id)
    move(made.shards, moving.shards)
    move(made.path, moving.path)  # from now on a kill does not stop it: `_finish` goes on
    _move_in(moving, sweep_dir)


def _move_in(moving: SubmissionDir, sweep_dir: SweepDir) -> None:
    """Move a submission to its place, or do what a kill left of that.

    Records go first and come last: nobody sees the rows of one with the record of the other.
    """
    here = sweep_dir.submission(moving.id)
    if moving.shards.exists():
        old = SweepDir(moving.sweep_dir.path.with_name(_OLD)).submission(moving.id)
        for path, to in ((here.path, old.path), (here.shards, old.shards)):
            if path.exists():
                move(path, to)
        move(moving.shards, here.shards)
    move(moving.path, here.path)


def remove_leftovers(results: Path) -> None:
    """Finish or remove what killed imports of other sweeps left; whose lock is held, one runs."""
    for folder in {aside.parent for aside in results.glob(f"*/{folders.IMPORTING}*")}:
        with suppress(HpcsweepError, OSError), locks.held(SweepDir(folder), "import", timeout=0):
            _finish(SweepDir(folder))


def _finish(sweep_dir: SweepDir) -> None:
    """End what an import that was cut short had begun to move; remove what it had not."""
    for aside in sweep_dir.path.glob(f"{folders.IMPORTING}*"):
        for moving in SweepDir(aside / _MOVING).submissions():
            _move_in(moving, sweep_dir)
        shutil.rmtree(aside, ignore_errors=True)


def move(path: Path, to: Path) -> None:
    """Move a folder to where none is; a machine that dies does not undo it."""
    to.parent.mkdir(parents=True, exist_ok=True)
    path.rename(to)
    sync(to.parent)


def sync(folder: Path) -> None:
    """Sync the names in a folder, where its file system can."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
