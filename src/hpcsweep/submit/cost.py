"""What a request is expected to cost, as `hpcsweep estimate` and a dry run print it.

These are the steps of `submit` up to `estimate`, in a temporary folder and without its checks. They
are apart from `steps`, since an estimate needs nothing that measures or sends: it loads a tenth
fewer modules.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from hpcsweep.cluster.slurm import journal
from hpcsweep.store.folders import SweepDir
from hpcsweep.submit import draft, each_node
from hpcsweep.submit.comparison import LIVE, Submit, compare, in_results
from hpcsweep.submit.estimate import EstimateBasis
from hpcsweep.submit.request import Request
from hpcsweep.text import count, duration


@dataclass(frozen=True)
class Cost:
    """The figures of a submission that was prepared for them alone."""

    job: Submit

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
        rests_on = job.estimates.counts
        gpu_hours = dict[str, float | None]()
        if job.seconds:
            known = job.estimates.is_known
            gpu_hours[request.device] = job.gpu_seconds / 3600 if known else None
        return {
            "sweep": request.sweep.name,
            "profile": request.profile.name,
            "run": job.run,
            "points": job.points,
            "chunks": len(job.chunk_seconds),
            "nodes": [*filter(None, job.nodes)],
            "already_measured": self._measured,
            "queued": self._queued,
            "gpu_hours": gpu_hours,
            "share_from_rows": rests_on[EstimateBasis.MEASURED] / (job.points or 1),
            "rests_on": {str(basis): number for basis, number in rests_on.items()},
            "time_limit": job.profile.time_limit if request.profile.in_slurm else None,
        }

    def text(self) -> str:
        """Return the counts, the time, and what that rests on."""
        job = self.job
        request = job.request
        run = f", run {job.run}" if job.run else ""
        left = f"{count(job.points, 'point')} in {count(len(job.chunk_seconds), 'chunk')}"
        head = f"{request.sweep.name}{run} on {request.profile.name}: {left}"
        if any(job.nodes):
            head += f" on {count(len(job.nodes), 'node')}"
        head += f", {self._measured:,} measured already"
        if self._queued:
            head += f", {self._queued:,} {LIVE}"
        if not job.points:
            return head
        about = duration(job.seconds) if job.estimates.is_known else "nobody knows how long"
        expected = f"expected: {about} on {request.device}{request.asks}"
        per_job = request.profile.gpus_per_job
        if per_job > 1 and job.estimates.is_known:
            expected += f", shared by the {per_job} GPUs of a job"
            expected += f" ({job.gpu_seconds / 3600:.2g} GPU-hours with those that wait)"
        lines = [head, expected, f"  {job.estimates.basis()}"]
        if job.time.why:
            lines.append(f"  {job.time.why}")
        return "\n".join(lines)


def cost_of(results: Path, request: Request) -> Cost:
    """Return what a request is expected to cost; nothing stays of what is written for that."""
    with tempfile.TemporaryDirectory(prefix="hpcsweep-") as folder:
        job = drafted(in_results(results, request), folder)
        for step in ESTIMATE:
            job = step(job)
    return Cost(job)


def drafted(job: Submit, folder: str) -> Submit:
    """Return a request whose submission is written below a temporary folder."""
    return replace(job, draft_dir=SweepDir(Path(folder) / job.sweep_dir.name))


def ask_only(job: Submit) -> Submit:
    """Ask Slurm what became of what was sent before, and change nothing."""
    return replace(job, answer=journal.ask_slurm(job.sweep_dir.submissions()))


ESTIMATE: Final[Sequence[Callable[[Submit], Submit]]] = (
    ask_only, each_node.choose, compare, draft.pack, draft.estimate,
)  # fmt: skip
