"""What predictions are wrong by at measured points, each left out and predicted from the others.

The mean of these errors decides, not their median: times jump, and what jumps is in the tail. It
must be below the target by its own uncertainty, since there are few of them. A point that is left
out leaves a gap twice as wide as those of points that are never measured, so these are better off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.stats import mannwhitneyu

from hpcsweep.forecast import groups, intervals
from hpcsweep.forecast.basis import Basis
from hpcsweep.forecast.intervals import Widths
from hpcsweep.records import dataclass
from hpcsweep.text import Word

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hpcsweep.forecast.groups import Group
    from hpcsweep.forecast.past_rows import Known

    Floats = NDArray[np.float64]

# What another way of predicting says of points, having seen others: nothing where it cannot say.
Predictor = Callable[[Sequence[str], Sequence[str]], Mapping[str, float]]

ENOUGH: Final = 4  # held-out points of a group that say what its error is
_OF_NOISE: Final = 1.5  # a time that is predicted from noisy ones cannot be better
_SIGNIFICANT: Final = 0.1
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
    NOISE = "noise", "cannot be told from the noise of measuring a point twice"
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


@dataclass(frozen=True)
class Judged:
    """A group, and how well its measured points were predicted from each other after each round."""

    group: Group
    rounds: Sequence[HeldOut]
    differences: Sequence[float] = ()  # of two times of the same point, of any group
    measured: int = 0
    shift: float = 0.0  # of the machine's state now, by the controls

    @cached_property
    def basis(self) -> Basis:
        """The better one of what was tried after the last round."""
        tried = self.rounds[-1].said if self.rounds else {}
        return min(tried, key=lambda one: float(self._errors(one).mean()), default=Basis.LINES)

    @property
    def error(self) -> float | None:
        """The mean error after the last round; None where too few points could be left out."""
        return float(self.errors.mean()) if len(self.errors) >= ENOUGH else None

    @property
    def doubt(self) -> float:
        """By how much the mean error may be wrong."""
        mean, spread = self.errors.mean(), self.errors.std(ddof=1)
        return float(_SURE * max(spread, _SPREAD * mean) / math.sqrt(len(self.errors)))

    @cached_property
    def errors(self) -> Floats:
        """The errors after the last round."""
        return self._errors(self.basis)

    @cached_property
    def width(self) -> Widths:
        """The width of an interval that holds nine times in ten, from places that were held out."""
        found = Widths()
        if len(self.errors) >= ENOUGH:
            last, parts = self.rounds[-1], _parts(self.rounds[-1])
            factor = intervals.factor(last.true, last.said[self.basis], parts)
            found = Widths(factor, parts=len({*parts}))
        return found.shifted(self.shift)

    @property
    def factor(self) -> float:
        return self.width.total

    def why(self, target: float) -> Why | None:
        """Return why no more points are needed; None where they are."""
        if self.error is None:
            return None
        if self.error + self.doubt <= target:
            return Why.REACHED
        if self.error > target and not self._beyond_noise():
            return Why.NOISE
        means = [float(one.errors(Basis.LINES).mean()) for one in self.rounds]
        enough = _ROUNDS if self.error - self.doubt <= target else _ROUNDS - 1
        if len(means) < enough:
            return None
        newest = min(len(means) - 1, _ROUNDS - 1)
        return None if min(means[-newest:]) <= _HELPED * min(means[:-newest]) else Why.STUCK

    def _beyond_noise(self) -> bool:
        """Say whether the errors are clearly larger than the noise explains."""
        if len(self.differences) < ENOUGH:
            return True
        noise = _OF_NOISE * np.array(self.differences)
        found = mannwhitneyu(self.errors, noise, alternative="greater")
        return bool(found.pvalue <= _SIGNIFICANT)

    def _errors(self, basis: Basis) -> Floats:
        return self.rounds[-1].errors(basis) if self.rounds else np.empty(0)


def judge(
    group: Group, known: Known, rounds: Sequence[Sequence[str]], layers: Predictor | None = None
) -> Judged:
    """Return how well the points of a group are predicted from each other after each round."""
    later = {point_id for chosen in rounds for point_id in chosen}
    seen = [point_id for point_id in group.ids if point_id in known.times.keys() - later]
    found: list[HeldOut] = []
    every = rounds or [seen]  # what was measured before the first round is judged, too
    for chosen in every:
        new = {*chosen} & known.times.keys()
        seen = [point_id for point_id in group.ids if point_id in {*seen, *new}]
        held = _held_out(group, known, seen, layers if chosen is every[-1] else None)
        if new & {*group.ids} and held is not None:
            found.append(held)
    return Judged(group, found, known.differences, len(seen), intervals.shift(known.controls))


def _parts(held: HeldOut) -> NDArray[np.int_]:
    """Return the number of its place for each held-out point; each has its own if none is known."""
    if held.places is None:
        return np.arange(len(held.true))
    return np.unique(held.places, axis=0, return_inverse=True)[1].ravel()


def _held_out(
    group: Group, known: Known, seen: Sequence[str], layers: Predictor | None
) -> HeldOut | None:
    """Return what the other points say of each that lies between them; None where none does."""
    ms = np.array([known.times[point_id][0] for point_id in seen])  # not those of later rounds
    places = group.places_of(seen)
    said = np.full(len(seen), np.nan)
    ends = (places == places.min(axis=0, initial=np.inf)) | (
        places == places.max(axis=0, initial=-np.inf)
    )
    for place in np.unique(places[~ends.all(axis=1)], axis=0):  # corners lie between no others
        out = (places == place).all(axis=1)
        if groups.outside(places[~out], place[None, :]).any():
            continue
        said[out] = groups.between(places[~out], ms[~out], places[out])
    tested = np.flatnonzero(~np.isnan(said))
    if not len(tested):
        return None
    by_basis = {Basis.LINES: said[tested]}
    by_layers = _by_layers(seen, tested.tolist(), layers) if layers else {}
    if len(by_layers) == len(tested):
        by_basis[Basis.SIZES] = np.array([by_layers[seen[place]] for place in tested.tolist()])
    return HeldOut(ms[tested], by_basis, places[tested])


def _by_layers(seen: Sequence[str], tested: Sequence[int], layers: Predictor) -> dict[str, float]:
    """Return what layers say of points, of which every other one is left out at once."""
    found: dict[str, float] = {}
    for fold in range(min(_FOLDS, len(tested))):
        test = [seen[place] for place in tested[fold::_FOLDS]]
        found |= layers([point_id for point_id in seen if point_id not in {*test}], test)
    return found
