"""Copies the submissions of another machine's results folder: shards and manifests, no logs.

Each is copied aside as a whole, then moved in. An imported one that is here gives way to a copy
that has all that it has; what was measured here is never touched.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final

from hpcsweep import environment, files, sources
from hpcsweep.errors import HpcsweepError, ResultsError, Unread, UsageError
from hpcsweep.importing import arrival, bundle_file
from hpcsweep.store import folders, manifest, row_reader
from hpcsweep.store.collect import merge
from hpcsweep.store.folders import ShardPath, SubmissionDir, SweepDir
from hpcsweep.store.manifest import Manifest
from hpcsweep.text import count

_SMALL: Final = 64 << 20  # bytes of a record or of code: far more than any has
_LARGE: Final = 4 << 30  # bytes of what measuring writes: rows of a chunk, a trace, a checkpoint
_CHUNKS: Final = "chunks.jsonl"
_ROWS: Final = ".overall.csv"
_ATTEMPT: Final = ".env.json"
# each row has a checksum of what it has in these
_OF_ROWS: Final = (_ROWS, ".layers.csv", ".samples.csv")

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


def copy(root: Path, sweep_dir: SweepDir) -> tuple[str, Names]:
    """Copy what is not here, or has more there; return the source, and what was done.

    The caller holds the sweep folder's lock. Nothing is imported, and `UsageError` raised, where it
    is another sweep than that here: its rows would be orphans; `ResultsError` where a link, pipe or
    device is in it, there is no room for it, or a submission lacks a row that is here of it.
    """
    if root.samefile(sweep_dir.path):
        raise UsageError(f"{root}: is that sweep already")
    with arrival.arriving(sweep_dir) as ready:
        return _copy(root, root, sweep_dir, ready)


def copy_bundle(path: Path, sweep_dir: SweepDir) -> tuple[str, Names]:
    """Copy as `copy` does from a bundle."""
    with arrival.arriving(sweep_dir) as ready:
        aside = ready.path.with_name("unpacked")
        try:
            return _copy(bundle_file.unpack(path, aside), path, sweep_dir, ready)
        except HpcsweepError as error:
            # a person knows the bundle, not the place of its copy
            raise type(error)(str(error).replace(str(aside), str(path))) from error


def _copy(root: Path, path: Path, sweep_dir: SweepDir, ready: SweepDir) -> tuple[str, Names]:
    """Copy from a results folder that is at a path, or was unpacked from there."""
    manifest.check_layout(root)
    for names in _of_sweep(root):
        _take(root, names, ready.path.joinpath(*names))
    _refuse_another_sweep(path, ready.sweep_file, sweep_dir)
    source, copied, notes = _copy_submissions(root, sweep_dir, ready)
    made = ready.submissions()
    if not made and not sweep_dir.submissions():
        raise ResultsError(f"{path}: no submission in it")
    # the sweep file before submissions: so an import that is cut short can be repeated
    if ready.sweep_file.exists() and not sweep_dir.ages():
        ready.sweep_file.replace(sweep_dir.sweep_file)
    for digest in _listed(ready.path, "own_files"):
        kept = sweep_dir.own_files / digest
        if not kept.exists():
            arrival.move(ready.own_files / digest, kept)
    for one in made:
        arrival.arrive(one, sweep_dir)
    return source, (f"{count(copied, 'file')} copied from {path}", *notes)


def _copy_submissions(
    root: Path, sweep_dir: SweepDir, ready: SweepDir
) -> tuple[str, int, list[str]]:
    """Copy aside what is not here; return the source, how many files, what a person should know.

    What was measured here is left as it is: rows of it that are there alone, as after a backup was
    restored, come as another submission, and then that one is renewed.
    """
    here = {its.id: its for its in sweep_dir.manifests()}
    known = [*here.values()]
    taken = {*sweep_dir.ages()}
    source = root.name
    copied = 0
    notes = []
    for record in _records(root):
        theirs = SweepDir(root).submission(record.id)
        source = record.host or record.source or root.name
        same = [its for its in here.values() if _sent(its) == _sent(record)]
        own = [sweep_dir.submission(its.id) for its in same if not its.source]
        if any(not _lost_row(theirs, one) for one in own):
            continue
        before = next((its for its in same if its.source), None)
        if before:
            del here[before.id]  # no other one there is a copy of it
            brought = _imported(record, before.id, source, before.round)
        else:
            name = _free_name(record.id, taken)
            if name != record.id:
                notes.append(f"{record.id} is another one here: copied as {name}")
            brought = _imported(record, name, source, _round(known, record))
            taken.add(name)
            known.append(brought)
        mine = sweep_dir.submission(brought.id)
        ours = _sums(mine)
        sums = _sums(theirs) if before else {}
        if brought == before and sums == ours:
            continue
        made = ready.submission(brought.id)
        equal = {name for name, checksum in ours.items() if sums.get(name) == checksum}
        copied += _copy_aside(theirs, made, mine, equal)
        made.write_manifest(brought)
        lost = _lost(mine, made, ours.keys() - equal)
        if lost:
            raise ResultsError(
                f"{theirs.path}: lacks {lost}, which is here, so nothing was imported. If it is "
                "damaged or was not copied whole, copy it once more; else --as imports it under "
                "another name (`compare` takes both)"
            )
    return source, copied, notes


def _copy_aside(
    theirs: SubmissionDir, made: SubmissionDir, mine: SubmissionDir, equal: set[str]
) -> int:
    """Copy the files of a submission, link those that are equal here; return how many it copied."""
    root = theirs.sweep_dir.path
    copied = 0
    for folder in (made.shards, made.path):
        folder.mkdir(parents=True)
    for names in _files(root, theirs.id):
        place = Path(names[0], made.id, names[-1])
        to = made.sweep_dir.path / place
        if names[-1] in equal:
            with suppress(OSError):  # some file systems have no links
                os.link(mine.sweep_dir.path / place, to)
                continue
        _take(root, names, to)
        copied += 1
    return copied


def _records(root: Path) -> list[Manifest]:
    """Return the records of the submissions in a folder, the oldest first."""
    records = []
    for name in _listed(root, "submissions"):
        theirs = SweepDir(root).submission(name)
        if os.path.lexists(theirs.manifest):
            # it is no link, and not too large to read
            with files.opened(root, "submissions", name, theirs.manifest.name, most=_SMALL):
                records.append(theirs.read_manifest())
    records.sort(key=lambda record: record.round)  # by name before
    return records


def _refuse_another_sweep(path: Path, theirs: Path, sweep_dir: SweepDir) -> None:
    """Raise `UsageError` where the sweep here has another file."""
    ours = sweep_dir.sweep_file
    if not sweep_dir.ages():
        return
    if not ours.exists() and all(record.spec_sha256 for record in sweep_dir.manifests()):
        return  # an import of an earlier version was cut short: tables have no sweep file either
    sums = {files.sha256(file) if file.exists() else "" for file in (ours, theirs)}
    if len(sums) > 1:
        raise UsageError(
            f"{ours} is not the sweep of {path}: --as imports it under another name (`compare` "
            "takes both)"
        )


def _sent(record: Manifest) -> tuple[object, ...]:
    """Return what all copies of a submission have in common, whatever their names."""
    return record.created_at, record.host, record.user, record.chunks, record.points


def _imported(record: Manifest, name: str, source: str, number: int) -> Manifest:
    """Return a manifest without what may be secret, and without paths of another machine."""
    fields = {**manifest.masked(record.profile_fields), "path": ""}
    # `local`: nobody here can ask for the jobs of another machine
    return replace(
        record, id=name, source=source, round=number, launcher="local", profile_fields=fields,
        spec="", source_path="", templates=(), run=replace(record.run, search_path=()),
    )  # fmt: skip


def _free_name(name: str, taken: Collection[str]) -> str:
    """Return a name for a submission: its own, or with a number where another one has that."""
    free = name
    number = 1
    while free in taken:
        number += 1
        free = f"{name}.{number}"
    return free


def _round(known: Collection[Manifest], record: Manifest) -> int:
    """Return the round for a submission: that of the one before it, the next if it has no time."""
    if not record.created_at:
        return max((one.round for one in known), default=-1) + 1
    return max((one.round for one in known if one.created_at <= record.created_at), default=0)


def _lost(mine: SubmissionDir, other: SubmissionDir, changed: set[str]) -> str:
    """Return what is good of a submission, and another copy lacks; empty for nothing."""
    row = _lost_row(mine, other)
    if row:
        return row
    for name in sorted(changed):
        if name.endswith(_OF_ROWS) or name == _CHUNKS:
            continue
        theirs = other.shards / name
        size = theirs.stat().st_size if theirs.exists() else 0
        # a trace or checkpoint was cut where it is shorter; the record of an attempt changes
        least = 1 if name.endswith(_ATTEMPT) else (mine.shards / name).stat().st_size
        if size < least:
            return f"all of {name}"
    return f"a good {_CHUNKS}" if other.damage() and not mine.damage() else ""


def _lost_row(mine: SubmissionDir, other: SubmissionDir) -> str:
    """Return a row of a submission that another copy lacks; empty for none."""
    for shard in mine.sweep_dir.shards_of(mine.id):
        there = _intact(replace(shard, folder=other.shards))
        for line, point in _intact(shard).items():
            if line not in there:
                return f"the row of point {point} of chunk {shard.chunk}, attempt {shard.attempt}"
    return ""


def _intact(shard: ShardPath) -> dict[bytes, str]:
    """Return the rows of an attempt that `collect` would take: points by line."""
    found: dict[bytes, str] = {}
    if not shard.overall.exists():
        return found
    content, rows = row_reader.scan_shard(shard)
    with row_reader.Blocks() as blocks:
        for row in rows:
            try:
                entry = merge.table_row(row, content, (0, shard.submission))
                entry.blocks_of(row.line, blocks)
            except Unread:
                raise
            except ResultsError:
                continue
            found[row.line] = entry.point_id
    return found


def _sums(one: SubmissionDir) -> dict[str, str]:
    """Return the checksums of a submission's files beside its record, as they are imported."""
    root = one.sweep_dir.path
    sums = {}
    for names in _files(root, one.id):
        with _opened(root, names) as file:
            sums[names[-1]] = files.digest(file)
    return sums


def _of_sweep(root: Path) -> Iterator[Names]:
    """Yield the files beside submissions, each as the names that lead to it."""
    if os.path.lexists(root / "sweep.yaml"):
        yield ("sweep.yaml",)
    for digest in _listed(root, "own_files"):
        if sources.is_digest(digest):
            for place in sources.files_below(root / "own_files" / digest):
                yield "own_files", digest, *place.split("/")


def _files(root: Path, name: str) -> Iterator[Names]:
    """Yield the files of a submission beside its record.

    Rows first: where they are being measured, what they point to is there when its turn comes.
    """
    if os.path.lexists(root / "submissions" / name / _CHUNKS):
        yield "submissions", name, _CHUNKS
    inside = _listed(root, "shards", name)
    for file in sorted(inside, key=lambda file: not file.endswith(_ROWS)):
        # a folder is what a command left for a person
        if not stat.S_ISDIR((root / "shards" / name / file).lstat().st_mode):
            yield "shards", name, file


def _listed(root: Path, *names: str) -> list[str]:
    """Return what is in a folder but hidden files; `ResultsError` for a link on the way to it.

    `ResultsError`, too, for a name that a terminal would not show as it is.
    """
    folder = root.joinpath(*names)
    if not folder.is_dir():
        return []
    files.refuse_links(root, *names)
    found = []
    for name in sorted(os.listdir(folder)):  # noqa: PTH208 - names are wanted, not paths
        if not name.isprintable():
            raise ResultsError(f"{folder}: has the name {name!r}; rename it")
        if not name.startswith("."):
            found.append(name)
    return found


def _take(root: Path, names: Names, to: Path) -> None:
    """Copy a file, with its time and no more rights than it has."""
    to.parent.mkdir(parents=True, exist_ok=True)
    status = root.joinpath(*names).lstat()
    with _opened(root, names) as file, files.replacing(to, most=status.st_mode) as copied:
        shutil.copyfileobj(file, copied)
    # by its time `status` knows whether an attempt may still run
    os.utime(to, ns=(status.st_atime_ns, status.st_mtime_ns))


@contextmanager
def _opened(root: Path, names: Names) -> Iterator[IO[bytes]]:
    """Open a file as it is imported."""
    is_attempt = names[-1].endswith(_ATTEMPT)
    with files.opened(root, *names, most=_SMALL if is_attempt else _LARGE) as file:
        yield io.BytesIO(_masked(file.read())) if is_attempt else file


def _masked(text: bytes) -> bytes:
    """Return the record of an attempt without what may be secret; empty for a damaged one."""
    try:
        record: dict[str, Any] = json.loads(text)
        slurm = environment.of_slurm(record.get("slurm", {}))
        variables = record.get("environment", {})
        readable = {k: v for k, v in variables.items() if environment.readable(k, v)}
    except (ValueError, RecursionError, AttributeError, TypeError):
        return b""
    masked = {**record, "slurm": slurm, "environment": readable}
    return json.dumps(masked, indent=1).encode() + b"\n"
