"""Submits scripts, or asks whether sbatch would accept them; turns refusals into typed errors.

::

    SchedulerError
    |-- Rejected      sbatch will never accept this script
    |-- LimitReached  no more jobs now; the same command sends the rest later
    `-- Unanswered    no answer, or one that may be lost

An sbatch that fails has refused, whatever its words: sites have plugins with their own. Only after
a few ends the job may be in the queue: a signal or our patience ended sbatch, its answer was lost
on its way back, or a script that a site put in front of it broke. Such errors are `maybe_accepted`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hpcsweep.cluster.slurm import call
from hpcsweep.cluster.slurm.call import NO_CONF, UNCONFIGURED, CouldNotAsk
from hpcsweep.cluster.slurm.jobs import JobId, parse_id
from hpcsweep.errors import MissingDependency, SchedulerError
from hpcsweep.text import cut

# Requeues of one task at most: preemption may bring dozens, a job that ends at once no end of them.
RESTARTS: Final = 100
# What a job's log says where points are left, and Slurm or `--no-requeue` has it end.
NOT_REQUEUED: Final = (
    "hpcsweep: this job is not requeued; `hpcsweep submit` sends the points that are left"
)


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What a launcher would hand to sbatch for the first array of a submission."""

    script: str
    file: str  # where the script would lie in the submission's folder
    options: Sequence[str] = ()  # of sbatch's call


class Rejected(SchedulerError):
    """Slurm refuses the script; the message names the key of the profile to change.

    `about` is that key, or an option of sbatch, empty where Slurm does not tell; `words` are
    Slurm's own.
    """

    def __init__(self, text: str, *, about: str = "", words: str = "") -> None:
        super().__init__(text)
        self.about = about
        self.words = words


class LimitReached(SchedulerError):
    """A limit on the number of jobs is reached; `limit` is its name in Slurm."""

    def __init__(self, text: str, limit: str, *, maybe_accepted: bool = False) -> None:
        super().__init__(text)
        self.limit = limit
        self.maybe_accepted = maybe_accepted


class Unanswered(SchedulerError):
    """Slurm did not answer, or nobody knows what its answer means."""

    def __init__(self, text: str, *, maybe_accepted: bool) -> None:
        super().__init__(text)
        self.maybe_accepted = maybe_accepted


# Characters of Slurm's message: all of its own fit, not what a wrapper prints.
_LONGEST: Final = 500
# Texts, not compiled: `status` loads this module and reads none of them.
BUSY: Final = (
    r"temporarily unable to accept job|Resource temporarily unavailable|job queue full"
    r"|creation temporarily disabled|Unable to create job record, try again"
)
_LIMIT: Final = r"\b\w*(?:MaxSubmit|GrpSubmit)\w*"
# It sent nothing: no connection was made.
_UNHEARD: Final = r"Unable to contact slurm controller \(connect failure\)"
# After these words alone a job may be in the queue: the connection broke, or a script of the site
# in front of sbatch did, perhaps behind its call.
_SCRIPT_BROKE: Final = r": line \d+: |^Traceback \(most|^(?:Killed|Terminated|Hangup)$"
_OPEN: Final = f"(?im){call.CONNECTION}|{_SCRIPT_BROKE}"
_COLOURS: Final = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))"
# In front of what sbatch says itself, whatever a site renamed it to.
_OWN: Final = r"(?:\S*sbatch\S*|\S+: (?:error|fatal)): (?!line \d+: )"
_WARNING: Final = r"(?i)(?:\S+: )?warning: "
# An answer of slurmctld, or for it; the second form is that of --test-only.
_ANSWER: Final = r"(?:Batch job submission failed|allocation failure): (.*)"
_PROGRAMS: Final = (
    r"(?:\S*sbatch\S*:\s*|(?:\S+: )?(?:error|fatal):\s*|allocation failure: "
    r"|Batch job submission failed: )+"
)
# What a message of sbatch is about: an option by its name, or the key of the profile to change.
_NAMED: Final = (
    r"Invalid --([\w-]+) specification|option (?:'--|-- ')([\w-]+)|(?<!\S)[\"'`(]*--([a-z][\w-]*)"
)
# How options begin that are other ways to ask for what a key does.
_FAMILIES: Final = {
    "mem": "mem", "gpus": "gres", "gres": "gres", "time": "time", "cpus_per": "cpus_per_task",
}  # fmt: skip
# In this order, since the later ones are often told only as the place where a limit holds. Nothing
# of Slurm's general words for a limit, "accounting/QOS policy (... and/or time limits)", is a key.
_ABOUT: Final = {
    "mem": r"\bmemory|\bmem\b|(?-i:(?:Max|Min|Grp)Mem|MemPer)",
    "time": r"(?<!and/or )time.?limit|time.min\b|invalid time|\brun[ -]time|\bwall.?(?:time|clock)"
    r"|MaxWall|WallDuration",
    "account": r"\baccounts?\b",
    "gres": r"generic resource|\bgres\b|\bgpus?\b|(?:Max|Min|Grp)GRES",
    "cpus_per_task": r"More processors requested|more tasks than|CPU count"
    r"|(?:Max|Min)Cpu\w*|\bcpus?\b|\bcores?\b",
    "nodes": "(?:Max|Min)Node",
    "qos": r"(?<!accounting/)\bqos\b",
    "constraint": r"\bfeatures?\b|\bconstraints?\b",
    "array": "job array",
    "dependency": "dependency problem",
    "script": "Unable to open file|batch script|DOS line breaks",
    "partition": r"\bpartitions?\b",
}
_LATER: Final = "run the same command again later to send the rest"
_ADVICE: Final = "correct the profile; `hpcsweep doctor --cluster NAME` says what the cluster has"
# The exit codes of a shell whose program a signal ended: 128, and the signal's number up to 64.
_SIGNALLED: Final = range(129, 193)


def _about(text: str) -> str:
    """Return the key or option that a text is about; empty for words that name none."""
    option = re.search(_NAMED, text)
    if option:
        name = (option[1] or option[2] or option[3]).replace("-", "_")
        for family, key in _FAMILIES.items():
            if name.startswith(family):
                return key
        return name
    for key, pattern in _ABOUT.items():
        if re.search(pattern, text, re.IGNORECASE):
            return key
    return ""


def _lines(printed: str) -> list[str]:
    """Return the lines that have words or numbers, without colours."""
    lines = re.sub(_COLOURS, "", printed).splitlines()
    return [line.strip() for line in lines if re.search(r"\w", line)]


def _complaint(printed: str) -> tuple[list[str], str]:
    """Return the lines that say what is wrong, and of these what sbatch itself says.

    Those of sbatch up to slurmctld's answer, if there are any: sites greet before and after. Its
    own words are that answer, which is last, or what it found wrong before it asked.
    """
    lines = [line for line in _lines(printed) if not re.match(_WARNING, line)]
    own = [number for number, line in enumerate(lines) if re.match(_OWN, line)]
    answers = [number for number, line in enumerate(lines) if re.search(_ANSWER, line)]
    if answers:
        told = lines[min(own + answers) : answers[-1] + 1]
        return told, told[-1]
    return lines[min(own, default=0) :], "\n".join(lines[number] for number in own)


def refusal(errors: str, script: str, code: int | None = 1, *, output: str = "") -> SchedulerError:
    """Turn what sbatch printed before it failed into the error to raise.

    `code` is its exit code, where that is known: a signal may have ended it at any time. What a
    site says on standard output counts where there are no errors.
    """
    ids = job_ids(f"{output}\n{errors}")
    if ids:
        what = f"sbatch printed the id {ids[-1]} and failed: {_message(_lines(errors))}"
        return _open_question(script, what)
    printed = errors if errors.strip() else output
    told, said = _complaint(printed)
    answers = re.findall(_ANSWER, printed)
    message = _message(told or _lines(printed))
    if re.search(BUSY, said or printed):
        text = f"{script}: Slurm accepts no more jobs now (MaxJobCount, of all users); {_LATER}"
        return LimitReached(text, "MaxJobCount", maybe_accepted=not answers)  # it was trying
    said = said or "\n".join(told)
    if re.search(UNCONFIGURED, said):
        return Rejected(f"sbatch: {NO_CONF}", words=NO_CONF)
    if re.search(_UNHEARD, said):
        return Unanswered(f"{script}: {message}; try again later", maybe_accepted=False)
    was_ended = code is None or code < 0 or code in _SIGNALLED
    if not said or re.search(_OPEN, said) or (was_ended and not answers):
        return _open_question(script, f"sbatch failed, and did not refuse: {message}")
    return _refused(told, script, message)


def _refused(told: Sequence[str], script: str, message: str) -> SchedulerError:
    """Return the error for a refusal with these lines: a limit on jobs, or what to change."""
    limit = re.search(_LIMIT, "\n".join(told))
    if limit:
        name = limit[0][:_LONGEST]
        text = f"{script}: your limit on jobs in the system is reached ({name}); {_LATER}"
        return LimitReached(text, name)
    # a plugin of the site says more than the answer behind its words
    option = _about("\n".join(told[:-1])) or _about(told[-1])
    key = f" (`{option}`)" if option else ""
    text = f"{script}: sbatch refuses{key}: {message}\n{_ADVICE}"
    return Rejected(text, about=option, words=message)


def _message(lines: Sequence[str]) -> str:
    """Return Slurm's message in one line, without the names of programs."""
    messages = []
    for line in lines:
        said = re.sub(_PROGRAMS, "", line, count=1).strip()
        if re.search(r"\w", said) and not said.startswith('Try "'):
            messages.append(said)
    return cut("; ".join(dict.fromkeys(messages)), _LONGEST) or "no reason given"


# The id alone, as --parsable has it, and the words without --parsable.
_ID_LINE: Final = (
    r"(?:sbatch: )?Submitted batch job (\d{1,18})\b(?: on cluster (\S+))?.*|(\d{1,18})(?:;(\S+))?"
)


def job_ids(printed: str) -> list[JobId]:
    """Return the job ids that sbatch printed, each on a line of its own; other numbers are none."""
    found: dict[str, str] = {}
    for line in _lines(printed):
        match = re.fullmatch(_ID_LINE, line)
        if match:
            job, cluster = match[1] or match[3], match[2] or match[4]
            found[job] = f"{job};{cluster}" if cluster else found.get(job, job)
    return [parse_id(text) for text in found.values()]


def only_id(printed: str, script: str) -> JobId:
    """Return the job id that sbatch printed; `Unanswered` where there is none, or several."""
    ids = job_ids(printed)
    if len(ids) == 1:
        return ids[0]
    which = f"several job ids, {', '.join(map(str, ids))}, in" if ids else "no job id but"
    raise _open_question(script, f"sbatch printed {which} {cut(repr(printed.strip()), _SHOWN)}")


# Seconds for an answer: at MaxJobCount sbatch retries for minutes, and a person waits.
_SUBMIT_S: Final = 60.0
# Characters of an answer without a job id, as of a site's greeting.
_SHOWN: Final = 300


def submit(
    script: Path,
    *,
    options: Sequence[str] = (),
    arguments: Sequence[str] = (),
    timeout: float | None = None,
) -> JobId:
    """Submit a script with its arguments and return the id of the job or array.

    Raises:
        MissingDependency: there is no sbatch.
        Rejected: Slurm refuses the script.
        LimitReached: no more jobs now; raised at once, or after `timeout` if sbatch retries.
        Unanswered: no answer within `timeout`, or one that says neither yes nor no.

    `timeout` is a minute, or the time for a question where that is longer.
    """
    timeout = timeout or max(_SUBMIT_S, call.TIMEOUT)
    command = ["sbatch", "--parsable", *options, str(script), *arguments]
    reply = call.run(command, timeout)
    if isinstance(reply, CouldNotAsk):
        if not call.available():
            raise MissingDependency(str(reply))
        raise Unanswered(f"{script}: {reply}; nothing was submitted", maybe_accepted=False)
    if reply.code is None and not re.search(BUSY, reply.err):
        raise _open_question(str(script), f"sbatch gave {call.too_late(timeout)}")
    if reply.code == 0:
        return only_id(reply.out, str(script))
    raise refusal(reply.err, str(script), reply.code, output=reply.out)


@dataclass(frozen=True)
class Place:
    """Where a job that sbatch would accept would run; empty where it does not say."""

    partition: str = ""
    nodes: str = ""

    def __str__(self) -> str:
        if not self.partition:
            return "it does not say where"
        return f"partition {self.partition}, nodes {self.nodes}"


def would_accept(script: Path | None = None, *, options: Sequence[str] = ()) -> Place | CouldNotAsk:
    """Ask by `sbatch --test-only` whether sbatch would accept a script, and where it would run.

    Without a script it is asked about a job of these options that does nothing.

    Raises:
        Rejected, LimitReached: as `submit`. sbatch does not check here: a time above the limit of
            the partition, its limit on memory, a closed partition, and a missing output folder. It
            looks at the nodes as they are now: it refuses where the right ones are out of service,
            though the job could wait for them.
    """
    what = "--wrap=true" if script is None else str(script)
    reply = call.run(["sbatch", "--test-only", *options, what], call.TIMEOUT)
    if isinstance(reply, CouldNotAsk):
        return reply
    match = re.search(r"to start at .*? on nodes (\S+) in partition (\S+)", reply.err)
    if match:
        return Place(match[2], match[1])
    if reply.code == 0:
        return Place()
    refused = refusal(reply.err, what, reply.code, output=reply.out)
    no_cluster = re.search(UNCONFIGURED, reply.err)  # to ask
    if reply.code is None or no_cluster or isinstance(refused, Unanswered):
        return call.cause("sbatch", reply)
    raise refused


def _open_question(script: str, what: str) -> Unanswered:
    look = "the job may be in the queue; run the same command again: it looks there first"
    return Unanswered(f"{script}: {what}; {look}", maybe_accepted=True)
