"""A submission's journal: which task runs which chunk, as `store.jobs_file` keeps it.

It lists the arrays that went in, which tasks a person cancelled, and how others ended. Where the
last entry is `Sending`, sbatch's answer was lost (it hung, or this program was killed). Those
chunks count as live until `settling` has looked for their array in the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import Final

from hpcsweep.cluster import slurm
from hpcsweep.errors import ResultsError
from hpcsweep.store import chunk_file
from hpcsweep.store.folders import ShardPath, SubmissionDir
from hpcsweep.store.jobs_file import Cancelled, Damaged, NotSent, Over, Queued, Sending

Task = tuple[int | None, int | None]  # job and index, as in `slurm.JobId.key`

_NOWHERE: Final = slurm.Here()
_LONGEST: Final = timedelta(days=30)  # a job whose limit is not known, or that has none
_KILLED_BY_NOW: Final = timedelta(minutes=2)  # more than any site's KillWait


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
    origin: slurm.Here = _NOWHERE  # the cluster that took it, and the user

    def targets(self, chunks: Iterable[int]) -> list[str]:
        """Return scancel's arguments for chunks: per array, its id with a list of tasks."""
        tasks: dict[int | None, list[int]] = {}
        for chunk in chunks:
            job, task = self.task_of[chunk]
            tasks.setdefault(job, []).append(task or 0)
        return [f"{job}_[{slurm.task_list(numbers)}]" for job, numbers in tasks.items()]

    def is_others(self, here: slurm.Here) -> bool:
        """Say whether another cluster took it, or another user sent it: here it may be hidden."""
        return self.origin.differs(here) or self.origin.user not in {"", here.user}

    def is_mine(self, here: slurm.Here) -> bool:
        """Say whether this user sent it to this cluster, so that Slurm would list it."""
        recorded = self.origin.cluster and here.cluster and self.origin.user
        return bool(recorded) and not self.is_others(here)

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
        manifest = self.submission.manifest_or_none() if self.submission.manifest.exists() else None
        if manifest is None:
            return _LONGEST if self.submission.manifest.exists() else timedelta(0)
        seconds = slurm.duration(str(manifest.profile_fields.get("time") or ""))
        return _LONGEST if seconds is None else timedelta(seconds=seconds)

    @cached_property
    def open_chunks(self) -> set[int]:
        """Chunks that may be queued or running, by the journal alone."""
        now = datetime.now(timezone.utc)
        gone = {c for c, at in self.cancelled_at.items() if now - at > _KILLED_BY_NOW}
        return self.task_of.keys() - self.over.keys() - gone


def read_journal(submission: SubmissionDir) -> Journal:
    """Read a submission's journal."""
    arrays: list[str] = []
    task_of: dict[int, Task] = {}
    over: dict[int, str] = {}
    cancelled_at: dict[int, datetime] = {}
    first = datetime.now(timezone.utc)
    sending = range(0)
    damaged = False
    origin = _NOWHERE
    for entry in submission.read_jobs():
        match entry:
            case Damaged():
                damaged = True
            case Sending():
                sending = range(entry.sending, entry.sending + entry.tasks)
                origin = _origin(entry)
                first = min(first, slurm.moment(entry.at) or first)
            case NotSent():
                sending = range(0)
                damaged = damaged and entry.not_sent > 0  # else nothing of it is in the queue
            case Queued():
                sending = range(0)
                arrays.append(entry.job_id)
                job = slurm.parse_id(entry.job_id)
                begin = entry.first_chunk
                tasks = ((job.job, index) for index in range(entry.tasks))
                task_of |= dict(enumerate(tasks, begin))
                origin = _origin(entry)
                first = min(first, slurm.moment(entry.submitted_at) or first)
            case Over():
                for state, chunks in entry.over.items():
                    over |= dict.fromkeys(slurm.numbers(chunks), state)
            case Cancelled() if at := slurm.moment(entry.at):
                cancelled_at |= dict.fromkeys(slurm.numbers(entry.cancelled), at)
    uncertain = _chunks(submission) - task_of.keys() if damaged else {*sending}
    return Journal(
        submission, tuple(arrays), task_of, over, cancelled_at, first, sending,
        frozenset(uncertain), origin,
    )  # fmt: skip


def _origin(entry: Sending | Queued) -> slurm.Here:
    return slurm.Here(cluster=entry.cluster, controller=entry.controller, user=entry.user)


def _chunks(submission: SubmissionDir) -> set[int]:
    chunks: set[int] = set()
    with suppress(ResultsError):
        chunks.update(chunk for chunk, _ids in chunk_file.read_ids(submission.chunks))
    return chunks


def sending(submission: SubmissionDir, first: int, tasks: int, here: slurm.Here) -> None:
    """Note that sbatch is about to be asked to take an array."""
    submission.append_job(Sending(sending=first, tasks=tasks, at=now(), **asdict(here)))


def went_in(submission: SubmissionDir, first: int, tasks: int, job: str, here: slurm.Here) -> None:
    """Note that an array is in the queue."""
    entry = Queued(job_id=job, first_chunk=first, tasks=tasks, submitted_at=now(), **asdict(here))
    submission.append_job(entry)


def not_sent(submission: SubmissionDir, first_chunk: int) -> None:
    """Note that the last array for which sbatch was called is not in the queue."""
    submission.append_job(NotSent(not_sent=first_chunk, at=now()))


def now() -> str:
    """Return the time as journals keep it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
