"""All errors of hpcsweep; each class has one exit code, by default that of its base.

Exit code 75 (EX_TEMPFAIL) belongs to the supervisor: points remain, requeue the job. 130 is Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from hpcsweep.text import printable

EXIT_REQUEUE = 75  # sysexits.h: a failure that a later try may not have
EXIT_INTERRUPTED = 130  # 128 and SIGINT, as a shell says it


def first_line(error: BaseException) -> str:
    """Return the first line of what an exception says, else its type."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class HpcsweepError(Exception):
    """Root of the tree; the user sees its text, which may quote files, with controls shown."""

    exit_code: ClassVar[int] = 1

    def __init_subclass__(cls, exit_code: int | None = None) -> None:
        super().__init_subclass__()
        cls.exit_code = exit_code or cls.exit_code

    def __str__(self) -> str:
        """Return the text, as it may be printed."""
        return printable(super().__str__())


class BadInput(HpcsweepError, exit_code=2):
    """A file or an argument is wrong; nothing was started."""

    line = 0  # of the file, where there is one


class SpecError(BadInput):
    """A sweep file is wrong."""


class ProfileError(BadInput):
    """A cluster profile is wrong."""


class ConfigError(BadInput):
    """A configuration file is wrong."""


class UsageError(BadInput):
    """Arguments name something that does not exist, or do not go together."""


class PointsFailed(HpcsweepError, exit_code=3):
    """Done, but some points ended in `error`, `crashed` or `timeout`."""


class Implausible(HpcsweepError, exit_code=3):
    """Done, but some figures cannot be right, such as a rate above the device's peak."""


class Regression(HpcsweepError, exit_code=3):
    """Done, but something is slower than it may be."""


class CommandFailed(HpcsweepError, exit_code=3):
    """Done, but the command of `then` failed."""


class Incomplete(HpcsweepError, exit_code=4):
    """Some points have no result yet; the same command continues."""


class Refused(HpcsweepError, exit_code=5):
    """Machine or cluster does not fit the profile, or a limit of the user would be exceeded."""


class Occupied(Refused, exit_code=11):
    """Other processes hold the GPU or its memory: the same command may work later."""


class NoCodeForGpu(Refused, exit_code=12):
    """This torch or its cuDNN has no code for the GPU: another environment has."""


class GpuFails(Refused, exit_code=13):
    """The GPU fails at the simplest work: another node, or a repair."""


class ResultsError(HpcsweepError, exit_code=6):
    """The results folder cannot be read or written."""


class DamagedResults(ResultsError):
    """Some shards could be read only in part; every complete row was kept."""


class Unread(ResultsError):
    """A file cannot be read now; nothing may be concluded, or remembered, from that."""


class Busy(ResultsError):
    """Another process holds the lock of the results folder."""


class SchedulerError(HpcsweepError, exit_code=7):
    """Slurm refused a request or did not answer.

    The job may be in the queue if `maybe_accepted`.
    """

    maybe_accepted = False


class PartlySubmitted(SchedulerError, exit_code=8):
    """Slurm took only a part of the chunks; the same command sends the rest."""


class MissingDependency(HpcsweepError, exit_code=9):
    """A library or program is missing."""


class TargetMissed(HpcsweepError, exit_code=10):
    """Done, but `--until-error` did not reach its target for some group of points."""


def refusal(text: str, exit_code: int) -> Refused:
    """Return the error of a refusal that another process told, by its exit code."""
    for kind in Refused.__subclasses__():
        if kind.exit_code == exit_code:
            return kind(text)
    return Refused(text)


def nearest(word: str, allowed: Iterable[str]) -> str | None:
    """Return the nearest allowed spelling, whatever its case, or None."""
    spelling: dict[str, str] = {}
    for name in allowed:
        spelling.setdefault(str(name).lower(), str(name))  # the first of two spellings
    import difflib  # noqa: PLC0415 - for who misspelt something

    near = difflib.get_close_matches(str(word).lower(), spelling, n=1, cutoff=0.6)
    return spelling[near[0]] if near else None


def suggest(word: str, allowed: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the nearest allowed spelling, or nothing."""
    near = nearest(word, allowed)
    return f"; did you mean '{near}'?" if near else ""
