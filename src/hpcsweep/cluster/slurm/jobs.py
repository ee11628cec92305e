"""Asks squeue and sacct for the states of jobs, cancels jobs, and reads job ids; submits none.

squeue lists jobs that are alive (and those that ended within MinJobAge); sacct lists past jobs,
some seconds late. Both give one row per array task. `survey` asks both at once and merges the
answers. A task in neither list may still be on its way into the accounts, was cancelled while it
waited (which leaves no trace in Slurm 22.05), or is hidden from this user.

`catalog/slurm_states.csv` has every state of the manuals of squeue and sacct and of the page "Job
State Codes", releases 17.11 to 25.11. A state that a later release adds is shown by its name and
counts as not over, so that its chunk is not sent twice.

`parse_id` never raises. Job ids have these forms::

    12            a job                       12_[3-9%2]      tasks that wait, two at a time
    12_3          an array's task             12_[1,4-6:2]    lists, ranges, steps
    12+1          a heterogeneous job's part  12_[0-99,...]   cut short by Slurm
    12_3.batch    a step                      12;cluster      as `sbatch --parsable` names it
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import Final

from hpcsweep.catalog.record import packaged
from hpcsweep.cluster.slurm import call
from hpcsweep.cluster.slurm.call import SEPARATOR, CouldNotAsk
from hpcsweep.errors import SchedulerError
from hpcsweep.store.state import ChunkState

_FORM: Final = re.compile(
    r"(?P<job>\d{1,18})"
    r"(?:_(?:(?P<task>\d{1,18})|\[(?P<tasks>[^\]%]*)(?:%[^\]]*)?(?:\]|$)))?"
    r"(?:\+\d+)?(?:\.[^;]+)?"
    r"(?:;.+)?",
    re.ASCII,
)
# Seven digits hold the largest MaxArraySize (4,000,001); a range of more would fill memory.
_RANGE: Final = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::([1-9]\d{0,6}))?)?", re.ASCII)


@dataclass(frozen=True)
class JobId:
    """One printed job id; `job` is None if the text has none of the known forms."""

    text: str
    job: int | None = None
    task: int | None = None
    tasks: tuple[range, ...] = ()

    @classmethod
    def numbered(cls, job: int, task: int | None = None) -> JobId:
        """Make the id of a job or of an array's task."""
        return cls(f"{job}" if task is None else f"{job}_{task}", job, task)

    @property
    def key(self) -> tuple[int | None, int | None]:
        return self.job, self.task

    def expand(self) -> Iterator[JobId]:
        """Yield one id per task of a range, or this id."""
        if not self.tasks or self.job is None:
            yield self
        for task in chain.from_iterable(self.tasks):
            yield JobId.numbered(self.job or 0, task)

    def __str__(self) -> str:
        return self.text


def parse_id(text: str) -> JobId:
    """Read a job id; other text is kept, with `job` None."""
    text = text.strip()
    match = _FORM.fullmatch(text)
    if not match:
        return JobId(text)
    task = int(match["task"]) if match["task"] else None
    tasks = _ranges(match["tasks"] or "")
    return JobId(text, int(match["job"]), task, tasks)


def task_list(tasks: Iterable[int]) -> str:
    """Write task numbers as --array and scancel take them: ``1,4-6``."""
    spans: list[tuple[int, int]] = []
    for task in sorted(set(tasks)):
        if spans and spans[-1][1] == task - 1:
            spans[-1] = (spans[-1][0], task)
        else:
            spans.append((task, task))
    return ",".join(f"{first}-{last}" if first < last else str(first) for first, last in spans)


def numbers(tasks: str) -> Iterator[int]:
    """Yield the numbers of a list as `task_list` and Slurm write it; skip other text."""
    return chain.from_iterable(_ranges(tasks))


def _ranges(tasks: str) -> tuple[range, ...]:
    found = []
    for word in tasks.split(","):
        match = _RANGE.fullmatch(word)
        if match:
            first, last, step = match.groups()
            found.append(range(int(first), int(last or first) + 1, int(step or 1)))
    return tuple(found)


@dataclass(frozen=True)
class State:
    """One state: Slurm's name, its meaning, and a text for users."""

    name: str
    meaning: ChunkState  # of a chunk that lacks rows; `done`: its job ended with exit code 0
    says: str
    node_at_fault: bool = False  # the node goes to --exclude

    @property
    def over(self) -> bool:
        """Whether the attempt is over; in an unknown state it is not."""
        return not self.meaning.live


_BY_NAME: Final = dict[str, State]()
for _row in packaged("slurm_states.csv"):
    _BY_NAME[_row["name"]] = State(
        _row["name"], ChunkState(_row["meaning"]), _row["says"], bool(_row["node_at_fault"])
    )
STATES: Final = tuple(_BY_NAME.values())
# Slurm decorates: `CANCELLED by 0`, `COMPLETED+` (cut short), `PENDING,REQUEUED` (flags).
_WORD: Final = re.compile(r"[A-Za-z_]+")


def state_of(text: str) -> State:
    """Return the state of a printed name; an unknown one keeps its name."""
    text = text.strip()
    word = _WORD.match(text)
    state = _BY_NAME.get(word[0].upper()) if word else None
    return state or State(text, ChunkState.UNKNOWN, "unknown to this version of hpcsweep")


# Limits of a QOS or an association on one job, as all releases name them. One on all jobs of a
# user, an account or a group lets a job start when others end.
_TOO_MUCH: Final = re.compile(r"(?:QOS|Assoc)?(?:Min\w+|Max\w+Per(?:Job|Node)(?:Limit)?)")
# `job_requeued_in_held_state`, `JobHeldUser` and their like, not `QOSUsageThreshold`.
_HELD: Final = re.compile(r"Job(?:Held|Hold)|(?<![a-z])held(?![a-z])|special.exit")
# Of jobs that never start; `{job}` stands for their ids.
_IN_VAIN: Final = {row["reason"]: row["says"] for row in packaged("slurm_reasons.csv")}


def is_held(reason: str) -> bool:
    """Say whether a job with this reason is on hold; some releases call its state pending."""
    return _HELD.search(reason) is not None


def in_vain(reason: str) -> str:
    """Return why a job that waits for this reason will never start, or an empty text.

    Where that can be changed by a command, `{job}` in it stands for the ids of the jobs.
    """
    reason = reason.strip().strip("()")
    if _TOO_MUCH.fullmatch(reason):
        return "asks for more, or less, than its account or QOS allows for one job"
    words = reason.replace("_", " ")
    for beginning, says in _IN_VAIN.items():
        if words.startswith(beginning):
            return says
    return "held; `scontrol release {job}`" if is_held(reason) else ""


# Between the clocks of this machine and of slurmdbd: a job that seems to be submitted before it was
# asked for would be left out.
_CLOCK_SKEW: Final = timedelta(hours=1)
# Of one line of sacct, which has one for all that wait: more would fill the memory of a command
_MOST_TASKS: Final = 100_000
# More job ids make a command line long: then all jobs of the user are asked for instead.
_MANY: Final = 1000
# In squeue's letters: id, state, reason, nodes, submitted, started, ended, folder.
_QUEUE: Final = SEPARATOR.join(["%i", "%T", "%r", "%N", "%V", "%S", "%e", "%Z"])
_ACCOUNTING: Final = "JobID,State,Reason,NodeList,Submit,Start,End,ExitCode,WorkDir"
_UNKNOWN: Final = "Invalid job id specified"
# What squeue prints above each cluster where SLURM_CLUSTERS names one: no answer by itself.
_HEADING: Final = re.compile(r"^CLUSTER: .*\n?", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class JobState:
    """The state of one job or array task, from squeue or sacct."""

    id: JobId
    state: State
    source: str  # squeue or sacct
    reason: str = ""  # why it waits; squeue also says why it failed
    nodes: str = ""  # Slurm's expression; `hostnames` expands it
    submitted: datetime | None = None
    expected: datetime | None = None  # while it waits, when it starts: a guess of Slurm
    started: datetime | None = None
    ended: datetime | None = None
    exit_code: int | None = None  # sacct only
    folder: str = ""  # its working folder, if Slurm prints it


@dataclass(frozen=True)
class Survey:
    """The newest state of each task by (job, task), all attempts, and the failed questions."""

    jobs: dict[tuple[int | None, int | None], JobState]
    unanswered: tuple[CouldNotAsk, ...]
    attempts: tuple[JobState, ...] = ()  # by sacct, oldest first


def queue(job_ids: Iterable[JobId | str] | None = None) -> list[JobState] | CouldNotAsk:
    """Return the queue's entries for those of these jobs that it knows, by default of this user."""
    wanted = _job_numbers(job_ids or ())
    if job_ids is not None and not wanted:
        return []
    command = ["squeue", "-h", "-r", "-t", "all", _choice_of(wanted), "-o", _QUEUE]
    rows = _ask_for_rows(command, fields=_QUEUE.count(SEPARATOR) + 1, harmless=_UNKNOWN)
    if isinstance(rows, CouldNotAsk):
        return rows
    jobs = _read("squeue", rows)
    return [job for job in jobs if job_ids is None or job.id.job in wanted]


def attempts(job_ids: Iterable[JobId | str], since: datetime) -> list[JobState] | CouldNotAsk:
    """Return every attempt of each task of these jobs, all submitted after `since`, oldest first.

    The list has earlier attempts of requeued tasks. The accounts lag: a job that has just ended may
    still be running in the list, or be missing.
    """
    wanted = _job_numbers(job_ids)
    if not wanted:
        return []
    # Without a start time sacct leaves out jobs that ended before midnight.
    start = (since.astimezone() - _CLOCK_SKEW).strftime("%Y-%m-%dT%H:%M:%S")
    command = ["sacct", "-X", "-n", "-P", "--duplicates", f"--delimiter={SEPARATOR}"]
    command += [_choice_of(wanted), f"--format={_ACCOUNTING}", f"--starttime={start}"]
    cluster = os.environ.get("SLURM_CLUSTERS")  # which the other programs heed by themselves
    if cluster:
        command.append(f"--clusters={cluster}")
    rows = _ask_for_rows(command, fields=_ACCOUNTING.count(",") + 1)
    if isinstance(rows, CouldNotAsk):
        return rows
    own = [job for job in _read("sacct", rows) if job.id.job in wanted]
    return sorted(own, key=_age)


def survey(job_ids: Iterable[JobId | str], since: datetime) -> Survey:
    """Ask squeue and sacct at the same time and keep the better answer for each task.

    squeue wins, since the accounts lag, unless both say that the task is over. The accounts also
    list earlier attempts, with the nodes that broke them.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - few commands ask

    ids = [*job_ids]
    with ThreadPoolExecutor(1) as pool:  # if slurmctld is down, both wait for their timeout
        asked = pool.submit(attempts, ids, since)
        listed = queue(ids)
        accounts = asked.result()
    unanswered = []
    jobs = {}
    if isinstance(listed, CouldNotAsk):
        unanswered.append(listed)
    else:
        jobs = {job.id.key: job for job in listed}
    if isinstance(accounts, CouldNotAsk):
        unanswered.append(accounts)
        accounts = []
    newest = {job.id.key: job for job in accounts}  # attempt of each
    for key, job in newest.items():
        if key not in jobs or (jobs[key].state.over and job.state.over):
            jobs[key] = job
    # sacct lists an array as one job without a task until all of its tasks are written; squeue does
    # for the tasks that were cancelled while they waited
    split = {array for array, task in jobs if task is not None}
    for (array, task), job in [*jobs.items()]:
        if task is None and array in split and not job.state.over:
            del jobs[array, task]
    return Survey(jobs, tuple(unanswered), tuple(accounts))


# What newer releases of scancel fail with where nothing is left to cancel.
_GONE: Final = re.compile(rf"{_UNKNOWN}|already (?:completing|completed|finished)")


def cancel(job_ids: Iterable[JobId | str]) -> None:
    """Cancel jobs; ids that are unknown or over are no error.

    `SchedulerError` if Slurm is silent, or refuses: then to try again does not help.
    """
    targets = [str(job).partition(";")[0] for job in job_ids]
    for start in range(0, len(targets), _MANY):
        reply = call.run(["scancel", *targets[start : start + _MANY]], call.TIMEOUT)
        left = "not everything was cancelled"
        if isinstance(reply, CouldNotAsk):
            raise SchedulerError(f"{reply}; {left}")
        errors = [line for line in reply.err.splitlines() if line.strip()]
        wrong = [line for line in errors if not _GONE.search(line)]
        if reply.code == 0 or (reply.code is not None and errors and not wrong):
            continue
        reason = call.cause("scancel", replace(reply, err="\n".join(wrong)))
        broke = wrong and re.search(call.CONNECTION, wrong[-1], re.IGNORECASE)
        refused = reply.code is not None and wrong and not broke
        raise SchedulerError(f"{reason}; {left}{'' if refused else ', try again later'}")


def hostnames(nodes: str) -> tuple[str, ...] | CouldNotAsk:
    """Expand a node list such as ``l40sn[1-3,7]``."""
    if not nodes or nodes in {"None assigned", "(null)"}:
        return ()
    if "[" not in nodes:
        return tuple(nodes.split(","))
    answer = call.ask("scontrol", "show", "hostnames", nodes)
    return answer if isinstance(answer, CouldNotAsk) else tuple(answer.split())


def _ask_for_rows(
    command: Sequence[str], *, fields: int, harmless: str = ""
) -> list[list[str]] | CouldNotAsk:
    """Return the rows of jobs that a program prints; text without a row is no answer.

    Rows may lack the last field. An error that contains `harmless` is an answer without rows.
    """
    reply = call.run(command, call.TIMEOUT)
    if isinstance(reply, CouldNotAsk):
        return reply
    if reply.code and harmless and harmless in reply.err:
        return []
    rows = call.rows(reply.out, fields, optional=1)
    of_jobs = [row for row in rows if parse_id(row[0]).job is not None]
    says_more = reply.err.strip() or _HEADING.sub("", reply.out).strip()
    if reply.code != 0 or (says_more and not of_jobs):
        return call.cause(command[0], reply)
    return of_jobs


def _age(job: JobState) -> tuple[float, float]:
    """Return the sort key of attempts: a requeue has a new submit time; waiting ones are last."""
    submitted = job.submitted.timestamp() if job.submitted else 0
    started = job.started.timestamp() if job.started else math.inf
    return submitted, started


def _read(source: str, rows: Iterable[Sequence[str]]) -> Iterator[JobState]:
    """Yield the tasks in rows of squeue, or of sacct, with one row for an array's waiting tasks."""
    for job, printed, reason, nodes, submitted, started, ended, *code, folder in rows:
        state = state_of(printed)
        waits = state.meaning in {ChunkState.PENDING, ChunkState.REQUEUED, ChunkState.HELD}
        counts = reason != "None" and (waits or source == "squeue")  # sacct keeps the last reason
        start = call.moment(started)
        for task in islice(parse_id(job).expand(), _MOST_TASKS):
            yield JobState(
                id=task,
                state=state,
                source=source,
                reason=reason if counts else "",
                nodes="" if nodes == "None assigned" else nodes,
                submitted=call.moment(submitted),
                expected=start if waits else None,
                started=None if waits else start,
                ended=call.moment(ended) if state.over else None,  # before, that of the limit
                exit_code=call.number(code[0]) if code else None,  # of `CODE:SIGNAL`
                folder=folder,
            )


def _job_numbers(job_ids: Iterable[JobId | str]) -> list[int]:
    """Return the numbers of jobs, each of which stands for all tasks of an array."""
    found = dict[int, None]()  # each once, in their order
    for text in job_ids:
        number = parse_id(str(text)).job
        if number is not None:
            found[number] = None
    return [*found]


def _choice_of(wanted: Collection[int]) -> str:
    """Return the option that chooses jobs; the user's, where there are none or very many."""
    few = 0 < len(wanted) <= _MANY
    return f"--jobs={','.join(map(str, wanted))}" if few else f"--user={os.getuid()}"
