"""All errors of hpcsweep; each class has one exit code.

The tree (exit code in brackets)::

    HpcsweepError [1]
    |-- BadInput [2]              a file or an argument is wrong; nothing was started
    |   |-- SpecError             a sweep file
    |   |-- ProfileError          a cluster profile
    |   |-- ConfigError           a configuration file
    |   `-- UsageError            arguments that do not go together, names that do not exist
    |-- PointsFailed [3]          the command worked, some points ended in error, crashed or timeout
    |-- Implausible [3]           the command worked, some figures cannot be right
    |-- Regression [3]            the command worked, something differs more than --fail-on allows
    |-- Incomplete [4]            the command worked, some points are still to be measured
    |-- Refused [5]               machine or cluster does not fit the profile, or over a budget
    |-- ResultsError [6]          a results folder that cannot be read or written
    |   |-- DamagedResults        shards that could be read only in part
    |   |-- Unread                a file that cannot be read now, but perhaps the next time
    |   `-- Busy                  another process holds the lock
    |-- SchedulerError [7]        Slurm refused, or could not be asked
    |   `-- PartlySubmitted [8]   Slurm took a part of the chunks; the same command sends the rest
    |-- MissingDependency [9]     a library or program that this command needs is missing
    `-- TargetMissed [10]         the command worked, the rest is not known as well as was asked

Exit code 75 (EX_TEMPFAIL) belongs to the supervisor: points remain, requeue the job.
130 is Ctrl-C.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

EXIT_REQUEUE = 75
EXIT_INTERRUPTED = 130


def first_line(error: BaseException) -> str:
    """Return the first line of what an exception says, else its type."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class HpcsweepError(Exception):
    """Root of the tree; the user sees its text unchanged."""

    exit_code: ClassVar[int] = 1


class BadInput(HpcsweepError):
    """A file or an argument is wrong; nothing was started."""

    exit_code = 2
    line = 0  # of the file, where there is one


class SpecError(BadInput):
    """A sweep file is wrong."""


class ProfileError(BadInput):
    """A cluster profile is wrong."""


class ConfigError(BadInput):
    """A configuration file is wrong."""


class UsageError(BadInput):
    """Arguments name something that does not exist, or do not go together."""


class PointsFailed(HpcsweepError):
    """Done, but some points ended in `error`, `crashed` or `timeout`."""

    exit_code = 3


class Implausible(HpcsweepError):
    """Done, but some figures cannot be right, such as a rate above the device's peak."""

    exit_code = 3


class Regression(HpcsweepError):
    """Done, but something is slower than it may be."""

    exit_code = 3


class Incomplete(HpcsweepError):
    """Some points have no result yet; the same command continues."""

    exit_code = 4


class Refused(HpcsweepError):
    """Machine or cluster does not fit the profile, or a limit of the user would be exceeded."""

    exit_code = 5


class ResultsError(HpcsweepError):
    """The results folder cannot be read or written."""

    exit_code = 6


class DamagedResults(ResultsError):
    """Some shards could be read only in part; every complete row was kept."""


class Unread(ResultsError):
    """A file cannot be read now; nothing may be concluded, or remembered, from that."""


class Busy(ResultsError):
    """Another process holds the lock of the results folder."""


class SchedulerError(HpcsweepError):
    """Slurm refused a request or did not answer."""

    exit_code = 7


class PartlySubmitted(SchedulerError):
    """Slurm took only a part of the chunks; the same command sends the rest."""

    exit_code = 8


class MissingDependency(HpcsweepError):
    """A library or program is missing."""

    exit_code = 9


class TargetMissed(HpcsweepError):
    """Done, but `--until-error` did not reach its target for some group of points."""

    exit_code = 10


def nearest(found: str, allowed: Iterable[str]) -> str | None:
    """Return the nearest allowed spelling, whatever its case, or None."""
    spelling: dict[str, str] = {}
    for name in allowed:
        spelling.setdefault(str(name).lower(), str(name))  # the first of two spellings
    near = difflib.get_close_matches(str(found).lower(), spelling, n=1, cutoff=0.6)
    return spelling[near[0]] if near else None


def suggest(found: str, allowed: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the nearest allowed spelling, or nothing."""
    near = nearest(found, allowed)
    return f"; did you mean '{near}'?" if near else ""
