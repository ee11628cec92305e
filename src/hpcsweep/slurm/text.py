"""Reads fields, times and numbers in Slurm's output."""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from typing import Final

from hpcsweep import units

_DIGITS: Final = 18  # what has more is no number of anything
SEPARATOR: Final = "\x1f"  # between fields: names and reasons may hold any printable character


def rows(text: str, fields: int, optional: int = 0) -> list[list[str]]:
    """Split lines at the separator; lines with fewer fields are not part of the answer.

    So many of the last fields may be missing.
    """
    split = (line.split(SEPARATOR, fields - 1) for line in text.split("\n"))
    whole = (row + [""] * (fields - len(row)) for row in split if len(row) >= fields - optional)
    return [[field.strip() for field in row] for row in whole]


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


@lru_cache(maxsize=1024)  # the tasks of an array were submitted at once
def moment(text: str) -> datetime | None:
    """Read Slurm's local time; None for `N/A`, `Unknown` and other text."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def number(text: str | None) -> int | None:
    """Read the number at the start of a setting (``300 sec``); None for `UNLIMITED` and others."""
    found = re.match(r"\d+", text or "", re.ASCII)
    return int(found[0]) if found and len(found[0]) <= _DIGITS else None


def amount(text: str) -> int | None:
    """Read a count of generic resources, such as ``2`` or ``4K``; None for other text."""
    found = re.fullmatch(r"(\d{1,18})([KMGT]?)", text.upper(), re.ASCII)
    return int(found[1]) * 1024 ** " KMGT".index(found[2] or " ") if found else None


def duration(text: str) -> int | None:
    """Read a time limit in seconds; None for no limit, and for other text."""
    try:
        return units.seconds(text)
    except ValueError:
        return None
