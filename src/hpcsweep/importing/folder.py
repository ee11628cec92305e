"""Copies the submissions of another machine's results folder: shards and manifests, no logs.

Shards only grow: nothing here gets shorter or is replaced, and what was not imported is not written
into. What is new becomes visible when it is whole.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final

from hpcsweep import environment, files
from hpcsweep.errors import HpcsweepError, ResultsError, UsageError
from hpcsweep.importing import bundle_file, submission
from hpcsweep.sources import is_digest
from hpcsweep.store import folders, manifest
from hpcsweep.store.folders import SubmissionDir, SweepDir
from hpcsweep.store.manifest import Manifest
from hpcsweep.text import count

LOCAL: Final = "local"  # nobody here can ask for the jobs of another machine
# bytes of a record or a sweep; of a file beside the rows
_SMALL = 64 << 20
_LARGE = 4 << 30
_RECORDS: Final = {"manifest.json", "chunks.jsonl"}
_ROWS: Final = ".overall.csv"
_BLOCK: Final = 1 << 20  # bytes compared at a time

Names = tuple[str, ...]


def find(path: Path) -> SweepDir | None:
    """Return the results folder at a path, or the only one in it."""
    if not path.is_dir():
        return None
    inside = folders.sweeps_at(path)
    if len(inside) > 1:
        names = ", ".join(str(run.path) for run in inside)
        raise UsageError(f"{path}: import one sweep at a time ({names})")
    return inside[0] if inside else None


def check(theirs: SweepDir, sweep_dir: SweepDir) -> None:
    """Raise `UsageError` for another sweep than that here: its rows would be orphans.

    `ResultsError` where there is a link, pipe or device in it, or it has no room here.
    """
    _prove(theirs.path, sweep_dir)
    # results without a sweep file: of tables, or an earlier version's import was cut short
    has_file = sweep_dir.sweep_file.exists() or not all(
        one.spec_sha256 for one in sweep_dir.manifests()
    )
    if sweep_dir.ages() and has_file and _text(theirs) != _text(sweep_dir):
        raise UsageError(
            f"{sweep_dir.sweep_file} is not the sweep of {theirs.path}: --as imports it under "
            "another name (`compare` takes both)"
        )


def _text(sweep_dir: SweepDir) -> bytes:
    try:
        with files.opened(sweep_dir.path, sweep_dir.sweep_file.name, most=_SMALL) as file:
            return file.read(_SMALL)
    except ResultsError:
        return b""


def _prove(root: Path, sweep_dir: SweepDir) -> None:
    """Raise `ResultsError` where anything that is to be copied is no regular file, or too much."""
    total = 0
    for names in _every(root):
        with files.opened(root, *names, most=_most(names)) as file:
            total += os.fstat(file.fileno()).st_size
    if total > (free := shutil.disk_usage(sweep_dir.path).free):
        raise ResultsError(
            f"{root}: has {total:,} bytes to copy, {sweep_dir.path} has room for {free:,}"
        )


def _most(names: Names) -> int:
    return _LARGE if names[0] == "shards" or names[-1] == "chunks.jsonl" else _SMALL


def _every(root: Path) -> Iterator[Names]:
    """Yield what is copied; `ResultsError` for a name that a terminal would not show as it is."""
    yield from ((name,) for name in _listed(root) if name in {"sweep.yaml", manifest.LAYOUT_FILE})
    for name in filter(is_digest, _listed(root, "own_files")):
        yield from _below(root, "own_files", name)
    for name in _listed(root, "submissions"):
        inside = _listed(root, "submissions", name)
        yield from (("submissions", name, file) for file in inside if file in _RECORDS)
        if "manifest.json" in inside:
            shards = _listed(root, "shards", name, files=True)
            yield from (("shards", name, file) for file in shards)


def _below(root: Path, *names: str) -> Iterator[Names]:
    """Yield the files in a folder and its folders, to any depth."""
    for name in _listed(root, *names):
        inside = *names, name
        yield from _below(root, *inside) if root.joinpath(*inside).is_dir() else (inside,)


def _listed(root: Path, *names: str, files: bool = False) -> list[str]:
    """Return what is in a folder, but hidden files and, if files are wanted, folders."""
    folder = root
    if len(names) > bundle_file.DEEPEST:
        raise ResultsError(
            f"{root.joinpath(*names)}: is in more than {bundle_file.DEEPEST} folders"
        )
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


def copy(theirs: SweepDir, sweep_dir: SweepDir) -> tuple[str, Names]:
    """Copy what is not there yet, or was longer since; return the source, and what was done.

    Each submission becomes visible when it is whole. The caller holds the sweep folder's lock.
    """
    with submission.arriving(sweep_dir) as ready:
        check(theirs, sweep_dir)
        return _copy(theirs.path, sweep_dir, ready)


def copy_bundle(path: Path, sweep_dir: SweepDir) -> tuple[str, Names]:
    """Copy as `copy` does from a bundle, which errors and notes name; the caller holds the lock."""
    with submission.arriving(sweep_dir) as ready:
        aside = ready.path.with_name("unpacked")
        try:
            theirs = SweepDir(bundle_file.unpack(path, aside))
            check(theirs, sweep_dir)
            source, notes = _copy(theirs.path, sweep_dir, ready)
        except HpcsweepError as error:
            raise type(error)(str(error).replace(str(aside), str(path))) from error
        return source, tuple(note.replace(str(theirs.path), str(path)) for note in notes)


def _copy(root: Path, sweep_dir: SweepDir, ready: SweepDir) -> tuple[str, Names]:
    every = [*_every(root)]
    aside = ready.path.parent
    safe = _records(root, every, SweepDir(aside / "theirs"))
    shards = defaultdict[str, list[Names]](list)
    for names in every:
        if names[0] == "shards":
            shards[names[1]].append(names)
    here = {one: record for one in sweep_dir.submissions() if (record := one.manifest_or_none())}
    source = root.name
    copied = 0
    notes = list[str]()
    if not sweep_dir.ages() and safe.sweep_file.exists():
        safe.sweep_file.replace(
            sweep_dir.sweep_file
        )  # first, so that what is cut short can be repeated
    for digest in _listed(safe.path, "own_files"):
        if not (to := sweep_dir.own_files / digest).exists():
            submission.move(safe.own_files / digest, to)
    for theirs in safe.submissions():
        try:
            record = theirs.read_manifest()
        except ResultsError as error:
            raise type(error)(str(error).replace(str(safe.path), str(root))) from error
        source = record.host or record.source or root.name
        own = shards[theirs.id]
        same = (mine for mine, known in here.items() if _sent(known) == _sent(record))
        taken = (_extend(root, own, theirs, mine, aside) for mine in same)
        files = next((files for files in taken if files is not None), None)
        if files is None:
            name = submission.free_name(sweep_dir, theirs.id)
            notes += [f"{theirs.id} is another one here: copied as {name}"] * (name != theirs.id)
            record = _imported(record, name, source, _round(here.values(), record))
            files = _bring(root, own, theirs, record, ready)
            submission.arrive(ready.submission(name), sweep_dir)
            here[sweep_dir.submission(name)] = record
        copied += files
    if not here:
        raise ResultsError(f"{root}: no submission in it")
    return source, (f"{count(copied, 'file')} copied from {root}", *notes)


def _records(root: Path, every: Sequence[Names], safe: SweepDir) -> SweepDir:
    """Copy the sweep, manifests and chunk files, to read them where nobody changes them."""
    manifest.check_layout(root)  # names the file where it lies
    for names in every:
        if names[0] != "shards":
            to = safe.path.joinpath(*names)
            to.parent.mkdir(parents=True, exist_ok=True)
            _take(root, names, to)
    manifest.check_layout(safe.path)
    return safe


def _sent(record: Manifest) -> tuple[str, ...]:
    """Return what two records of one submission have in common, beside its chunks."""
    return record.created_at, record.host, record.user


def _imported(record: Manifest, name: str, source: str, number: int) -> Manifest:
    """Return a manifest without what may be secret, and without paths of another machine."""
    fields = {**manifest.masked(record.profile_fields), "path": ""}
    return replace(
        record, id=name, source=source, round=number, launcher=LOCAL, profile_fields=fields,
        spec="", source_path="", templates=(), run=replace(record.run, search_path=()),
    )  # fmt: skip


def _round(here: Collection[Manifest], record: Manifest) -> int:
    """Return the round for a submission: that of the one before it, the next if it has no time."""
    if not record.created_at:
        return max((one.round for one in here), default=-1) + 1
    return max((one.round for one in here if one.created_at <= record.created_at), default=0)


def _bring(
    root: Path, every: Sequence[Names], theirs: SubmissionDir, record: Manifest, ready: SweepDir
) -> int:
    """Copy a submission to where nobody sees it; return how many files that are."""
    mine = ready.submission(record.id)
    mine.shards.mkdir(parents=True)
    number = len(_taken(root, every, mine.shards)) + theirs.chunks.exists()
    theirs.write_manifest(record)
    submission.move(theirs.path, mine.path)
    return number


def _extend(
    root: Path, every: Sequence[Names], theirs: SubmissionDir, mine: SubmissionDir, aside: Path
) -> int | None:
    """Take what a submission has more than here; return how many files that are.

    None where a file here is no beginning of theirs, nor theirs of it, or where what was not
    imported would grow: they are two submissions.
    """
    if theirs.chunks.exists() and _more(theirs.chunks, mine.chunks) is None:
        return None
    more: dict[Names, int | None] = {}
    for names in every:
        with files.opened(root, *names, most=_most(names)) as file:
            more[names] = _more(file, mine.shards / names[-1])
    rows = {_attempt(names): size for names, size in more.items() if names[-1].endswith(_ROWS)}
    grown = {attempt for attempt, size in rows.items() if size}
    is_own = not mine.read_manifest().source
    if None in rows.values() or (is_own and grown):
        return None
    if is_own:
        return 0
    (staged := aside / "grown").mkdir(exist_ok=True)
    wanted = [names for names in every if more[names] or _attempt(names) in grown]
    paths = _taken(root, wanted, staged)
    now = (_more(path, mine.shards / path.name) for path in paths if path.suffix == ".csv")
    if None in now:
        return None
    mine.shards.mkdir(parents=True, exist_ok=True)
    for path in reversed(paths):  # rows last: what they point to must be there
        path.replace(mine.shards / path.name)
    submission.sync(mine.shards)
    return len(paths)


def _attempt(names: Names) -> str:
    return ".".join(names[-1].split(".")[:2])


def _more(theirs: IO[bytes] | Path, ours: Path) -> int | None:
    """Return how much longer a file is than ours, 0 if it is not.

    None where neither is the beginning of the other; a last line that their writer took back when
    the disk was full does not count.
    """
    if isinstance(theirs, Path):
        with theirs.open("rb") as file:
            return _more(file, ours)
    state = os.fstat(theirs.fileno())
    if not ours.exists():
        return state.st_size + 1  # an empty file counts, too
    with ours.open("rb") as file:
        now = os.fstat(file.fileno())
        left = min(state.st_size, now.st_size)
        if (state.st_size, state.st_mtime_ns) == (now.st_size, now.st_mtime_ns):
            left = 0  # copied from there
        while left:
            size = min(left, _BLOCK)
            block = theirs.read(size)
            own = file.read(size)
            if block != own:
                pairs = zip(block, own, strict=False)
                at = next((at for at, (one, other) in enumerate(pairs) if one != other), len(own))
                is_last = left == size and state.st_size <= now.st_size
                return 0 if is_last and b"\n" not in block[at:] else None
            left -= size
    return max(state.st_size - now.st_size, 0)


def _taken(root: Path, every: Iterable[Names], folder: Path) -> list[Path]:
    """Copy files; rows first, so that what they point to is there where they are being measured."""
    ordered = sorted(every, key=lambda names: not names[-1].endswith(_ROWS))
    return [to for names in ordered if _take(root, names, to := folder / names[-1])]


def _take(root: Path, names: Names, to: Path) -> bool:
    """Copy a file as long as it is now, with its rights; say whether it was copied."""
    with files.opened(root, *names, most=_most(names)) as file:
        state = os.fstat(file.fileno())
        if names[-1].endswith(".env.json"):
            return _take_env(file.read(_SMALL), to, state.st_mode)
        with files.replacing(to, most=state.st_mode) as copied:
            shutil.copyfileobj(file, copied)
            copied.truncate(min(copied.tell(), state.st_size))  # as long as it was
        os.utime(to, ns=(state.st_atime_ns, state.st_mtime_ns))
    return True


def _take_env(text: bytes, to: Path, most: int) -> bool:
    """Write the record of an attempt without what may be secret; leave out a damaged one."""
    try:
        record: dict[str, Any] = json.loads(text)
        slurm = record.get("slurm", {})
        variables = record.get("environment", {})
        kept = {
            "slurm": environment.of_slurm(slurm),
            "environment": {k: v for k, v in variables.items() if environment.readable(k, v)},
        }
    except (ValueError, RecursionError, AttributeError, TypeError):
        return False
    if any(record.get(key, {}) != value for key, value in kept.items()):
        changed = {key: kept.get(key, value) for key, value in record.items()}
        text = json.dumps(changed, indent=1).encode() + b"\n"
    with files.replacing(to, most=most) as file:
        file.write(text)
    return True
