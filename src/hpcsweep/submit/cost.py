"""What a request is expected to cost, as `hpcsweep estimate` and a dry run print it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcsweep.store import rundir
from hpcsweep.submit import estimate, prepare
from hpcsweep.text import count, duration
from hpcsweep.tracking import journal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpcsweep.submit.request import Request


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Points, chunks and expected seconds by GPU; `measured` points are estimated from rows."""

    sweep: str
    profile: str
    points: int
    chunks: int
    settled: int
    measured: int
    seconds: Mapping[str, float]

    @property
    def share_from_rows(self) -> float:
        return self.measured / self.points if self.points else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        return {
            "sweep": self.sweep,
            "profile": self.profile,
            "points": self.points,
            "chunks": self.chunks,
            "already_measured": self.settled,
            "gpu_hours": {gpu: seconds / 3600 for gpu, seconds in self.seconds.items()},
            "share_from_rows": self.share_from_rows,
        }

    def text(self) -> str:
        """Return two lines: the counts, and the time."""
        head = (
            f"{self.sweep} on {self.profile}: {count(self.points, 'point')} in "
            f"{count(self.chunks, 'chunk')}, {self.settled:,} measured already"
        )
        times = [f"{duration(seconds)} on {gpu}" for gpu, seconds in self.seconds.items()]
        return f"{head}\nexpected: {', '.join(times)} ({self._basis()})" if times else head

    def _basis(self) -> str:
        share = 100 * self.share_from_rows
        if not self.measured:
            return "rough estimate: no measurements of these models yet"
        return f"{share:.0f} % of the points estimated from measurements of the same model"


def of(results: Path, asked: Request) -> Cost:
    """Return what a request is expected to cost, without writing anything."""
    run = rundir.RunDir(results / asked.sweep.name)
    seconds_of = estimate.estimator(run, asked.device)
    settled: dict[str, int] = {}
    known = prepare.known(run, asked, journal.ask(run.submissions()).live_chunks)
    # a million points would fill the memory; their seconds do not
    each = [seconds_of(point) for point in prepare.unmeasured(asked, known, settled)]
    return Cost(
        sweep=asked.sweep.name,
        profile=asked.profile.name,
        points=len(each),
        chunks=sum(1 for _chunk in prepare.chunks(asked, each, float)),
        settled=sum(settled.values()),
        measured=seconds_of.measured,
        seconds=dict(seconds_of.by_gpu),
    )
