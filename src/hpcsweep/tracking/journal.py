"""What Slurm says about the tasks of submissions: one question to the queue, one to the accounts.

A submission's journal (`store.jobs_file`) says which task runs which chunk, which tasks a person
cancelled, and how others ended, as far as an earlier `submit` saw it. Slurm is asked only about the
rest.

sbatch prints an id only when the job is in the queue, so a task that squeue does not list is over.
When squeue does not answer, every task counts as live, so that nothing is sent twice. Where the
last entry is `Sending`, the answer of sbatch was lost (it hung, or this program was killed): those
chunks count as live until `settle` has looked for their array in the queue.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Final

from hpcsweep import slurm
from hpcsweep.errors import ResultsError
from hpcsweep.store import chunk_file
from hpcsweep.store.jobs_file import Cancelled, Damaged, NotSent, Over, Queued, Sending

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from hpcsweep.store.rundir import SubmissionDir

    Task = tuple[int | None, int | None]  # job and index, as in `slurm.JobId.key`

CANCELLED: Final = "CANCELLED"
LOST: Final = "LOST"
GRACE: Final = timedelta(minutes=10)  # for so long Slurm may not yet list a task
_KILLED_BY_NOW: Final = timedelta(minutes=2)  # more than any site's KillWait


@dataclass(frozen=True)
class Sent:
    """What a submission's journal says of its arrays and chunks."""

    arrays: tuple[str, ...]
    task_of: Mapping[int, Task]
    over: Mapping[int, str]  # by chunk that is known to be over: Slurm's state, or LOST
    cancelled_at: Mapping[int, datetime]
    submitted_at: datetime
    unsure: range = range(0)  # chunks that may have gone in: sbatch's answer was lost
    doubtful: frozenset[int] = frozenset()  # so may these: a line of the journal is damaged

    def targets(self, chunks: Iterable[int]) -> list[str]:
        """Return arguments of scancel for some chunks: one id with a list of tasks per array."""
        tasks: dict[int | None, list[int]] = {}
        for chunk in chunks:
            job, task = self.task_of[chunk]
            tasks.setdefault(job, []).append(task or 0)
        arrays = {slurm.parse_id(array).job: array.partition(";") for array in self.arrays}
        named = ((arrays[job], slurm.task_list(found)) for job, found in tasks.items())
        return [f"{array}_[{text}]{sep}{cluster}" for (array, sep, cluster), text in named]

    @cached_property
    def open_chunks(self) -> set[int]:
        """Return the chunks that may be queued or running, as far as the journal knows."""
        now = datetime.now(timezone.utc)
        gone = {c for c, at in self.cancelled_at.items() if now - at > _KILLED_BY_NOW}
        return self.task_of.keys() - self.over.keys() - gone


def sent(submission: SubmissionDir) -> Sent:
    """Read a submission's journal."""
    arrays: list[str] = []
    task_of: dict[int, Task] = {}
    over: dict[int, str] = {}
    cancelled_at: dict[int, datetime] = {}
    first = datetime.now(timezone.utc)
    unsure, damaged = range(0), False
    for entry in submission.read_jobs():
        match entry:
            case Damaged():
                damaged = True
            case Sending():
                unsure = range(entry.sending, entry.sending + entry.tasks)
            case NotSent():
                unsure = range(0)
                damaged = damaged and entry.not_sent > 0  # else nothing of it is in the queue
            case Queued():
                unsure = range(0)
                arrays.append(entry.job_id)
                job, begin = slurm.parse_id(entry.job_id).job, entry.first_chunk
                task_of |= {begin + index: (job, index) for index in range(entry.tasks)}
                first = min(first, _moment(entry.submitted_at) or first)
            case Over():
                for state, chunks in entry.over.items():
                    over |= dict.fromkeys(_numbers(chunks), state)
            case Cancelled() if at := _moment(entry.at):
                cancelled_at |= dict.fromkeys(_numbers(entry.cancelled), at)
    doubtful = _chunks(submission) - task_of.keys() if damaged else set()
    return Sent(
        tuple(arrays), task_of, over, cancelled_at, first, unsure, frozenset(doubtful - {*unsure})
    )


def _chunks(submission: SubmissionDir) -> set[int]:
    """Return the chunks of a submission, as far as they can be read."""
    found: set[int] = set()
    with suppress(ResultsError):
        found.update(chunk for chunk, _ids in chunk_file.read_ids(submission.chunks))
    return found


@dataclass(frozen=True)
class Answer:
    """What Slurm said about some submissions, and which of its programs did not answer."""

    tasks: Mapping[Task, slurm.JobState] = field(default_factory=dict)
    attempts: tuple[slurm.JobState, ...] = ()
    unanswered: tuple[slurm.CouldNotAsk, ...] = ()

    @property
    def silent(self) -> bool:
        """Say whether squeue did not answer, so that it is unknown what is live."""
        return any(missing.program == "squeue" for missing in self.unanswered)

    def live_chunks(self, submission: SubmissionDir) -> set[int]:
        """Return the chunks of a submission that may still write rows."""
        return self.live(sent(submission))

    def live(self, known: Sent) -> set[int]:
        """Return the chunks of a journal that may still write rows."""
        live = {chunk for chunk in known.open_chunks if self.lives(known.task_of[chunk])}
        return live | {*known.unsure} | known.doubtful

    def lives(self, task: Task) -> bool:
        """Say whether a task may still write rows."""
        if self.silent:
            return True
        state = self.tasks.get(task)
        return state is not None and state.source == "squeue" and not state.state.over


def ask(submissions: Iterable[SubmissionDir]) -> Answer:
    """Ask once about all tasks that are not known to be over."""
    return ask_about(map(sent, submissions))


def ask_about(journals: Iterable[Sent]) -> Answer:
    """Ask once about all tasks that are not known to be over, given their journals."""
    doubtful = [known for known in journals if known.open_chunks]
    if not doubtful:
        return Answer()
    ids = [array for known in doubtful for array in known.arrays]
    found = slurm.survey(ids, min(known.submitted_at for known in doubtful))
    return Answer(found.jobs, found.attempts, found.unanswered)


def sending(submission: SubmissionDir, first_chunk: int, tasks: int) -> None:
    """Note that sbatch is about to be asked to take an array."""
    submission.append_job(Sending(sending=first_chunk, tasks=tasks, at=now()))


def went_in(submission: SubmissionDir, first_chunk: int, tasks: int, job_id: str) -> None:
    """Note that an array is in the queue."""
    submission.append_job(
        Queued(job_id=job_id, first_chunk=first_chunk, tasks=tasks, submitted_at=now())
    )


def not_sent(submission: SubmissionDir, first_chunk: int) -> None:
    """Note that the array that was last asked for is not in the queue."""
    submission.append_job(NotSent(not_sent=first_chunk, at=now()))


def settle(submissions: Iterable[SubmissionDir]) -> Iterator[str]:
    """Look in the queue for arrays for which sbatch's answer was lost; yield what was found.

    An array is known by its working folder, which is its submission's. The caller holds the run
    folder's lock, so no other process is waiting for sbatch. Where Slurm cannot be asked, nothing
    changes.
    """
    asked = [(one, sent(one)) for one in submissions]
    doubtful = [(one, known) for one, known in asked if known.unsure or known.doubtful]
    listed = slurm.working_folders() if doubtful else {}
    if isinstance(listed, slurm.CouldNotAsk):
        return
    for submission, known in doubtful:
        recorded = {slurm.parse_id(array).job for array in known.arrays}
        found = [
            job
            for job, folder in listed.items()
            if job not in recorded and submission.is_at(folder)
        ]
        if known.doubtful:
            yield _settle_damage(submission, known, found)
            continue
        first, tasks = known.unsure.start, len(known.unsure)
        told = f"{submission.id}: sbatch's answer was lost; {tasks} chunks"
        if found:
            went_in(submission, first, tasks, str(max(found)))
            yield f"{told} went in as {max(found)}"
        else:
            not_sent(submission, first)
            yield f"{told} did not go in"


def _settle_damage(submission: SubmissionDir, known: Sent, found: Collection[int]) -> str:
    """Return what the queue says of the chunks that a damaged line may have been about."""
    told = f"{submission.id}: its journal is damaged"
    if found:
        jobs = ", ".join(map(str, sorted(found)))
        return f"{told}; {len(known.doubtful)} chunks count as queued while {jobs} is in the queue"
    not_sent(submission, 0)
    return f"{told}; Slurm has no other jobs of it"


def record(submission: SubmissionDir, answer: Answer) -> None:
    """Keep in the journal how tasks ended, so that Slurm is not asked about them again.

    Tasks that squeue still lists are left out, since they may be requeued by hand. The caller holds
    the run folder's lock.
    """
    known = sent(submission)
    if answer.silent:
        return
    ends: dict[str, list[int]] = {}
    for chunk in known.open_chunks:
        state = answer.tasks.get(known.task_of[chunk])
        if state is None and datetime.now(timezone.utc) - known.submitted_at > GRACE:
            ends.setdefault(LOST, []).append(chunk)
        elif state is not None and state.source == "sacct" and state.state.over:
            ends.setdefault(state.state.name, []).append(chunk)
    if ends:
        lists = {name: slurm.task_list(chunks) for name, chunks in sorted(ends.items())}
        submission.append_job(Over(over=lists, at=now()))


def now() -> str:
    """Return the time as journals keep it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _numbers(text: str) -> Iterator[int]:
    """Yield the chunks of a list such as ``0-2,5``."""
    for item in filter(None, text.split(",")):
        first, _, last = item.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _moment(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)
