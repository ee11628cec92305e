"""Copies the submissions of another machine's results folder: shards and manifests, no logs.

The shards are as they were; the rounds of the submissions are made to follow those that are there.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.files import cannot_write
from hpcsweep.store import rundir
from hpcsweep.store.rundir import RunDir
from hpcsweep.text import count

if TYPE_CHECKING:
    from hpcsweep.store.rundir import SubmissionDir

LOCAL = "local"  # nobody here can ask for the jobs of another machine


def find(path: Path) -> RunDir | None:
    """Return the results folder at a path, or the only one in it."""
    if not path.is_dir():
        return None
    inside = rundir.runs_at(path)
    if len(inside) > 1:
        names = ", ".join(str(run.path) for run in inside)
        raise UsageError(f"{path}: import one sweep at a time ({names})")
    return inside[0] if inside else None


def check(theirs: RunDir, run: RunDir) -> None:
    """Raise `UsageError` where the sweep here is another one, so that rows would be orphans."""
    if not run.submissions_dir.is_dir():
        return
    texts = [_text(one) for one in (theirs, run)]
    if texts[0] != texts[1]:
        raise UsageError(
            f"{run.sweep_file} is not the sweep of {theirs.path}: --as imports it under another "
            "name (`compare` takes both)"
        )


def _text(run: RunDir) -> bytes:
    try:
        return run.sweep_file.read_bytes()
    except OSError:
        return b""


def copy(theirs: RunDir, run: RunDir) -> tuple[str, tuple[str, ...]]:
    """Copy what is not there yet, or was longer since; return the source, and what was done."""
    begin = run.next_round()
    source, copied = theirs.path.name, 0
    there = {submission.id for submission in run.submissions()}
    for place, submission in enumerate(theirs.submissions()):
        mine = run.submission(submission.id)
        try:
            record = submission.read_manifest()
            source = record.host or source
            known = submission.id in there
            number = mine.read_manifest().round if known else begin + place
            copied += _copy(submission, mine)
        except OSError as error:
            raise cannot_write(mine.path, error) from error
        record = replace(record, source=source, round=number, launcher=LOCAL)
        mine.write_manifest(record)
    if not copied and not there:
        raise ResultsError(f"{theirs.path}: no submission in it")
    if not run.sweep_file.exists() and theirs.sweep_file.exists():
        shutil.copy2(theirs.sweep_file, run.sweep_file)
    return source, (f"{count(copied, 'file')} copied from {theirs.path}",)


def _copy(theirs: SubmissionDir, mine: SubmissionDir) -> int:
    """Copy the points and shards of a submission that are new or longer; return how many files."""
    mine.path.mkdir(parents=True, exist_ok=True)
    mine.shards.mkdir(parents=True, exist_ok=True)
    sources = [theirs.chunks, *(path for path in theirs.shards.glob("*") if path.is_file())]
    done = 0
    for path in sources:
        to = mine.path / path.name if path == theirs.chunks else mine.shards / path.name
        if to.exists() and to.stat().st_size == path.stat().st_size:
            continue
        with tempfile.TemporaryDirectory(dir=mine.path) as aside:  # then whole, or not there
            Path(shutil.copy2(path, Path(aside) / path.name)).replace(to)
        done += 1
    return done
