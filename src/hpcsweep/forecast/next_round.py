"""The next round: what is missing of the last one, else the middles of the widest gaps.

What predictions are wrong by is told by measured points, each left out and predicted from the
others. The mean of these errors decides, not their median: times jump, and what jumps is in the
tail. It must be below the target by its own uncertainty, since there are few of them. A point that
is left out leaves a gap twice as wide as those of points that are never measured, so these are
better off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np
from scipy.spatial.distance import cdist

from hpcsweep.forecast import groups, intervals
from hpcsweep.forecast.groups import Group
from hpcsweep.forecast.intervals import Widths
from hpcsweep.forecast.past_rows import Known
from hpcsweep.forecast.terms import Floats
from hpcsweep.point import Point
from hpcsweep.store.rounds import Round
from hpcsweep.text import Word

Seconds = Callable[[Point], float]

ENOUGH: Final = 4  # held-out points of a group that say what its error is
# An error that is at most this share of the least one before has fallen: less is within the noise
# of a few held-out points.
_HELPED: Final = 0.8
# Rounds that have to be judged to see that more points do not help: one alone may be unlucky.
_ROUNDS: Final = 3
# Standard errors. Like the points of each round, chosen by replaying real GPUs' tables and sums of
# their layers (benchmarks/forecast.py): with 1.0 and six points too many groups were called good.
_SURE: Final = 1.3
_SPREAD: Final = 0.75  # of normal errors' sizes, in means: few errors alike are no proof of less
# Points of each group. On those tables, of 100 sizes: 2 measure 9.9 of them, 3 measure 11.0, and 4
# measure 12.3; 21 of 23, 25 of 27, and 26 of 27 groups are as good as they are said to be.
PER_ROUND: Final = 3


class Why(Word):
    """Why no more points of a group are measured."""

    REACHED = "reached", "target reached"
    STUCK = "stuck", "more points did not lower it"
    FAILED = "failed", "no point of a group has a time"
    COMPLETE = "complete", "no point is left that would tell more"
    BUDGET = "budget", "the budget is gone"
    INVALID = "invalid", "none of its last points is valid"


@dataclass(frozen=True)
class HeldOut:
    """Points of one group, each left out: measured times, and what lines between others said."""

    true: Floats
    said: Floats
    places: Floats | None = None  # several rows at one place, such as visits, are wrong together

    @property
    def errors(self) -> Floats:
        """The errors as shares of the measured times."""
        return np.asarray(np.abs(self.said / self.true - 1.0))

    @property
    def width(self) -> Widths:
        """The width of an interval that holds nine times in ten, at other places."""
        part = np.arange(len(self.true))
        if self.places is not None:
            part = np.unique(self.places, axis=0, return_inverse=True)[1].ravel()
        return Widths(intervals.factor(self.true, self.said, part), parts=len({*part}))


@dataclass(frozen=True)
class Judged:
    """A group, and how well its measured points were predicted from each other after each round."""

    group: Group
    rounds: Sequence[HeldOut]
    measured: int = 0
    shift: float = 0.0  # of the machine's state now, by the controls

    @property
    def error(self) -> float | None:
        """The mean error after the last round; None where too few points could be left out."""
        return float(self.errors.mean()) if len(self.errors) >= ENOUGH else None

    @property
    def doubt(self) -> float:
        """By how much the mean error may be wrong."""
        mean = self.errors.mean()
        spread = self.errors.std(ddof=1)
        return float(_SURE * max(spread, _SPREAD * mean) / math.sqrt(len(self.errors)))

    @cached_property
    def errors(self) -> Floats:
        """The errors after the last round."""
        return self.rounds[-1].errors if self.rounds else np.empty(0)

    @cached_property
    def width(self) -> Widths:
        """The width of an interval of points that are not measured."""
        enough = len(self.errors) >= ENOUGH
        width = self.rounds[-1].width if enough else Widths()
        return width.shifted(self.shift)

    def why(self, target: float) -> Why | None:
        """Return why no more points are needed; None where they are."""
        if self.error is None:
            return None
        if self.error + self.doubt <= target:
            return Why.REACHED
        means = [float(held.errors.mean()) for held in self.rounds]
        enough = _ROUNDS if self.error - self.doubt <= target else _ROUNDS - 1
        if len(means) < enough:
            return None
        newest = min(len(means) - 1, _ROUNDS - 1)
        return None if min(means[-newest:]) <= _HELPED * min(means[:-newest]) else Why.STUCK


def judge(group: Group, known: Known, rounds: Sequence[Sequence[str]]) -> Judged:
    """Return how well the points of a group are predicted from each other after each round.

    Rounds before the smallest and largest of them were measured tell nothing of the others.
    """
    measured = [point_id for point_id in group.ids if point_id in known.times]
    to_come = {point_id for chosen in rounds for point_id in chosen}
    judged: list[HeldOut] = []
    # what was measured before the first round is judged, too
    for chosen in rounds or [measured]:
        to_come -= {*chosen}
        seen = [point_id for point_id in measured if point_id not in to_come]
        if {*measured}.isdisjoint(chosen) or _beyond(group, seen, measured):
            continue
        held = _held_out(group, known, seen)
        if held:
            judged.append(held)
    return Judged(group, judged, len(measured), intervals.shift(known.controls))


def _held_out(group: Group, known: Known, seen: Sequence[str]) -> HeldOut | None:
    """Return what the other points say of each that lies between them; None where none does."""
    ms = np.array([known.times[point_id][0] for point_id in seen])  # not those of later rounds
    places = group.places_of(seen)
    said = np.full(len(seen), np.nan)
    lows = places.min(axis=0, initial=np.inf)
    highs = places.max(axis=0, initial=-np.inf)
    corners = ((places == lows) | (places == highs)).all(axis=1)  # lie between no others
    for place in np.unique(places[~corners], axis=0):
        out = (places == place).all(axis=1)
        if not groups.outside(places[~out], place[None, :]).any():
            said[out] = groups.between(places[~out], ms[~out], places[out])
    tested = np.flatnonzero(~np.isnan(said))
    return HeldOut(ms[tested], said[tested], places[tested]) if len(tested) else None


@dataclass(frozen=True, kw_only=True)
class NextRound:
    """The points to measure next; none if it is over."""

    judged: Sequence[Judged] = ()
    new: Sequence[str] = ()  # a round of its own
    wanted: float = 0.0  # the seconds of all points that a round should have
    missing: Sequence[str] = ()  # of the last round
    why: dict[str, Why] = field(default_factory=dict)  # of groups that are through, by name

    @property
    def points(self) -> list[str]:
        return [*self.missing, *self.new]

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
    every: Sequence[Group],
    known: Known,
    rounds: Sequence[Round],
    *,
    target: float,
    seconds_left: float,
    seconds: Seconds,
) -> NextRound:
    """Return what to measure next.

    The first points of a group are spread over it, also after it grew. Each further round takes a
    few of every group that is not good enough or has points beyond all that were tried. A group
    whose last points brought no valid row ends: what disturbed these would disturb the next.
    """
    left = missing(rounds[-1], every, known) if rounds and seconds_left > 0 else []
    if left:
        return NextRound(missing=left)
    points_by_round = [each.points for each in rounds]
    judged = [judge(group, known, points_by_round) for group in every]
    costs: dict[str, float] = {}
    why: dict[str, Why] = {}
    for each in judged:
        chosen, end = _next_of(each, known, rounds, target)
        if not chosen:
            why[each.group.name] = end
        points = dict(zip(each.group.ids, each.group.points, strict=True))
        for point_id in chosen:
            costs[point_id] = seconds(points[point_id])
    new = affordable(costs, seconds_left)
    if costs and not new:
        why = {each.group.name: Why.BUDGET for each in judged} | why
    return NextRound(judged=judged, new=new, wanted=sum(costs.values()), why=why)


def _next_of(
    judged: Judged, known: Known, rounds: Sequence[Round], target: float
) -> tuple[Sequence[str], Why]:
    """Return the next points of a group, and why there are no more if there are none."""
    group = judged.group
    if _is_fruitless(group, known, rounds):
        return [], Why.INVALID
    left = [name for name in group.ids if name not in known.rows and name not in known.done]
    tried = [name for name in group.ids if name in known.rows and name not in known.too_large]
    beyond = _beyond(group, tried, left)
    if beyond or judged.error is None:
        first = [group.ids[place] for place in group.spread() if group.ids[place] in left]
        if first:
            return first, Why.COMPLETE
        if not judged.measured:
            return [], Why.FAILED
    end = None if beyond else judged.why(target)
    if end:
        return [], end
    return following(group, known.done, beyond or left), Why.COMPLETE


def with_too_large(every: Iterable[Group], known: Known) -> Known:
    """Return what is known, where all is too large that is as large as a point out of memory."""
    larger = {name for group in every for name in group.as_large_as(known.too_large)}
    return replace(known, too_large=larger - known.times.keys())


def _beyond(group: Group, seen: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the points that lie outside of those seen."""
    outside = groups.outside(group.places_of(seen), group.places_of(others))
    return [name for name, is_outside in zip(others, outside, strict=True) if is_outside]


def missing(last: Round, groups: Sequence[Group], known: Known) -> list[str]:
    """Return the points of a round that have no row."""
    here = {point_id for group in groups for point_id in group.ids}
    return [point_id for point_id in last.points if point_id in here - known.rows.keys()]


def following(group: Group, done: Collection[str], left: Sequence[str]) -> list[str]:
    """Return the next points of a group, of those `left`: the farthest from all that are `done`.

    So each halves the widest gap, and the sizes of a round are evenly spaced and hold those of the
    rounds before. On real GPUs' tables this did as well as points chosen by what they cost and how
    much they tell (benchmarks/forecast.py).
    """
    chosen: list[str] = []
    places = group.places_of(left)
    near = group.places_of([name for name in group.ids if name in done])
    gaps = cdist(places, near).min(axis=1, initial=np.inf)
    while len(chosen) < min(PER_ROUND, len(left)):
        widest = int(np.argmax(gaps))
        if gaps[widest] <= 0:  # other visits of what is known
            break
        chosen.append(left[widest])
        gaps = np.minimum(gaps, cdist(places, places[[widest]])[:, 0])
    return chosen


def affordable(costs: Mapping[str, float], seconds: float) -> list[str]:
    """Return the points that fit into so many seconds, in order; one too many leaves room."""
    within: list[str] = []
    for point_id, cost in costs.items():
        if cost <= seconds:
            within.append(point_id)
            seconds -= cost
    return within


def _is_fruitless(group: Group, known: Known, rounds: Sequence[Round]) -> bool:
    """Say whether a group's points of its last round have rows that are not valid, and no other."""
    ids = {*group.ids}
    of_rounds = (ids & {*each.points} for each in reversed(rounds))
    last = next(filter(None, of_rounds), set())
    return bool(last & known.doubtful.keys()) and last.isdisjoint(known.times)
