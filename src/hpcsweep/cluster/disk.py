"""What a sweep holds on disk, and its removal: all, a run, or attempts that no longer count."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcsweep import files
from hpcsweep.cluster.slurm import journal, then_job
from hpcsweep.errors import Refused
from hpcsweep.store import folders, ledger, locks, runs
from hpcsweep.store.collect import collector
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count


def usage(sweep_dir: SweepDir) -> Counter[str]:
    """Return the bytes of a sweep's folder: of its samples, of each folder, and of its tables."""
    used = Counter[str]()
    for path in sweep_dir.path.rglob("*"):
        first, *inside = path.relative_to(sweep_dir.path).parts
        name = first if inside else "tables"
        if first.startswith(folders.IMPORTING):
            name = "unfinished imports"
        elif path.name.endswith(".samples.csv"):
            name = "samples"
        used[name] += _size(path)
    return used


def unfinished(results: Path) -> list[Path]:
    """Return the folders of imports that run or were killed, also of sweeps without results yet."""
    return sorted(results.glob(f"*/{folders.IMPORTING}*"))


@dataclass(frozen=True)
class Removal:
    """What is to be removed of a sweep, and what is lost with it."""

    sweep_dir: SweepDir
    emptied: tuple[Path, ...]  # folders, which go when nothing is left in them
    sizes: Mapping[Path, int]  # bytes by file, in the order in which they go
    lost: str
    old_attempts: bool = False
    kept: tuple[str, ...] = ()  # what was asked for and stays, and why

    def __str__(self) -> str:
        return f"{self.sweep_dir.name}: {self.lost}, {self.bytes():,} bytes"

    def bytes(self) -> int:
        """Return how many bytes that frees."""
        return sum(self.sizes.values())

    def remove(self) -> None:
        """Remove these files and no other; `Refused` where by now others are there, or live."""
        whole = folders.SweepDir(self.sweep_dir.path)
        with files.errors_named(), locks.held(whole, "hpcsweep rm"):
            now = removal(self.sweep_dir, old_attempts=self.old_attempts)
            if _measured(now) != _measured(self):
                raise Refused(
                    f"{self.sweep_dir.path}: has other files than when you were asked: now it is "
                    f"{now}; nothing was removed, run the command again"
                )
            for path in now.sizes:
                path.unlink(missing_ok=True)
            for folder in now.emptied:
                with suppress(OSError):  # what came meanwhile stays
                    folder.rmdir()
        if whole.overall.exists():  # it would keep rows that are in no shard
            collector.collect(whole)


def _measured(found: Removal) -> dict[Path, int]:
    """Return the files that cannot be made again: not the tables, nor a lock."""
    folder = found.sweep_dir.path
    return {path: size for path, size in found.sizes.items() if path.parent != folder}


def removal(sweep_dir: SweepDir, *, old_attempts: bool) -> Removal:
    """Return what is to be removed of a sweep, or of a run.

    `Refused` where a job of it may be live, this user may not read or remove some of it, or it is
    unknown to which run rows belong.
    """
    closed = sweep_dir.closed()
    if closed:
        raise Refused(f"{closed[0]}\nwhether it is live is unknown, so nothing is removed")
    _refuse_live(sweep_dir)
    found = _superseded(sweep_dir) if old_attempts else _everything(sweep_dir)
    _refuse_fixed(found)
    return found


def _superseded(sweep_dir: SweepDir) -> Removal:
    """Return the attempts that another one followed, and none of whose rows counts."""
    for submission in sweep_dir.submissions():
        if submission.manifest_or_none() is None:
            raise Refused(
                f"{submission.manifest}: cannot be read, so it is unknown which of its rows count; "
                "nothing is removed"
            )
    sizes = dict[Path, int]()
    kept = list[str]()
    number = 0
    for run in runs.runs_of(sweep_dir):
        old, unread = collector.superseded(run.dir)
        kept += unread
        number += len(old)
        for shard in old:
            log = run.dir.submission(shard.submission).log(shard.chunk, shard.attempt)
            for path in (shard.overall, shard.layers, shard.samples, shard.env, log):
                if path.exists():
                    sizes[path] = _size(path)
    lost = f"{count(number, 'attempt')} without a row that counts"
    return Removal(sweep_dir, (), sizes, lost, old_attempts=True, kept=tuple(kept))


def _everything(sweep_dir: SweepDir) -> Removal:
    statuses = Counter(ledger.statuses(sweep_dir).values())
    points = ", ".join(f"{number:,} {status}" for status, number in statuses.items()) or "no point"
    lost = f"{count(len(sweep_dir.ages()), 'submission')}, points: {points}"
    # rows first: a submission without rows is found, and removed, once more
    if sweep_dir.ages().keys() == folders.SweepDir(sweep_dir.path).ages().keys():
        roots = [sweep_dir.shards_dir, sweep_dir.path]
    else:
        roots = []
        for name in sweep_dir.ages():
            roots += [sweep_dir.shards_dir / name, sweep_dir.submissions_dir / name]
    inside = dict[Path, None]()
    sizes = dict[Path, int]()
    for root in roots:
        # deepest first: what says that this is a sweep, and its lock, go last
        for folder, names, found in os.walk(root, topdown=False, onerror=_refuse_unread):
            links = [name for name in names if Path(folder, name).is_symlink()]
            for name in sorted([*found, *links]):
                path = Path(folder, name)
                sizes.setdefault(path, _size(path))
            inside[Path(folder)] = None
    return Removal(sweep_dir, tuple(inside), sizes, lost)


def _refuse_unread(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # a submission may have no rows, or rows alone
        raise Refused(f"{error.filename}: cannot be read ({error.strerror}); nothing is removed")


def _refuse_fixed(found: Removal) -> None:
    """Raise `Refused` where some of it cannot be removed: else one half would go."""
    parents = {path.parent for path in (*found.sizes, *found.emptied)}
    for folder in sorted(parents):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise Refused(
                f"{folder}: this user may not remove what is in it, so nothing is removed; ask its "
                "owner"
            )


def _refuse_live(sweep_dir: SweepDir) -> None:
    answer = journal.ask_slurm(sweep_dir.submissions())
    for submission in sweep_dir.submissions():
        sent = journal.read_journal(submission)
        unsure = sent.uncertain or then_job.may_live(sent, answer)
        if unsure or ledger.local_is_live(submission) or answer.live_chunks_of(submission):
            raise Refused(
                f"{submission.id} may still be queued or running; wait until it ended, or "
                f"{folders.SweepDir(sweep_dir.path).command('cancel', submission.id)}"
            )


def _size(path: Path) -> int:
    return 0 if path.is_dir() else path.lstat().st_size
