"""Submits scripts, or asks whether they would be accepted."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hpcsweep.errors import MissingDependency
from hpcsweep.slurm import call
from hpcsweep.slurm.call import TIMEOUT, CouldNotAsk, Reply
from hpcsweep.slurm.ids import JobId, parse_id
from hpcsweep.slurm.refusals import BUSY, Unanswered, refusal
from hpcsweep.slurm.text import last_line, moment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

SUBMIT_S: Final = 60.0  # for an answer to a submission, which a busy slurmctld may delay
RETRY_S: Final = 10.0  # sbatch retries for ever at MaxJobCount; we do not


@dataclass(frozen=True)
class Expectation:
    """What `sbatch --test-only` promises about a script."""

    start: datetime | None
    nodes: str
    partition: str


def submit(
    script: Path,
    *,
    options: Sequence[str] = (),
    cwd: Path | None = None,
    timeout: float = SUBMIT_S,
    patience: float = RETRY_S,
) -> JobId:
    """Submit a script and return the id of the job or array.

    Raises:
        MissingDependency: there is no sbatch.
        Rejected: Slurm refuses the script as it is.
        LimitReached: no more jobs now; told at once, or after `patience` where sbatch retries.
        Unanswered: no answer within `timeout`; then the job may be in the queue all the same.
    """
    reply = _patiently(["sbatch", "--parsable", *options, str(script)], cwd, timeout, patience)
    if isinstance(reply, CouldNotAsk):
        raise MissingDependency(str(reply))
    if reply.code is None and not BUSY.search(reply.err):
        raise Unanswered(
            f"{script}: sbatch gave no answer within {timeout:g} s; the job may be in the queue: "
            "look with `squeue --me` before you submit again",
            maybe_accepted=True,
        )
    if reply.code != 0:
        raise refusal(reply.err, str(script))
    return parse_id(last_line(reply.out))


def would_accept(
    script: Path,
    *,
    options: Sequence[str] = (),
    cwd: Path | None = None,
    timeout: float = TIMEOUT,
) -> Expectation | CouldNotAsk:
    """Ask by `sbatch --test-only` whether a script would be accepted, and where it would start.

    Raises:
        Rejected, LimitReached: as `submit`. Not told here: a time above the partition's limit, a
            closed partition, and an output folder that is not there.
    """
    command = ["sbatch", "--test-only", *options, str(script)]
    reply = call.run(command, timeout, cwd)
    if isinstance(reply, CouldNotAsk):
        return reply
    if reply.code != 0:
        refused = None if reply.code is None else refusal(reply.err, str(script))
        if refused is None or isinstance(refused, Unanswered):
            return call.cause("sbatch", reply, timeout)
        raise refused
    found = re.search(r"to start at (\S+) .*? on nodes (\S+) in partition (\S+)", reply.err)
    start, nodes, partition = found.groups() if found else ("", "", "")
    return Expectation(moment(start), nodes, partition)


def _patiently(
    command: list[str], cwd: Path | None, timeout: float, patience: float
) -> Reply | CouldNotAsk:
    """Run sbatch; end it early where it says that it retries until there is room."""
    try:
        process = subprocess.Popen(
            command,
            env=call.environment("sbatch"),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except FileNotFoundError:
        return call.absent("sbatch")
    with process:
        reply = _wait(process, min(patience, timeout))
        if reply.code is None and not BUSY.search(reply.err):
            reply = _wait(process, max(0.0, timeout - patience))
        if reply.code is None:
            process.kill()
    return reply


def _wait(process: subprocess.Popen[bytes], seconds: float) -> Reply:
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as late:
        return Reply(None, call.decoded(late.stdout), call.decoded(late.stderr))
    return Reply(process.returncode, call.decoded(out), call.decoded(err))
