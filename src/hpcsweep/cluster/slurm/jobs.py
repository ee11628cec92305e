"""Asks squeue and sacct for the states of jobs, and cancels jobs.

squeue lists jobs that are alive (and those that ended within MinJobAge); sacct lists past jobs,
some seconds late. Both give one row per array task. `survey` asks both at once and merges the
answers. A task in neither list may still be on its way into the accounts, was cancelled while it
waited (which leaves no trace in Slurm 22.05), or is hidden from this user.

`catalog/slurm_states.csv` has every state of the manuals of squeue and sacct and of the page "Job
State Codes", releases 17.11 to 25.11. A state that a later release adds is shown by its name and
counts as not over, so that its chunk is not sent twice.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from hpcsweep.catalog.record import packaged
from hpcsweep.cluster.slurm.call import (
    SEPARATOR,
    CouldNotAsk,
    ask,
    ask_for_rows,
    moment,
    number,
)
from hpcsweep.cluster.slurm.ids import JobId, parse_id
from hpcsweep.errors import SchedulerError
from hpcsweep.store.state import ChunkState


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


STATES: Final = tuple(
    State(row["name"], ChunkState(row["meaning"]), row["says"], bool(row["node_at_fault"]))
    for row in packaged("slurm_states.csv")
)
_BY_NAME: Final = {state.name: state for state in STATES}
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
_TOO_MUCH: Final = re.compile(r"(?:QOS|Assoc)(?:Min\w+|Max\w+Per(?:Job|Node)(?:Limit)?)")
# of jobs that never start
_IN_VAIN: Final = {row["reason"]: row["says"] for row in packaged("slurm_reasons.csv")}


def in_vain(reason: str) -> str:
    """Return why a job that waits for this reason will never start, or an empty text."""
    reason = reason.strip().strip("()")
    if _TOO_MUCH.fullmatch(reason):
        return "asks for more, or less, than its account or QOS allows for one job"
    words = reason.replace("_", " ")
    return next((says for begin, says in _IN_VAIN.items() if words.startswith(begin)), "")


# A job that seems to be submitted before it was asked for would be left out.
_CLOCK_SKEW: Final = timedelta(hours=1)  # between the clocks of this machine and of slurmdbd
_MOST_TASKS: Final = 100_000  # of one line; squeue has a line for each
_MANY: Final = 1000  # more job ids than this make a command line too long
# In squeue's letters: id, state, reason, nodes, submitted, started, ended, folder.
_QUEUE: Final = SEPARATOR.join(["%i", "%T", "%r", "%N", "%V", "%S", "%e", "%Z"])
_ACCOUNTING: Final = "JobID,State,Reason,NodeList,Submit,Start,End,ExitCode,WorkDir"
_UNKNOWN: Final = "Invalid job id specified"


@dataclass(frozen=True, kw_only=True)
class JobState:
    """The state of one job or array task, from squeue or sacct."""

    id: JobId
    state: State
    source: str  # squeue or sacct
    reason: str = ""  # why it waits; squeue also says why it failed
    nodes: str = ""  # Slurm's expression; `hostnames` expands it
    submitted: datetime | None = None
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
    wanted = _numbers(job_ids or ())
    if job_ids is not None and not wanted:
        return []
    options = ["-h", "-r", "-t", "all", _chosen(wanted), "-o", _QUEUE]
    fields = _QUEUE.count(SEPARATOR) + 1
    rows = ask_for_rows("squeue", *options, fields=fields, optional=1, harmless=_UNKNOWN)
    if isinstance(rows, CouldNotAsk):
        return rows
    jobs = _read("squeue", rows)
    return [job for job in jobs if job_ids is None or job.id.job in wanted]


def attempts(job_ids: Iterable[JobId | str], since: datetime) -> list[JobState] | CouldNotAsk:
    """Return every attempt of each task of these jobs, all submitted after `since`, oldest first.

    The list has earlier attempts of requeued tasks. The accounts lag: a job that has just ended may
    still be running in the list, or be missing.
    """
    wanted = _numbers(job_ids)
    if not wanted:
        return []
    # Without a start time sacct leaves out jobs that ended before midnight.
    start = (since.astimezone() - _CLOCK_SKEW).strftime("%Y-%m-%dT%H:%M:%S")
    options = ["-X", "-n", "-P", "--duplicates", f"--delimiter={SEPARATOR}", _chosen(wanted)]
    options += [f"--format={_ACCOUNTING}", f"--starttime={start}"]
    if named := os.environ.get("SLURM_CLUSTERS"):  # which the other programs heed by themselves
        options.append(f"--clusters={named}")
    fields = _ACCOUNTING.count(",") + 1
    rows = ask_for_rows("sacct", *options, fields=fields, optional=1)
    if isinstance(rows, CouldNotAsk):
        return rows
    return sorted((job for job in _read("sacct", rows) if job.id.job in wanted), key=_age)


def survey(job_ids: Iterable[JobId | str], since: datetime) -> Survey:
    """Ask squeue and sacct at the same time and keep the better answer for each task.

    squeue wins, since the accounts lag, unless both say that the task is over. The accounts also
    list earlier attempts, with the nodes that broke them.
    """
    ids = [*job_ids]
    with ThreadPoolExecutor(1) as pool:  # if slurmctld is down, both wait for their timeout
        past = pool.submit(attempts, ids, since)
        answers = (queue(ids), past.result())
    listed, accounts = ([] if isinstance(a, CouldNotAsk) else a for a in answers)
    jobs = {job.id.key: job for job in listed}
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
    unanswered = tuple(a for a in answers if isinstance(a, CouldNotAsk))
    return Survey(jobs, unanswered, tuple(accounts))


def cancel(job_ids: Iterable[JobId | str]) -> None:
    """Cancel jobs; unknown ids are no error. `SchedulerError` if Slurm is silent, or refuses."""
    targets = [str(job).partition(";")[0] for job in job_ids]
    for start in range(0, len(targets), _MANY):
        answer = ask("scancel", *targets[start : start + _MANY])
        if isinstance(answer, CouldNotAsk):
            raise SchedulerError(f"{answer}; not everything was cancelled, try again later")


def hostnames(nodes: str) -> tuple[str, ...] | CouldNotAsk:
    """Expand a node list such as ``l40sn[1-3,7]``."""
    if not nodes or nodes in {"None assigned", "(null)"}:
        return ()
    if "[" not in nodes:
        return tuple(nodes.split(","))
    answer = ask("scontrol", "show", "hostnames", nodes)
    return answer if isinstance(answer, CouldNotAsk) else tuple(answer.split())


def _age(job: JobState) -> tuple[float, float]:
    """Return the sort key of attempts: a requeue has a new submit time; waiting ones are last."""
    submitted = job.submitted
    started = job.started
    return submitted.timestamp() if submitted else 0, started.timestamp() if started else math.inf


def _read(source: str, rows: Iterable[Sequence[str]]) -> Iterator[JobState]:
    """Yield the tasks in rows of squeue, or of sacct, with one row for an array's waiting tasks."""
    for job, state, reason, nodes, submitted, started, ended, *code, folder in rows:
        meaning = state_of(state)
        waits = meaning.meaning in {ChunkState.PENDING, ChunkState.REQUEUED}
        counts = reason != "None" and (waits or source == "squeue")  # sacct keeps the last reason
        for task in islice(parse_id(job).expand(), _MOST_TASKS):
            yield JobState(
                id=task,
                state=meaning,
                source=source,
                reason=reason if counts else "",
                nodes="" if nodes == "None assigned" else nodes,
                submitted=moment(submitted),
                started=None if waits else moment(started),  # before, squeue has a forecast
                ended=moment(ended) if meaning.over else None,  # before, it is that of the limit
                exit_code=number(code[0]) if code else None,  # of `CODE:SIGNAL`
                folder=folder,
            )


def _numbers(job_ids: Iterable[JobId | str]) -> list[int]:
    """Return the numbers of jobs, each of which stands for all tasks of an array."""
    found = dict.fromkeys(parse_id(str(job)).job for job in job_ids)
    return [number for number in found if number is not None]


def _chosen(wanted: Collection[int]) -> str:
    """Return the option that chooses jobs; the user's, where there are none or very many."""
    few = 0 < len(wanted) <= _MANY
    return f"--jobs={','.join(map(str, wanted))}" if few else f"--user={os.getuid()}"
