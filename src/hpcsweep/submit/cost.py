"""What a request is expected to cost, as `hpcsweep estimate` and a dry run print it.

These are the steps of `submit` up to `estimate`, in a temporary folder and without its checks. They
are apart from `steps`, since an estimate needs nothing that measures or sends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from hpcsweep.cluster.slurm import journal
from hpcsweep.store.folders import SweepDir
from hpcsweep.submit import draft
from hpcsweep.submit.comparison import LIVE, Submit, compare, in_results
from hpcsweep.submit.estimate import EstimateBasis
from hpcsweep.submit.request import Request
from hpcsweep.text import count, duration


@dataclass(frozen=True)
class Cost:
    """The figures of a submission that was prepared for them alone."""

    job: Submit

    @property
    def share_from_rows(self) -> float:
        return self.job.estimates.counts[EstimateBasis.MEASURED] / (self.job.points or 1)

    @property
    def _queued(self) -> int:
        return self.job.left_out.settled[LIVE]

    @property
    def _measured(self) -> int:
        return self.job.left_out.settled.total() - self._queued

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        job = self.job
        request = job.request
        gpu_hours = dict[str, float | None]()
        if job.seconds:
            gpu_hours[request.device] = job.seconds / 3600 if job.estimates.is_known else None
        return {
            "sweep": request.sweep.name,
            "profile": request.profile.name,
            "run": job.run,
            "points": job.points,
            "chunks": len(job.chunk_seconds),
            "already_measured": self._measured,
            "queued": self._queued,
            "gpu_hours": gpu_hours,
            "share_from_rows": self.share_from_rows,
            "rests_on": {str(basis): number for basis, number in job.estimates.counts.items()},
        }

    def text(self) -> str:
        """Return the counts, the time, and what that rests on."""
        job = self.job
        request = job.request
        run = f", run {job.run}" if job.run else ""
        head = (
            f"{request.sweep.name}{run} on {request.profile.name}: "
            f"{count(job.points, 'point')} in {count(len(job.chunk_seconds), 'chunk')}, "
            f"{self._measured:,} measured already"
            f"{f', {self._queued:,} {LIVE}' if self._queued else ''}"
        )
        if not job.points:
            return head
        about = duration(job.seconds) if job.estimates.is_known else "nobody knows how long"
        expected = f"expected: {about} on {request.device}"
        return "\n".join([head, expected, f"  {job.estimates.basis()}"])


def cost_of(results: Path, request: Request) -> Cost:
    """Return what a request is expected to cost; nothing stays of what is written for that."""
    with tempfile.TemporaryDirectory(prefix="hpcsweep-") as folder:
        job = drafted(in_results(results, request), folder)
        for step in COST:
            job = step(job)
    return Cost(job)


def drafted(job: Submit, folder: str) -> Submit:
    """Return a request whose submission is written below a temporary folder."""
    return replace(job, draft_dir=SweepDir(Path(folder) / job.sweep_dir.name))


def ask_only(job: Submit) -> Submit:
    """Ask Slurm what became of what was sent before, and change nothing."""
    return replace(job, answer=journal.ask_slurm(job.sweep_dir.submissions()))


COST: Final[Sequence[Callable[[Submit], Submit]]] = (ask_only, compare, draft.pack, draft.estimate)
