"""Submits scripts, or asks whether sbatch would accept them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hpcsweep.errors import MissingDependency
from hpcsweep.slurm import call
from hpcsweep.slurm.call import TIMEOUT, CouldNotAsk, Reply, Why
from hpcsweep.slurm.ids import JobId, parse_id
from hpcsweep.slurm.refusals import BUSY, Unanswered, refusal
from hpcsweep.text import cut

SUBMIT_S: Final = 60.0  # for an answer to a submission; a busy slurmctld is slow
_SHOWN: Final = 300  # characters of an answer without a job id
RETRY_S: Final = 10.0  # until sbatch is killed that retries at MaxJobCount, for minutes


@dataclass(frozen=True)
class Expectation:
    """Where a script would run, by `sbatch --test-only`."""

    nodes: str
    partition: str


def submit(
    script: Path,
    *,
    options: Sequence[str] = (),
    arguments: Sequence[str] = (),
    timeout: float = SUBMIT_S,
    patience: float = RETRY_S,
) -> JobId:
    """Submit a script with its arguments and return the id of the job or array.

    Raises:
        MissingDependency: there is no sbatch.
        Rejected: Slurm refuses the script.
        LimitReached: no more jobs now; raised at once, or after `patience` if sbatch retries.
        Unanswered: no answer within `timeout`, or one without an id; the job may be in the queue.
    """
    command = ["sbatch", "--parsable", *options, str(script), *arguments]
    reply = _patiently(command, timeout, patience)
    if isinstance(reply, CouldNotAsk):
        if reply.why is Why.ABSENT:
            raise MissingDependency(str(reply))
        raise Unanswered(f"{script}: {reply}; nothing was submitted", maybe_accepted=False)
    if reply.code is None and not BUSY.search(reply.err):
        raise _open_question(script, f"sbatch gave no answer within {timeout:g} s")
    if reply.code != 0:
        raise refusal(reply.err, str(script))
    # Some sites print a greeting here.
    printed = [job for job in map(parse_id, reply.out.splitlines()) if job.job is not None]
    if not printed:
        raise _open_question(
            script, f"sbatch printed no job id but {cut(repr(reply.out.strip()), _SHOWN)}"
        )
    return printed[-1]


def would_accept(
    script: Path, *, options: Sequence[str] = (), timeout: float = TIMEOUT
) -> Expectation | CouldNotAsk:
    """Ask by `sbatch --test-only` whether sbatch would accept a script, and where it would run.

    Raises:
        Rejected, LimitReached: as `submit`. sbatch does not check here: a time above the limit of
            the partition, a closed partition, and a missing output folder.
    """
    command = ["sbatch", "--test-only", *options, str(script)]
    reply = call.run(command, timeout)
    if isinstance(reply, CouldNotAsk):
        return reply
    if reply.code != 0:
        refused = None if reply.code is None else refusal(reply.err, str(script))
        if refused is None or isinstance(refused, Unanswered):
            return call.cause("sbatch", reply, timeout)
        raise refused
    found = re.search(r"to start at .*? on nodes (\S+) in partition (\S+)", reply.err)
    return Expectation(*(found.groups() if found else ("", "")))


def _patiently(command: list[str], timeout: float, patience: float) -> Reply | CouldNotAsk:
    """Run sbatch; kill it early if it says that it will retry."""
    try:
        with call.running(command) as process:
            reply = call.wait(process, min(patience, timeout))
            if reply.code is None and not BUSY.search(reply.err):
                reply = call.wait(process, max(0.0, timeout - patience))
            return reply
    except OSError as error:
        return call.not_started("sbatch", error)


def _open_question(script: Path, what: str) -> Unanswered:
    look = "the job may be in the queue; run the same command again: it looks there first"
    return Unanswered(f"{script}: {what}; {look}", maybe_accepted=True)
