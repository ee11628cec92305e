"""Makes a submission on disk of the points that are left: packs them, estimates, writes.

It stands in the folder of the sweep, or in another one where only its figures or files are wanted.
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
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from datetime import datetime, timezone
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import files, messages, sources
from hpcsweep.catalog import ON_NODE, worker_key
from hpcsweep.errors import Refused
from hpcsweep.point import Point
from hpcsweep.spec import directives, lookup
from hpcsweep.store import chunk_file, folders, runs
from hpcsweep.store.chunk_file import Chunk
from hpcsweep.store.manifest import Manifest, RunSettings, masked
from hpcsweep.submit import job_time, packing
from hpcsweep.submit.comparison import SettledPoints, unmeasured
from hpcsweep.submit.estimate import Estimates, estimator
from hpcsweep.submit.request import names_on
from hpcsweep.text import count, duration
from hpcsweep.version import revision

if TYPE_CHECKING:
    from hpcsweep.spec.profile import Profile
    from hpcsweep.store.folders import SubmissionDir, SweepDir
    from hpcsweep.submit.comparison import Submit
    from hpcsweep.submit.request import Request

# Share of the time limit that the estimate of a chunk may fill. Estimates can be too low, and then
# a further job measures what is left; with a smaller share there would be more jobs from the first.
_FILL: Final = 0.85
_ELSEWHERE: Final = {"gpu", *(one.name for one in fields(RunSettings))}  # keys of a profile
# A repository on a slow disk may take long, and the commit is worth no more.
_GIT_SECONDS: Final = 5


def pack(job: Submit) -> Submit:
    """Write the points that are left into the chunks of a new submission; none where none are.

    This is the run through the points: they pass one by one from the sweep into the file.
    """
    left_out = SettledPoints()
    left = unmeasured(job, left_out)
    first = next(left, None)
    if first is None:
        return replace(job, left_out=left_out)
    request = job.request
    estimates = estimator(job.sweep_dir, request, job.operations)
    number = job.sweep_dir.next_round()  # the new folder would count
    submission = folders.new_submission(job.draft_dir or job.sweep_dir, request.profile.name)
    try:
        with _disk_errors_told(submission):
            stream = chunks(request, chain([first], left), estimates)
            if not request.options.skip_dominated:  # which tries the smallest that is too large
                stream = map(packing.arranged, stream)
            nodes = Counter[str]()
            counted = _counted(stream, nodes)
            points, chunk_seconds = chunk_file.write_chunks(submission.chunks, counted)
    except BaseException:
        discard(submission)
        raise
    job = replace(
        job,
        left_out=left_out,
        estimates=estimates,
        new=submission,
        round=number,
        points=points,
        chunk_seconds=chunk_seconds,
        nodes=nodes,
    )
    return replace(job, time=job_time.asked(job))


def _counted(stream: Iterable[Chunk], nodes: Counter[str]) -> Iterator[Chunk]:
    """Count the chunks of each node while they pass."""
    for chunk in stream:
        nodes[_node(chunk.points[0])] += 1
        yield chunk


def _node(point: Point) -> str:
    return str(point.axes.get(ON_NODE, ""))


def chunks(request: Request, points: Iterable[Point], estimates: Estimates) -> Iterator[Chunk]:
    """Yield points in chunks: one for each worker here, or within the profile's limits.

    A chunk is of one node.
    """
    profile = request.profile
    # torch is imported for each visit, and then it is a worker that starts
    start = request.sweep.repeats * max(0.0, estimates.start - estimates.worker)
    if not profile.in_slurm:
        limits = packing.Limits(start=start, worker=estimates.worker)
        yield from packing.spread(
            packing.blocks(points), estimates, worker_key, limits, request.workers
        )
        return
    seconds = min(_fill_of_job(profile), 60.0 * (profile.chunk_minutes or math.inf))
    limits = packing.Limits(seconds, profile.max_points_per_chunk, start, estimates.worker)
    index = 0
    for _, own in groupby(points, _node):
        stream = packing.packed(packing.blocks(own), estimates, worker_key, limits)
        if profile.gpus_per_job > 1:
            per_job = profile.gpus_per_job
            stream = packing.evened(stream, estimates.of_counted, worker_key, limits, per_job)
        for chunk in stream:
            yield replace(chunk, index=index)
            index += 1


def estimate(job: Submit) -> Submit:
    """Hold what the points are expected to take against the budget, and against a job's time.

    Raises:
        Refused: they would cost more than `max_gpu_hours`.
    """
    if not job.new:
        return job
    profile = job.request.profile
    check_budget(job.gpu_seconds, job.request.options.max_gpu_hours, job.estimates)
    # a point that may take longer than a job has is alone in its chunk
    long = [seconds for seconds in job.chunk_seconds if seconds > _fill_of_job(profile)]
    if long and job.estimates.is_known:
        messages.warning(
            f"{count(len(long), 'point')} may take longer than a job of profile {profile.name} "
            f"has, by the estimate: {duration(max(long))} of {duration(profile.time_seconds or 0)}",
            "a point that a job cuts short becomes a `timeout`; give the profile more `time`",
        )
    return job


def check_budget(
    seconds: float, max_gpu_hours: float | None, estimates: Estimates | None = None
) -> None:
    """Refuse a submission whose estimate exceeds the limit, or is none."""
    if max_gpu_hours is None:
        return
    if estimates and not estimates.is_known:
        raise Refused(
            "nobody knows how long points take on this device, so --max-gpu-hours cannot be kept; "
            "nothing was submitted. Measure a --sample without the limit first"
        )
    hours = seconds / 3600
    if hours > max_gpu_hours:
        raise Refused(
            f"the estimate of {hours:g} GPU-hours exceeds --max-gpu-hours {max_gpu_hours:g}; "
            "nothing was submitted. Use --sample, or raise the limit"
        )


def _fill_of_job(profile: Profile) -> float:
    """Return the seconds that the estimate of a job may have."""
    return _FILL * (profile.time_seconds or math.inf) if profile.in_slurm else math.inf


def write(job: Submit) -> Submit:
    """Write all else of a submission, and keep the sweep file, of which it makes others orphans.

    The caller holds the lock of the sweep's folder if the submission goes there.

    Raises:
        ResultsError: the folder cannot be written.
    """
    request = job.request
    sweep_dir = job.draft_dir or job.sweep_dir
    text = request.sweep.text.encode()
    if job.new:
        with _disk_errors_told(job.new):
            found = sources.Sources(request.search_path)
            # the code of networks and data sets: an edit would lose what was measured
            for axis in sources.FACTORIES:
                for value in names_on(request.sweep, axis):
                    found.keep(axis, value, sweep_dir.own_files)
            job.new.write_manifest(_manifest(job))
            save_sweep(sweep_dir, text)
    elif sweep_dir.submissions_dir.is_dir():
        save_sweep(sweep_dir, text)
    if not job.draft_dir and job.sweep_before not in {None, text}:
        gone = set(runs.statuses(sweep_dir)).difference(runs.points_of_file(sweep_dir))
        if gone:
            points = count(len(gone), "measured point")
            messages.note(f"{points} no longer in the sweep: orphans, which tables keep and mark")
    return replace(job, is_written=True)


@contextmanager
def _disk_errors_told(submission: SubmissionDir) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise files.cannot_write(submission.path, error) from error


def save_sweep(sweep_dir: SweepDir, text: bytes | None) -> None:
    """Keep the sweep as it was last submitted, None for none: rows of other points are orphans."""
    if text is None:
        sweep_dir.sweep_file.unlink(missing_ok=True)
        return
    with files.replacing(sweep_dir.sweep_file) as file:
        file.write(text)


def discard(submission: SubmissionDir) -> None:
    """Remove a submission that was never launched, and the folders that were made for it."""
    for path in (submission.path, submission.shards):
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):  # others are there
            path.parent.rmdir()


def tell_surroundings(submission: SubmissionDir) -> None:
    """Say which templates of the user's own make the job script, and which variables do not.

    Templates are code. Inside a job, sbatch's variables may be that job's, and nobody misses them.
    """
    for path in submission.read_manifest().templates:
        messages.note(f"the job script is made of your own template {path}")
    for variable in directives.variables(os.environ):
        if variable.why_not and "SLURM_JOB_ID" not in os.environ:
            messages.note(variable.refusal)


def _manifest(job: Submit) -> Manifest:
    """Return what was submitted, where, and by whom."""
    request = job.request
    profile = request.profile
    sweep = request.sweep
    settings = _settings(job)
    commit = _git(sweep.path.parent if sweep.path else None)
    fields_of_profile = profile.model_dump(mode="json", exclude=_ELSEWHERE)
    return Manifest(
        id=job.submission.id,
        sweep=sweep.name,
        workload=sweep.workload,
        profile=profile.name,
        launcher=profile.launcher,
        gpu=request.device,
        rehearsal=request.rehearsal,
        sample=request.options.sample,
        round=job.round,
        again=job.known.again,
        created_at=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        host=socket.gethostname(),
        user=getpass.getuser(),
        argv=request.options.argv,
        spec="" if request.again else str(sweep.path.resolve()),
        spec_sha256=hashlib.sha256(sweep.text.encode()).hexdigest(),
        hpcsweep_version=revision(),
        **commit,
        maps=dict(sweep.maps),
        templates=lookup.own_templates(),
        run=settings,
        profile_fields=masked({**fields_of_profile, "time": job.profile.time_limit}),
        nodes=dict(job.nodes) if any(job.nodes) else {},
        chunks=len(job.chunk_seconds),
        points=job.points,
        seconds=round(job.seconds, 3),  # a millisecond is less than any estimate is worth
    )


def _settings(job: Submit) -> RunSettings:
    """Return the settings of the measuring side."""
    request = job.request
    profile = request.profile
    return RunSettings(
        gpu_name="" if request.rehearsal else profile.gpu_name,
        min_memory_gb=None if request.rehearsal else profile.min_memory_gb,
        point_timeout=request.sweep.point_timeout,
        kill_wait=profile.kill_wait,
        signal_lead=profile.signal_lead,
        shortened=bool(job.time.limit),
        workers=request.workers,
        search_path=request.search_path,
        skip_dominated=request.options.skip_dominated,
        known_oom=tuple(job.left_out.too_large),
    )


def _git(folder: Path | None) -> dict[str, Any]:
    """Return the commit of the sweep's folder, and whether it has changes; None without git."""
    # no tag is called `-`, so that the answer is the whole commit alone
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--match=-"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return {"git_sha": None, "git_dirty": None}
    sha, dirty, _ = done.stdout.strip().partition("-dirty")
    return {"git_sha": sha, "git_dirty": bool(dirty)}
