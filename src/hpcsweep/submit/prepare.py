"""Writes a submission to disk: the points of a request that are not measured or queued, in chunks.

The manifest is written last: a folder without one is not a submission.
"""

from __future__ import annotations

import getpass
import hashlib
import math
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import files, messages, sources
from hpcsweep.catalog.sharing import worker_key
from hpcsweep.errors import Refused, UsageError
from hpcsweep.point import Point
from hpcsweep.spec import lookup
from hpcsweep.store import chunk_file, folders, ledger, own_files, runs
from hpcsweep.store.folders import SubmissionDir, SweepDir
from hpcsweep.store.manifest import Manifest, RunSettings, masked
from hpcsweep.store.state import PointStatus
from hpcsweep.submit import estimate, packing
from hpcsweep.submit.estimate import Estimates
from hpcsweep.submit.factories import named
from hpcsweep.text import count, duration, tally
from hpcsweep.version import revision

if TYPE_CHECKING:
    from hpcsweep.spec.profile import Profile
    from hpcsweep.store.ledger import LiveChunks
    from hpcsweep.submit.request import Request


# Share of the time limit that the estimate of a chunk may fill: estimates can be too low.
_FILL: Final = 0.85
_ELSEWHERE: Final = {"gpu", *(one.name for one in fields(RunSettings))}  # keys of a profile


@dataclass(frozen=True, kw_only=True)
class PreparedSubmission:
    """A submission that is ready, or the reason why there is nothing to submit."""

    submission: SubmissionDir | None = None
    points: int = 0
    chunks: int = 0
    seconds: float = 0.0
    estimates: Estimates = field(default_factory=Estimates)  # what `seconds` rest on
    settled: Mapping[str, int] = field(default_factory=dict)  # points left out, by status
    live: Sequence[str] = ()  # the submissions that hold the live points
    again: int = 0  # the run that it belongs to, from 0


LIVE: Final = "queued or running"  # in `PreparedSubmission.settled`: points of another submission


def prepare(
    sweep_dir: SweepDir,
    request: Request,
    queue: LiveChunks | None = None,
    into: SweepDir | None = None,
) -> PreparedSubmission:
    """Write a new submission of the points that are left, `into` another folder if given.

    The caller holds the sweep folder's lock if the submission goes there.

    Raises:
        Refused: the points would cost more than `max_gpu_hours`.
        ResultsError: the folder cannot be written.
    """
    before = known_points(sweep_dir, request, queue)
    settled: dict[str, int] = {}
    left = unmeasured(request, before, settled)
    first = next(left, None)
    if first is None:
        if into is None and sweep_dir.submissions_dir.is_dir():
            save_sweep(sweep_dir, request.sweep.text.encode())
        live = sorted(_holders(request, before))
        return PreparedSubmission(settled=settled, live=live, again=before.again)
    number = sweep_dir.next_round()
    seconds_of = estimate.estimator(sweep_dir, request)
    submission = folders.new_submission(into or sweep_dir, request.profile.name)
    with _discarded_on_failure(submission):
        blocks = packing.blocks(chain([first], left))
        packed = chunks(request, blocks, seconds_of)
        if not request.options.skip_dominated:  # which finds the smallest that is too large first
            packed = map(packing.arranged, packed)
        points, each = chunk_file.write_chunks(submission.chunks, packed)
        seconds = sum(each)
        check_budget(seconds, request.options.max_gpu_hours, seconds_of)
        _warn_of_long_points(request.profile, each, is_known=seconds_of.is_known)
        manifest = Manifest(
            id=submission.id,
            round=number,
            again=before.again,
            run=_settings(request, before),
            chunks=len(each),
            points=points,
            seconds=round(seconds, 3),
            **_provenance(request),
        )
        _keep_own_files(into or sweep_dir, request)
        submission.write_manifest(manifest)
        save_sweep(into or sweep_dir, request.sweep.text.encode())
    return PreparedSubmission(
        submission=submission,
        points=points,
        chunks=manifest.chunks,
        seconds=seconds,
        estimates=seconds_of,
        settled=settled,
        again=before.again,
    )


def _keep_own_files(sweep_dir: SweepDir, request: Request) -> None:
    """Keep the code of networks and data sets: an edit would lose what was measured."""
    seen = sources.Sources(request.search_path)
    for axis in sources.FACTORIES:
        for value in named(request.sweep, axis):
            own_files.keep(sweep_dir, seen, axis, value)


@contextmanager
def _discarded_on_failure(submission: SubmissionDir) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        discard(submission)
        raise files.cannot_write(submission.path, error) from error
    except BaseException:
        discard(submission)
        raise


def save_sweep(sweep_dir: SweepDir, text: bytes | None) -> None:
    """Keep the sweep as it was last submitted, None for none: rows of other points are orphans."""
    if text is None:
        sweep_dir.sweep_file.unlink(missing_ok=True)
        return
    with files.replacing(sweep_dir.sweep_file) as file:
        file.write(text)


def check_same_name(sweep_dir: SweepDir, request: Request) -> None:
    """Refuse a folder that holds the results of another sweep file of the same name."""
    before = Path(next((one.spec for one in reversed(sweep_dir.manifests()) if one.spec), ""))
    sweep = request.sweep
    if request.again or request.options.join or before == sweep.path.resolve():
        return
    place = before.parent / os.path.relpath(sweep_dir.path, sweep.path.parent)
    if place.is_dir() and not place.samefile(sweep_dir.path):  # a copy of a folder with its results
        return
    with suppress(OSError):  # it is gone, or on another machine
        if files.regular_bytes(before) != sweep.text.encode():
            raise Refused(
                f"{sweep_dir.path} holds results of {before}, another sweep of this name: give one "
                f"of them another `name`; --join adds the points of {sweep.path}, and takes those "
                "that it lacks out of tables and reports"
            )


def warn_of_results_elsewhere(sweep_dir: SweepDir, request: Request) -> None:
    """Say where results of the sweep stand beside its file or a folder above, if none are here."""
    for folder in () if sweep_dir.path.exists() else request.sweep.path.resolve().parents[:2]:
        other = SweepDir(folder / sweep_dir.path.parent.name / sweep_dir.path.name)
        if other.submissions_dir.is_dir():
            messages.warning(
                f"{other.path} has results of this sweep, here all is measured anew",
                f"`hpcsweep --results {other.path.parent} submit` goes on there",
            )


def tell_templates(submission: SubmissionDir) -> None:
    """Say which templates of the user's own the job script is made of: they are code."""
    for path in submission.read_manifest().templates:
        messages.note(f"the job script is made of your own template {path}")


def discard(submission: SubmissionDir) -> None:
    """Remove a submission that was never launched, and the folders that were made for it."""
    for path in (submission.path, submission.shards):
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):  # others are there
            path.parent.rmdir()


def check_budget(
    seconds: float, max_gpu_hours: float | None, estimates: Estimates | None = None
) -> None:
    """Refuse a submission whose estimate exceeds the limit, or is none."""
    hours = seconds / 3600
    if max_gpu_hours is not None and estimates and not estimates.is_known:
        raise Refused(
            "nobody knows how long points take on this device, so --max-gpu-hours cannot be kept; "
            "nothing was submitted. Measure a --sample without the limit first"
        )
    if max_gpu_hours is not None and hours > max_gpu_hours:
        raise Refused(
            f"the estimate of {hours:g} GPU-hours exceeds --max-gpu-hours {max_gpu_hours:g}; "
            "nothing was submitted. Use --sample, or raise the limit"
        )


def _warn_of_long_points(
    profile: Profile, chunk_seconds: Sequence[float], *, is_known: bool
) -> None:
    """Say if a job may end before one of its points: such a point is alone in its chunk."""
    long = [seconds for seconds in chunk_seconds if seconds > _fill_of_job(profile)]
    if long and is_known:
        messages.warning(
            f"{count(len(long), 'point')} may take longer than a job of profile {profile.name} "
            f"has, by the estimate: {duration(max(long))} of {duration(profile.time_seconds or 0)}",
            "a point that a job cuts short becomes a `timeout`; give the profile more `time`",
        )


def _fill_of_job(profile: Profile) -> float:
    """Return the seconds that the estimate of a job may have."""
    return _FILL * (profile.time_seconds or math.inf) if profile.in_slurm else math.inf


def known_points(sweep_dir: SweepDir, request: Request, queue: LiveChunks | None) -> ledger.Ledger:
    """Return the points that are measured, queued or running, for a request.

    For one that measures everything again these are the points of the last run, as long as it lacks
    some of those that were sent; else of none, since the next run begins.

    Raises:
        Refused: points of the last run are still queued or running, and no other one lacks.
    """
    profiled = request.profile.wrapper != "none"
    if profiled and request.options.again:
        raise UsageError(f"--again: profile {request.profile.name} profiles, and measures nothing")
    found = ledger.read_ledger(sweep_dir, queue, profiled=profiled)
    every = runs.runs_of(sweep_dir)
    if not every:
        return found
    last = every[-1]
    found.again = last.number - 1
    if request.options.again:
        found.status = ledger.statuses(last.dir)
        sent = last.planned() & {point.point_id for point in request.points()}
        if sent and sent <= found.status.keys():
            if ids := _holders(request, found):  # no run begins while an earlier one is on its way
                told = f"{sweep_dir.name}: points of {', '.join(sorted(ids))} are queued or running"
                raise Refused(f"{told}: wait until they ended, or {sweep_dir.command('cancel')}")
            found.again = last.number
            found.status = {}
    return found


def _holders(request: Request, measured: ledger.Ledger) -> set[str]:
    """Return the submissions in which points of a request are queued or running."""
    points = (point.point_id for point in request.points())
    return {measured.live[point_id] for point_id in points if point_id in measured.live}


def unmeasured(
    request: Request, measured: ledger.Ledger, settled: dict[str, int]
) -> Iterator[Point]:
    """Return the points that are to be measured; count the others in `settled` by status."""
    # points skipped by an earlier --skip-dominated are tried without this option
    skipped = set() if request.options.skip_dominated else {PointStatus.SKIPPED}
    left_out = measured.settled(request.again | skipped) - (request.anew - measured.live.keys())
    for point in request.points():
        if point.point_id not in left_out:
            yield point
        else:
            status = LIVE if point.point_id in measured.live else measured.status[point.point_id]
            settled[status] = settled.get(status, 0) + 1


def _settings(request: Request, measured: ledger.Ledger) -> RunSettings:
    """Return the settings of the measuring side; known OOM points only with --skip-dominated."""
    profile = request.profile
    too_large = (p for p in request.points() if measured.status.get(p.point_id) is PointStatus.OOM)
    return RunSettings(
        gpu_name="" if request.rehearsal else profile.gpu_name,
        min_memory_gb=None if request.rehearsal else profile.min_memory_gb,
        point_timeout=request.sweep.point_timeout,
        kill_wait=profile.kill_wait,
        signal_lead=profile.signal_lead,
        workers=request.workers,
        search_path=request.search_path,
        skip_dominated=request.options.skip_dominated,
        known_oom=tuple(dict(p.axes) for p in too_large) if request.options.skip_dominated else (),
    )


def chunks(
    request: Request,
    blocks: Iterable[packing.Block],
    seconds_of: Estimates,
) -> Iterable[chunk_file.Chunk]:
    """Return blocks in chunks: one for each worker here, or within the profile's limits."""
    profile = request.profile
    # torch is imported for each visit, and then it is a worker that starts
    start = request.sweep.repeats * max(0.0, seconds_of.start - seconds_of.worker)
    if not profile.in_slurm:
        limits = packing.Limits(start=start, worker=seconds_of.worker)
        return packing.spread(blocks, seconds_of, worker_key, limits, request.workers)
    seconds = min(_fill_of_job(profile), 60.0 * (profile.chunk_minutes or math.inf))
    limits = packing.Limits(seconds, profile.max_points_per_chunk, start, seconds_of.worker)
    return packing.pack(blocks, seconds_of, worker_key, limits)


def _provenance(request: Request) -> dict[str, Any]:
    """Return the fields of a manifest that say what was submitted, where, and by whom."""
    profile = request.profile
    sweep = request.sweep
    return {
        "sweep": sweep.name,
        "workload": sweep.workload,
        "profile": profile.name,
        "launcher": profile.launcher,
        "gpu": request.device,
        "rehearsal": request.rehearsal,
        "sample": request.options.sample,
        "created_at": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "host": socket.gethostname(),
        "user": getpass.getuser(),
        "argv": request.options.argv,
        "spec": "" if request.again else str(sweep.path.resolve()),
        "spec_sha256": hashlib.sha256(sweep.text.encode()).hexdigest(),
        "hpcsweep_version": revision(),
        **_git(sweep.path.parent if sweep.path else None),
        "maps": dict(sweep.maps),
        "templates": lookup.own_templates(),
        "profile_fields": masked(
            {**profile.model_dump(mode="json", exclude=_ELSEWHERE), "time": profile.time_limit}
        ),
    }


def _git(folder: Path | None) -> dict[str, Any]:
    """Return the commit of the sweep's folder, and whether it has changes; None without git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--match=-"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return {"git_sha": None, "git_dirty": None}
    sha, dirty, _ = done.stdout.strip().partition("-dirty")
    return {"git_sha": sha, "git_dirty": bool(dirty)}


LOCKED_BY: Final = "hpcsweep submit"


@dataclass
class Submit:
    """A request on its way: what is known of it so far."""

    sweep_dir: SweepDir
    request: Request
    ready: PreparedSubmission = field(default_factory=PreparedSubmission)
    sweep_before: bytes | None = None  # the sweep file of the submission before

    @property
    def submission(self) -> SubmissionDir:
        assert self.ready.submission  # noqa: S101 - `_end_if_nothing_is_left` came before
        return self.ready.submission

    @property
    def counts(self) -> SweepDir:
        """Return the sweep with the rows that count as measured: with --again the last run's."""
        return (
            runs.runs_of(self.sweep_dir)[-1].dir if self.request.options.again else self.sweep_dir
        )

    @property
    def seconds(self) -> float:
        """What the estimate gives the points, workers side by side."""
        return self.ready.seconds / max(self.request.workers, 1)

    @property
    def headline(self) -> str:
        """How many points go where, how long they may take, and what is measured already."""
        request = self.request
        settled = tally(self.ready.settled, PointStatus)
        where = f"{request.device}, a rehearsal" if request.rehearsal else request.device
        before = f"; already measured or queued: {settled}" if settled else ""
        run = f", run {self.ready.again + 1}" if request.options.again else ""
        return (
            f"{request.sweep.name}{run}: {count(self.ready.points, 'point')} on {where}, "
            f"{self.ready.estimates.about(self.seconds)}{before}"
        )
