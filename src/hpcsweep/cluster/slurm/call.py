"""Runs one Slurm program in bounded time, without a shell; a missing answer is a `CouldNotAsk`.

A slurmctld that is down blocks its clients for about 19 seconds each; our time limit is shorter,
unless `--slurm-timeout` says more.
"""

from __future__ import annotations

import logging
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

from hpcsweep import numerals
from hpcsweep.environment import outside_a_job
from hpcsweep.text import cut

_LOGGER: Final = logging.getLogger(__name__)
# Seconds for a question: more than most busy slurmctlds take, and less than those 19.
TIMEOUT = 10.0
# A message names so many times the seconds that were too few.
_LONGER: Final = 6
# Characters of a program's message: its last line, which a site's wrapper may make a page.
_SHOWN: Final = 500
# Digits of the longest number that is plausible: Slurm's have 64 bits, which hold all of these.
_DIGITS: Final = 18
# Between fields: names and reasons may hold any printable character.
SEPARATOR: Final = "\x1f"


def rows(text: str, fields: int, optional: int = 0) -> list[list[str]]:
    """Split lines at the separator; skip lines that lack more than the last `optional` fields."""
    found = []
    for line in text.split("\n"):
        row = [field.strip() for field in line.split(SEPARATOR, fields - 1)]
        if len(row) >= fields - optional:
            row += [""] * (fields - len(row))
            found.append(row)
    return found


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    for line in reversed(text.splitlines()):
        if line.strip():
            return line.strip()
    return ""


# The tasks of an array were submitted at once: thousands of lines have the same few times.
@lru_cache(maxsize=1024)
def moment(text: str) -> datetime | None:
    """Read Slurm's local time; None for `N/A`, `Unknown` and other text."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def number(text: str | None) -> int | None:
    """Read the number at the start of a setting (``300 sec``); None for `UNLIMITED` and others."""
    match = re.match(r"\d+", text or "", re.ASCII)
    return int(match[0]) if match and len(match[0]) <= _DIGITS else None


def amount(text: str) -> int | None:
    """Read a count of generic resources, such as ``2`` or ``4K``; None for other text."""
    match = re.fullmatch(r"(\d{1,18})([KMGT]?)", text.upper(), re.ASCII)
    return int(match[1]) * 1024 ** " KMGT".index(match[2] or " ") if match else None


def duration(text: str) -> int | None:
    """Read a time limit in seconds; None for no limit, and for other text."""
    try:
        return numerals.slurm_seconds(text)
    except ValueError:
        return None


@dataclass(frozen=True)
class CouldNotAsk:
    """A question that Slurm did not answer; its text is a line for the user."""

    program: str
    text: str

    def __str__(self) -> str:
        return f"{self.program}: {self.text}"


@dataclass(frozen=True)
class ProgramOutput:
    """The output of a program; `code` is None if it was killed after its time limit."""

    code: int | None
    out: str
    err: str


@contextmanager
def waiting(seconds: float) -> Iterator[None]:
    """Give each question so many seconds while the block runs."""
    global TIMEOUT  # noqa: PLW0603 - of the process, as its messages are
    before = TIMEOUT
    TIMEOUT = seconds
    try:
        yield
    finally:
        TIMEOUT = before


# Where a client finds no configuration it fails at once, or looks for it again and again.
NO_CONF: Final = "no slurm.conf was found; set SLURM_CONF, or work on a login node"
UNCONFIGURED: Final = "configuration (?:source|file)|cannot stat file"


# Words of the connection to slurmctld, of whatever program, after which an answer may be lost.
CONNECTION: Final = (
    r"unable to contact|timed out|connection (?:refused|reset|closed|lost|failure|timed)"
    r"|connection to \S+ closed|lost connection|zero bytes"
    r"|communication shutdown|(?:send|receive) failure|message length|zero length message"
    r"|entire message|header lengths|unexpected message|missing socket|operation now in progress"
    r"|protocol (?:auth|vers)|versions of client and server|stream version"
    r"|authentication (?:error|agent|credential|public key|does)|munge|not responding|retrying"
    r"|slurm_\w*(?:send|recv|receive|msg|conn)|transport endpoint|broken pipe|route to host"
    r"|network is (?:down|unreachable)|can't find an address|standby mode"
)  # a text, in whatever case: `status` loads this and seldom reads it


def available() -> bool:
    """Say whether this machine has sbatch."""
    return shutil.which("sbatch") is not None


def run(command: Sequence[str], timeout: float) -> ProgramOutput | CouldNotAsk:
    """Run a program, and kill its process group after `timeout` seconds.

    Sites put scripts in front of Slurm's programs: an sbatch that outlives its script would still
    submit the job.
    """
    _LOGGER.debug("runs %s", shlex.join(command))
    try:
        with subprocess.Popen(
            command,
            env=environment(command[0]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired as late:
                return ProgramOutput(None, _decoded(late.stdout), _decoded(late.stderr))
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            return ProgramOutput(process.returncode, _decoded(out), _decoded(err))
    except OSError as error:
        if shutil.which(command[0]) is None:
            text = "not found; Slurm's programs are on the login nodes"
            return CouldNotAsk(command[0], text)
        return CouldNotAsk(command[0], f"{error.strerror}: {error.filename}")


def ask(*command: str) -> str | CouldNotAsk:
    """Return what a program prints."""
    reply = run(command, TIMEOUT)
    if isinstance(reply, CouldNotAsk):
        return reply
    return reply.out if reply.code == 0 else cause(command[0], reply)


def cause(program: str, reply: ProgramOutput) -> CouldNotAsk:
    """Return why a program that failed did not answer: its last words."""
    if re.search(UNCONFIGURED, reply.err):
        return CouldNotAsk(program, NO_CONF)
    if reply.code is None:
        message = _message(program, reply) or "`scontrol ping` says whether slurmctld is up"
        return CouldNotAsk(program, f"{too_late(TIMEOUT)}; {message}")
    message = _message(program, reply) or f"exit code {reply.code}"
    if reply.code == 0 and not reply.err.strip():
        message = f"no job in what it prints: {cut(repr(last_line(reply.out)), _SHOWN)}"
    return CouldNotAsk(program, message)


def too_late(seconds: float) -> str:
    """Return what is told of a program that was ended after so many seconds."""
    longer = f"`slurm_timeout = {_LONGER * seconds:g}` in hpcsweep.toml waits longer"
    return f"no answer within {seconds:g} s ({longer})"


def _message(program: str, reply: ProgramOutput) -> str:
    return cut(re.sub(rf"^(?:{program}: |error: )+", "", last_line(reply.err)), _SHOWN)


def environment(program: str) -> dict[str, str]:
    """Return our environment without what changes what a program of Slurm prints or does.

    SBATCH_* would override the script that `--dry-run` showed; the profile has what counts of them
    (`spec.directives`). sbatch keeps the locale, because the job inherits it, and Slurm does not
    translate its messages.
    """
    formats = ("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_")
    outside = outside_a_job(os.environ)
    kept = {name: value for name, value in outside.items() if not name.startswith(formats)}
    if program == "sbatch":
        return kept
    return {**kept, "LC_ALL": "C", "SLURM_BITSTR_LEN": "0"}  # 0: whole lists of tasks


def _decoded(raw: bytes | str | None) -> str:
    """Decode output; names may have another encoding. NUL, which no argument can hold, goes."""
    text = raw if isinstance(raw, str) else (raw or b"").decode("utf-8", "replace")
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def config() -> dict[str, str] | CouldNotAsk:
    """Return `scontrol show config` by key; `number` reads a value such as ``1001``."""
    answer = ask("scontrol", "show", "config")
    if isinstance(answer, CouldNotAsk):
        return answer
    settings = {}
    for line in answer.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            settings[key.strip()] = value.strip()
    return settings


@dataclass(frozen=True, kw_only=True)
class Client:
    """The cluster that this machine's commands reach, and this user; empty if unknown."""

    cluster: str = ""
    controller: str = ""
    user: str = ""

    def differs(self, other: Client) -> bool:
        """Say whether the two are surely different clusters."""
        pairs = ((self.cluster, other.cluster), (self.controller, other.controller))
        return any(own and its and own != its for own, its in pairs)


def this_client(answer: dict[str, str] | CouldNotAsk | None = None) -> Client:
    """Return the cluster that commands reach by default, by its `config`, and this user."""
    answer = config() if answer is None else answer
    settings = {} if isinstance(answer, CouldNotAsk) else answer
    host = settings.get("SlurmctldHost[0]") or settings.get("ControlMachine", "")
    controller = f"{host.partition('(')[0]}:{settings.get('SlurmctldPort', '')}" if host else ""
    cluster = settings.get("ClusterName", "")
    return Client(cluster=cluster, controller=controller, user=user_name())


def user_name() -> str:
    """Return the name of this user; the number where there is none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container without this user
        return str(os.getuid())
