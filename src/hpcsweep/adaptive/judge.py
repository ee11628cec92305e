"""What predictions were wrong by at points that were measured, but not used for the fit.

The points of a round are predicted from those of the rounds before it. They were chosen where
predictions are least certain, so the points that are never measured are rather better off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.stats import mannwhitneyu

from hpcsweep.adaptive import lines
from hpcsweep.forecast import intervals
from hpcsweep.forecast.intervals import Widths
from hpcsweep.forecast.sweep import Basis
from hpcsweep.text import Word

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hpcsweep.adaptive.groups import Group
    from hpcsweep.adaptive.measured import Known

    Floats = NDArray[np.float64]

# What another way of predicting says of points, having seen others: nothing where it cannot say.
Predictor = Callable[[Sequence[str], Sequence[str]], Mapping[str, float]]

ENOUGH: Final = 4  # held-out points of a group that say what its error is
_FOR_INTERVALS: Final = 9  # fewer have no 90 % quantile: their largest error stands for it
_OF_NOISE: Final = 1.5  # a time that is predicted from noisy ones cannot be better
_SIGNIFICANT: Final = 0.1
_HELPED: Final = 0.8  # an error that is no longer above this share of the one before has fallen
_ROUNDS: Final = 3  # that have to be judged to see that more points do not help


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
    """The points of one group and round: measured times, and what was said by each basis."""

    true: Floats
    said: Mapping[Basis, Floats]
    places: Floats | None = None  # several rows at one place, such as visits, are wrong together

    def errors(self, basis: Basis) -> Floats:
        """Return the errors as shares of the measured times."""
        return np.asarray(np.abs(self.said[basis] / self.true - 1.0))


@dataclass(frozen=True)
class Judged:
    """A group, and how well the points that it lacks can be predicted."""

    group: Group
    rounds: Sequence[HeldOut]
    differences: Sequence[float] = ()  # of two times of the same point, of any group
    measured: int = 0
    shift: float = 0.0  # of the machine's state now, by the controls

    @cached_property
    def basis(self) -> Basis:
        """The better one of what was tried in the last rounds."""
        newest = self._newest(ENOUGH)
        if not newest or not all(Basis.SIZES in one.said for one in newest):
            return Basis.LINES
        tried = (Basis.LINES, Basis.SIZES)
        return min(tried, key=lambda one: float(np.median(self._errors(one))))

    @property
    def error(self) -> float | None:
        """The median error of the last round; None where too few points were held out."""
        errors = self.errors
        return float(np.median(errors)) if len(errors) >= ENOUGH else None

    @cached_property
    def errors(self) -> Floats:
        """The errors of the last round, and of earlier ones if it has too few points."""
        return self._errors(self.basis)

    @cached_property
    def width(self) -> Widths:
        """The width of an interval that holds nine times in ten, from places that were held out."""
        rounds = self._newest(_FOR_INTERVALS)
        known = [one for one in rounds if self.basis in one.said]
        found = Widths()
        if sum(len(one.true) for one in known) >= ENOUGH:
            true = np.concatenate([one.true for one in known])
            said = np.concatenate([one.said[self.basis] for one in known])
            parts = _parts(known)
            found = Widths(intervals.factor(true, said, parts), parts=len({*parts}))
        return found.shifted(self.shift)

    @property
    def factor(self) -> float:
        return self.width.total

    def why(self, target: float) -> Why | None:
        """Return why no more points are needed; None where they are."""
        error = self.error
        if error is None:
            return None
        if error <= target:
            return Why.REACHED
        basis = self.basis
        if not self._beyond_noise():
            return Why.NOISE
        medians = [float(np.median(one.errors(basis))) for one in self.rounds if basis in one.said]
        if len(medians) < _ROUNDS or min(medians[-2:]) <= _HELPED * min(medians[:-2]):
            return None
        return Why.STUCK

    def _beyond_noise(self) -> bool:
        """Say whether the errors of late are clearly larger than the noise explains."""
        errors = self._errors(self.basis, 2 * ENOUGH)
        if len(self.differences) < ENOUGH:
            return True
        noise = _OF_NOISE * np.array(self.differences)
        return bool(mannwhitneyu(errors, noise, alternative="greater").pvalue <= _SIGNIFICANT)

    def _errors(self, basis: Basis, at_least: int = ENOUGH) -> Floats:
        newest = [one.errors(basis) for one in self._newest(at_least) if basis in one.said]
        return np.concatenate([*newest, np.empty(0)])

    def _newest(self, at_least: int) -> list[HeldOut]:
        """Return the last rounds that have so many points together; all if there are fewer."""
        found: list[HeldOut] = []
        for one in reversed(self.rounds):
            if sum(len(other.true) for other in found) >= at_least:
                break
            found.append(one)
        return found


def judge(
    group: Group, known: Known, rounds: Sequence[Sequence[str]], layers: Predictor | None = None
) -> Judged:
    """Return how well each round of a group was predicted from the points before it."""
    mine = [point_id for point_id in group.ids if point_id in known.times]
    left, found = set(mine), list[HeldOut]()
    for chosen in reversed(rounds):
        test = [point_id for point_id in chosen if point_id in left]
        left.difference_update(test)
        before = [point_id for point_id in mine if point_id in left]
        if test and before:
            held = sum(len(one.true) for one in found)
            found.append(_held_out(group, known, before, test, layers if held < ENOUGH else None))
    return Judged(group, found[::-1], known.differences, len(mine), intervals.shift(known.controls))


def _parts(rounds: Sequence[HeldOut]) -> NDArray[np.int_]:
    """Return the number of its place for each held-out point; each has its own if none is known."""
    places = [one.places for one in rounds if one.places is not None]
    if len(places) < len(rounds):
        return np.arange(sum(len(one.true) for one in rounds))
    return np.unique(np.concatenate(places), axis=0, return_inverse=True)[1].ravel()


def _held_out(
    group: Group, known: Known, before: Sequence[str], test: Sequence[str], layers: Predictor | None
) -> HeldOut:
    ms = np.array([known.times[point_id][0] for point_id in before])  # not those of later rounds
    lined = lines.between(group.places_of(before), ms, group.places_of(test))
    said = {Basis.LINES: lined}
    by_layers = layers(before, test) if layers else {}
    if by_layers.keys() >= set(test):
        said[Basis.SIZES] = np.array([by_layers[point_id] for point_id in test])
    true = np.array([known.times[point_id][0] for point_id in test])
    return HeldOut(true, said, group.places_of(test))
