"""What a request is expected to cost, as `hpcsweep estimate` and a dry run print it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from hpcsweep.catalog.sharing import worker_key
from hpcsweep.cluster.slurm import liveness
from hpcsweep.forecast import Basis, estimate
from hpcsweep.store import folders
from hpcsweep.submit import packing, prepare
from hpcsweep.submit.request import Request
from hpcsweep.submit.time_limit import limit_of
from hpcsweep.text import count, duration


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Points, chunks and expected seconds by GPU; `counts` say what the points' times rest on."""

    sweep: str
    profile: str
    points: int
    chunks: int
    settled: int
    queued: int  # or running
    seconds: Mapping[str, float]
    run: int | None = None  # of a sweep that is measured once more
    width: float | None = None  # the factor that they may be too low by, nine times in ten
    counts: Mapping[Basis, int] = field(default_factory=dict)
    basis: str = ""
    time_limit: str = ""  # that jobs ask for, if it is shorter than the profile's

    @property
    def share_from_rows(self) -> float:
        return self.counts.get(Basis.MEASURED, 0) / self.points if self.points else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        return {
            "sweep": self.sweep,
            "profile": self.profile,
            "run": self.run,
            "points": self.points,
            "chunks": self.chunks,
            "already_measured": self.settled,
            "queued": self.queued,
            "gpu_hours": {gpu: seconds / 3600 for gpu, seconds in self.seconds.items()},
            "upper_factor": self.width,
            "share_from_rows": self.share_from_rows,
            "rests_on": {str(basis): number for basis, number in self.counts.items()},
            "time_limit": self.time_limit or None,
        }

    def text(self) -> str:
        """Return the counts, the time, and what that rests on."""
        run = f", run {self.run}" if self.run else ""
        head = (
            f"{self.sweep}{run} on {self.profile}: {count(self.points, 'point')} in "
            f"{count(self.chunks, 'chunk')}, {self.settled:,} measured already"
            f"{f', {self.queued:,} {prepare.LIVE}' if self.queued else ''}"
        )
        if not self.points:
            return head
        times = [f"{duration(seconds)} on {gpu}{self._upper(seconds)}"
                 for gpu, seconds in self.seconds.items()]  # fmt: skip
        lines = [head, f"expected: {', '.join(times)}", f"  {self.basis}"]
        if self.time_limit:
            lines.append(f"  jobs would ask for {self.time_limit}, less than the profile's `time`")
        return "\n".join(lines)

    def _upper(self, seconds: float) -> str:
        upper = duration((self.width or 1.0) * seconds)
        return f" (nine times in ten below {upper})" if upper != duration(seconds) else ""


def cost_of(results: Path, request: Request) -> Cost:
    """Return what a request is expected to cost, without writing anything."""
    sweep_dir = folders.SweepDir(results / request.sweep.name)
    seconds_of = estimate.estimator(sweep_dir, request.sweep, request.device)
    settled: dict[str, int] = {}
    known = prepare.known_points(
        sweep_dir,
        request,
        liveness.ask_slurm(sweep_dir.submissions()).live_chunks_of,
    )
    # all points would fill the memory; their seconds do not
    points = prepare.unmeasured(request, known, settled)
    blocks = [
        [(seconds_of(point), worker_key(point)) for point in block]
        for block in packing.blocks(points)
    ]
    packed = prepare.chunks(request, blocks, itemgetter(0), itemgetter(1), seconds_of)
    chunks = [chunk.seconds for chunk in packed]
    queued = settled.pop(prepare.LIVE, 0)
    return Cost(
        sweep=request.sweep.name,
        profile=request.profile.name,
        points=sum(map(len, blocks)),
        chunks=len(chunks),
        settled=sum(settled.values()),
        queued=queued,
        seconds={request.device: sum(chunks)} if chunks else {},
        run=known.again + 1 if request.options.again else None,
        width=seconds_of.width if seconds_of.is_calibrated else None,
        counts=dict(seconds_of.counts),
        basis=seconds_of.basis(),
        time_limit=limit_of(sweep_dir, request, max(chunks), seconds_of) if chunks else "",
    )
