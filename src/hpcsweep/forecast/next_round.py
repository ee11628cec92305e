"""The next round: what is missing of the last one, else places that halve the gaps between others.

What predictions are wrong by is told by measured points, each left out and predicted from the
others. The mean of these errors decides, not their median: times jump, and what jumps is in the
tail. It must be below the target by its own uncertainty, since there are few of them. A point that
is left out leaves a gap twice as wide as those of points that are never measured, so these are
better off.

Which points are measured is not chosen by what they tell or cost: evenly spaced ones did as well
on real GPUs' tables (benchmarks/forecast.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from scipy.spatial.distance import cdist

from hpcsweep.forecast import curves, intervals
from hpcsweep.forecast.groups import Group
from hpcsweep.forecast.intervals import Widths
from hpcsweep.forecast.past_rows import Known
from hpcsweep.forecast.terms import Flags, Floats
from hpcsweep.point import Point
from hpcsweep.store.rounds import Round
from hpcsweep.text import Word

Seconds = Callable[[Point], float]

ENOUGH: Final = 4  # held-out points of a group that say what its error is
# An error that is at most this share of the least one before has fallen: less is within the noise
# of a few held-out points.
_HELPED: Final = 0.8
# Standard errors. Like the points of each round, found by replaying real GPUs' tables and sums of
# their layers (benchmarks/forecast.py): with 1.0 and six points too many groups were called good.
_SURE: Final = 1.3
_SPREAD: Final = 0.75  # of normal errors' sizes, in means: few errors alike are no proof of less
# Points of the first round beside the corners: one more than is needed to tell the error.
_BETWEEN: Final = 5
# Points of each further round, beside one for each axis: a plane has more gaps. With 2 points along
# one axis, 10.1 sizes of those tables' groups are measured instead of 11.7, and fewer become good.
_PER_ROUND: Final = 2


class Why(Word):
    """Why no more points of a group are measured."""

    REACHED = "reached", "target reached"
    STUCK = "stuck", "more points did not lower it"
    FAILED = "failed", "no point of a group has a time"
    COMPLETE = "complete", "no point is left that would tell more"
    BUDGET = "budget", "the budget is gone"
    INVALID = "invalid", "most of its points are not valid"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A group, and how well its measured points were predicted from each other."""

    group: Group
    ms: Floats  # of each point; not a number where there is no time
    means: Sequence[float]  # of the errors after each round
    errors: Floats  # after the last one
    width: Widths  # of an interval of points that are not measured

    @property
    def measured(self) -> Flags:
        return ~np.isnan(self.ms)

    @property
    def error(self) -> float | None:
        """The mean error after the last round; None where too few points could be left out."""
        return self.means[-1] if len(self.errors) >= ENOUGH else None

    def why(self, target: float) -> Why | None:
        """Return why no more points are needed; None where they are."""
        if self.error is None:
            return None
        spread = max(float(self.errors.std(ddof=1)), _SPREAD * self.error)
        doubt = _SURE * spread / math.sqrt(len(self.errors))
        if self.error + doubt <= target:
            return Why.REACHED
        # One round may be unlucky: of two it counts alone where the error is surely too large.
        newest = 2 if self.error - doubt <= target or len(self.means) > 2 else 1
        before = self.means[:-newest]
        if not before or min(self.means[-newest:]) <= _HELPED * min(before):
            return None
        return Why.STUCK


def judge(group: Group, known: Known, rounds: Sequence[Collection[str]]) -> Judged:
    """Return how well the points of a group are predicted from each other after each round.

    Rounds before the smallest and largest of them were measured tell nothing of the others. What
    was measured before the first round is judged with it.
    """
    round_of = {point_id: number for number, chosen in enumerate(rounds) for point_id in chosen}
    chosen_in = np.array([round_of.get(point_id, 0) for point_id in group.ids])
    ms = np.array([known.ms.get(point_id, np.nan) for point_id in group.ids])
    measured = ~np.isnan(ms)
    means = []
    errors = np.empty(0)
    width = Widths()
    for number in np.unique(chosen_in[measured]):
        seen = measured & (chosen_in <= number)
        places = group.places[seen]
        if curves.outside(places, group.places[measured]).any():
            continue
        said = _said_by_others(places, ms[seen])
        held = ~np.isnan(said)
        if not held.any():
            continue
        true = ms[seen][held]
        errors = np.abs(said[held] / true - 1.0)
        means.append(float(errors.mean()))
        # several rows at one place, such as visits, are wrong together
        _, parts = np.unique(places[held], axis=0, return_inverse=True)
        if len(errors) >= ENOUGH:
            factor = intervals.factor(true, said[held], parts.ravel())
            width = Widths(factor, parts=len(np.unique(parts)))
    return Judged(group=group, ms=ms, means=means, errors=errors, width=width)


def _said_by_others(places: Floats, ms: Floats) -> Floats:
    """Return what the others say of each place; not a number where it lies between none."""
    said = np.full(len(ms), np.nan)
    ends = (places == places.min(axis=0)) | (places == places.max(axis=0))
    for place in np.unique(places[~ends.all(axis=1)], axis=0):  # corners lie between no others
        out = (places == place).all(axis=1)
        if not curves.outside(places[~out], places[out]).any():
            said[out] = curves.between(places[~out], ms[~out], places[out])
    return said


@dataclass(frozen=True, kw_only=True)
class NextRound:
    """The points to measure next; none if it is over."""

    points: Sequence[str]
    is_new: bool = True  # a round of its own; else what is missing of the last one
    judged: Sequence[Judged] = ()
    why: Mapping[str, Why] = field(default_factory=dict)  # of groups that are through, by name
    wanted: float = 0.0  # the seconds of all points that a round should have


def plan(  # noqa: PLR0913 - what decides
    every: Sequence[Group],
    known: Known,
    rounds: Sequence[Round],
    *,
    target: float,
    seconds_left: float,
    seconds: Seconds,
) -> NextRound:
    """Return what to measure next: points of every group that is not good enough.

    Those that do not fit into the seconds that are left wait for a larger budget.
    """
    points = {point.point_id: point for group in every for point in group.points}
    of_rounds = [each.points for each in rounds]
    last = of_rounds[-1] if rounds and seconds_left > 0 else ()
    missing = [name for name in last if name in points and name not in known.tried]
    if missing:
        return NextRound(points=missing, is_new=False)
    judged = [judge(group, known, of_rounds) for group in every]
    why: dict[str, Why] = {}
    within: list[str] = []
    wanted = 0.0
    for each in judged:
        chosen, end = _next_of(each, known, target)
        if not chosen:
            why[each.group.name] = end
        for point_id in chosen:
            cost = seconds(points[point_id])
            wanted += cost
            if cost <= seconds_left:
                within.append(point_id)
                seconds_left -= cost
    if wanted and not within:
        why = {each.group.name: Why.BUDGET for each in judged} | why
    return NextRound(points=within, judged=judged, why=why, wanted=wanted)


def _next_of(judged: Judged, known: Known, target: float) -> tuple[Sequence[str], Why]:
    """Return the next points of a group, and why there are no more if there are none.

    Points beyond all that were tried come before those between: nothing is known of them.
    """
    group = judged.group
    measured = judged.measured.sum()
    if group.among(known.doubtful).sum() > measured:  # what disturbed these would disturb others
        return [], Why.INVALID
    tried = group.among(known.tried)
    done = group.among(known.done)
    left = ~(tried | done)
    axes = group.places.shape[1]
    first = 2**axes + _BETWEEN
    if not measured and (tried.sum() >= first or not left.any()):
        return [], Why.FAILED
    fitting = tried & ~group.among(known.too_large)
    beyond = left & curves.outside(group.places[fitting], group.places)
    if beyond.any():
        left = beyond
    else:
        end = judged.why(target)
        if end:
            return [], end
    number = max(first - tried.sum(), _PER_ROUND + axes)
    return [group.ids[row] for row in following(group, done, left, number)], Why.COMPLETE


def following(group: Group, done: Flags, left: Flags, number: int) -> Sequence[int]:
    """Return the next points of a group, of those `left`: each the farthest from all others.

    After the corners these are the middle, then those of the halves, and so on: what is measured
    is evenly spaced among the sweep's own values, and holds what was measured before.
    """
    ranks = group.ranks
    is_corner = ((ranks == 0) | (ranks == 1)).all(axis=1)
    near = done.copy()
    chosen: list[int] = []
    while len(chosen) < number:
        # where nothing is near, all are farther away than any two can be
        farthest = ranks.shape[1] + 1.0
        gaps = cdist(ranks, ranks[near], "cityblock").min(axis=1, initial=farthest)
        gaps[is_corner & (gaps > 0)] = np.inf
        gaps[~left] = 0.0
        widest = int(np.argmax(gaps))
        if gaps[widest] == 0:  # nothing but other visits of what is known
            break
        chosen.append(widest)
        near[widest] = True
    return chosen


def with_too_large(every: Iterable[Group], known: Known) -> Known:
    """Return what is known, where all is too large that is as large as a point out of memory."""
    larger: set[str] = set()
    for group in every:
        larger |= group.as_large_as(known.too_large)
    return replace(known, too_large=larger - known.ms.keys())
