"""Skips points that need at least as much memory as one that ran out of it: `--skip-dominated`.

Such a point has the same values on every axis but the sizes of its input, and none of these is
smaller. Standard library only, since the supervisor asks between two points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hpcsweep.catalog import sizes_of_inputs
from hpcsweep.point import canonical_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GROWING: Final = sizes_of_inputs()


class OutOfMemoryPoints:
    """The points that are known to have run out of memory, by their axes."""

    def __init__(self, known: Iterable[Mapping[str, Any]] = ()) -> None:
        self._sizes: dict[str, list[tuple[Any, ...]]] = {}
        for axes in known:
            self.add(axes)

    def add(self, axes: Mapping[str, Any]) -> None:
        """Take note of a point that ran out of memory."""
        self._sizes.setdefault(_others(axes), []).append(_sizes(axes))

    def why_skip(self, axes: Mapping[str, Any]) -> str | None:
        """Return why a point need not be tried, or None where it should be."""
        sizes = _sizes(axes)
        for smaller in self._sizes.get(_others(axes), ()):
            if all(a >= b for a, b in zip(sizes, smaller, strict=True)):
                told = ", ".join(
                    f"{name} {size}" for name, size in zip(GROWING, smaller, strict=True)
                )
                return (
                    f"{told} ran out of memory already; submit without --skip-dominated to try it"
                )
        return None


def _others(axes: Mapping[str, Any]) -> str:
    return canonical_json({name: v for name, v in axes.items() if name not in GROWING})


def _sizes(axes: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(axes.get(name) or 0 for name in GROWING)
