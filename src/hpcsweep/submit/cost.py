"""What a request is expected to cost, as `hpcsweep estimate` and a dry run print it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcsweep.cluster.slurm import liveness
from hpcsweep.cluster.slurm.liveness import SlurmAnswer
from hpcsweep.store.folders import SweepDir
from hpcsweep.submit import prepare
from hpcsweep.submit.estimate import EstimateBasis
from hpcsweep.submit.prepare import PreparedSubmission
from hpcsweep.submit.request import Request
from hpcsweep.text import count, duration


@dataclass(frozen=True)
class Cost:
    """A submission that was prepared for its figures alone."""

    request: Request
    ready: PreparedSubmission

    @property
    def seconds(self) -> float:
        return self.ready.seconds

    @property
    def share_from_rows(self) -> float:
        return self.ready.estimates.counts[EstimateBasis.MEASURED] / (self.ready.points or 1)

    @property
    def _run(self) -> int | None:
        return self.ready.again + 1 if self.request.options.again else None

    @property
    def _queued(self) -> int:
        return self.ready.settled.get(prepare.LIVE, 0)

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        estimates = self.ready.estimates
        gpu_hours = dict[str, float | None]()
        if self.seconds:
            gpu_hours[self.request.device] = self.seconds / 3600 if estimates.is_known else None
        return {
            "sweep": self.request.sweep.name,
            "profile": self.request.profile.name,
            "run": self._run,
            "points": self.ready.points,
            "chunks": self.ready.chunks,
            "already_measured": self._measured,
            "queued": self._queued,
            "gpu_hours": gpu_hours,
            "share_from_rows": self.share_from_rows,
            "rests_on": {str(basis): number for basis, number in estimates.counts.items()},
        }

    @property
    def _measured(self) -> int:
        return sum(self.ready.settled.values()) - self._queued

    def text(self) -> str:
        """Return the counts, the time, and what that rests on."""
        ready = self.ready
        run = f", run {self._run}" if self._run else ""
        head = (
            f"{self.request.sweep.name}{run} on {self.request.profile.name}: "
            f"{count(ready.points, 'point')} in {count(ready.chunks, 'chunk')}, "
            f"{self._measured:,} measured already"
            f"{f', {self._queued:,} {prepare.LIVE}' if self._queued else ''}"
        )
        if not ready.points:
            return head
        about = duration(self.seconds) if ready.estimates.is_known else "nobody knows how long"
        expected = f"expected: {about} on {self.request.device}"
        return "\n".join([head, expected, f"  {ready.estimates.basis()}"])


def cost_of(results: Path, request: Request) -> Cost:
    """Return what a request is expected to cost; nothing stays of what is written for that."""
    sweep_dir = SweepDir(results / request.sweep.name)
    with tempfile.TemporaryDirectory(prefix="hpcsweep-") as folder:
        return drafted(sweep_dir, request, liveness.ask_slurm(sweep_dir.submissions()), folder)


def drafted(sweep_dir: SweepDir, request: Request, answer: SlurmAnswer, folder: str) -> Cost:
    """Write below a folder what would be submitted, whatever it costs."""
    free = replace(request, options=replace(request.options, max_gpu_hours=None))
    into = SweepDir(Path(folder) / sweep_dir.name)
    return Cost(request, prepare.prepare(sweep_dir, free, answer.live_chunks_of, into))
