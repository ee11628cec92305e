"""What a sweep holds on disk, and its removal: all, a run, or attempts that no longer count."""

from __future__ import annotations

import csv
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcsweep import files
from hpcsweep.cluster.slurm import journal, liveness
from hpcsweep.errors import Refused
from hpcsweep.store import folders, ledger, locks, runs
from hpcsweep.store.collect import collector
from hpcsweep.store.folders import ShardPath, SweepDir
from hpcsweep.text import count


def usage(sweep_dir: SweepDir) -> Counter[str]:
    """Return the bytes of a sweep's folder: of its samples, of each folder, and of its tables."""
    used = Counter[str]()
    for path in sweep_dir.path.rglob("*"):
        first, *inside = path.relative_to(sweep_dir.path).parts
        name = first if inside else "tables"
        used["samples" if path.name.endswith(".samples.csv") else name] += _size(path)
    return used


@dataclass(frozen=True)
class Removal:
    """What is to be removed of a sweep, in this order, and what is lost with it."""

    sweep_dir: SweepDir
    paths: tuple[Path, ...]
    lost: str

    def __str__(self) -> str:
        return f"{self.sweep_dir.name}: {self.lost}, {self.bytes():,} bytes"

    def bytes(self) -> int:
        """Return how many bytes that frees."""
        every = {at for path in self.paths for at in (path, *path.rglob("*"))}
        return sum(map(_size, every))

    def remove(self) -> None:
        """Remove it; `Refused` where jobs became live meanwhile."""
        whole = folders.SweepDir(self.sweep_dir.path)
        with files.errors_named(), locks.held(whole, "hpcsweep rm"):
            _refuse_live(self.sweep_dir)
            for path in self.paths:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        if whole.overall.exists():  # it would keep rows that are in no shard
            collector.collect(whole)


def removal(sweep_dir: SweepDir, *, old_attempts: bool) -> Removal:
    """Return what is to be removed of a sweep, or of a run; `Refused` where a job of it is live."""
    _refuse_live(sweep_dir)
    if old_attempts:
        old = [*_old_attempts(sweep_dir)]
        paths = [path for shard in old for path in _files(sweep_dir, shard)]
        return Removal(
            sweep_dir, tuple(paths), f"{count(len(old), 'attempt')} without a row that counts"
        )
    statuses = Counter(ledger.statuses(sweep_dir).values())
    lost = ", ".join(f"{number:,} {status}" for status, number in statuses.items()) or "no point"
    told = f"{count(len(sweep_dir.ages()), 'submission')}, points: {lost}"
    if sweep_dir.ages().keys() == folders.SweepDir(sweep_dir.path).ages().keys():
        return Removal(sweep_dir, (sweep_dir.shards_dir, sweep_dir.path), told)
    # rows first: a submission without rows is found, and removed, once more
    pairs = (
        (sweep_dir.shards_dir / name, sweep_dir.submissions_dir / name) for name in sweep_dir.ages()
    )
    return Removal(sweep_dir, tuple(path for pair in pairs for path in pair), told)


def _refuse_live(sweep_dir: SweepDir) -> None:
    answer = liveness.ask_slurm(sweep_dir.submissions())
    for submission in sweep_dir.submissions():
        unsure = journal.read_journal(submission).uncertain
        if unsure or ledger.local_is_live(submission) or answer.live_chunks_of(submission):
            raise Refused(
                f"{submission.id} may still be queued or running; wait until it ended, or "
                f"{folders.SweepDir(sweep_dir.path).command('cancel', submission.id)}"
            )


def _old_attempts(sweep_dir: SweepDir) -> Iterator[ShardPath]:
    """Yield the attempts that another one followed, and no row of which is in a run's table."""
    for run in runs.runs_of(sweep_dir):
        tables, _notes = collector.tables_of(run.dir)
        if not tables.details.is_file():  # it has no row
            continue
        with tables.details.open(encoding="utf-8", newline="") as file:
            kept = {
                (row["submission"], row["chunk"], row["attempt"]) for row in csv.DictReader(file)
            }
        for shard in run.dir.shards():
            name = shard.submission, str(shard.chunk), str(shard.attempt)
            if name not in kept and shard.next_attempt().overall.exists():
                yield shard


def _files(sweep_dir: SweepDir, shard: ShardPath) -> Iterator[Path]:
    log = sweep_dir.submission(shard.submission).log(shard.chunk, shard.attempt)
    every = shard.overall, shard.layers, shard.samples, shard.env, log
    return (path for path in every if path.exists())


def _size(path: Path) -> int:
    return 0 if path.is_dir() else path.lstat().st_size
