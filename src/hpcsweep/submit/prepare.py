"""From a sweep and a profile to a submission on disk, ready to be launched.

What is measured already, or on its way, is left out; so typing the same command again continues.
The manifest is written last: a folder without one is not a submission.
"""

from __future__ import annotations

import getpass
import hashlib
import shutil
import socket
import subprocess
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import __version__, files
from hpcsweep.errors import Refused
from hpcsweep.spec import expansion as plan
from hpcsweep.store import chunk_file, ledger, rundir
from hpcsweep.store.manifest import Manifest, RunSettings
from hpcsweep.store.state import PointStatus
from hpcsweep.submit import estimate, packing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from hpcsweep.point import Point
    from hpcsweep.spec.profile import Profile
    from hpcsweep.spec.space import Sweep
    from hpcsweep.store.ledger import LiveChunks
    from hpcsweep.store.rundir import RunDir, SubmissionDir

# Share of the time limit that a chunk is planned to fill; estimates are not promises.
_FILL: Final = 0.85


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a person asked for."""

    sweep: Sweep
    profile: Profile
    device: str
    rehearsal: bool
    workers: int = 1
    sample: int | None = None
    again: frozenset[str] = frozenset()
    only: frozenset[str] = frozenset()
    skip_dominated: bool = False
    max_gpu_hours: float | None = None
    check: bool = True  # compare the profile with its cluster first
    argv: tuple[str, ...] = ()

    def words(self) -> str:
        """Return the sweep's name, and where its points run."""
        how = ", a rehearsal" if self.rehearsal else ""
        return f"{self.sweep.name} on {self.profile.name} ({self.device}{how})"

    def expansion(self) -> plan.Expansion:
        """Return what the profile takes of the sweep."""
        if self.rehearsal:
            return plan.expand(self.sweep, rehearse=self.device, sample=self.sample)
        return plan.expand(self.sweep, gpu=self.device, sample=self.sample)

    def points(self) -> Iterator[Point]:
        """Return the points to submit, in order: all that the profile takes, or `only` some."""
        points = iter(self.expansion())
        if self.only:
            return (point for point in points if point.point_id in self.only)
        return points


@dataclass
class Prepared:
    """A submission that is ready, or the reason why there is nothing to submit.

    `live` names the submissions that will measure what is pending, where nothing else is.
    """

    submission: SubmissionDir | None
    points: int
    chunks: int
    seconds: float
    settled: dict[str, int] = field(default_factory=dict)
    live: list[str] = field(default_factory=list)


def prepare(
    run: RunDir, request: Request, queue: LiveChunks | None = None, into: RunDir | None = None
) -> Prepared:
    """Write a new submission of what is still to be measured, `into` another folder if asked.

    The caller holds the run folder's lock, unless nothing is written there.

    Raises:
        Refused: the points would cost more than `max_gpu_hours`.
        ResultsError: the folder cannot be written.

    """
    ledger_of_run = known(run, request, queue)
    tally: dict[str, int] = {}
    points_left = pending(request, ledger_of_run, tally)
    first = next(points_left, None)
    if first is None:
        if into is None and run.submissions_dir.is_dir():
            _keep_sweep(run, request)
        on_their_way = {ledger_of_run.live.get(point.point_id) for point in request.points()}
        return Prepared(None, 0, 0, 0.0, tally, sorted(filter(None, on_their_way)))
    number = len(run.submissions())
    submission = rundir.new_submission(into or run, request.profile.name)
    try:
        seconds_of = estimate.estimator(run, request.device)
        packed = chunks(request, _chain(first, points_left), seconds_of)
        count, points, seconds = chunk_file.write_chunks(submission.chunks, packed)
        check_budget(seconds, request.max_gpu_hours)
        manifest = Manifest(
            id=submission.id,
            round=number,
            run=_settings(request, ledger_of_run),
            chunks=count,
            points=points,
            seconds=round(seconds, 3),
            **_provenance(request),
        )
        submission.write_manifest(manifest)
        _keep_sweep(into or run, request)
    except OSError as error:
        discard(submission)
        raise files.cannot_write(submission.path, error) from error
    except BaseException:
        discard(submission)
        raise
    return Prepared(submission, points, count, seconds, tally)


def _keep_sweep(run: RunDir, request: Request) -> None:
    """Keep the sweep as it was last submitted: rows that it no longer has are orphans."""
    with files.replacing(run.sweep_file) as file:
        file.write(request.sweep.text.encode())


def discard(submission: SubmissionDir) -> None:
    """Remove a submission that was never launched."""
    shutil.rmtree(submission.path, ignore_errors=True)
    shutil.rmtree(submission.shards, ignore_errors=True)


def check_budget(seconds: float, max_gpu_hours: float | None) -> None:
    """Refuse a submission that is expected to cost more than the budget."""
    hours = seconds / 3600
    if max_gpu_hours is not None and hours > max_gpu_hours:
        raise Refused(
            f"about {hours:.2f} GPU-hours are expected, more than --max-gpu-hours "
            f"{max_gpu_hours:g}; nothing was submitted. Use --sample, or raise the budget"
        )


def chunk_limits(profile: Profile) -> packing.Limits:
    """Return how large a chunk of a profile may be."""
    seconds = _FILL * profile.time_seconds if profile.time_seconds else float("inf")
    if profile.chunk_minutes:
        seconds = min(seconds, 60.0 * profile.chunk_minutes)
    return packing.Limits(seconds, profile.max_points_per_chunk)


def known(run: RunDir, request: Request, queue: LiveChunks | None) -> ledger.Ledger:
    """Return what counts as measured or on its way for a request."""
    return ledger.read(run, queue, profiled=request.profile.wrapper != "none")


def pending(request: Request, known: ledger.Ledger, tally: dict[str, int]) -> Iterator[Point]:
    """Return the points that are to be measured; count the others in `tally` by their status."""
    # what was skipped on request is tried once nobody requests it any more
    again = request.again if request.skip_dominated else {*request.again, PointStatus.SKIPPED}
    settled = known.settled(again)
    for point in request.points():
        if point.point_id not in settled:
            yield point
        else:
            where = "pending" if point.point_id in known.live else known.status[point.point_id]
            tally[where] = tally.get(where, 0) + 1


def _settings(request: Request, known: ledger.Ledger) -> RunSettings:
    """Return what the measuring side needs; of points that are too large only where it asks."""
    profile = request.profile
    too_large = (p for p in request.points() if known.status.get(p.point_id) is PointStatus.OOM)
    return RunSettings(
        gpu=request.device,
        gpu_name="" if request.rehearsal else profile.gpu_name,
        min_memory_gb=None if request.rehearsal else profile.min_memory_gb,
        point_timeout=request.sweep.point_timeout,
        kill_wait=profile.kill_wait,
        workers=request.workers,
        skip_dominated=request.skip_dominated,
        known_oom=tuple(dict(p.axes) for p in too_large) if request.skip_dominated else (),
    )


def chunks(
    request: Request, points: Iterable[Point], seconds_of: estimate.Estimator
) -> Iterable[chunk_file.Chunk]:
    """Return points in chunks: one per worker of this machine, or as the profile limits them."""
    if request.profile.launcher == "local":
        return packing.share(points, seconds_of, request.workers)
    return packing.pack(points, seconds_of, chunk_limits(request.profile))


def _chain(first: Point, rest: Iterator[Point]) -> Iterator[Point]:
    yield first
    yield from rest


def _provenance(request: Request) -> dict[str, Any]:
    """Return the fields of a manifest that say what was asked for, where, and by whom."""
    profile, sweep = request.profile, request.sweep
    return {
        "sweep": sweep.name,
        "workload": sweep.workload,
        "profile": profile.name,
        "launcher": profile.launcher,
        "gpu": request.device,
        "rehearsal": request.rehearsal,
        "sample": request.sample,
        "created_at": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "host": socket.gethostname(),
        "user": getpass.getuser(),
        "argv": request.argv,
        "spec_sha256": hashlib.sha256(sweep.text.encode()).hexdigest(),
        "hpcsweep_version": __version__,
        **_git(sweep.path.parent if sweep.path else None),
        "profile_fields": profile.model_dump(mode="json"),
    }


def _git(folder: Path | None) -> dict[str, Any]:
    """Return commit and dirtiness of the folder that the sweep lies in; empty where none."""
    try:
        sha = _git_out(folder, "rev-parse", "HEAD")
        changes = _git_out(folder, "status", "--porcelain", "-uno")
    except (OSError, subprocess.SubprocessError):
        return {"git_sha": None, "git_dirty": None}
    return {"git_sha": sha, "git_dirty": bool(changes)}


def _git_out(folder: Path | None, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=5, check=True
    )
    return done.stdout.strip()


def first_points(request: Request, count: int) -> list[Point]:
    """Return the first few points of a request, for a rehearsal."""
    return list(islice(request.points(), count))
