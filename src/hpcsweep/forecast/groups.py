"""Points that differ in sizes and batches alone: what can be predicted between measured points."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from scipy.interpolate import RBFInterpolator

from hpcsweep.catalog import Role, axes_with
from hpcsweep.forecast import curves
from hpcsweep.forecast.terms import Flags, Floats
from hpcsweep.point import LABEL, NO_MAPS, Point, algorithm_name, canonical_json
from hpcsweep.spec.expansion import SAMPLED

# axes that differ within a group
_WITHIN: Final = frozenset({*SAMPLED, *axes_with(Role.REPETITION)})
# The first points, in sixths of each axis; five lie between others. On a plane each of these has a
# size and a batch of its own: on three sizes, all multiples of 64, no other kind would be seen.
_SPREAD: Final = {
    1: [(n,) for n in range(7)],
    2: [(0, 0), (0, 6), (6, 0), (6, 6), (1, 2), (2, 4), (3, 1), (4, 5), (5, 3)],
}
_PER_OCTAVE: Final = {"input_size": 2.0}  # of work: a size counts twice, all else once
_NEIGHBOURS: Final = 64  # that bear on one place of a plane


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
        columns = [
            [_PER_OCTAVE.get(name, 1.0) * np.log2(point.axes[name]) for point in self.points]
            for name in SAMPLED
            if len({point.axes.get(name) for point in self.points}) > 1
        ]
        return np.array(columns).reshape(len(columns), len(self.points)).T

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {point_id: row for row, point_id in enumerate(self.ids)}

    def places_of(self, ids: Iterable[str]) -> Floats:
        """Return the places of some points."""
        return self.places[[self._rows[point_id] for point_id in ids]]

    def as_large_as(self, ids: Collection[str]) -> set[str]:
        """Return the points that are at least as large, along each axis, as one of these."""
        least = self.places_of(point_id for point_id in self.ids if point_id in ids)
        larger = np.any(np.all(self.places[:, None] >= least, axis=2), axis=1)
        return {self.ids[row] for row in np.flatnonzero(larger)}

    def spread(self) -> list[int]:
        """Return seven points of one axis, or nine of two with their corners; each once."""
        places = self.places
        sixths = np.array(_SPREAD.get(places.shape[1], [()]))
        wanted = places.min(axis=0) + np.ptp(places, axis=0) * sixths / 6
        near = [int(np.argmin(np.abs(places - place).sum(axis=1))) for place in wanted]
        return list(dict.fromkeys(near))


def groups_of(points: Iterable[Point], maps: Mapping[str, str] = NO_MAPS) -> list[Group]:
    """Return the groups of a sweep's points, in order; `maps` are those of `Point.label`."""
    members: dict[str, list[Point]] = {}
    for point in points:
        rest = {k: v for k, v in point.axes.items() if k not in _WITHIN}
        members.setdefault(canonical_json(rest), []).append(point)
    first = [same[0].axes for same in members.values()]
    names = [
        name
        for name in (first[0] if first else ())
        if name not in _WITHIN
        and (name in LABEL or len({canonical_json(axes[name]) for axes in first}) > 1)
    ]
    return [Group(_name(same[0].axes, names, maps), same) for same in members.values()]


def _name(axes: Mapping[str, Any], names: Iterable[str], maps: Mapping[str, str]) -> str:
    return " ".join(
        algorithm_name(axes[name], maps) if name == "algorithm" else str(axes[name])
        for name in names
    )


def between(places: Floats, ms: Floats, wanted: Floats) -> Floats:
    """Return the times at `wanted` places from those at measured ones, of which there is one.

    That is the curve over the work. Sizes and batches make a plane: what the line over the work is
    wrong by is interpolated there, by linear radial functions.
    """
    work = np.exp2(places.sum(axis=1))
    works = np.exp2(wanted.sum(axis=1))
    points = list(zip(work.tolist(), ms.tolist(), strict=True))
    if places.shape[1] < 2:
        curve = curves.fit(points)
        return np.array([curve.at(each) for each in works.tolist()])
    measured, back = np.unique(places, axis=0, return_inverse=True)
    back = back.ravel()
    if len(measured) == 1:
        return np.full(len(wanted), float(np.exp(np.log(ms).mean())))
    fixed, slope = curves.line(points)
    errors = np.bincount(back, np.log(ms / (fixed + slope * work))) / np.bincount(back)
    near = _NEIGHBOURS if len(measured) > _NEIGHBOURS else None
    on_a_line = np.linalg.matrix_rank(measured - measured[0]) < places.shape[1]  # it has no slope
    error = RBFInterpolator(measured, errors, near, kernel="linear", degree=0 if on_a_line else 1)
    return np.asarray((fixed + slope * works) * np.exp(error(wanted)))


def outside(places: Floats, wanted: Floats) -> Flags:
    """Say which places lie beyond all measured ones, along some axis."""
    lows = places.min(axis=0, initial=np.inf)
    highs = places.max(axis=0, initial=-np.inf)
    return np.asarray(((wanted < lows) | (wanted > highs)).any(axis=1))
