"""What predictions are wrong by at measured points, each left out and predicted from the others.

The mean of these errors decides, not their median: times jump, and what jumps is in the tail. It
must be below the target by its own uncertainty, since there are few of them. A point that is left
out leaves a gap twice as wide as those of points that are never measured, so these are better off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from hpcsweep.forecast import Basis, groups, intervals
from hpcsweep.forecast.groups import Group
from hpcsweep.forecast.intervals import Widths
from hpcsweep.forecast.past_rows import Known
from hpcsweep.forecast.terms import Floats
from hpcsweep.text import Word

# What another way of predicting says of points, having seen others: nothing where it cannot say.
Predictor = Callable[[Sequence[str], Sequence[str]], Mapping[str, float]]

ENOUGH: Final = 4  # held-out points of a group that say what its error is
_HELPED: Final = 0.8  # an error that is no longer above this share of the one before has fallen
_ROUNDS: Final = 3  # that have to be judged to see that more points do not help
# Standard errors. Like the points of each round, chosen by replaying real GPUs' tables and sums of
# their layers (benchmarks/forecast.py): with 1.0 and six points too many groups were called good.
_SURE: Final = 1.3
_FOLDS: Final = 2  # a fit of many layers takes long
_SPREAD: Final = 0.75  # of normal errors' sizes, in means: few errors alike are no proof of less


class Why(Word):
    """Why no more points of a group are measured."""

    REACHED = "reached", "target reached"
    STUCK = "stuck", "more points did not lower it"
    COMPLETE = "complete", "no point is left that would tell more"
    BUDGET = "budget", "the budget is gone"
    INVALID = "invalid", "none of its last points is valid"


@dataclass(frozen=True)
class HeldOut:
    """Points of one group, each left out: measured times, and what was said by each basis."""

    true: Floats
    said: Mapping[Basis, Floats]
    places: Floats | None = None  # several rows at one place, such as visits, are wrong together

    def errors(self, basis: Basis) -> Floats:
        """Return the errors as shares of the measured times."""
        return np.asarray(np.abs(self.said[basis] / self.true - 1.0))

    def width(self, basis: Basis) -> Widths:
        """Return the width of an interval that holds nine times in ten, at other places."""
        part = np.arange(len(self.true))
        if self.places is not None:
            part = np.unique(self.places, axis=0, return_inverse=True)[1].ravel()
        factor = intervals.factor(self.true, self.said[basis], part)
        return Widths(factor, parts=len({*part}))


@dataclass(frozen=True)
class Judged:
    """A group, and how well its measured points were predicted from each other after each round."""

    group: Group
    rounds: Sequence[HeldOut]
    measured: int = 0
    shift: float = 0.0  # of the machine's state now, by the controls

    @cached_property
    def basis(self) -> Basis:
        """The better one of what was tried after the last round."""
        if not self.rounds:
            return Basis.LINES
        last = self.rounds[-1]
        return min(last.said, key=lambda basis: float(last.errors(basis).mean()))

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
        return self.rounds[-1].errors(self.basis) if self.rounds else np.empty(0)

    @cached_property
    def width(self) -> Widths:
        """The width of an interval of points that are not measured."""
        enough = len(self.errors) >= ENOUGH
        width = self.rounds[-1].width(self.basis) if enough else Widths()
        return width.shifted(self.shift)

    def why(self, target: float) -> Why | None:
        """Return why no more points are needed; None where they are."""
        if self.error is None:
            return None
        if self.error + self.doubt <= target:
            return Why.REACHED
        means = [float(held.errors(Basis.LINES).mean()) for held in self.rounds]
        enough = _ROUNDS if self.error - self.doubt <= target else _ROUNDS - 1
        if len(means) < enough:
            return None
        newest = min(len(means) - 1, _ROUNDS - 1)
        return None if min(means[-newest:]) <= _HELPED * min(means[:-newest]) else Why.STUCK


def judge(
    group: Group, known: Known, rounds: Sequence[Sequence[str]], layers: Predictor | None = None
) -> Judged:
    """Return how well the points of a group are predicted from each other after each round."""
    measured = [point_id for point_id in group.ids if point_id in known.times]
    every = rounds or [measured]  # what was measured before the first round is judged, too
    to_come = {point_id for chosen in rounds for point_id in chosen}
    judged: list[HeldOut] = []
    for chosen in every:
        to_come -= {*chosen}
        seen = [point_id for point_id in measured if point_id not in to_come]
        held = _held_out(group, known, seen, layers if chosen is every[-1] else None)
        if held is not None and not {*measured}.isdisjoint(chosen):
            judged.append(held)
    return Judged(group, judged, len(measured), intervals.shift(known.controls))


def _held_out(
    group: Group, known: Known, seen: Sequence[str], layers: Predictor | None
) -> HeldOut | None:
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
    if not len(tested):
        return None
    by_basis = {Basis.LINES: said[tested]}
    ids = [seen[place] for place in tested.tolist()]
    by_layers = _by_layers(seen, ids, layers) if layers else {}
    if len(by_layers) == len(tested):
        by_basis[Basis.SIZES] = np.array([by_layers[point_id] for point_id in ids])
    return HeldOut(ms[tested], by_basis, places[tested])


def _by_layers(seen: Sequence[str], tested: Sequence[str], layers: Predictor) -> dict[str, float]:
    """Return what layers say of points, of which every other one is left out at once."""
    times: dict[str, float] = {}
    for fold in range(min(_FOLDS, len(tested))):
        test = tested[fold::_FOLDS]
        times |= layers([point_id for point_id in seen if point_id not in {*test}], test)
    return times
