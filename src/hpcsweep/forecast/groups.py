"""Points that differ in sizes and batches alone: what can be predicted between measured points."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from hpcsweep.catalog import Role, axes_with
from hpcsweep.forecast.terms import Flags, Floats
from hpcsweep.point import LABEL, NO_MAPS, Point, algorithm_name, canonical_json
from hpcsweep.spec.expansion import SAMPLED

# axes that differ within a group
_WITHIN: Final = frozenset({*SAMPLED, *axes_with(Role.REPETITION)})
_PER_OCTAVE: Final = {"input_size": 2.0}  # of work, which grows with the square of a size


@dataclass(frozen=True)
class Group:
    """Points of one algorithm, network and GPU, and how large they are."""

    name: str
    points: Sequence[Point]

    @cached_property
    def ids(self) -> list[str]:
        return [point.point_id for point in self.points]

    @cached_property
    def places(self) -> Floats:
        """The binary logarithms of pixels and batch of each point; only of what varies."""
        columns = []
        for name in SAMPLED:
            values = [point.axes.get(name) for point in self.points]
            if len({*values}) > 1:
                columns.append(_PER_OCTAVE.get(name, 1.0) * np.log2(np.array(values, float)))
        return np.array(columns).reshape(len(columns), len(self.points)).T

    @cached_property
    def ranks(self) -> Floats:
        """The number of each point's value among those of its axis: 0 the least, 1 the largest."""
        columns = []
        for values in self.places.T:
            _, rank = np.unique(values, return_inverse=True)
            columns.append(rank / rank.max())
        return np.array(columns).reshape(self.places.T.shape).T

    def among(self, ids: Collection[str]) -> Flags:
        """Say which of its points have one of these ids."""
        return np.array([point_id in ids for point_id in self.ids], bool)

    def as_large_as(self, some: Flags) -> Flags:
        """Say which points are at least as large, along each axis, as one of some."""
        larger = np.all(self.places[:, None] >= self.places[some], axis=2)
        return np.asarray(np.any(larger, axis=1))


def groups_of(points: Iterable[Point], maps: Mapping[str, str] = NO_MAPS) -> list[Group]:
    """Return the groups of a sweep's points, in order; `maps` are those of `Point.label`."""
    members: dict[str, list[Point]] = {}
    for point in points:
        rest = {name: value for name, value in point.axes.items() if name not in _WITHIN}
        members.setdefault(canonical_json(rest), []).append(point)
    every = list(members.values())
    told = _told([same[0].axes for same in every])
    return [Group(_name(same[0].axes, told, maps), same) for same in every]


def _told(axes_of_groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the axes that tell groups apart, and those by which people tell points."""
    told = []
    for name in axes_of_groups[0] if axes_of_groups else ():
        values = {canonical_json(axes[name]) for axes in axes_of_groups}
        if name not in _WITHIN and (name in LABEL or len(values) > 1):
            told.append(name)
    return told


def _name(axes: Mapping[str, Any], told: Iterable[str], maps: Mapping[str, str]) -> str:
    words = []
    for name in told:
        value = axes[name]
        words.append(algorithm_name(value, maps) if name == "algorithm" else str(value))
    return " ".join(words)
