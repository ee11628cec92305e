"""What is measured, running and failed: rows first, then attempts, then what is queued.

Only the two leading cells of each row are read, so a hundred thousand points cost well under a
second; Slurm is asked two questions at most, whatever the number of sweeps, and none where all is
known. Nothing here waits for a lock or writes anything.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import slurm
from hpcsweep.errors import ResultsError
from hpcsweep.store import chunk_file, ledger, rundir, shards
from hpcsweep.store.state import ChunkState, PointStatus, best
from hpcsweep.text import aligned, count, tally
from hpcsweep.tracking import bad_nodes, chunk_state, journal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpcsweep.store.manifest import Manifest
    from hpcsweep.store.rundir import RunDir, ShardPath, SubmissionDir
    from hpcsweep.tracking.bad_nodes import BadNode
    from hpcsweep.tracking.chunk_state import Standing
    from hpcsweep.tracking.journal import Answer, Sent

_WATCH_SECONDS: Final = 2.0
_WATCH_SLURM_SECONDS: Final = 10.0  # slurmctld has better things to do
_PACE_SECONDS: Final = 300.0  # rows older than this say nothing about the pace of now
_TROUBLES: Final = 10  # lines
_KINDS: Final = 4  # kinds of artifacts that are named


@dataclass(frozen=True)
class Trouble:
    """Chunks of one submission that ended too early or can never start, for the same reason."""

    submission: str
    chunks: str
    state: str
    why: str

    def __str__(self) -> str:
        return f"{self.submission}:{self.chunks} {self.state}: {self.why}"


@dataclass
class ProfileStatus:
    """The points of one sweep that went to one profile."""

    profile: str
    planned: set[str] = field(default_factory=set)
    status: dict[str, PointStatus] = field(default_factory=dict)
    live: int = 0  # points without a row in chunks that are queued or running
    pace: float = 0.0  # points per second of the running chunks
    chunks: Counter[ChunkState] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)  # why chunks wait
    running_done: int = 0  # points with a row in the chunks that run
    running_points: int = 0
    troubles: list[Trouble] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """Return points by status, in the order of the statuses' table."""
        found = Counter(self.status[i] for i in self.planned if i in self.status)
        return {name: found[name] for name in PointStatus if found[name]}

    @property
    def running(self) -> int:
        """Return how many chunks run."""
        return self.chunks[ChunkState.RUNNING]

    @property
    def remaining(self) -> int:
        """Return how many points have no row yet."""
        return len(self.planned - self.status.keys())

    @property
    def seconds_left(self) -> float | None:
        """Return how long the live points take at the pace of the running chunks."""
        return self.live / self.pace if self.pace and self.live else None

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        return {
            "profile": self.profile,
            "points": len(self.planned),
            "by_status": self.counts(),
            "pending": self.remaining,
            "live": self.live,
            "running_chunks": self.running,
            "running": {"done": self.running_done, "points": self.running_points},
            "points_per_second": round(self.pace, 4),
            "seconds_left": self.seconds_left,
            "chunks": self._chunks(),
            "waits_for": dict(self.reasons),
            "trouble": [asdict(trouble) for trouble in self.troubles],
        }

    def words(self) -> list[str]:
        """Return the lines below the table: chunks, and what is wrong with some."""
        chunks = self._chunks()
        if not chunks.keys() - {ChunkState.DONE}:
            return []
        told = ", ".join(f"{count} {state}{self._more(state)}" for state, count in chunks.items())
        troubles = [str(trouble) for trouble in self.troubles[:_TROUBLES]]
        if len(self.troubles) > _TROUBLES:
            troubles.append(f"and {len(self.troubles) - _TROUBLES} more (--json shows all)")
        return [f"{self.profile}: chunks: {told}", *troubles]

    def _chunks(self) -> dict[ChunkState, int]:
        return {state: self.chunks[state] for state in ChunkState if self.chunks[state]}

    def _more(self, state: ChunkState) -> str:
        if state is ChunkState.RUNNING:
            pace = f", {self.pace:.2g}/s" if self.pace else ""
            return f" ({self.running_done} of {self.running_points} points{pace})"
        if state is ChunkState.PENDING and self.reasons:
            return f" ({', '.join(f'{n} {reason}' for reason, n in self.reasons.most_common())})"
        return ""


@dataclass
class SweepStatus:
    """One sweep, profile by profile, and what could not be read or asked."""

    sweep: str
    profiles: list[ProfileStatus]
    problems: list[str]
    avoided: list[BadNode]
    in_slurm: bool  # some of its chunks may be in the queue
    unanswered: list[str]
    artifacts: list[Path]

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        return {
            "sweep": self.sweep,
            "profiles": [profile.to_json() for profile in self.profiles],
            "problems": self.problems,
            "avoided_nodes": [asdict(node) for node in self.avoided],
            "not_asked": self.unanswered,
            "artifacts": [str(path) for path in self.artifacts],
        }

    def words(self) -> list[str]:
        """Return the lines below the table."""
        lines = [*self.problems, *(line for p in self.profiles for line in p.words())]
        if self.avoided:
            told = ", ".join(map(str, self.avoided))
            lines.append(f"new submissions avoid {told}; `submit --allow-node NODE` uses one again")
        if self.artifacts:
            kinds = Counter(path.name.partition(".")[2] for path in self.artifacts)
            told = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(_KINDS))
            more = ", ..." if len(kinds) > _KINDS else ""
            lines.append(f"artifacts in {self.artifacts[-1].parent}: {told}{more}")
        return [f"{self.sweep}: {line}" for line in lines]


def read(root: Path, names: Sequence[str]) -> list[SweepStatus]:
    """Return the status of some sweeps below `root`, of all by default.

    Raises:
        UsageError: a name that has no results.

    """
    runs = [rundir.open_run(root, name) for name in names] if names else rundir.all_runs(root)
    read_in = [(run, *_submissions(run)) for run in runs]
    open_journals = [one.sent for _, found, _ in read_in for one in found if one.in_slurm]
    answer = journal.ask_about(open_journals)
    return [_sweep(run, found, problems, answer) for run, found, problems in read_in]


def text(found: Sequence[SweepStatus]) -> str:
    """Return a table for a terminal."""
    if not found:
        return "no results yet; `hpcsweep submit SPEC` makes some"
    head = ("sweep", "profile", "points", "done", "remaining", "running", "time left", "not ok")
    rows = [head, *(_cells(one.sweep, p) for one in found for p in one.profiles)]
    lines = [*aligned(rows), *(line for one in found for line in one.words())]
    unanswered = dict.fromkeys(words for one in found for words in one.unanswered)
    return "\n".join([*lines, *([f"not asked: {'; '.join(unanswered)}"] if unanswered else [])])


def to_json(found: Sequence[SweepStatus]) -> dict[str, Any]:
    """Return the plain record of all."""
    return {"sweeps": [one.to_json() for one in found]}


def watch(root: Path, names: Sequence[str]) -> None:
    """Show the table again and again until nothing is live."""
    from rich.live import Live  # noqa: PLC0415 - 0.1 s, only for who watches
    from rich.text import Text  # noqa: PLC0415

    found = read(root, names)
    with Live(Text(text(found)), auto_refresh=False) as shown:
        while any(profile.live for one in found for profile in one.profiles):
            in_slurm = any(one.in_slurm for one in found)
            time.sleep(_WATCH_SLURM_SECONDS if in_slurm else _WATCH_SECONDS)
            found = read(root, names)
            shown.update(Text(text(found)), refresh=True)
    if not shown.console.is_terminal:
        print()  # noqa: T201 - where lines are not drawn over, rich leaves the last one open
    sys.stdout.flush()


@dataclass
class _Submission:
    """What the files of one submission say."""

    dir: SubmissionDir
    manifest: Manifest
    sent: Sent
    ids: dict[int, list[str]]
    rows: dict[str, PointStatus]  # status by point, of this submission only
    attempts: list[ShardPath]
    rowless: list[ShardPath]

    @property
    def label(self) -> str:
        return self.manifest.profile + " (profiled)" * self.manifest.is_profiled

    def takes(self, status: PointStatus) -> bool:
        """Say whether a row is of the kind that this submission is for: measured, or profiled."""
        return (status is PointStatus.PROFILED) is self.manifest.is_profiled

    @cached_property
    def in_slurm(self) -> bool:
        """Say whether Slurm has to be asked about chunks that lack rows."""
        complete = all(map(self.rows.keys().__ge__, map(set, self.ids.values())))
        return bool(self.sent.open_chunks) and not complete


def _submissions(run: RunDir) -> tuple[list[_Submission], list[str]]:
    """Read a sweep's submissions, oldest first, and say what could not be read."""
    found, problems = [], []
    for submission in run.submissions():
        try:
            manifest = submission.read_manifest()
            ids = dict(chunk_file.read_ids(submission.chunks))
        except ResultsError as error:
            problems.append(str(error))
            continue
        attempts = run.shards_of(submission.id)
        keys_of = {shard: shards.read_keys(shard.overall) for shard in attempts}
        rows = best(key for keys in keys_of.values() for key in keys)
        rowless = [shard for shard, keys in keys_of.items() if not keys]
        sent = journal.sent(submission)
        found.append(_Submission(submission, manifest, sent, ids, rows, attempts, rowless))
    return found, problems


def _sweep(
    run: RunDir, found: list[_Submission], problems: list[str], answer: Answer
) -> SweepStatus:
    groups: dict[str, list[_Submission]] = {}
    for one in found:
        groups.setdefault(one.label, []).append(one)
    profiles = [_profile(label, group, answer) for label, group in groups.items()]
    try:
        avoided = bad_nodes.current(run, answer, [shard for one in found for shard in one.rowless])
    except ResultsError as error:
        avoided, problems = [], [*problems, str(error)]
    in_slurm = any(one.in_slurm for one in found)
    return SweepStatus(
        sweep=run.name,
        profiles=profiles,
        problems=problems,
        avoided=avoided,
        in_slurm=in_slurm,
        unanswered=[str(missing) for missing in answer.unanswered if in_slurm],
        artifacts=run.artifacts(),
    )


def _profile(label: str, group: Sequence[_Submission], answer: Answer) -> ProfileStatus:
    """Return the status of the submissions to one profile, given oldest first."""
    rows = (row for one in group for row in one.rows.items() if one.takes(row[1]))
    profile = ProfileStatus(label, status=best(rows))
    for one in reversed(group):
        _add(profile, one, answer, newer=profile.planned)
        profile.planned.update(*one.ids.values())
    return profile


def _add(profile: ProfileStatus, one: _Submission, answer: Answer, newer: set[str]) -> None:
    """Add the chunks of a submission; what a newer one took over is not told twice."""
    newest = {shard.chunk: shard for shard in one.attempts}
    rows_of = _rows_by_chunk(one)
    local = one.manifest.is_local
    alive = local and ledger.local_is_live(one.dir)
    told: dict[tuple[str, str], list[int]] = {}
    for index, ids in one.ids.items():
        missing = len(ids) - rows_of[index]
        if not missing:
            profile.chunks[ChunkState.DONE] += 1
            continue
        last = newest.get(index)
        if local:
            chunk = chunk_state.here(last, live=alive)
        else:
            chunk = chunk_state.in_slurm(index, one.sent, answer, last)
        if chunk.state.live:
            _add_live(profile, chunk, last, len(ids), missing)
        elif all(i in newer or i in profile.status for i in ids):
            continue
        profile.chunks[chunk.state] += 1
        if chunk.to_change:
            words = f"will not start by waiting: {chunk.to_change} ({chunk.why})"
            told.setdefault((chunk.state, words), []).append(index)
        elif not chunk.state.live or chunk is chunk_state.ASKED:
            told.setdefault((chunk.state, chunk.why), []).append(index)
    for (state, why), chunks in told.items():
        profile.troubles.append(Trouble(one.dir.id, slurm.task_list(chunks), state, why))


def _add_live(
    profile: ProfileStatus, chunk: Standing, last: ShardPath | None, points: int, missing: int
) -> None:
    profile.live += missing
    if chunk.state is ChunkState.RUNNING:
        profile.running_points += points
        profile.running_done += points - missing
        profile.pace += _pace(last)
    elif chunk.why:
        profile.reasons[chunk.why] += 1


def _rows_by_chunk(one: _Submission) -> dict[int, int]:
    """Return how many points of each chunk have a row."""
    rows = one.rows.keys()
    return {
        index: len(ids) if rows >= (mine := set(ids)) else len(mine & rows)
        for index, ids in one.ids.items()
    }


def _pace(shard: ShardPath | None) -> float:
    """Return points per second of an attempt since its worker was ready; 0 where nothing moves."""
    if shard is None:
        return 0.0
    last, began = _modified(shard.overall), _modified(shard.env)
    if time.time() - last > _PACE_SECONDS:
        return 0.0
    return len(shards.read_keys(shard.overall)) / max(last - began, 0.1)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _cells(sweep: str, profile: ProfileStatus) -> tuple[str, ...]:
    counts, left = profile.counts(), profile.seconds_left
    done = sum(counts.values())
    not_ok = tally({status: n for status, n in counts.items() if status != PointStatus.OK}, counts)
    return (
        sweep,
        profile.profile,
        str(len(profile.planned)),
        str(done),
        str(profile.remaining),
        count(profile.running, "chunk") if profile.running else "-",
        f"{left:.0f} s" if left is not None else "-",
        not_ok or "-",
    )
