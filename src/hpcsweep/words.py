"""Counts in words, as every command says them."""

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
