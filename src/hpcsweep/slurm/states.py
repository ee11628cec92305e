"""Lists every job state of Slurm, and what it means for a chunk of points.

Sources: the manuals of squeue and sacct and the page "Job State Codes", releases 17.11 to 25.11. A
state that a later release adds is shown by its name and counts as not over, so that its chunk is
not sent twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final


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


_OVER: Final = frozenset(
    {Meaning.DONE, Meaning.FAILED, Meaning.INFRASTRUCTURE, Meaning.CANCELLED, Meaning.TIMEOUT}
)


@dataclass(frozen=True)
class State:
    """One state: Slurm's long and short name (if any), its meaning, and a text for users."""

    name: str
    short: str
    meaning: Meaning
    says: str
    node_at_fault: bool = False  # the node goes to --exclude

    @property
    def over(self) -> bool:
        """Say whether the attempt is over; in an unknown state it is not."""
        return self.meaning in _OVER


_P, _R, _Q = Meaning.PENDING, Meaning.RUNNING, Meaning.REQUEUED
_F, _I, _C, _T = Meaning.FAILED, Meaning.INFRASTRUCTURE, Meaning.CANCELLED, Meaning.TIMEOUT

STATES: Final = (
    State("BOOT_FAIL", "BF", _I, "the node did not boot", node_at_fault=True),
    State("CANCELLED", "CA", _C, "cancelled; submit again to continue"),
    State("COMPLETED", "CD", Meaning.DONE, "ended with exit code 0"),
    State("COMPLETING", "CG", _R, "is being cleaned up after its end"),
    State("CONFIGURING", "CF", _P, "has its node, which is still booting"),
    State("DEADLINE", "DL", _T, "its --deadline passed; submit again without one"),
    State("EXPEDITING", "", _Q, "requeued, to start before others"),
    State("FAILED", "F", _F, "ended with another exit code than 0; see `hpcsweep logs`"),
    State("LAUNCH_FAILED", "", _I, "could not be started on its node", node_at_fault=True),
    State("NODE_FAIL", "NF", _I, "its node failed", node_at_fault=True),
    State("OUT_OF_MEMORY", "OOM", _F, "used more host memory than `mem`; raise it in the profile"),
    State("PENDING", "PD", _P, "waits in the queue"),
    State("POWER_UP_NODE", "", _P, "its node is being switched on"),
    State("PREEMPTED", "PR", _I, "preempted by a job of higher priority; submit again"),
    State("RECONFIG_FAIL", "", _I, "its node could not be set up", node_at_fault=True),
    State("REQUEUED", "RQ", _Q, "goes back to the queue"),
    State("REQUEUE_FED", "RF", _Q, "goes back to the queue of the federation"),
    State("REQUEUE_HOLD", "RH", _Q, "back in the queue, on hold; `scontrol release` it"),
    State("RESIZING", "RS", _R, "changes its size"),
    State("RESV_DEL_HOLD", "RD", _P, "on hold: its reservation is gone; `scontrol release` it"),
    State("REVOKED", "RV", _I, "another cluster of the federation took it"),
    State("RUNNING", "R", _R, "is running"),
    State("SIGNALING", "SI", _R, "is being sent a signal"),
    State("SPECIAL_EXIT", "SE", _Q, "back in the queue, on hold by the site's rule; ask the site"),
    State("STAGE_OUT", "SO", _R, "copies its files out"),
    State("STOPPED", "ST", _R, "stopped by SIGSTOP, keeps its node"),
    State("SUSPENDED", "S", _R, "suspended, keeps its node; its times are not valid"),
    State("TIMEOUT", "TO", _T, "reached its time limit; submit again for the remaining points"),
    State("UPDATE_DB", "", _R, "is being written to the accounts"),
)
_BY_NAME: Final = {name: state for state in STATES for name in (state.name, state.short) if name}
# Slurm decorates: `CANCELLED by 0`, `COMPLETED+` (cut short), `PENDING,REQUEUED` (flags).
_WORD: Final = re.compile(r"[A-Za-z_]+")


def state_of(text: str) -> State:
    """Return the state of a printed name, long or short; an unknown one keeps its name."""
    text = text.strip()
    word = _WORD.match(text)
    known = _BY_NAME.get(word[0].upper()) if word else None
    return known or State(text, text, Meaning.UNKNOWN, "unknown to this version of hpcsweep")


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
