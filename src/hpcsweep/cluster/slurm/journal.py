"""A submission's journal, as `store.jobs_file` keeps it, and what Slurm says of the tasks in it.

It lists the arrays that went in, which tasks a person cancelled, and how others ended. Where the
last entry is `Sending`, sbatch's answer was lost (it hung, or this program was killed). Those
chunks count as live until `settle` has looked for their array in the queue. The state of a chunk,
by its rows, too, is for `cluster.status` to say.

Which tasks may still write rows: one question goes to each cluster's queue, one to its accounts.
Squeue decides. What it does not list lives for two minutes since it was sent, or since its attempt
last gave a sign of life. A wrong verdict costs the time of a chunk, not data: attempts are fenced
off, and rows ranked. A job id is valid only on the cluster that gave it, and a line of squeue
counts only for a job that works in the submission's folder. A task that squeue cannot show here (it
is on another cluster, or other users' jobs are hidden) lives for the time limit of its job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property
from pathlib import Path
from typing import Final

from hpcsweep import files
from hpcsweep.cluster import slurm
from hpcsweep.errors import ResultsError
from hpcsweep.store import attempt, chunk_file, ledger
from hpcsweep.store.folders import ShardPath, SubmissionDir, SweepDir
from hpcsweep.store.jobs_file import LOST, Cancelled, Damaged, NotSent, Over, Queued, Sending
from hpcsweep.store.state import AttemptState

Task = tuple[int | None, int | None]  # job and index, as in `slurm.JobId.key`

_UNKNOWN_CLIENT: Final = slurm.Client()
_LONGEST: Final = timedelta(days=30)  # a job whose limit is not known, or that has none
_KILLED_BY_NOW: Final = timedelta(minutes=2)  # more than any site's KillWait
_LATE: Final = timedelta(minutes=10)  # for so long a job may live beyond its time limit
_BEATS: Final = timedelta(minutes=2)  # an attempt touches its files more often than that
_ENDED: Final = frozenset({AttemptState.DONE, AttemptState.REFUSED})  # not to be requeued
_ELSEWHERE: Final = "REVOKED"  # of a federation's cluster: another one runs it


@dataclass(frozen=True)
class Journal:
    """The content of a submission's journal: its arrays, and the state of its chunks."""

    submission: SubmissionDir
    arrays: tuple[str, ...]
    task_of: Mapping[int, Task]
    over: Mapping[int, str]  # by chunk that is known to be over: Slurm's state, or LOST
    cancelled_at: Mapping[int, datetime]
    submitted_at: datetime
    sending: range = range(0)  # chunks for which sbatch's answer was lost
    uncertain: frozenset[int] = frozenset()  # these, and those that a damaged line may be about
    origin: slurm.Client = _UNKNOWN_CLIENT  # the cluster that took it, and the user

    def targets(self, chunks: Iterable[int]) -> list[str]:
        """Return scancel's arguments for chunks: per array, its id with a list of tasks."""
        tasks: dict[int | None, list[int]] = {}
        for chunk in chunks:
            job, task = self.task_of[chunk]
            tasks.setdefault(job, []).append(task or 0)
        return [f"{job}_[{slurm.task_list(numbers)}]" for job, numbers in tasks.items()]

    def is_others(self, client: slurm.Client) -> bool:
        """Say whether another cluster took it, or another user sent it: here it may be hidden."""
        return self.origin.differs(client) or self.origin.user not in {"", client.user}

    def is_mine(self, client: slurm.Client) -> bool:
        """Say whether this user sent it to this cluster, so that Slurm would list it."""
        recorded = self.origin.cluster and client.cluster and self.origin.user
        return bool(recorded) and not self.is_others(client)

    @property
    def place(self) -> str:
        """Who sent it, and the name of its cluster, for messages."""
        return f"cluster {self.origin.cluster} as {self.origin.user}"

    def owns(self, job: slurm.JobState) -> bool:
        """Say whether a job with a matching id works in this submission's folder, if Slurm says."""
        comparable = job.folder.startswith("/") and "\n" not in str(self.submission.path.absolute())
        return not comparable or self.submission.is_at(job.folder)

    @cached_property
    def newest(self) -> Mapping[int, ShardPath]:
        """Latest attempt by chunk."""
        attempts = self.submission.sweep_dir.shards_of(self.submission.id)
        return {shard.chunk: shard for shard in attempts}

    @cached_property
    def time_limit(self) -> timedelta:
        """Time limit of its jobs; 30 days if unknown, 0 without a manifest: nothing was sent."""
        if not self.submission.manifest.exists():
            return timedelta(0)
        manifest = self.submission.manifest_or_none()
        if manifest is None:
            return _LONGEST
        seconds = slurm.duration(str(manifest.profile_fields.get("time") or ""))
        return _LONGEST if seconds is None else timedelta(seconds=seconds)

    @cached_property
    def open_chunks(self) -> set[int]:
        """Chunks that may be queued or running, by the journal alone."""
        now = datetime.now(timezone.utc)
        gone = {chunk for chunk, at in self.cancelled_at.items() if now - at > _KILLED_BY_NOW}
        return self.task_of.keys() - self.over.keys() - gone


def read_journal(submission: SubmissionDir) -> Journal:
    """Read a submission's journal."""
    arrays: list[str] = []
    task_of: dict[int, Task] = {}
    over: dict[int, str] = {}
    cancelled_at: dict[int, datetime] = {}
    submitted_at = datetime.now(timezone.utc)
    sending = range(0)
    damaged = False
    origin = _UNKNOWN_CLIENT
    for entry in submission.read_jobs():
        match entry:
            case Damaged():
                damaged = True
            case Sending():
                sending = range(entry.sending, entry.sending + entry.tasks)
                origin = _origin(entry)
                submitted_at = min(submitted_at, slurm.moment(entry.at) or submitted_at)
            case NotSent():
                sending = range(0)
                damaged = damaged and entry.not_sent > 0  # else nothing of it is in the queue
            case Queued():
                sending = range(0)
                arrays.append(entry.job_id)
                job = slurm.parse_id(entry.job_id).job
                tasks = ((job, index) for index in range(entry.tasks))
                task_of |= dict(enumerate(tasks, entry.first_chunk))
                origin = _origin(entry)
                submitted_at = min(submitted_at, slurm.moment(entry.submitted_at) or submitted_at)
            case Over():
                for state, chunks in entry.over.items():
                    over |= dict.fromkeys(slurm.numbers(chunks), state)
            case Cancelled() if at := slurm.moment(entry.at):
                cancelled_at |= dict.fromkeys(slurm.numbers(entry.cancelled), at)
    uncertain = _chunks(submission) - task_of.keys() if damaged else {*sending}
    return Journal(
        submission, tuple(arrays), task_of, over, cancelled_at, submitted_at, sending,
        frozenset(uncertain), origin,
    )  # fmt: skip


def _origin(entry: Sending | Queued) -> slurm.Client:
    return slurm.Client(cluster=entry.cluster, controller=entry.controller, user=entry.user)


def _chunks(submission: SubmissionDir) -> set[int]:
    chunks: set[int] = set()
    with suppress(ResultsError):
        chunks.update(chunk for chunk, _ids in chunk_file.read_ids(submission.chunks))
    return chunks


def note_sending(submission: SubmissionDir, first: int, tasks: int, client: slurm.Client) -> None:
    """Note that sbatch is about to be asked to take an array."""
    submission.append_job(Sending(sending=first, tasks=tasks, at=now(), **asdict(client)))


def note_array(
    submission: SubmissionDir, first: int, tasks: int, job: str, client: slurm.Client
) -> None:
    """Note that an array is in the queue."""
    submission.append_job(
        Queued(job_id=job, first_chunk=first, tasks=tasks, submitted_at=now(), **asdict(client))
    )


def note_not_sent(submission: SubmissionDir, first_chunk: int) -> None:
    """Note that the last array for which sbatch was called is not in the queue."""
    submission.append_job(NotSent(not_sent=first_chunk, at=now()))


def now() -> str:
    """Return the time as journals keep it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True)
class SlurmAnswer:
    """Slurm's answer about the tasks of submissions, and which of its programs gave none."""

    tasks: Mapping[Task, slurm.JobState] = field(default_factory=dict)
    attempts: tuple[slurm.JobState, ...] = ()
    unanswered: tuple[slurm.CouldNotAsk, ...] = ()
    client: slurm.Client = _UNKNOWN_CLIENT  # who asked, and which cluster

    @property
    def mute(self) -> bool:
        """Whether squeue gave no answer."""
        return any(why.program == "squeue" for why in self.unanswered)

    def live_chunks_of(self, submission: SubmissionDir) -> set[int]:
        """Return the chunks of a submission that may still write rows, by its journal of now."""
        return live_chunks(self, read_journal(submission))


def ask_slurm(submissions: Iterable[SubmissionDir]) -> SlurmAnswer:
    """Ask Slurm once about all tasks that may not be over."""
    return ask_journals(map(read_journal, submissions))


def ask_journals(journals: Iterable[Journal]) -> SlurmAnswer:
    """Ask Slurm once about all tasks in journals that may not be over.

    `liveness` ignores the answer about ids that another cluster gave.
    """
    unclear = [journal for journal in journals if journal.open_chunks or journal.uncertain]
    if not unclear:
        return SlurmAnswer()
    arrays = list[str]()
    for journal in unclear:
        if journal.open_chunks:
            arrays += journal.arrays
    since = min(journal.submitted_at for journal in unclear)
    with ThreadPoolExecutor(1) as pool:  # if slurmctld is down, each question waits for a timeout
        future = pool.submit(slurm.this_client)
        found = slurm.survey(arrays, since)
        client = future.result()
    return SlurmAnswer(found.jobs, found.attempts, found.unanswered, client)


@dataclass(frozen=True)
class Liveness:
    """Whether a task may still write rows, and the evidence."""

    live: bool
    job: slurm.JobState | None = None  # Slurm's entry, where that decides
    why: str = ""  # else why Slurm's entry does not decide
    until: str = ""  # and until when the task counts as live, by its signs of life
    elsewhere: bool = False  # on another cluster: this cluster's Slurm cannot know it


def liveness(chunk: int, journal: Journal, answer: SlurmAnswer) -> Liveness:
    """Say whether the task of a chunk may still write rows."""
    task = journal.task_of[chunk]
    if answer.mute:
        return Liveness(live=True, why="squeue could not be asked")
    job = answer.tasks.get(task) or answer.tasks.get((task[0], None))
    is_revoked = job is not None and job.state.name == _ELSEWHERE
    owned = job is not None and journal.owns(job)
    if job and owned and not is_revoked and (job.state.over or job.source == "squeue"):
        return Liveness(not job.state.over, job)
    if chunk in journal.cancelled_at and (job is None or job.source == "sacct"):
        return Liveness(live=False)  # the accounts learn of it later
    if journal.is_others(answer.client):
        return _by_signs(chunk, journal, f"on {journal.place}: ask there", elsewhere=True)
    why = "Slurm does not list its job"
    if job and not owned:
        why = f"{job.id} is another job here, in {job.folder}"
    would_be_listed = journal.is_mine(answer.client) and not is_revoked
    return _by_signs(chunk, journal, why, _BEATS if would_be_listed else None)


def liveness_of_unanswered(journal: Journal, answer: SlurmAnswer) -> Liveness:
    """Say whether chunks may be live whose entry in the journal is incomplete or damaged."""
    if journal.is_others(answer.client):
        return _by_signs(None, journal, f"sbatch's answer was lost on {journal.place}")
    return Liveness(live=True)


def _by_signs(
    chunk: int | None,
    journal: Journal,
    why: str,
    allowed: timedelta | None = None,
    *,
    elsewhere: bool = False,
) -> Liveness:
    """Say whether an unseen task may run, by its attempts' files and its time limit."""
    newest = None if chunk is None else journal.newest.get(chunk)
    signs = list[Path]()
    if newest is not None:
        record = attempt.read_record(newest)
        if (record and record.state in _ENDED) or attempt.is_fence(newest):
            return Liveness(live=False, why=why, elsewhere=elsewhere)
        signs = [newest.overall, newest.samples]
    sent = journal.submitted_at.timestamp()
    limit = allowed or journal.time_limit + _LATE
    left = limit.total_seconds() - attempt.silence(journal.submission.path, signs, sent)
    until = datetime.now(timezone.utc) + timedelta(seconds=left)
    return Liveness(live=left > 0, why=why, until=f"{until:%Y-%m-%dT%H:%MZ}", elsewhere=elsewhere)


def live_chunks(answer: SlurmAnswer, journal: Journal) -> set[int]:
    """Return the chunks of a submission that may still write rows."""
    live = {chunk for chunk in journal.open_chunks if liveness(chunk, journal, answer).live}
    if journal.uncertain and liveness_of_unanswered(journal, answer).live:
        live |= journal.uncertain
    return live


def settle(submissions: Iterable[SubmissionDir]) -> Iterator[str]:
    """Look in the queue for arrays for which sbatch's answer was lost; yield messages.

    An array is recognised by its working folder, which is its submission's. The caller holds the
    sweep folder's lock, so no other process is waiting for sbatch. Where Slurm cannot be asked, or
    would not list the array here, nothing changes.
    """
    unclear = [journal for journal in map(read_journal, submissions) if journal.uncertain]
    if not unclear:
        return
    client = slurm.this_client()
    unclear = [journal for journal in unclear if not journal.is_others(client)]
    listed = slurm.queue() if unclear else []
    if isinstance(listed, slurm.CouldNotAsk):
        return
    for journal in unclear:
        submission = journal.submission
        recorded = {slurm.parse_id(array).job for array in journal.arrays}
        own = {job.id.job or 0 for job in listed if submission.is_at(job.folder)}
        jobs = own - recorded
        chunks = len(journal.uncertain)
        is_known = chunks == len(journal.sending)  # else a damaged line may have said which
        first = journal.sending.start if is_known else 0
        what = f"{submission.id}: sbatch's answer was lost; {chunks} chunks"
        if not jobs:
            note_not_sent(submission, first)
            yield f"{what} did not go in"
        elif is_known:
            note_array(submission, first, chunks, str(max(jobs)), client)
            yield f"{what} went in as {max(jobs)}"
        else:
            yield f"{what} count as queued while {sorted(jobs)} are in the queue"


def record_ends(submission: SubmissionDir, answer: SlurmAnswer) -> None:
    """Write into the journal how tasks ended, so that Slurm is not asked about them again.

    Tasks that squeue still lists are left out, since a person may requeue them. The caller holds
    the sweep folder's lock.
    """
    journal = read_journal(submission)
    ends = dict[str, list[int]]()
    for chunk in journal.open_chunks:
        verdict = liveness(chunk, journal, answer)
        job = verdict.job
        if verdict.live or verdict.elsewhere or (job and job.source == "squeue"):
            continue
        if job or chunk not in journal.cancelled_at:
            ends.setdefault(job.state.name if job else LOST, []).append(chunk)
    if ends:
        lists = {name: slurm.task_list(chunks) for name, chunks in sorted(ends.items())}
        submission.append_job(Over(over=lists, at=now()))


def fence_off(sweep_dir: SweepDir, answer: SlurmAnswer) -> None:
    """Stop attempts that Slurm gave up but that may still run, as on a node that lost contact.

    Those of chunks that the journal does not know are among them: they went in all the same. Their
    points are about to be sent again. The caller holds the sweep folder's lock.
    """
    for submission in sweep_dir.submissions():
        if ledger.is_local(submission, submission.manifest_or_none()):
            continue
        journal = read_journal(submission)
        kept = journal.over.keys() | live_chunks(answer, journal)
        if journal.open_chunks or journal.uncertain:
            files.see_anew(submission.shards)
        shards = sweep_dir.shards_of(submission.id)
        attempt.fence_off(shard for shard in shards if shard.chunk not in kept)
