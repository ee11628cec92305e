"""Which points are skipped since a smaller one ran out of memory (`submit --skip-dominated`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from hpcsweep.catalog import sizes_of_inputs

GROWING: Final = tuple(sorted(sizes_of_inputs()))  # the order in which a reason names them


class OutOfMemoryPoints:
    """The points that ran out of memory, by their axes."""

    def __init__(self, points: Iterable[Mapping[str, Any]] = ()) -> None:
        self._known = [*points]

    def add(self, axes: Mapping[str, Any]) -> None:
        """Add a point that ran out of memory."""
        self._known.append(axes)

    def why_skip(self, axes: Mapping[str, Any]) -> str | None:
        """Return why a point is skipped (a smaller one ran out of memory); None if it is not."""
        for known in self._known:
            others = (axes.get(n) == known.get(n) for n in {*axes, *known}.difference(GROWING))
            if all(others) and all((axes.get(n) or 0) >= (known.get(n) or 0) for n in GROWING):
                tried = ", ".join(f"{name} {known.get(name) or 0}" for name in GROWING)
                why = "ran out of memory already; submit without --skip-dominated to try it"
                return f"{tried} {why}"
        return None
