"""A submission's journal, as `store.jobs_file` keeps it, and what became of the chunks in it.

It lists the arrays that went in, which tasks a person cancelled, and how others ended. Where the
last entry is `Sending`, sbatch's answer was lost (it hung, or this program was killed). Those
chunks count as live until `queue.settle` has looked for their array in the queue.

**Which tasks may still write rows** (`liveness`): one question goes to each cluster's queue, one
to its accounts. Squeue decides. What it does not list lives for two minutes since it was sent, or
since its attempt last gave a sign of life. A wrong verdict costs the time of a chunk, not data:
attempts are fenced off, and rows ranked. A job id is valid only on the cluster that gave it, and a
line of squeue counts only for a job that works in the submission's folder. A task that squeue
cannot show here (it is on another cluster, or other users' jobs are hidden) lives for its job's
time limit.

**The state of a chunk** (`state_of`): rows come first: a chunk whose points all have one is done,
whatever Slurm says of its job. Next comes whether its task is live, then how it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property
from pathlib import Path
from typing import Final

from hpcsweep.cluster import slurm
from hpcsweep.errors import EXIT_REQUEUE, ResultsError
from hpcsweep.store import attempt, chunk_file
from hpcsweep.store.folders import ShardPath, SubmissionDir
from hpcsweep.store.jobs_file import (
    CANCELLED,
    LOST,
    QUEUED,
    Cancelled,
    Damaged,
    NotSent,
    Over,
    Queued,
    Sending,
    Then,
)
from hpcsweep.store.state import AttemptState, ChunkState

Task = tuple[int | None, int | None]  # job and index, as in `slurm.JobId.key`

_UNKNOWN_CLIENT: Final = slurm.Client()
# For so long a job counts as live whose limit is not known, or that has none: sites allow days,
# some a month, and its points must not be measured twice.
_LONGEST: Final = timedelta(days=30)
# A cancelled task ends within the site's KillWait, which is 30 s by default, rarely a minute.
_KILLED_BY_NOW: Final = timedelta(minutes=2)
# A job may live beyond its time limit: by OverTimeLimit, KillWait and an epilog that takes minutes.
_LATE: Final = timedelta(minutes=10)
# An attempt touches its files every 20 s, and NFS may show that a minute late (`store.attempt`).
_BEATS: Final = timedelta(minutes=2)
# Attempts that say that they ended are not requeued; one that was stopped may be.
_ENDED: Final = frozenset({AttemptState.DONE, AttemptState.REFUSED})
# Slurm's state of a job on a federation's cluster, where another one of them runs it.
_ELSEWHERE: Final = "REVOKED"


def _utc() -> datetime:
    return datetime.now(timezone.utc)


@dataclass
class Journal:
    """The content of a submission's journal: its arrays, and the state of its chunks."""

    submission: SubmissionDir
    arrays: list[str] = field(default_factory=list)
    task_of: dict[int, Task] = field(default_factory=dict)
    # by chunk that is known to be over: Slurm's state, or LOST
    over: dict[int, str] = field(default_factory=dict)
    cancelled_at: dict[int, datetime] = field(default_factory=dict)
    submitted_at: datetime = field(default_factory=_utc)
    sending: range = range(0)  # chunks for which sbatch's answer was lost
    per_task: int = 1  # chunks that share a task of its arrays
    # these, and those that a damaged line may be about
    uncertain: set[int] = field(default_factory=set)
    origin: slurm.Client = _UNKNOWN_CLIENT  # the cluster that took it, and the user
    then: Then | None = None  # what is known of the job after the last array

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

    def asked_for(self, state: str) -> str:
        """Say what its jobs asked for, where Slurm's state says that it was too little."""
        key = {"TIMEOUT": "time", "OUT_OF_MEMORY": "mem"}.get(state, "")
        manifest = self.submission.manifest_or_none()
        value = manifest.profile_fields.get(key) if manifest else None
        return f" (it had --{key} {value})" if value else ""

    @cached_property
    def open_chunks(self) -> set[int]:
        """Chunks that may be queued or running, by the journal alone."""
        since = _utc() - _KILLED_BY_NOW
        gone = {chunk for chunk, at in self.cancelled_at.items() if at < since}
        return self.task_of.keys() - self.over.keys() - gone

    @cached_property
    def open_then(self) -> str:
        """The id of the job after the last array, as long as nobody knows how it ended."""
        if self.then is None or self.then.then != QUEUED or self.submission.then_code.exists():
            return ""
        return self.then.job

    @property
    def open_jobs(self) -> list[str]:
        """Ids of the arrays and the job after them that may be queued or running."""
        jobs = [self.open_then] if self.open_then else []
        return [*self.arrays, *jobs] if self.open_chunks else jobs


def read_journal(submission: SubmissionDir) -> Journal:
    """Read a submission's journal."""
    journal = Journal(submission)
    damaged = False
    for entry in submission.read_jobs():
        match entry:
            case Damaged():
                damaged = True
            case Sending():
                journal.sending = range(entry.sending, entry.sending + entry.tasks)
                journal.per_task = entry.per_task
                _note_origin(journal, entry, entry.at)
            case NotSent():
                journal.sending = range(0)
                damaged = damaged and entry.not_sent > 0  # else nothing of it is in the queue
            case Queued():
                journal.sending = range(0)
                journal.per_task = entry.per_task
                journal.arrays.append(entry.job_id)
                job = slurm.parse_id(entry.job_id).job
                tasks = ((job, index // entry.per_task) for index in range(entry.tasks))
                journal.task_of |= dict(enumerate(tasks, entry.first_chunk))
                _note_origin(journal, entry, entry.submitted_at)
            case Over() | Cancelled() | Then():
                _note_later(journal, entry)
    journal.uncertain = {*journal.sending}
    if damaged:
        with suppress(ResultsError):
            journal.uncertain |= dict(chunk_file.read_ids(submission.chunks)).keys()
        journal.uncertain -= journal.task_of.keys()
    return journal


def _note_later(journal: Journal, entry: Over | Cancelled | Then) -> None:
    """Keep what came after the arrays were sent."""
    match entry:
        case Then():
            journal.then = entry
        case Over():
            for state, chunks in entry.over.items():
                journal.over |= dict.fromkeys(slurm.numbers(chunks), state)
        case Cancelled() if at := slurm.moment(entry.at):
            journal.cancelled_at |= dict.fromkeys(slurm.numbers(entry.cancelled), at)


def _note_origin(journal: Journal, entry: Sending | Queued, at: str) -> None:
    """Keep which cluster took an array, and when the first one was sent."""
    journal.origin = slurm.Client(
        cluster=entry.cluster, controller=entry.controller, user=entry.user
    )
    journal.submitted_at = min(journal.submitted_at, slurm.moment(at) or journal.submitted_at)


def note_sending(
    submission: SubmissionDir, chunks: range, per_task: int, client: slurm.Client
) -> None:
    """Note that sbatch is about to be asked to take an array of these chunks."""
    submission.append_job(
        Sending(
            sending=chunks.start,
            tasks=len(chunks),
            per_task=per_task,
            at=now(),
            **asdict(client),
        )
    )


def note_array(
    submission: SubmissionDir, chunks: range, per_task: int, job: str, client: slurm.Client
) -> None:
    """Note that an array of these chunks is in the queue."""
    submission.append_job(
        Queued(
            job_id=job,
            first_chunk=chunks.start,
            tasks=len(chunks),
            per_task=per_task,
            submitted_at=now(),
            **asdict(client),
        )
    )


def note_not_sent(submission: SubmissionDir, first_chunk: int) -> None:
    """Note that the last array for which sbatch was called is not in the queue."""
    submission.append_job(NotSent(not_sent=first_chunk, at=now()))


def now() -> str:
    """Return the time as journals keep it."""
    return _utc().isoformat(timespec="seconds")


@dataclass(frozen=True)
class SlurmAnswer:
    """Slurm's answer about the tasks of submissions, and which of its programs gave none."""

    tasks: Mapping[Task, slurm.JobState] = field(default_factory=dict)
    attempts: tuple[slurm.JobState, ...] = ()
    unanswered: tuple[slurm.CouldNotAsk, ...] = ()
    client: slurm.Client = _UNKNOWN_CLIENT  # who asked, and which cluster

    @property
    def mute(self) -> slurm.CouldNotAsk | None:
        """Why squeue gave no answer; None where it did."""
        for why in self.unanswered:
            if why.program == "squeue":
                return why
        return None

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
    unclear = [journal for journal in journals if journal.open_jobs or journal.uncertain]
    if not unclear:
        return SlurmAnswer()
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - few commands ask

    jobs = [job for journal in unclear for job in journal.open_jobs]
    since = min(journal.submitted_at for journal in unclear)
    with ThreadPoolExecutor(1) as pool:  # if slurmctld is down, each question waits for a timeout
        future = pool.submit(slurm.this_client)
        found = slurm.survey(jobs, since)
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
        return Liveness(live=True, why=str(answer.mute))
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
    until = _utc() + timedelta(seconds=left)
    return Liveness(live=left > 0, why=why, until=f"{until:%Y-%m-%dT%H:%MZ}", elsewhere=elsewhere)


def live_chunks(answer: SlurmAnswer, journal: Journal) -> set[int]:
    """Return the chunks of a submission that may still write rows."""
    live = set[int]()
    for chunk in journal.open_chunks:
        if liveness(chunk, journal, answer).live:
            live.add(chunk)
    if journal.uncertain:
        why = f"sbatch's answer was lost on {journal.place}"
        # here the queue will tell, and until then they count as live
        if not journal.is_others(answer.client) or _by_signs(None, journal, why).live:
            live |= journal.uncertain
    return live


@dataclass(frozen=True)
class ChunkStatus:
    """The state of a chunk, the reason, and what to change if its job can never start."""

    state: ChunkState
    why: str = ""
    to_change: str = ""
    unseen: bool = False  # this squeue does not show its job; `why` says where to ask
    starts: datetime | None = None  # as Slurm guesses, of one that waits and can start


UNCERTAIN: Final = ChunkStatus(
    ChunkState.UNKNOWN, "sbatch's answer was lost; submit again to find out"
)
_UNSENT: Final = ChunkStatus(
    ChunkState.UNSENT, "a limit on submitted jobs was reached; submit again"
)


def state_of(  # noqa: PLR0913 - each source of evidence
    chunk: int,
    journal: Journal,
    answer: SlurmAnswer,
    newest: ShardPath | None,
    *,
    missing: int = 1,
    runs_here: bool | None = None,
) -> ChunkStatus:
    """Return the state of a chunk of which `missing` points lack rows.

    `newest` is its latest attempt. `runs_here` is None for a submission to Slurm, else whether the
    local submission runs.
    """
    if not missing:
        return ChunkStatus(ChunkState.DONE)
    if runs_here is not None:
        record = attempt.read_record(newest)
        if record and record.state is AttemptState.REFUSED:
            return ChunkStatus(ChunkState.FAILED, record.reason)
        stopped = ChunkStatus(ChunkState.STOPPED, "submit again to continue")
        return ChunkStatus(_running_or_pending(newest)) if runs_here else stopped
    if chunk not in journal.task_of:
        return UNCERTAIN if chunk in journal.uncertain else _UNSENT
    verdict = liveness(chunk, journal, answer)
    if chunk in journal.open_chunks and verdict.live:
        shared = journal.per_task > 1
        return (
            _live(verdict.job, newest, shared=shared) if verdict.job else _unseen(verdict, newest)
        )
    return _ended(chunk, journal, verdict.job, newest)


def _ended(
    chunk: int, journal: Journal, job: slurm.JobState | None, newest: ShardPath | None
) -> ChunkStatus:
    if chunk in journal.cancelled_at:
        return ChunkStatus(ChunkState.CANCELLED, "by `hpcsweep cancel`; submit again to continue")
    state = job.state if job is not None and job.state.over else None
    name = journal.over.get(chunk)
    if state is None and name not in {None, LOST, CANCELLED}:
        state = slurm.state_of(str(name))
    record = attempt.read_record(newest)
    if record and record.state is AttemptState.REFUSED:
        return ChunkStatus(_state_of(state) if state else ChunkState.FAILED, record.reason)
    if record and record.state is AttemptState.DONE and record.reason == attempt.LEFT_TO_OTHERS:
        return ChunkStatus(ChunkState.DONE, record.reason)
    left_points = job is not None and job.exit_code == EXIT_REQUEUE  # and was not requeued
    if record and record.state is AttemptState.STOPPED and (left_points or state is None):
        why = "; ".join(filter(None, (record.reason, "submit again to continue")))
        return ChunkStatus(ChunkState.STOPPED, why)
    if state:
        why = f"{state.name}: {state.says}{journal.asked_for(state.name)}"
        if job and job.exit_code and state.name == "FAILED":
            why = f"{why} ({job.exit_code})"
        return ChunkStatus(_state_of(state), why)
    return ChunkStatus(ChunkState.LOST, "Slurm does not list its job; submit again")


def _running_or_pending(newest: ShardPath | None) -> ChunkState:
    record = attempt.read_record(newest)
    runs = record is not None and record.state is AttemptState.RUNNING
    return ChunkState.RUNNING if runs else ChunkState.PENDING


def _live(job: slurm.JobState, newest: ShardPath | None, *, shared: bool) -> ChunkStatus:
    state = _state_of(job.state)
    if state is ChunkState.UNKNOWN:
        return ChunkStatus(state, f"Slurm says {job.state.name}")
    if state is ChunkState.RUNNING:
        # other GPUs of its job may measure on where one was refused
        record = attempt.read_record(newest) if shared else None
        if record and record.state is AttemptState.REFUSED:
            return ChunkStatus(state, record.reason)
        return ChunkStatus(state)
    if slurm.is_held(job.reason):
        state = ChunkState.HELD
    if state is ChunkState.PENDING and newest is not None:  # Slurm calls a requeued job pending
        state = ChunkState.REQUEUED
    to_change = slurm.in_vain(job.reason)
    if state is ChunkState.HELD:
        to_change = to_change or job.state.says
    return ChunkStatus(state, job.reason, to_change, starts=None if to_change else job.expected)


def _unseen(verdict: Liveness, newest: ShardPath | None) -> ChunkStatus:
    """Return the state of a chunk that may be live, and that this squeue does not show."""
    if not verdict.until:
        return ChunkStatus(ChunkState.UNKNOWN, verdict.why)
    if verdict.elsewhere:
        state = _running_or_pending(newest)
        doing = "runs" if state is ChunkState.RUNNING else "queued"
        return ChunkStatus(state, f"{doing} {verdict.why}", unseen=True)
    why = f"{verdict.why}; counts as live until {verdict.until}"
    return ChunkStatus(ChunkState.MAYBE_LOST, why, unseen=True)


def _state_of(state: slurm.State) -> ChunkState:
    """Translate Slurm's state; a job that completed without all its rows has failed."""
    return ChunkState.FAILED if state.meaning is ChunkState.DONE else state.meaning
