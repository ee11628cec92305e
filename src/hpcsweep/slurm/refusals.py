"""Turns what sbatch prints when it refuses into typed errors that say what to do next.

::

    SchedulerError
    |-- Rejected      sbatch will never accept this script
    |-- LimitReached  no more jobs now; the same command sends the rest later
    `-- Unanswered    no answer; the job may be in the queue if `maybe_accepted`
"""

from __future__ import annotations

import re
from typing import Final

from hpcsweep.errors import SchedulerError
from hpcsweep.slurm.call import NO_CONF, UNCONFIGURED
from hpcsweep.text import cut


class Rejected(SchedulerError):
    """Slurm refuses the script; the message names the key of the profile to change."""


class LimitReached(SchedulerError):
    """A limit on the number of jobs is reached; `limit` is its name in Slurm."""

    def __init__(self, text: str, limit: str) -> None:
        super().__init__(text)
        self.limit = limit


class Unanswered(SchedulerError):
    """Slurm did not answer; the job may be in the queue if `maybe_accepted`."""

    def __init__(self, text: str, *, maybe_accepted: bool) -> None:
        super().__init__(text)
        self.maybe_accepted = maybe_accepted


def maybe_accepted(error: Exception) -> bool:
    """Say whether the job may be in the queue in spite of this error."""
    return isinstance(error, Unanswered) and error.maybe_accepted


_SHOWN: Final = 500  # characters of what Slurm says
BUSY: Final = re.compile(r"temporarily unable to accept job|Resource temporarily unavailable")
_LIMIT: Final = re.compile(r"\b\w*(?:MaxSubmit|GrpSubmit)\w*")
_UNREACHABLE: Final = re.compile(r"Unable to contact slurm controller|timed out|Connection")
_MINE: Final = "`sacctmgr show assoc user=$USER format=account,partition,qos` lists yours"

# What sbatch prints, the key of the profile to change, what to do. The first match counts.
_TABLE: Final = (
    (UNCONFIGURED, "", NO_CONF),
    (r"nvalid partition", "partition", "`sinfo -s` lists the partitions"),
    (r"Required partition not available", "partition", "it is closed; `sinfo -s` lists others"),
    (r"group not permitted", "partition", "your group may not use it; `sinfo -s` lists others"),
    (r"Invalid feature", "constraint", "`sinfo -o '%R %f'` lists the features of each partition"),
    (r"Invalid generic resource", "gres", "`sinfo -o '%R %G'` lists the GPUs of each partition"),
    (r"Invalid qos", "qos", _MINE),
    (r"Invalid account", "account", _MINE),
    (r"Memory specification", "mem", "`sinfo -o '%R %m'` lists the memory of the nodes in MB"),
    (r"time limit is invalid", "time", "`sinfo -o '%R %l'` lists the partitions' limits"),
    (r"MaxWall", "time", "`sacctmgr show qos format=name,maxwall` lists the limits"),
    (r"More processors requested", "cpus_per_task", "`sinfo -o '%R %c'` lists the nodes' CPUs"),
    (r"Max\w*Mem\w*PerJob|MinMemory", "mem", "the account or QOS allows less for one job"),
    (r"Max\w*Cpu\w*Per(?:Job|Node)", "cpus_per_task", "the account or QOS allows less"),
    (r"Max\w*GRES\w*PerJob", "gres", "the account or QOS allows less for one job"),
    (
        r"node configuration is not available",
        "",
        "no node has this constraint, GRES, memory and CPUs; see `sinfo -o '%R %f %G %c %m'`",
    ),
    (r"Invalid node name", "exclude", "`sinfo -N` lists the nodes"),
    (r"Invalid job array", "array", "`scontrol show config | grep MaxArraySize` is the limit"),
    (r"Invalid --(?P<option>[\w-]+) specification", "", "correct it in the profile"),
    (r"unrecognized option '--(?P<option>[\w-]+)", "", "correct `sbatch_options` in the profile"),
    (r"Job dependency problem", "dependency", "the job to wait for does not exist"),
    (r"Unable to open file|batch script", "script", "it must be a readable script with a #! line"),
    (r"DOS line breaks", "script", "write it with UNIX line ends"),
    (r"accounting/QOS policy", "", "a limit of the account or QOS; `sacctmgr show qos` lists them"),
    (r"denied|not permitted|not allowed|Invalid user id", "", "ask the site for access"),
)


def refusal(printed: str, script: str) -> SchedulerError:
    """Turn what sbatch printed into the error to raise."""
    said = _said(printed)
    later = "run the same command again later to send the rest"
    if BUSY.search(printed):
        text = f"{script}: Slurm accepts no more jobs now (MaxJobCount, of all users); {later}"
        return LimitReached(text, "MaxJobCount")
    if limit := _LIMIT.search(printed):
        text = (
            f"{script}: your limit on jobs in the system is reached ({limit[0][:_SHOWN]}); {later}"
        )
        return LimitReached(text, limit[0][:_SHOWN])
    if _UNREACHABLE.search(printed):
        maybe = "timed out" in printed
        return Unanswered(f"{script}: {said}; try again later", maybe_accepted=maybe)
    option, advice = _blame(printed)
    key = f" (`{option}`)" if option else ""
    return Rejected(f"{script}: sbatch refuses{key}: {said}\n{advice}")


def _blame(printed: str) -> tuple[str, str]:
    for pattern, option, advice in _TABLE:
        if found := re.search(pattern, printed):
            return found.groupdict().get("option", option).replace("-", "_"), advice
    return "", "this is Slurm's own message; `hpcsweep doctor` checks the profile"


def _said(printed: str) -> str:
    """Return Slurm's message in one line, without the names of programs."""
    noise = r"^(?:sbatch: |error: |allocation failure: |Batch job submission failed: )+"
    lines = [re.sub(noise, "", line).strip() for line in printed.splitlines()]
    told = [line for line in lines if line and not line.startswith('Try "')]
    return cut("; ".join(dict.fromkeys(told)), _SHOWN) or "no reason given"
