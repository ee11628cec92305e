"""Which points are skipped since a smaller one ran out of memory (`submit --skip-dominated`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from hpcsweep.catalog import sizes_of_inputs
from hpcsweep.point import canonical_json

GROWING: Final = tuple(sorted(sizes_of_inputs()))  # the order in which a reason names them


class OutOfMemoryPoints:
    """The points that ran out of memory, by their axes."""

    def __init__(self, points: Iterable[Mapping[str, Any]] = ()) -> None:
        self._sizes: dict[str, list[tuple[Any, ...]]] = {}
        for axes in points:
            self.add(axes)

    def add(self, axes: Mapping[str, Any]) -> None:
        """Add a point that ran out of memory."""
        self._sizes.setdefault(_others(axes), []).append(_sizes(axes))

    def why_skip(self, axes: Mapping[str, Any]) -> str | None:
        """Return why a point is skipped (a smaller one ran out of memory); None if it is not."""
        sizes = _sizes(axes)
        for smaller in self._sizes.get(_others(axes), ()):
            if all(a >= b for a, b in zip(sizes, smaller, strict=True)):
                tried = ", ".join(f"{axis} {n}" for axis, n in zip(GROWING, smaller, strict=True))
                why = "ran out of memory already; submit without --skip-dominated to try it"
                return f"{tried} {why}"
        return None


def _others(axes: Mapping[str, Any]) -> str:
    return canonical_json({name: v for name, v in axes.items() if name not in GROWING})


def _sizes(axes: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(axes.get(name) or 0 for name in GROWING)
