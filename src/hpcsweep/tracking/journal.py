"""What Slurm says about the tasks of submissions: one question to the queue, one to the accounts.

A submission's journal (`store.jobs_file`) says which task runs which chunk, which tasks a person
cancelled, and how others ended, as far as an earlier `submit` saw it. Slurm is asked only about the
rest.

What that says of a task is for `chunk_state` to judge. Where the last entry is `Sending`, sbatch's
answer was lost (it hung, or this program was killed): those chunks count as live until `settle` has
looked for their array in the queue.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Final

from hpcsweep import slurm
from hpcsweep.errors import ResultsError
from hpcsweep.store import chunk_file
from hpcsweep.store.jobs_file import LOST, Cancelled, Damaged, NotSent, Over, Queued, Sending
from hpcsweep.tracking import chunk_state

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from hpcsweep.store.rundir import ShardPath, SubmissionDir

    # job and index, as in `slurm.JobId.key`, and the cluster where sbatch named one
    Task = tuple[int | None, int | None, str]

_NOWHERE: Final = slurm.Here()
_LONGEST: Final = timedelta(days=30)  # a job whose limit is not known, or that has none
_KILLED_BY_NOW: Final = timedelta(minutes=2)  # more than any site's KillWait


@dataclass(frozen=True)
class Sent:
    """What a submission's journal says of its arrays and chunks."""

    submission: SubmissionDir
    arrays: tuple[str, ...]
    task_of: Mapping[int, Task]
    over: Mapping[int, str]  # by chunk that is known to be over: Slurm's state, or LOST
    cancelled_at: Mapping[int, datetime]
    submitted_at: datetime
    unsure: range = range(0)  # chunks that may have gone in: sbatch's answer was lost
    doubtful: frozenset[int] = frozenset()  # so may these: a line of the journal is damaged
    origin: slurm.Here = _NOWHERE  # the cluster that took it, and the user

    def targets(self, chunks: Iterable[int]) -> list[str]:
        """Return arguments of scancel for some chunks: one id with a list of tasks per array."""
        tasks: dict[tuple[int | None, str], list[int]] = {}
        for chunk in chunks:
            job, task, cluster = self.task_of[chunk]
            tasks.setdefault((job, cluster), []).append(task or 0)
        return [
            f"{job}_[{slurm.task_list(found)}]{f';{cluster}' if cluster else ''}"
            for (job, cluster), found in tasks.items()
        ]

    def is_elsewhere(self, here: slurm.Here) -> bool:
        """Say whether another cluster took it, which sbatch was not told by name."""
        named = any(";" in array for array in self.arrays)
        return not named and self.origin.differs(here)

    def is_anothers(self, here: slurm.Here) -> bool:
        """Say whether another user sent it, whose jobs may be hidden."""
        return bool(self.origin.user) and self.origin.user != here.user

    def is_mine(self, here: slurm.Here) -> bool:
        """Say whether this user sent it to this very cluster, so that Slurm would list it."""
        known = self.origin.cluster and here.cluster and self.origin.user
        return bool(known) and not self.is_elsewhere(here) and not self.is_anothers(here)

    def place(self, here: slurm.Here) -> str:
        """Return what a person calls its cluster, and its user where that is another one."""
        name, controller = self.origin.cluster or "a cluster", self.origin.controller
        other = f" of {controller}" if controller and name == here.cluster else ""
        return f"cluster {name}{other}" + f" as {self.origin.user}" * self.is_anothers(here)

    def owns(self, job: slurm.JobState) -> bool:
        """Say whether a job of the right number works in this submission's folder, if told."""
        told = job.folder.startswith("/") and "\n" not in str(self.submission.path.absolute())
        return not told or self.submission.is_at(job.folder)

    @cached_property
    def newest(self) -> Mapping[int, ShardPath]:
        """Return the latest attempt of each chunk that has one."""
        attempts = self.submission.run.shards_of(self.submission.id)
        return {shard.chunk: shard for shard in attempts}

    @cached_property
    def time_limit(self) -> timedelta:
        """Return how long one of its jobs may run; nothing where that cannot be read."""
        manifest = self.submission.manifest_or_none() if self.submission.manifest.exists() else None
        if manifest is None:
            return _LONGEST if self.submission.manifest.exists() else timedelta(0)
        limit = manifest.time_limit or str(manifest.profile_fields.get("time") or "")
        seconds = slurm.duration(limit)
        return _LONGEST if seconds is None else timedelta(seconds=seconds)

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
    unsure, damaged, origin = range(0), False, _NOWHERE
    for entry in submission.read_jobs():
        match entry:
            case Damaged():
                damaged = True
            case Sending():
                unsure = range(entry.sending, entry.sending + entry.tasks)
                origin, first = _origin(entry), min(first, _moment(entry.at) or first)
            case NotSent():
                unsure = range(0)
                damaged = damaged and entry.not_sent > 0  # else nothing of it is in the queue
            case Queued():
                unsure = range(0)
                arrays.append(entry.job_id)
                job, begin = slurm.parse_id(entry.job_id), entry.first_chunk
                tasks = ((job.job, index, job.cluster) for index in range(entry.tasks))
                task_of |= dict(enumerate(tasks, begin))
                origin = _origin(entry)
                first = min(first, _moment(entry.submitted_at) or first)
            case Over():
                for state, chunks in entry.over.items():
                    over |= dict.fromkeys(_numbers(chunks), state)
            case Cancelled() if at := _moment(entry.at):
                cancelled_at |= dict.fromkeys(_numbers(entry.cancelled), at)
    doubtful = _chunks(submission) - task_of.keys() if damaged else set()
    doubtful -= {*unsure}
    return Sent(
        submission, tuple(arrays), task_of, over, cancelled_at, first, unsure,
        frozenset(doubtful), origin,
    )  # fmt: skip


def _origin(entry: Sending | Queued) -> slurm.Here:
    return slurm.Here(cluster=entry.cluster, controller=entry.controller, user=entry.user)


def _chunks(submission: SubmissionDir) -> set[int]:
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
    here: slurm.Here = _NOWHERE
    mute: frozenset[str] = frozenset()  # clusters whose squeue did not answer; empty: this one
    agreed: frozenset[Task] = frozenset()  # in no list, and the accounts agree
    denied: frozenset[Task] = frozenset()  # in no list, and slurmctld says that it has none

    @property
    def silent(self) -> bool:
        """Say whether squeue did not answer, so that it is unknown what is live."""
        return bool(self.mute)

    def live_chunks(self, submission: SubmissionDir) -> set[int]:
        """Return the chunks of a submission that may still write rows."""
        return self.live(sent(submission))

    def live(self, known: Sent) -> set[int]:
        """Return the chunks of a journal that may still write rows."""
        live = {c for c in known.open_chunks if chunk_state.liveness(c, known, self).live}
        unknown = {*known.unsure} | known.doubtful
        if unknown and chunk_state.liveness_of_unanswered(known, self).live:
            live |= unknown
        return live


def ask(submissions: Iterable[SubmissionDir]) -> Answer:
    """Ask once about all tasks that are not known to be over."""
    return ask_about(map(sent, submissions))


def ask_about(journals: Iterable[Sent]) -> Answer:
    """Ask once about all tasks that are not known to be over, given their journals.

    This cluster is asked, and those that sbatch named. What it says of another one's numbers is for
    `chunk_state` to leave alone.
    """
    unclear = [known for known in journals if known.open_chunks or known.unsure or known.doubtful]
    if not unclear:
        return Answer()
    by_cluster: dict[str, list[Sent]] = {}
    for known in unclear:
        for array in known.arrays if known.open_chunks else ():
            by_cluster.setdefault(slurm.parse_id(array).cluster, []).append(known)
    with ThreadPoolExecutor(1) as pool:  # where slurmctld is down, each question waits for long
        asked, found = pool.submit(slurm.here), Answer()
        for cluster, group in by_cluster.items():
            found = _added(found, cluster, group)
        here = asked.result()
    return replace(found, here=here)


def _added(found: Answer, cluster: str, group: Sequence[Sent]) -> Answer:
    """Ask one cluster about the tasks that were sent to it."""
    ids = dict.fromkeys(a for k in group for a in k.arrays if slurm.parse_id(a).cluster == cluster)
    told = slurm.survey(ids, min(known.submitted_at for known in group))
    listed = {(*key, cluster): job for key, job in told.jobs.items()}
    tasks = {k.task_of[chunk] for k in group for chunk in k.open_chunks}
    tasks = {task for task in tasks if task[2] == cluster}
    unlisted = {  # by squeue: the accounts lag, and forget nothing that slurmctld forgot
        task for task in tasks
        if task not in listed or not (listed[task].source == "squeue" or listed[task].state.over)
    }  # fmt: skip
    mute = any(missing.program == "squeue" for missing in told.unanswered)
    return replace(
        found,
        tasks={**found.tasks, **listed},
        attempts=(*found.attempts, *told.attempts),
        unanswered=(*found.unanswered, *told.unanswered),
        mute=found.mute | ({cluster} if mute else set()),
        agreed=found.agreed | (tasks - listed.keys() if told.whole else set()),
        denied=found.denied | (set() if mute or cluster else _denied(unlisted)),
    )


def _denied(unlisted: Collection[Task]) -> set[Task]:
    """Return the tasks that are over or that slurmctld does not know; the accounts may lag."""
    denied: set[Task] = set()
    for job in {task[0] for task in unlisted}:
        alive = slurm.alive_by_controller(str(job))
        if isinstance(alive, slurm.CouldNotAsk):
            break
        denied |= {task for task in unlisted if task[0] == job and task[1] not in alive}
    return denied


def sending(submission: SubmissionDir, first: int, tasks: int, here: slurm.Here) -> None:
    """Note that sbatch is about to be asked to take an array."""
    submission.append_job(Sending(sending=first, tasks=tasks, at=now(), **asdict(here)))


def went_in(
    submission: SubmissionDir, first: int, tasks: int, job_id: str, here: slurm.Here
) -> None:
    """Note that an array is in the queue."""
    if named := slurm.parse_id(job_id).cluster:
        here = slurm.Here(cluster=named, user=here.user)
    entry = Queued(
        job_id=job_id, first_chunk=first, tasks=tasks, submitted_at=now(), **asdict(here)
    )
    submission.append_job(entry)


def not_sent(submission: SubmissionDir, first_chunk: int) -> None:
    """Note that the array that was last asked for is not in the queue."""
    submission.append_job(NotSent(not_sent=first_chunk, at=now()))


def settle(submissions: Iterable[SubmissionDir]) -> Iterator[str]:
    """Look in the queue for arrays for which sbatch's answer was lost; yield what was found.

    An array is known by its working folder, which is its submission's. The caller holds the run
    folder's lock, so no other process is waiting for sbatch. Where Slurm cannot be asked, or would
    not list it here, nothing changes.
    """
    asked = [(one, sent(one)) for one in submissions]
    doubtful = [(one, known) for one, known in asked if known.unsure or known.doubtful]
    here = slurm.here() if doubtful else _NOWHERE
    doubtful = [
        (one, known) for one, known in doubtful
        if not known.is_elsewhere(here) and not known.is_anothers(here)
    ]  # fmt: skip
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
            went_in(submission, first, tasks, str(max(found)), here)
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
    known, ends = sent(submission), dict[str, list[int]]()
    for chunk in known.open_chunks:
        verdict = chunk_state.liveness(chunk, known, answer)
        job = verdict.job
        if verdict.live or verdict.elsewhere or (job and job.source == "squeue"):
            continue
        if job or chunk not in known.cancelled_at:
            ends.setdefault(job.state.name if job else LOST, []).append(chunk)
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
