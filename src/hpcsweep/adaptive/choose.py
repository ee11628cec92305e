"""Which points to measure next: those whose measurement tells most per second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcsweep.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from numpy.typing import NDArray

    from hpcsweep.forecast.groups import Group
    from hpcsweep.point import Point

    Floats = NDArray[np.float64]
    Seconds = Callable[[Point], float]

PER_ROUND: Final = 2  # points of each group
_MOST: Final = 500  # candidates of a group that are compared


@dataclass(frozen=True)
class Chosen:
    """A point, what it is expected to cost, and how much it tells for each second."""

    point_id: str
    seconds: float
    worth: float = np.inf


def first(group: Group, settled: Collection[str], seconds: Seconds) -> list[Chosen]:
    """Return points that are spread over a group, ends included, as far as they have no row."""
    points = [group.points[place] for place in group.spread()]
    return [Chosen(p.point_id, seconds(p)) for p in points if p.point_id not in settled]


def following(
    group: Group, known: Collection[str], settled: Collection[str], width: float, seconds: Seconds
) -> list[Chosen]:
    """Return the next points of a group, the one that tells most per second first.

    `known` have a time, `settled` have a row. A prediction is as uncertain as `width` (the log of
    its interval's factor) times the distance to the next measured point. What a point tells is the
    sum of what it takes off this, for all points of the group.
    """
    left = np.array([point_id not in settled for point_id in group.ids])
    near = np.array([point_id in known for point_id in group.ids])
    candidates = _spread(np.flatnonzero(left))
    others = _spread(np.flatnonzero(~near))
    if not near.any() or not len(candidates):  # the ends failed, or nothing is left
        every = max(1, len(candidates) // PER_ROUND)
        some = [group.points[place] for place in candidates[::every][:PER_ROUND]]
        return [Chosen(point.point_id, seconds(point)) for point in some]
    places = group.places
    cost = np.array([max(seconds(group.points[place]), 1e-6) for place in candidates])
    gaps = _distances(places[others], places[near]).min(axis=1)
    apart = _distances(places[candidates], places[others])
    found: list[Chosen] = []
    while len(found) < min(PER_ROUND, len(candidates)):
        worth = width * np.maximum(gaps - apart, 0.0).sum(axis=1) / cost
        best = int(np.argmax(worth))
        if worth[best] <= 0:
            break
        place = int(candidates[best])
        found.append(Chosen(group.ids[place], float(cost[best]), float(worth[best])))
        gaps = np.minimum(gaps, apart[best])
    return found


def again(
    group: Group, times: Collection[str], rows: Mapping[str, int], seconds: Seconds
) -> list[Chosen]:
    """Return points of a group to measure a second time: two of those that have one row."""
    once = [p for p in group.points if p.point_id in times and rows[p.point_id] == 1]
    once.sort(key=seconds)
    some = {place: once[place] for place in (len(once) // 3, 2 * len(once) // 3) if once}
    return [Chosen(point.point_id, seconds(point), 0.0) for point in some.values()]


def affordable(chosen: Iterable[Chosen], seconds: float) -> list[Chosen]:
    """Return those that fit into so many seconds, the worthiest first."""
    found: list[Chosen] = []
    for one in sorted(chosen, key=lambda each: -each.worth):
        if one.seconds <= seconds:
            found.append(one)
            seconds -= one.seconds
    return found


def _distances(some: Floats, others: Floats) -> Floats:
    return np.asarray(np.linalg.norm(some[:, None, :] - others[None, :, :], axis=2))


def _spread(places: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return at most `_MOST` of them, at even distances."""
    if len(places) <= _MOST:
        return places
    return places[np.linspace(0, len(places) - 1, _MOST).astype(int)]
