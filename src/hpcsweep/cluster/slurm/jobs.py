"""Asks squeue and sacct for the states of jobs, and cancels jobs.

squeue lists jobs that are alive (and those that ended within MinJobAge); sacct lists past jobs,
some seconds late. Both give one row per array task. `survey` asks both at once and merges the
answers. A task in neither list may still be on its way into the accounts, was cancelled while it
waited (which leaves no trace in Slurm 22.05), or is hidden from this user.

`STATES` has every state of the manuals of squeue and sacct and of the page "Job State Codes",
releases 17.11 to 25.11. A state that a later release adds is shown by its name and counts as not
over, so that its chunk is not sent twice.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from itertools import islice
from typing import Final

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


class Meaning(Enum):
    """What a state means here."""

    PENDING = "pending"  # waits
    RUNNING = "running"  # has its node
    REQUEUED = "requeued"  # was interrupted and will run again
    DONE = "done"  # ended with exit code 0
    FAILED = "failed"  # by the job's own fault
    INFRASTRUCTURE = "infrastructure"  # the cluster failed: not charged, back to pending
    CANCELLED = "cancelled"  # by a person
    TIMEOUT = "timeout"  # reached its time limit
    UNKNOWN = "unknown"  # not in the table


_NOT_OVER: Final = {Meaning.PENDING, Meaning.RUNNING, Meaning.REQUEUED, Meaning.UNKNOWN}


@dataclass(frozen=True)
class State:
    """One state: Slurm's name, its meaning, and a text for users."""

    name: str
    meaning: Meaning
    says: str
    node_at_fault: bool = False  # the node goes to --exclude

    @property
    def over(self) -> bool:
        """Whether the attempt is over; in an unknown state it is not."""
        return self.meaning not in _NOT_OVER


_P = Meaning.PENDING
_R = Meaning.RUNNING
_Q = Meaning.REQUEUED
_F = Meaning.FAILED
_I = Meaning.INFRASTRUCTURE
_C = Meaning.CANCELLED
_T = Meaning.TIMEOUT
STATES: Final = (
    State("BOOT_FAIL", _I, "the node did not boot", node_at_fault=True),
    State("CANCELLED", _C, "cancelled; submit again to continue"),
    State("COMPLETED", Meaning.DONE, "ended with exit code 0"),
    State("COMPLETING", _R, "is being cleaned up after its end"),
    State("CONFIGURING", _P, "has its node, which is still booting"),
    State("DEADLINE", _T, "its --deadline passed; submit again without one"),
    State("EXPEDITING", _Q, "requeued, to start before others"),
    State("FAILED", _F, "ended with another exit code than 0; see `hpcsweep logs`"),
    State("LAUNCH_FAILED", _I, "could not be started on its node", node_at_fault=True),
    State("NODE_FAIL", _I, "its node failed", node_at_fault=True),
    State("OUT_OF_MEMORY", _F, "used more host memory than `mem`; raise it in the profile"),
    State("PENDING", _P, "waits in the queue"),
    State("POWER_UP_NODE", _P, "its node is being switched on"),
    State("PREEMPTED", _I, "preempted by a job of higher priority; submit again"),
    State("RECONFIG_FAIL", _I, "its node could not be set up", node_at_fault=True),
    State("REQUEUED", _Q, "goes back to the queue"),
    State("REQUEUE_FED", _Q, "goes back to the queue of the federation"),
    State("REQUEUE_HOLD", _Q, "back in the queue, on hold; `scontrol release` it"),
    State("RESIZING", _R, "changes its size"),
    State("RESV_DEL_HOLD", _P, "on hold: its reservation is gone; `scontrol release` it"),
    State("REVOKED", _I, "another cluster of the federation took it"),
    State("RUNNING", _R, "is running"),
    State("SIGNALING", _R, "is being sent a signal"),
    State("SPECIAL_EXIT", _Q, "back in the queue, on hold by the site's rule; ask the site"),
    State("STAGE_OUT", _R, "copies its files out"),
    State("STOPPED", _R, "stopped by SIGSTOP, keeps its node"),
    State("SUSPENDED", _R, "suspended, keeps its node; its times are not valid"),
    State("TIMEOUT", _T, "reached its time limit; submit again for the remaining points"),
    State("UPDATE_DB", _R, "is being written to the accounts"),
)
_BY_NAME: Final = {state.name: state for state in STATES}
# Slurm decorates: `CANCELLED by 0`, `COMPLETED+` (cut short), `PENDING,REQUEUED` (flags).
_WORD: Final = re.compile(r"[A-Za-z_]+")


def state_of(text: str) -> State:
    """Return the state of a printed name; an unknown one keeps its name."""
    text = text.strip()
    word = _WORD.match(text)
    state = _BY_NAME.get(word[0].upper()) if word else None
    return state or State(text, Meaning.UNKNOWN, "unknown to this version of hpcsweep")


_IN_VAIN: Final = {
    "AccountNotAllowed": "the partition does not take this account",
    "BadConstraints": "no node has what `constraint` asks for",
    "DependencyNeverSatisfied": "the job that it waits for failed",
    "InvalidAccount": "the account is not valid here",
    "InvalidQOS": "the QOS is not valid here",
    "JobHeldAdmin": "held by an administrator; ask the site",
    "JobHeldUser": "held; `scontrol release` it",
    "MaxMemPerLimit": "asks for more memory than the partition allows",
    "PartitionConfig": "asks for more than a node of the partition has",
    "PartitionDown": "the partition is closed",
    "PartitionInactive": "the partition is closed",
    "PartitionNodeLimit": "asks for more nodes than the partition allows, or its nodes are down",
    "PartitionTimeLimit": "`time` is above the partition's limit",
    "QOSNotAllowed": "the partition does not take this QOS",
    "ReservationDeleted": "its reservation is gone",
    "launch failed requeued held": "could not be started, and is held; `scontrol release` it",
}


def in_vain(reason: str) -> str:
    """Return why a job that waits for this reason will never start, or an empty text."""
    reason = reason.strip().strip("()")
    if reason.startswith(("QOS", "Assoc")) and reason.endswith("PerJobLimit"):
        return "asks for more than its account or QOS allows for one job"
    if reason.startswith(("Job's account not permitted", "Job's QOS not permitted")):
        return "the partition does not take its account or QOS"
    return _IN_VAIN.get(reason.replace("_", " ")) or _IN_VAIN.get(reason, "")


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
    with ThreadPoolExecutor(1) as pool:
        past = pool.submit(attempts, ids, since)
        answers = (queue(ids), past.result())
    listed, accounts = ([] if isinstance(a, CouldNotAsk) else a for a in answers)
    jobs = {job.id.key: job for job in listed}
    for key, job in {job.id.key: job for job in accounts}.items():  # the newest attempt of each
        if key not in jobs or (jobs[key].state.over and job.state.over):
            jobs[key] = job
    # sacct lists an array as one job without a task until all of its tasks are written; squeue does
    # for the tasks that were cancelled while they waited
    split = {job for job, task in jobs if task is not None}
    jobs = {
        (job, task): state
        for (job, task), state in jobs.items()
        if task is not None or job not in split or state.state.over
    }
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
        waits = meaning.meaning in {Meaning.PENDING, Meaning.REQUEUED}
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


def _numbers(job_ids: Iterable[JobId | str]) -> dict[int | None, None]:
    """Return the numbers of jobs, each of which stands for all tasks of an array."""
    return dict.fromkeys(parse_id(str(job)).job for job in job_ids)


def _chosen(wanted: Collection[int | None]) -> str:
    """Return the option that chooses jobs; the user's, where there are none or very many."""
    few = 0 < len(wanted) <= _MANY
    return f"--jobs={','.join(map(str, wanted))}" if few else f"--user={os.getuid()}"
