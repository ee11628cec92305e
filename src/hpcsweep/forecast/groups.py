"""Points that differ in sizes and batches alone: what can be predicted between measured points."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from hpcsweep.catalog import Role, axes_with
from hpcsweep.forecast.terms import Flags, Floats
from hpcsweep.point import NO_MAPS, Point, canonical_json, varying
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
                octaves = np.log2(np.array(values, float))
                columns.append(_PER_OCTAVE.get(name, 1.0) * octaves)
        shape = len(columns), len(self.points)  # also where nothing varies
        return np.array(columns).reshape(shape).T

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

    def as_large_as(self, ids: Collection[str]) -> set[str]:
        """Return the points that are at least as large, along each axis, as one of these."""
        some = self.places[self.among(ids)]
        is_larger = np.all(self.places[:, None] >= some, axis=2)
        rows = np.flatnonzero(np.any(is_larger, axis=1))
        return {self.ids[row] for row in rows}


def groups_of(points: Iterable[Point], maps: Mapping[str, str] = NO_MAPS) -> list[Group]:
    """Return the groups of a sweep's points, in order; `maps` are those of `Point.label`."""
    kinds: list[Point] = []
    members: dict[str, list[Point]] = {}
    for point in points:
        axes = {name: value for name, value in point.axes.items() if name not in _WITHIN}
        kind = canonical_json(axes)
        if kind not in members:
            kinds.append(replace(point, axes=axes))
            members[kind] = []
        members[kind].append(point)
    told = varying(kinds)
    names = [kind.label(maps, told) for kind in kinds]
    return [Group(name, same) for name, same in zip(names, members.values(), strict=True)]
