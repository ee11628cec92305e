"""Copies the submissions of another machine's results folder: shards and manifests, no logs.

The shards are as they were; the rounds of the submissions are made to follow those that are there.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from hpcsweep import environment, files
from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.files import cannot_write
from hpcsweep.records import replace
from hpcsweep.store import manifest, rundir
from hpcsweep.store.manifest import Manifest
from hpcsweep.store.rundir import RunDir, SubmissionDir
from hpcsweep.text import count

LOCAL: Final = "local"  # nobody here can ask for the jobs of another machine
_SMALL, _LARGE = 64 << 20, 4 << 30  # bytes of a record or a sweep; of a file beside the rows
_RECORDS: Final = {"manifest.json", "chunks.jsonl"}

Names = tuple[str, ...]


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
    """Raise `UsageError` for another sweep than that here: its rows would be orphans.

    `ResultsError` where there is a link, pipe or device in it, or it has no room here.
    """
    _prove(theirs.path, run)
    if run.submissions_dir.is_dir() and _text(theirs) != _text(run):
        raise UsageError(
            f"{run.sweep_file} is not the sweep of {theirs.path}: --as imports it under another "
            "name (`compare` takes both)"
        )


def _text(run: RunDir) -> bytes:
    try:
        with files.opened(run.path, run.sweep_file.name, most=_SMALL) as file:
            return file.read(_SMALL)
    except ResultsError:
        return b""


def _prove(root: Path, run: RunDir) -> None:
    """Raise `ResultsError` where anything that is to be copied is no regular file, or too much."""
    total = 0
    for names in _every(root):
        with files.opened(root, *names, most=_most(names)) as file:
            total += os.fstat(file.fileno()).st_size
    place = next(folder for folder in (run.path, *run.path.absolute().parents) if folder.is_dir())
    if total > (free := shutil.disk_usage(place).free):
        raise ResultsError(f"{root}: has {total:,} bytes to copy, {place} has room for {free:,}")


def _most(names: Names) -> int:
    return _LARGE if names[0] == "shards" or names[-1] == "chunks.jsonl" else _SMALL


def _every(root: Path) -> Iterator[Names]:
    """Yield what is copied; `ResultsError` for a name that a terminal would not show as it is."""
    yield from ((name,) for name in _listed(root) if name in {"sweep.yaml", manifest.LAYOUT_FILE})
    for name in _listed(root, "submissions"):
        inside = _listed(root, "submissions", name)
        yield from (("submissions", name, file) for file in inside if file in _RECORDS)
        if "manifest.json" in inside:
            shards = _listed(root, "shards", name, files=True)
            yield from (("shards", name, file) for file in shards)


def _listed(root: Path, *names: str, files: bool = False) -> list[str]:
    """Return what is in a folder, but hidden files and, if files are wanted, folders."""
    folder = root
    for name in names:
        folder /= name
        if folder.is_symlink():
            raise ResultsError(f"{folder}: is a link; copy what you trust with `cp -rL` first")
    if not folder.is_dir():
        return []
    every = sorted(name for name in os.listdir(folder) if not name.startswith("."))  # noqa: PTH208
    if bad := [name for name in every if not name.isprintable()]:
        raise ResultsError(f"{folder}: has the name {bad[0]!r}; rename it")
    return [n for n in every if not (files and stat.S_ISDIR((folder / n).lstat().st_mode))]


def copy(theirs: RunDir, run: RunDir) -> tuple[str, Names]:
    """Copy what is not there yet, or was longer since; return the source, and what was done."""
    begin = run.next_round()
    source, copied = theirs.path.name, 0
    there = {submission.id for submission in run.submissions()}
    with tempfile.TemporaryDirectory(dir=run.path, prefix=".import-") as aside:
        every = [*_every(theirs.path)]
        safe = _records(theirs.path, every, RunDir(Path(aside) / theirs.name))
        for place, submission in enumerate(safe.submissions()):
            mine = run.submission(submission.id)
            try:
                record = submission.read_manifest()
                source = record.host or source
                is_here = submission.id in there
                number = mine.read_manifest().round if is_here else begin + place
                copied += _copy(theirs.path, every, mine)
            except OSError as error:
                raise cannot_write(mine.path, error) from error
            except ResultsError as error:
                raise type(error)(str(error).replace(str(safe.path), str(theirs.path))) from error
            mine.write_manifest(_imported(record, mine.id, source, number))
        if not copied and not there:
            raise ResultsError(f"{theirs.path}: no submission in it")
        if not run.sweep_file.exists() and safe.sweep_file.exists():
            safe.sweep_file.replace(run.sweep_file)
    return source, (f"{count(copied, 'file')} copied from {theirs.path}",)


def _imported(record: Manifest, name: str, source: str, number: int) -> Manifest:
    """Return a manifest without what would name secrets, or code of another machine to run here."""
    fields = {**manifest.masked(record.profile_fields), "path": ""}
    return replace(
        record, id=name, source=source, round=number, launcher=LOCAL, profile_fields=fields,
        run=replace(record.run, search_path=()),
    )  # fmt: skip


def _records(root: Path, every: Sequence[Names], safe: RunDir) -> RunDir:
    """Copy the sweep and the manifests, so that they are read where nobody changes them."""
    manifest.check_layout(root)  # names the file where it lies
    for names in every:
        if _most(names) == _SMALL:
            to = safe.path.joinpath(*names)
            to.parent.mkdir(parents=True, exist_ok=True)
            _take(root, names, to)
    manifest.check_layout(safe.path)
    return safe


def _copy(root: Path, every: Sequence[Names], mine: SubmissionDir) -> int:
    """Copy the points and shards of a submission that are new or longer; return how many files."""
    mine.path.mkdir(parents=True, exist_ok=True)
    mine.shards.mkdir(parents=True, exist_ok=True)
    done = 0
    for names in every:
        if names[1:2] != (mine.id,) or names[-1] == "manifest.json":
            continue
        folder = mine.path if names[-1] == mine.chunks.name else mine.shards
        done += _take(root, names, folder / names[-1])
    return done


def _take(root: Path, names: Names, to: Path) -> bool:
    """Copy a file as long as it is now, unless one of this length is there; say whether it was."""
    with files.opened(root, *names, most=_most(names)) as file:
        state = os.fstat(file.fileno())
        if names[-1].endswith(".env.json"):
            return _take_env(file.read(_SMALL), to)
        if to.exists() and to.stat().st_size == state.st_size:
            return False
        with files.replacing(to) as copied:
            shutil.copyfileobj(file, copied)
            copied.truncate(min(copied.tell(), state.st_size))  # as long as it was
        os.utime(to, ns=(state.st_atime_ns, state.st_mtime_ns))
    return True


def _take_env(text: bytes, to: Path) -> bool:
    """Write the record of an attempt without what may be secret; leave out a damaged one."""
    try:
        record: dict[str, Any] = json.loads(text)
        slurm, variables = record.get("slurm", {}), record.get("environment", {})
        kept = {
            "slurm": environment.of_slurm(slurm),
            "environment": {k: v for k, v in variables.items() if environment.readable(k, v)},
        }
    except (ValueError, RecursionError, AttributeError, TypeError):
        return False
    if any(record.get(key, {}) != value for key, value in kept.items()):
        changed = {key: kept.get(key, value) for key, value in record.items()}
        text = json.dumps(changed, indent=1).encode() + b"\n"
    if to.exists() and to.read_bytes() == text:
        return False
    with files.replacing(to) as file:
        file.write(text)
    return True
