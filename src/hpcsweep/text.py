"""Counts and durations in words, as every command says them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def count(number: int, what: str) -> str:
    """Return ``1 point`` or ``2,000 points``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def tally(counts: Mapping[str, int], order: Iterable[str]) -> str:
    """Return ``3 ok, 1 error``: what there is, in an order; what that does not name comes last."""
    names = dict.fromkeys([*order, *sorted(counts)])
    return ", ".join(f"{counts[name]:,} {name}" for name in names if counts.get(name))


def duration(seconds: float) -> str:
    """Return ``5 s``, ``12 min`` or ``3.5 h``: what an estimate is worth."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"
