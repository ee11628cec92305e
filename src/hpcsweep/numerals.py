"""Numbers as other programs write them: those of a table, and Slurm's times and memory.

A table writes all numbers in one way, and its cells tell which. 14.912 is fifteen where a point
begins the fraction, and fifteen thousand where it parts thousands. One cell such as 14.91, or a
count of 14.912 things, tells it. Thousands may also be parted by spaces or apostrophes, and in
pairs above the first three digits, as in India.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Final

from hpcsweep.errors import UsageError

# what may stand behind the decimal mark of a cell: any digits, none but zeros, and no mark at all
ANY: Final = r"\d*"
WHOLE: Final = r"0*"
COUNT: Final = r"(?!)"
_DECIMAL: Final = ".,"
_GROUPING: Final = ".,'\u2019\u00a0\u202f\u2009"  # with the spaces that no line breaks at
_MINUS: Final = str.maketrans("\u2212", "-")
_LONG: Final = re.compile(r"[+-]?\d{4,}")

# sbatch(1), --time: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S
TIME_FORMS: Final = "MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS"
OPTION_TIME_FORMS: Final = f"4h, 90m, 1d12h, or as sbatch takes it: {TIME_FORMS}"
MEMORY_FORMS: Final = "a whole number with K, M, G or T, such as 16G; 0 is all memory of the node"
_TIME: Final = re.compile(r"(?:([0-9]+)-)?([0-9]+(?::[0-9]+){0,2})")  # days, and the rest
_SPAN: Final = re.compile(
    r"(?=.)(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s)?", re.IGNORECASE
)
_OF_A_CLOCK: Final = 3  # hours, minutes and seconds
_UNLIMITED: Final = ("UNLIMITED", "INFINITE", "-1")  # as Slurm's programs print it, and take it
_DAY_SECONDS: Final = 86_400
_MEMORY: Final = re.compile(r"([0-9]+)([KMGT])B?|0", re.IGNORECASE)
_MEGABYTES: Final = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}


@dataclass(frozen=True)
class Notation:
    """How a file writes numbers: what begins the fraction; any other mark parts thousands."""

    decimal: str = "."

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        # a space that is typed parts two sizes (224 224), unless a fraction follows
        other = _GROUPING.replace(self.decimal, "")
        mark = re.escape(self.decimal)
        thousands = rf"[1-9]\d{{0,2}}(?P<mark>[{other}])\d{{3}}(?:(?P=mark)\d{{3}})*"
        indian = rf"[1-9]\d?(?P<pairs>[{other}])(?:\d\d(?P=pairs))+\d{{3}}"
        spaced = rf"[1-9]\d{{0,2}}(?: \d{{3}})+(?={mark}\d)"
        exponent = r"(?:[eE][+-]?\d+)?"
        simple = rf"(?P<simple>\d+(?P<a>{mark}\d*)?{exponent}|(?P<b>{mark}\d+){exponent})"
        grouped = rf"(?:{thousands}|{indian}|{spaced})(?P<c>{mark}\d*)?"
        return re.compile(rf"[+-]?(?:{simple}|{grouped})", re.ASCII)

    def plain(self, text: str, fraction: str = ANY) -> str:
        """Return a number as Python reads it; empty for what is none in this notation."""
        text = text.strip().translate(_MINUS)
        match = self._pattern.fullmatch(text)
        if match is None:
            return ""
        behind = match["a"] or match["b"] or match["c"]
        if behind and not re.fullmatch(fraction, behind[1:]):
            return ""
        if match["simple"] is None:
            text = re.sub(rf"[^\d{re.escape(self.decimal)}+-]", "", text)
        return text.replace(self.decimal, ".")


def notation(cells: Iterable[tuple[str, str]], usual: str = "", told: str = "") -> Notation:
    """Return the notation that cells tell; each comes with what its fraction may be, as `COUNT`.

    `usual` is the decimal mark of the program, `told` the one that a person names where no cell
    tells it.

    `UsageError` where nothing does, and cells may be two numbers.
    """
    known = {mark: Notation(mark) for mark in _DECIMAL}
    unclear: dict[str, str] = {}  # the first such cell, by its mark
    ungrouped = False
    for text, fraction in cells:
        read = {mark: each.plain(text, fraction) for mark, each in known.items()}
        marks = [mark for mark, value in read.items() if value]
        if len(marks) == 1:
            return known[marks[0]]  # a cell that contradicts it is no number then
        if len({*read.values()}) > 1:
            unclear.setdefault("." if "." in text else ",", text.strip())
        ungrouped = ungrouped or _LONG.fullmatch(text.strip()) is not None
    if not unclear or told:
        return known[told or "."]
    mark, *others = unclear
    # who writes 1024 parts no thousands; nor do most programs, but who does has another mark
    if (ungrouped or mark == usual) and not others:
        return known[mark]
    values = " or ".join(each.plain(unclear[mark]) for each in known.values())
    raise UsageError(f"'{unclear[mark]}' may be {values}, and no other cell tells which")


def slurm_seconds(text: str) -> int | None:
    """Return the seconds of a time limit, None for no limit; raise ValueError for other text."""
    text = text.strip()
    if text.upper() in _UNLIMITED:
        return None
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"needs a time limit: {TIME_FORMS}")
    days, clock = match.groups()
    numbers = [int(part) for part in clock.split(":")]
    if days:
        numbers += [0, 0]  # the first one is of hours
    elif len(numbers) == 1:
        numbers = [0, *numbers, 0]  # minutes
    else:
        numbers = [0, *numbers][-_OF_A_CLOCK:]
    hours, minutes, seconds = numbers[:_OF_A_CLOCK]
    limit = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    return limit or None  # zero means no limit, to Slurm too


def time_of_option(text: str) -> str:
    """Return a time limit as Slurm writes it, also of ``4h`` or ``1d12h``; ValueError for others.

    A file has the forms of sbatch alone: what it says is passed on as it stands there.
    """
    span = _SPAN.fullmatch(text.strip())
    if span is None:
        try:
            return slurm_time(slurm_seconds(text))
        except ValueError:
            raise ValueError(f"needs a time limit: {OPTION_TIME_FORMS}") from None
    days, hours, minutes, seconds = [int(part or 0) for part in span.groups()]
    return slurm_time(((days * 24 + hours) * 60 + minutes) * 60 + seconds or None)


def slurm_time(limit: int | None) -> str:
    """Return seconds as Slurm writes them: ``00:30:00``, ``1-12:00:00``."""
    if limit is None:
        return "UNLIMITED"
    days, seconds = divmod(limit, _DAY_SECONDS)
    clock = f"{seconds // 3600:02}:{seconds % 3600 // 60:02}:{seconds % 60:02}"
    return f"{days}-{clock}" if days else clock


def slurm_megabytes(text: str) -> int:
    """Return memory in MiB, rounded up; 0 is all of the node. ValueError for other text."""
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"needs memory: {MEMORY_FORMS}")
    if match[1] is None:
        return 0
    return ceil(int(match[1]) * _MEGABYTES[match[2].upper()])
