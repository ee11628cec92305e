"""The job after the last array of a submission: `then` of a profile, or `submit --then`.

It is a small job that waits for all arrays by `--dependency=afterany`, so it runs whatever became
of them. Its script has the profile's setup, and writes the command's exit code beside the journal,
since Slurm forgets how a job ended. Both launchers send it by sbatch.

It needs no GPU. But a partition may refuse jobs without one: where Slurm refuses it, it is sent
with all that the profile asks for, as the arrays were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcsweep import files, numerals
from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm import journal
from hpcsweep.cluster.slurm.journal import Journal, SlurmAnswer
from hpcsweep.errors import HpcsweepError, SchedulerError
from hpcsweep.store.folders import SubmissionDir
from hpcsweep.store.jobs_file import CANCELLED, NOT_SENT, QUEUED, SENDING, Then

if TYPE_CHECKING:
    from hpcsweep.spec.profile import Profile

# To collect, report or submit takes minutes; short jobs start early, and each partition has room
# for so many seconds.
_SECONDS: Final = 1800
# What the job takes of a profile, and of its `sbatch_options`: where it runs, and who pays.
_KEPT: Final = ("partition", "constraint", "account", "qos", "reservation", "wckey")


def script(submission: SubmissionDir, profile: Profile, command: str) -> bytes:
    """Return the script of the job; `ProfileError` for a command with a line end."""
    from hpcsweep.cluster.slurm import job_script  # noqa: PLC0415 - `status` needs no templates

    limit = {"time": _limit(profile), "sbatch_options": [], "wrapper": "none"}
    short = profile.model_copy(update=limit)
    text = job_script.render_then(short, submission, command, Path.cwd())
    return job_script.encoded(text)


def write(submission: SubmissionDir, profile: Profile, command: str) -> None:
    """Write the script; it holds the values of the profile's variables."""
    with files.replacing(submission.then_script, most=0o600) as file:
        file.write(script(submission, profile, command))


def _limit(profile: Profile) -> str:
    return numerals.slurm_time(min(profile.time_seconds or _SECONDS, _SECONDS))


def options(
    submission: SubmissionDir, profile: Profile, arrays: Sequence[str], *, whole: bool = False
) -> list[str]:
    """Return the options of sbatch for the job after `arrays`; `whole`: with all of a profile."""
    from hpcsweep.cluster.slurm import job_script, profile_wants  # noqa: PLC0415 - as above

    wants = profile_wants.options_of(profile)
    chosen = [f"--{key}={wants[key]}" for key in _KEPT if wants[key]]
    if whole:
        chosen = profile_wants.arguments(profile)
    jobs = [str(slurm.parse_id(array).job) for array in arrays]
    return [
        *chosen,
        f"--time={_limit(profile)}",
        f"--job-name=hpcsweep-{submission.sweep_dir.name}-then",
        f"--output={job_script.output(submission, 'logs/then-%j.out')}",
        f"--chdir={submission.path.absolute()}",
        f"--dependency=afterany:{':'.join(jobs)}",
    ]


def send(submission: SubmissionDir, profile: Profile, arrays: Sequence[str]) -> str:
    """Send the job, whose script is written, after all arrays; return its id.

    Raises:
        SchedulerError: it did not go in, or nobody knows; the arrays did.
    """
    submission.append_job(Then(then=SENDING, at=journal.now()))
    try:
        try:
            job = _sbatch(submission, options(submission, profile, arrays))
        except slurm.Rejected:
            job = _sbatch(submission, options(submission, profile, arrays, whole=True))
    except HpcsweepError as error:
        if isinstance(error, SchedulerError) and error.maybe_accepted:
            raise
        submission.append_job(Then(then=NOT_SENT, at=journal.now()))
        text = f"the job after them (`then`) was not sent: {error}"
        raise SchedulerError(f"{text}\nrun its command by hand when they ended") from error
    submission.append_job(Then(then=QUEUED, job=job, at=journal.now()))
    return job


def _sbatch(submission: SubmissionDir, chosen: Sequence[str]) -> str:
    return str(slurm.submit(submission.then_script.absolute(), options=chosen))


def lost(sent: Journal) -> bool:
    """Say whether sbatch's answer about the job was lost, and the job did not end meanwhile."""
    return bool(sent.then and sent.then.then == SENDING and not sent.submission.then_code.exists())


def settle(sent: Journal, jobs: Sequence[slurm.JobState]) -> Iterator[str]:
    """Note the job for which sbatch's answer was lost, by the queue's jobs; yield a message."""
    recorded = {slurm.parse_id(array).job for array in sent.arrays}
    own = {job.id.job or 0 for job in jobs if sent.submission.is_at(job.folder)} - recorded
    what = f"{sent.submission.id}: sbatch's answer about the job of `then` was lost; it"
    if own:
        found = Then(then=QUEUED, job=str(max(own)), at=journal.now())
        yield f"{what} went in as {found.job}"
    else:
        found = Then(then=NOT_SENT, at=journal.now())
        yield f"{what} did not go in"
    sent.submission.append_job(found)


@dataclass(frozen=True)
class ThenStatus:
    """What a person is told of the job; `words` are empty where it is done, or there is none."""

    words: str = ""
    live: bool = False


def status_of(sent: Journal, answer: SlurmAnswer) -> ThenStatus:
    """Return whether the job waits or runs, or why it failed, by its exit code or by Slurm."""
    then = sent.then
    if then is None or then.then in {NOT_SENT, CANCELLED}:
        return ThenStatus()
    code = ""
    with suppress(OSError):
        code = sent.submission.then_code.read_text().strip()
    if code == "0":
        return ThenStatus()
    what = f"then (job {then.job})"
    log = sent.submission.logs / f"then-{slurm.parse_id(then.job).job or '*'}.out"
    if code:
        return ThenStatus(f"{what} failed with exit code {code}: see {log}")
    if then.then == SENDING:
        return ThenStatus("then: sbatch's answer was lost; submit again to find out")
    if then.then != QUEUED:
        return ThenStatus(f"{what} ended as {then.then}: see {log}")
    return _by_slurm(sent, answer, what, log)


def _job_of(sent: Journal, answer: SlurmAnswer) -> slurm.JobState | None:
    """Return what Slurm says of the job; None where it lists none, or that of another cluster."""
    job = answer.tasks.get(slurm.parse_id(sent.open_then).key)
    is_own = job is not None and sent.owns(job) and not sent.is_others(answer.client)
    return job if is_own else None


def _by_slurm(sent: Journal, answer: SlurmAnswer, what: str, log: Path) -> ThenStatus:
    job = _job_of(sent, answer)
    if not sent.open_then:
        status = ThenStatus()  # it ends at this moment, and writes its exit code
    elif answer.mute:
        status = ThenStatus(f"{what}: squeue could not be asked", live=True)
    elif job and not job.state.over:
        reason = f" ({job.reason})" if job.state.name == "PENDING" else ""
        status = ThenStatus(f"{what} is {job.state.meaning}{reason}", live=True)
    elif job and job.state.name == "COMPLETED":
        status = ThenStatus()  # a network file system shows its exit code later
    elif job:
        status = ThenStatus(f"{what} ended as {job.state.name}: see {log}")
    elif sent.is_others(answer.client):
        status = ThenStatus(f"{what} went to {sent.place}: ask there")
    else:
        status = ThenStatus(f"{what} is not listed by Slurm any more")
    return status


def may_live(sent: Journal, answer: SlurmAnswer) -> bool:
    """Say whether the job may wait or run."""
    return lost(sent) or status_of(sent, answer).live


def live_here(journals: Iterable[Journal], answer: SlurmAnswer) -> Iterator[Journal]:
    """Yield the journals whose job waits or runs on this cluster for this user."""
    for sent in journals:
        is_own = _job_of(sent, answer) or sent.is_mine(answer.client)
        if is_own and status_of(sent, answer).live:
            yield sent


def note_end(sent: Journal, answer: SlurmAnswer) -> None:
    """Keep how the job ended, as Slurm says, so that Slurm is not asked about it again."""
    job = _job_of(sent, answer)
    if job and sent.then and job.state.over:
        sent.submission.append_job(Then(then=job.state.name, job=sent.then.job, at=journal.now()))


def note_cancelled(sent: Journal) -> None:
    """Keep that `hpcsweep cancel` ended the job."""
    sent.submission.append_job(Then(then=CANCELLED, job=sent.open_then, at=journal.now()))
