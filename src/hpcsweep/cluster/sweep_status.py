"""The status of a sweep as a table, as text and as JSON: points and chunks by state, troubles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

from hpcsweep.cluster.slurm.bad_nodes import BadNode
from hpcsweep.store import runs
from hpcsweep.store.outcomes import VALID, FailureGroup, PointTally
from hpcsweep.store.rounds import AdaptiveRun
from hpcsweep.store.runs import Listed
from hpcsweep.store.state import ChunkState, PointStatus
from hpcsweep.text import aligned, count, duration, folded, tally

# Lines at most, so that table and troubles fit a screen; `--json` has them all.
_TROUBLES: Final = 10
_CHUNKS: Final = 10


@dataclass(frozen=True)
class Trouble:
    """Chunks of one submission that ended too early or can never start, for the same reason."""

    submission: str
    chunks: str
    state: str
    why: str

    def __str__(self) -> str:
        return f"{self.submission}:{self.chunks} {self.state}: {self.why}"


@dataclass(frozen=True)
class LastKnown:
    """Chunks of one submission that lack rows, in the state that Slurm last told."""

    submission: str
    chunks: str
    state: str
    why: str
    at: str  # UTC, ISO 8601

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        age = datetime.now(timezone.utc) - datetime.fromisoformat(self.at).astimezone()
        when = f"as of {duration(age.total_seconds())} ago"
        return f"{self.submission}:{self.chunks} was {self.state}{why}, {when}"


@dataclass
class ProfileStatus:
    """The points of one sweep that went to one profile."""

    profile: str
    planned: set[str] = field(default_factory=set)
    status: dict[str, PointStatus] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)  # by ok point: why it is not valid
    orphans: int = 0  # points that the sweep no longer has; nothing else counts them
    live: int = 0  # points without a row in chunks that are queued or running
    pace: float = 0.0  # points per second of the running chunks
    chunks: Counter[ChunkState] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)  # why chunks wait
    starts: list[datetime] = field(default_factory=list)  # of chunks that wait, as Slurm guesses
    running_done: int = 0  # points with a row in the chunks that run
    running_points: int = 0
    troubles: list[Trouble] = field(default_factory=list)
    last_known: list[LastKnown] = field(default_factory=list)
    silent: bool = False  # squeue gives no answer now: `last_known` is of an earlier one
    at_work: list[str] = field(default_factory=list)  # a line for each chunk that runs
    failures: list[FailureGroup] = field(default_factory=list)  # why points were not measured
    then: list[str] = field(default_factory=list)  # of the job after the last one
    then_live: bool = False  # it waits or runs
    disturbed: str = ""  # what disturbed points that are not valid, and what to do
    neighbours: str = ""  # what the GPUs of a job cost each other

    def tally(self) -> PointTally:
        """Count the measured points by status, and those with status ok that are not valid."""
        measured = self.planned & self.status.keys()
        points = PointTally(Counter(map(self.status.__getitem__, measured)))
        for point, why in self.doubts.items():
            if why != VALID and point in measured and self.status[point] is PointStatus.OK:
                points.doubt([why])
        return points

    @property
    def running(self) -> int:
        """Number of chunks that run."""
        return self.chunks[ChunkState.RUNNING]

    @property
    def remaining(self) -> int:
        """Number of points without a row."""
        return len(self.planned - self.status.keys())

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the live points take at the pace of the running chunks; None if unknown."""
        return self.live / self.pace if self.pace and self.live else None

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        points = self.tally()
        return {
            "profile": self.profile,
            "points": len(self.planned),
            "by_status": points.counts(),
            **points.to_json(),
            "orphans": self.orphans,
            "pending": self.remaining,
            "live": self.live,
            "running_chunks": self.running,
            "running": {"done": self.running_done, "points": self.running_points},
            "points_per_second": round(self.pace, 4),
            "seconds_left": self.seconds_left,
            "chunks": self._chunks(),
            "waits_for": dict(self.reasons),
            "expected_start": _span(self.starts),
            "failed": [asdict(failure) for failure in self.failures],
            "trouble": [asdict(trouble) for trouble in self.troubles],
            "last_known": [asdict(told) for told in self.last_known],
            "then": self.then,
        }

    def words(self) -> list[str]:
        """Return the lines below the table: points that are not valid, chunks, what is wrong."""
        lines = []
        points = self.tally()
        if points.not_valid:
            lines.append(f"flagged {points.flagged()}")
        if self.disturbed:
            lines.append(self.disturbed)
        if self.neighbours:
            lines.append(self.neighbours)
        if self.orphans:
            gone = count(self.orphans, "point")
            lines.append(f"{gone} no longer in the sweep (orphans), not counted")
        lines += map(str, self.failures[:_TROUBLES])
        troubles: list[str] = []
        chunks = self._chunks()
        if chunks.keys() - {ChunkState.DONE}:
            states = [f"{number} {state}{self._more(state)}" for state, number in chunks.items()]
            lines.append(f"chunks: {', '.join(states)}")
            if self.starts:
                lines.append(f"waiting chunks: {expected(self.starts)}")
            told = [*self.troubles, *(self.last_known if self.silent else ())]
            troubles += map(str, told[:_TROUBLES])
            more = len(told) - _TROUBLES
            if more > 0:
                troubles.append(f"and {more} more (--json shows all)")
        lines += self.then
        return [*(f"{self.profile}: {line}" for line in lines), *troubles]

    def _chunks(self) -> dict[ChunkState, int]:
        return {state: self.chunks[state] for state in ChunkState if self.chunks[state]}

    def _more(self, state: ChunkState) -> str:
        if state is ChunkState.RUNNING:
            pace = ""
            if 0 < self.pace < 1:
                pace = f", {duration(1 / self.pace)} a point"
            elif self.pace:
                pace = f", {self.pace:,.0f} points a second"
            return f" ({self.running_done} of {self.running_points} points{pace})"
        if state is ChunkState.PENDING and self.reasons:
            reasons = [f"{number} {reason}" for reason, number in self.reasons.most_common()]
            return f" ({', '.join(reasons)})"
        return ""


def _span(starts: Sequence[datetime]) -> dict[str, str] | None:
    if not starts:
        return None
    return {"first": min(starts).isoformat(), "last": max(starts).isoformat()}


def expected(starts: Sequence[datetime]) -> str:
    """Say when the first and the last job of these chunks start, as Slurm guesses.

    Slurm guesses for the next task of an array, and says the same of those behind it.
    """
    first, last = _at(min(starts)), _at(max(starts))
    more = "" if first == last else f", the last job at {last}"
    return f"the first is expected to start at {first}{more} (Slurm's guess)"


def _at(moment: datetime) -> str:
    now = datetime.now(timezone.utc).astimezone()
    local = moment.astimezone()
    day = "" if local.date() == now.date() else f"{local:%Y-%m-%d} "
    return f"{day}{local:%H:%M}, in {duration((local - now).total_seconds())}"


@dataclass
class SweepStatus:
    """The profiles and runs of one sweep, unreadable files, and unanswered questions to Slurm."""

    sweep: str
    profiles: list[ProfileStatus]
    problems: list[str]
    avoided: list[BadNode]
    in_slurm: bool  # some of its chunks may be in the queue
    unanswered: list[str]
    until: list[AdaptiveRun] = field(default_factory=list)  # of `submit --until-error`, by device
    runs: list[Listed] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        return {
            "sweep": self.sweep,
            "runs": [run.to_json() for run in self.runs],
            "profiles": [profile.to_json() for profile in self.profiles],
            "problems": self.problems,
            "avoided_nodes": [asdict(node) for node in self.avoided],
            "not_asked": self.unanswered,
            "until_error": [rounds.to_json() for rounds in self.until],
        }

    def words(self) -> list[str]:
        """Return the lines below the table."""
        lines = [*runs.lines(self.runs), *self.problems]
        for profile in self.profiles:
            lines += profile.words()
        for rounds in self.until:
            lines.append(f"{rounds.device}: {rounds.text()}")
        if self.avoided:
            shown = ", ".join(map(str, self.avoided))
            lines.append(f"for a day, new submissions avoid {shown}")
        return [f"{self.sweep}: {line}" for line in lines]


def as_text(
    sweeps: Sequence[SweepStatus], width: int | None = None, *, at_work: bool = False
) -> str:
    """Return the table of sweeps, and with `at_work` a line for each running chunk."""
    if not sweeps:
        return "no results yet; `hpcsweep submit SPEC` makes some"
    head = ("sweep", "profile", "points", "done", "remaining", "running", "time left", "not ok")
    rows: list[tuple[str, ...]] = [head]
    running: list[str] = []
    below: list[str] = []
    unanswered: list[str] = []
    for sweep in sweeps:
        for profile in sweep.profiles:
            rows.append(_cells(sweep.sweep, profile))
            running += [f"{sweep.sweep}: {line}" for line in profile.at_work[:_CHUNKS]]
        below += sweep.words()
        unanswered += sweep.unanswered
    lines = [*aligned(rows), *(running if at_work else ()), *below]
    if unanswered:
        lines.append(f"not asked: {'; '.join(dict.fromkeys(unanswered))}")
    return "\n".join(folded(lines, width))


def to_json(sweeps: Sequence[SweepStatus]) -> dict[str, Any]:
    """Return the record that `status --json` prints."""
    return {"sweeps": [sweep.to_json() for sweep in sweeps]}


def _cells(sweep: str, profile: ProfileStatus) -> tuple[str, ...]:
    points = profile.tally()
    left = profile.seconds_left
    counts = points.counts()
    done = sum(counts.values())
    others = {status: number for status, number in counts.items() if status != PointStatus.OK}
    not_ok = tally(others, counts)
    not_valid = f"{points.not_valid:,} not valid" if points.not_valid else ""
    return (
        sweep,
        profile.profile,
        str(len(profile.planned)),
        str(done),
        str(profile.remaining),
        count(profile.running, "chunk") if profile.running else "-",
        duration(left) if left is not None else "-",
        ", ".join(filter(None, (not_valid, not_ok))) or "-",
    )
