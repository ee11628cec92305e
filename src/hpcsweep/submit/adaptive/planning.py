"""The next round: what is missing of the last one, else the points that tell most per second."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from scipy.spatial.distance import cdist

from hpcsweep.forecast.groups import Group
from hpcsweep.forecast.past_rows import Known
from hpcsweep.forecast.terms import Integers
from hpcsweep.point import Point
from hpcsweep.store.rounds import Round
from hpcsweep.submit.adaptive.judge import Judged, Predictor, Why, judge

Seconds = Callable[[Point], float]

PER_ROUND: Final = 2  # points of each group
_MOST: Final = 500  # candidates of a group that are compared


@dataclass(frozen=True)
class Chosen:
    """A point, what it is expected to cost, and how much it tells for each second."""

    point_id: str
    seconds: float
    worth: float = np.inf


@dataclass(frozen=True, kw_only=True)
class NextRound:
    """The points to measure next; none if it is over."""

    judged: Sequence[Judged] = ()
    new: Sequence[Chosen] = ()  # a round of its own
    wanted: float = 0.0  # the seconds of all points that a round should have
    missing: Sequence[str] = ()  # of the last round
    why: dict[str, Why] = field(default_factory=dict)  # of groups that are through, by name

    @property
    def points(self) -> list[str]:
        return [*self.missing, *(point.point_id for point in self.new)]

    @property
    def held_out(self) -> int:
        return sum(len(group.errors) for group in self.judged)

    @property
    def error(self) -> float | None:
        """The mean error of all groups together."""
        if not self.held_out:
            return None
        return float(np.concatenate([group.errors for group in self.judged]).mean())


def plan(  # noqa: PLR0913 - what decides
    groups: Sequence[Group],
    known: Known,
    rounds: Sequence[Round],
    *,
    target: float,
    seconds_left: float,
    seconds: Seconds,
    layers: Predictor | None = None,
) -> NextRound:
    """Return what to measure next.

    The first round takes points that are spread over each group. Each further one takes a few of
    every group that is not good enough, the worthiest of all groups if not all can be afforded. A
    group whose last points brought no valid row ends: what disturbed these would disturb the next.
    """
    if rounds and seconds_left > 0 and (left := missing(rounds[-1], groups, known)):
        return NextRound(missing=left)
    judged = [judge(group, known, [each.points for each in rounds], layers) for group in groups]
    new: list[Chosen] = []
    if not rounds:
        new = [point for group in groups for point in first(group, known.rows, seconds)]
    why: dict[str, Why] = {}
    for each in judged if not new else ():
        group = each.group
        end = each.why(target)
        if _is_fruitless(group, known, rounds):
            end = Why.INVALID
        width = float(np.log(each.width.total))
        chosen = [] if end else following(group, known.times, known.rows, width, seconds)
        if not chosen:
            why[group.name] = end or Why.COMPLETE
        new += chosen
    return _cut(NextRound(judged=judged, new=new, why=why), seconds_left)


def missing(last: Round, groups: Sequence[Group], known: Known) -> list[str]:
    """Return the points of a round that have no row."""
    here = {point_id for group in groups for point_id in group.ids}
    return [point_id for point_id in last.points if point_id in here - known.rows.keys()]


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
    near = np.array([point_id in known for point_id in group.ids])
    candidates = _spread(np.flatnonzero([point_id not in settled for point_id in group.ids]))
    others = _spread(np.flatnonzero(~near))
    if not near.any() or not len(candidates):  # the ends failed, or nothing is left
        every = max(1, len(candidates) // PER_ROUND)
        some = [group.points[place] for place in candidates[::every][:PER_ROUND]]
        return [Chosen(point.point_id, seconds(point)) for point in some]
    places = group.places
    cost = np.array([max(seconds(group.points[place]), 1e-6) for place in candidates])
    gaps = cdist(places[others], places[near]).min(axis=1)
    apart = cdist(places[candidates], places[others])
    chosen: list[Chosen] = []
    while len(chosen) < min(PER_ROUND, len(candidates)):
        worth = width * np.maximum(gaps - apart, 0.0).sum(axis=1) / cost
        best = int(np.argmax(worth))
        if worth[best] <= 0:
            break
        point_id = group.ids[candidates[best]]
        chosen.append(Chosen(point_id, float(cost[best]), float(worth[best])))
        gaps = np.minimum(gaps, apart[best])
    return chosen


def affordable(chosen: Iterable[Chosen], seconds: float) -> list[Chosen]:
    """Return those that fit into so many seconds, the worthiest first."""
    within: list[Chosen] = []
    for point in sorted(chosen, key=lambda each: -each.worth):
        if point.seconds <= seconds:
            within.append(point)
            seconds -= point.seconds
    return within


def _spread(places: Integers) -> Integers:
    """Return at most `_MOST` of them, at even distances."""
    if len(places) <= _MOST:
        return places
    return places[np.linspace(0, len(places) - 1, _MOST).astype(int)]


def _is_fruitless(group: Group, known: Known, rounds: Sequence[Round]) -> bool:
    """Say whether a group's points of its last round have rows that are not valid, and no other."""
    ids = {*group.ids}
    of_rounds = (ids & {*each.points} for each in reversed(rounds))
    last = next(filter(None, of_rounds), set())
    return bool(last & known.doubtful.keys()) and last.isdisjoint(known.times)


def _cut(wanted: NextRound, seconds_left: float) -> NextRound:
    """Return what of a plan can be afforded; where that is nothing, say so."""
    new = affordable(wanted.new, seconds_left)
    why = wanted.why
    if wanted.new and not new:
        why = {each.group.name: Why.BUDGET for each in wanted.judged} | why
    seconds = sum(point.seconds for point in wanted.new)
    return replace(wanted, new=new, wanted=seconds, why=why)
