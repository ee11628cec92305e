"""The time that the jobs of a submission ask for: less than the profile's where rows tell it.

A job of minutes that asks for a day waits for a gap of a day, and backfill passes it by. All chunks
of a submission are in arrays of one time limit, so the longest chunk tells it. Where a job of such
a limit was too short for a point, the next one asks for the profile's whole time.
"""

from __future__ import annotations

from contextlib import suppress
from math import ceil, inf
from typing import TYPE_CHECKING, Final

from hpcsweep.errors import ResultsError
from hpcsweep.numerals import slurm_time
from hpcsweep.spec import directives
from hpcsweep.store import attempt, chunk_file, runs
from hpcsweep.store.state import AttemptState, PointStatus
from hpcsweep.submit.comparison import AskedTime
from hpcsweep.submit.estimate import EstimateBasis
from hpcsweep.text import count, duration

if TYPE_CHECKING:
    from hpcsweep.spec.profile import Profile
    from hpcsweep.store.attempt import AttemptRecord
    from hpcsweep.store.folders import SubmissionDir
    from hpcsweep.submit.comparison import Submit

# For setup lines and a cold import of torch: from a loaded network file system it takes minutes.
_START_SECONDS: Final = 300.0
# Slurm's signal ahead of the limit may come a minute early (sbatch(1), --signal).
_SIGNAL_EARLY_SECONDS: Final = 60.0
# Why an attempt stopped whose job a person cancelled, or a preemption ended: it had time left.
_NOT_BY_TIME: Final = frozenset({"SIGTERM", "SIGINT"})


def asked(job: Submit) -> AskedTime:
    """Return the time limit of the jobs of a packed submission, and why it is not the profile's."""
    request = job.request
    profile = request.profile
    factor = profile.time_factor
    is_measured = job.estimates.counts.keys() == {EstimateBasis.MEASURED}
    if factor is None or not is_measured or not _may_be_shorter(profile):
        return AskedTime()
    work = max(job.chunk_seconds)
    measuring = factor * work
    reason = f"{duration(work)} of work by measured rows, times {factor:g}"
    # a point that hangs ends by its own limit then, and not with its job
    if measuring < request.sweep.point_timeout:
        measuring = request.sweep.point_timeout
        reason += f", at least `point_timeout` ({duration(measuring)})"
    around = _START_SECONDS + max(profile.signal_lead + _SIGNAL_EARLY_SECONDS, profile.kill_wait)
    seconds = 60 * ceil((measuring + around) / 60)  # Slurm reckons in minutes
    if seconds >= (profile.time_seconds or inf):
        return AskedTime()
    most = profile.time_limit
    cut = _cut_short(job)
    if cut:
        left = f"{count(cut, 'point')} did not end within a shorter limit, or timed out"
        return AskedTime(why=f"jobs ask for all of the profile's time, {most}: {left}")
    limit = slurm_time(seconds)
    reason += f", and {duration(around)} to start and to end; the profile allows {most}"
    return AskedTime(limit=limit, why=f"jobs ask for {limit}: {reason}")


def _may_be_shorter(profile: Profile) -> bool:
    """Say whether the time is the program's to choose: no option sets it, nothing slows a job."""
    is_set = profile.time is not None and "time" not in directives.named(profile.sbatch_options)
    return profile.in_slurm and is_set and profile.wrapper == "none"


def _cut_short(job: Submit) -> int:
    """Return how many points of a submission may need the profile's whole time."""
    statuses = runs.statuses(job.sweep_dir)
    unfinished = set[str]()
    for manifest in job.sweep_dir.manifests():
        if manifest.run.shortened:
            unfinished |= _left_by(job.sweep_dir.submission(manifest.id), job)
    unfinished -= statuses.keys()
    found = 0
    for _, ids in chunk_file.read_ids(job.submission.chunks):
        for point_id in ids:
            found += point_id in unfinished or statuses.get(point_id) is PointStatus.TIMEOUT
    return found


def _left_by(submission: SubmissionDir, job: Submit) -> set[str]:
    """Return the points of the chunks of a submission whose jobs the time ended."""
    from hpcsweep.cluster.slurm import journal  # noqa: PLC0415 - a local run needs nothing of Slurm

    sent = journal.read_journal(submission)
    tasks = job.answer.tasks if job.answer else {}
    found = set[str]()
    with suppress(ResultsError):  # damaged: other commands tell
        for chunk, ids in chunk_file.read_ids(submission.chunks):
            now = tasks.get(sent.task_of.get(chunk, (None, None)))
            state = now.state.name if now else sent.over.get(chunk, "")
            record = None
            for shard in submission.attempts(chunk):
                record = attempt.read_record(shard) or record  # the last may be a fence
            if state == "TIMEOUT" or _is_unfinished(record, state):
                found.update(ids)
    return found


def _is_unfinished(record: AttemptRecord | None, state: str) -> bool:
    """Say whether its time may have ended a job, by its last attempt and Slurm's state.

    One that was killed cannot tell. Where none began, Slurm's signal ended lines of `setup`, which
    may copy data for longer than a shortened job lasts; or they failed.
    """
    if record is None:
        return state not in {"", "CANCELLED"}
    if record.state is AttemptState.DONE:
        return False
    if record.state is AttemptState.REFUSED:
        return record.reason.endswith(attempt.TOO_SHORT)
    return record.reason not in _NOT_BY_TIME
