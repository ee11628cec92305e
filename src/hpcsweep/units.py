"""Time limits and amounts of memory, as Slurm writes them."""

from __future__ import annotations

import re
from math import ceil
from typing import Final

# sbatch(1), --time: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S
TIME_FORMS: Final = "MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS"
MEMORY_FORMS: Final = "a whole number with K, M, G or T, such as 16G; 0 is all memory of the node"

_DAYS: Final = re.compile(r"([0-9]+)-([0-9]+)(?::([0-9]+))?(?::([0-9]+))?")
_HOURS: Final = re.compile(r"(?:([0-9]+):)?([0-9]+):([0-9]+)")
_UNLIMITED: Final = ("UNLIMITED", "INFINITE", "-1")
_MEMORY: Final = re.compile(r"([0-9]+)([KMGT])B?|0", re.IGNORECASE)
_MEGABYTES: Final = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}


def seconds(text: str) -> int | None:
    """Return the seconds of a time limit, None for no limit; raise ValueError for other text."""
    text = text.strip()
    if text.upper() in _UNLIMITED:
        return None
    if text.isascii() and text.isdecimal():
        limit = int(text) * 60
    elif match := _DAYS.fullmatch(text):
        days, hours, minutes, secs = (int(part or 0) for part in match.groups())
        limit = ((days * 24 + hours) * 60 + minutes) * 60 + secs
    elif match := _HOURS.fullmatch(text):
        hours, minutes, secs = (int(part or 0) for part in match.groups())
        limit = (hours * 60 + minutes) * 60 + secs
    else:
        raise ValueError(f"needs a time limit: {TIME_FORMS}")
    return limit or None  # zero means no limit, to Slurm too


def written(limit: int | None) -> str:
    """Return seconds as Slurm writes them: ``00:30:00``, ``1-12:00:00``."""
    if limit is None:
        return "UNLIMITED"
    days, rest = divmod(limit, 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def megabytes(text: str) -> int:
    """Return memory in MiB, rounded up; 0 is all of the node. ValueError for other text."""
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"needs memory: {MEMORY_FORMS}")
    if match[1] is None:
        return 0
    return ceil(int(match[1]) * _MEGABYTES[match[2].upper()])
