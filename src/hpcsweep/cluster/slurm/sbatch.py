"""Submits scripts, or asks whether sbatch would accept them; turns refusals into typed errors.

::

    SchedulerError
    |-- Rejected      sbatch will never accept this script
    |-- LimitReached  no more jobs now; the same command sends the rest later
    `-- Unanswered    no answer, or none that is known

A job may be in the queue after every end of sbatch that is no refusal known here: an answer may be
lost on its way back, and sites put scripts in front of sbatch. Such errors are `maybe_accepted`.
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


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What a launcher would hand to sbatch for the first array of a submission."""

    script: str
    file: str  # where the script would lie in the submission's folder
    options: Sequence[str] = ()
    arguments: Sequence[str] = ()


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
BUSY: Final = re.compile(r"temporarily unable to accept job|Resource temporarily unavailable")
_LIMIT: Final = re.compile(r"\b\w*(?:MaxSubmit|GrpSubmit)\w*")
# It sent nothing: no connection was made.
_UNHEARD: Final = r"Unable to contact slurm controller \(connect failure\)"
# Words of the connection to slurmctld, after which a job may be in the queue.
_CONNECTION: Final = re.compile(
    r"Unable to contact|timed out|[Cc]onnection (?:re|failure|timed)|Zero Bytes|[Pp]rotocol"
    r"|authentication|[Mm]unge|not responding|retrying|slurm_\w*(?:send|recv|receive|msg|conn)"
    r"|Transport endpoint|route to host"
)
# What sbatch itself finds wrong; a warning, or a word of the script in front of it, is no refusal.
_SAID: Final = re.compile(
    r"^(?:\w+: (?:error|fatal): |sbatch: (?:unrecognized |invalid )?option).*", re.MULTILINE
)
# An answer of slurmctld, or for it; the second form is that of --test-only.
_ANSWER: Final = re.compile(r"(?:Batch job submission failed|allocation failure): (.*)")
# What a message of sbatch is about: an option by its name, or the key of the profile to change.
_NAMED: Final = re.compile(r"Invalid --([\w-]+) specification|option (?:'--|-- ')([\w-]+)")
_ABOUT: Final = {
    "partition": r"nvalid partition|Required partition not available|group not permitted|"
    "No partition specified",
    "constraint": "Invalid feature",
    "gres": r"generic resource|Invalid GRES|--(?:gres|gpus)\b|(?:Max|Min)\w*GRES",
    "qos": "Invalid qos",
    "account": "Invalid account",
    "mem": r"Memory specification|Max\w*Mem\w*PerJob|MinMemory|--mem\b|[Mm]emory limit",
    "time": "time limit is invalid|MaxWall",
    "cpus_per_task": r"More processors requested|Max\w*Cpu\w*Per(?:Job|Node)",
    "array": "Invalid job array",
    "dependency": "Job dependency problem",
    "script": "Unable to open file|batch script|DOS line breaks",
    "": "node configuration is not available|accounting/QOS policy|denied|not permitted|"
    "not allowed|Invalid user id|Unspecified error|Invalid .*specifi|Requested |[Rr]eservation|"
    "[Ll]icense|wckey|Required node not available|specification|presently disabled",
}
_ADVICE: Final = "correct the profile; `hpcsweep doctor --cluster NAME` says what the cluster has"
# The exit code of sbatch where it, or its controller, finds something wrong.
_OWN_END: Final = 1


def _about(text: str) -> str | None:
    """Return the key or option that a refusal is about; None for words that are none."""
    option = _NAMED.search(text)
    if option:
        return (option[1] or option[2]).replace("-", "_")
    for key, pattern in _ABOUT.items():
        if re.search(pattern, text):
            return key
    return None


def refusal(printed: str, script: str, code: int | None = _OWN_END) -> SchedulerError:
    """Turn what sbatch printed, without a job id, before it failed into the error to raise.

    `code` is its exit code, where that is known: a signal may have ended it at any time.
    """
    message = _message(printed)
    answers = _ANSWER.findall(printed)
    later = "run the same command again later to send the rest"
    if BUSY.search(answers[-1] if answers else printed):
        text = f"{script}: Slurm accepts no more jobs now (MaxJobCount, of all users); {later}"
        return LimitReached(text, "MaxJobCount", maybe_accepted=not answers)  # it was trying
    said = answers[-1] if answers else "\n".join(_SAID.findall(printed))
    if re.search(UNCONFIGURED, said):
        return Rejected(f"sbatch: {NO_CONF}", words=NO_CONF)
    if re.search(_UNHEARD, said):
        return Unanswered(f"{script}: {message}; try again later", maybe_accepted=False)
    # Before it asks slurmctld, sbatch says in its own words, or in those of a site's plugin, what
    # it finds wrong; an answer of slurmctld is one of a list.
    before_it_asked = said and not answers and code == _OWN_END and not _CONNECTION.search(said)
    if _about(said) is None and not before_it_asked:
        return _open_question(script, f"sbatch failed, which is no refusal known here: {message}")
    limit = _LIMIT.search(printed)
    if limit:
        name = limit[0][:_LONGEST]
        text = f"{script}: your limit on jobs in the system is reached ({name}); {later}"
        return LimitReached(text, name)
    option = _about(printed) or ""
    key = f" (`{option}`)" if option else ""
    text = f"{script}: sbatch refuses{key}: {message}\n{_ADVICE}"
    return Rejected(text, about=option, words=message)


def _message(printed: str) -> str:
    """Return Slurm's message in one line, without the names of programs."""
    noise = r"^(?:sbatch: |error: |fatal: |allocation failure: |Batch job submission failed: )+"
    messages = []
    for line in printed.splitlines():
        said = re.sub(noise, "", line).strip()
        if said and not said.startswith('Try "'):
            messages.append(said)
    return cut("; ".join(dict.fromkeys(messages)), _LONGEST) or "no reason given"


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
    if reply.code is None and not BUSY.search(reply.err):
        raise _open_question(str(script), f"sbatch gave no answer within {timeout:g} s")
    ids = []
    for line in reply.out.splitlines():  # some sites print a greeting here
        job_id = parse_id(line)
        if job_id.job is not None:
            ids.append(job_id)
    if reply.code != 0 and not ids:
        raise refusal(reply.err, str(script), reply.code)
    if reply.code != 0:
        what = f"sbatch printed the id {ids[-1]} and failed: {_message(reply.err)}"
        raise _open_question(str(script), what)
    if not ids:
        what = f"sbatch printed no job id but {cut(repr(reply.out.strip()), _SHOWN)}"
        raise _open_question(str(script), what)
    return ids[-1]


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
    if reply.code != 0:
        refused = refusal(reply.err, what, reply.code)
        no_cluster = re.search(UNCONFIGURED, reply.err)  # to ask
        if reply.code is None or no_cluster or isinstance(refused, Unanswered):
            return call.cause("sbatch", reply)
        raise refused
    match = re.search(r"to start at .*? on nodes (\S+) in partition (\S+)", reply.err)
    return Place(match[2], match[1]) if match else Place()


def _open_question(script: str, what: str) -> Unanswered:
    look = "the job may be in the queue; run the same command again: it looks there first"
    return Unanswered(f"{script}: {what}; {look}", maybe_accepted=True)
