"""Intervals that hold nine times in ten, by what predictions were wrong by when left out.

What is new is a network (or a size, or an algorithm), not a row: the rows of one network are wrong
together, however many they are. So the width counts networks: it is Student's quantile times the
root mean square of their mean errors, and beside it the normal quantile of what varies inside
them. It is no less than the conformal quantile of the networks' medians, which holds where one
network in five is far off. Of fewer than five networks it is a guess. It is a factor: a time
between `said / w` and `said * w`. It is wider for a network unlike all that were measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pandas as pd
from scipy.spatial import cKDTree
from scipy.special import ndtri, stdtrit

from hpcsweep.forecast.terms import Floats, Integers

# What can be left out, each with the column that says which it is; and the column of what was said.
KINDS: Final = {"network": "model", "size": "input_size", "algorithm": "algorithm", "gpu": "gpu"}
OWN: Final = "prediction"
LEVEL: Final = 0.9  # share of the true times that an interval holds
_ONE_SIDE: Final = (1 + LEVEL) / 2
UNKNOWN: Final = 4.0  # the factor where nothing of that kind could be left out
FEWEST: Final = 5  # parts: of fewer, a width is a guess
_PER_OCTAVE: Final = 0.35  # wider for work unlike what was measured: others ask 0.28 to 0.55
_SPENT: Final = 2  # degrees of freedom: the fit knows the mean, and errors have heavy tails
_NEWEST: Final = 9  # controls that tell the state of the machine now


@dataclass(frozen=True)
class LeftOut:
    """What was left out: `total_ms` or `ms` are measured, `prediction` and baselines are said.

    `fold` says what was left out together.
    """

    kind: str
    points: pd.DataFrame
    calls: pd.DataFrame

    def parts(self) -> Iterator[tuple[str, LeftOut, LeftOut]]:
        """Yield the name of each fold, what was left out in it, and what in the others."""
        for fold in dict.fromkeys([*self.points["fold"], *self.calls["fold"]]):
            of_points = self.points["fold"] == fold
            of_calls = self.calls["fold"] == fold
            yield (
                fold,
                LeftOut(self.kind, self.points[of_points], self.calls[of_calls]),
                LeftOut(self.kind, self.points[~of_points], self.calls[~of_calls]),
            )


@dataclass(frozen=True)
class Widths:
    """The factor of an interval for networks, and for layers with and without products.

    `parts` is how many networks (sizes, algorithms) they come from; a `shift` of the machine, which
    is a logarithm, is in them.
    """

    total: float = UNKNOWN
    layers: Mapping[bool, float] = field(default_factory=dict)
    parts: int = 0
    shift: float = 0.0

    @property
    def is_guess(self) -> bool:
        return self.parts < FEWEST

    def of_points(self, points: pd.DataFrame) -> Floats:
        """Return the factor of each network: wider for one unlike those that were measured."""
        return self.total * self._stretch(points)

    def of_layers(self, calls: pd.DataFrame) -> Floats:
        """Return the factor of each call."""
        unknown = UNKNOWN * math.exp(self.shift)
        factors = calls["multiplies"].map(dict(self.layers)).fillna(unknown).to_numpy(float)
        return np.asarray(factors * self._stretch(calls))

    def _stretch(self, rows: pd.DataFrame) -> Floats:
        return np.exp(_spare(rows)) if self.parts else np.ones(len(rows))  # a guess is wide enough

    def shifted(self, by: float) -> Widths:
        """Return them wider, as for a machine whose state is by so much another one now."""
        more = math.exp(by)
        layers = {kind: width * more for kind, width in self.layers.items()}
        return replace(self, total=self.total * more, layers=layers, shift=self.shift + by)


def calibrate(left: LeftOut | None) -> Widths:
    """Return the factors that held for what was left out."""
    if left is None or left.calls.empty:
        return Widths()
    layers = left.calls.groupby("multiplies")
    points = left.points if len(left.points) else left.calls
    return Widths(
        UNKNOWN if left.points.empty else _factor(left.points, "total_ms", left.kind),
        {bool(kind): _factor(rows, "ms", left.kind) for kind, rows in layers},
        len({*parts_of(points, left.kind)}),
    )


def _factor(rows: pd.DataFrame, column: str, kind: str) -> float:
    true = rows[column].to_numpy(float)
    said = rows[OWN].to_numpy(float)
    errors = np.log(true / said)
    spare = _spare(rows)
    beyond = errors - np.clip(errors, -spare, spare)
    return factor(said * np.exp(beyond), said, parts_of(rows, kind))


def _spare(rows: pd.DataFrame) -> Floats:
    return _PER_OCTAVE * rows["unlike"].to_numpy(float)


def with_distance(
    points: pd.DataFrame, calls: pd.DataFrame, seen: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return points and calls with how `unlike` they are to calls that were seen.

    That of a call is how many factors of two its operations and bytes are from the nearest one, and
    that of a network the mean of its calls by their time.
    """
    places = [np.log2(rows[["flops", "bytes_min"]].fillna(0) + 1) for rows in (seen, calls)]
    distances, _ = cKDTree(places[0].drop_duplicates()).query(places[1], p=1)
    calls = calls.assign(unlike=distances)
    shares = calls["ms"] / calls.groupby("point_id", observed=True)["ms"].transform("sum")
    of_points = (shares * distances).groupby(calls["point_id"], observed=True).sum()
    return points.assign(unlike=of_points.reindex(points.index).fillna(0.0)), calls


def parts_of(rows: pd.DataFrame, kind: str) -> Integers:
    """Return a number for each row: those of one network (or size of one, ...) have the same."""
    columns = [KINDS.get(kind, kind), *(["model"] if kind == "size" else [])]
    return rows.groupby(columns, observed=True).ngroup().to_numpy(int)


def factor(true: Floats, said: Floats, parts: Integers) -> float:
    """Return the factor that holds for rows of a part that is not among these."""
    errors = pd.Series(np.log(true / said))
    of_parts = errors.groupby(parts)
    number = of_parts.ngroups
    if number < 2:
        return UNKNOWN
    between = (of_parts.mean() ** 2).mean()
    inside = of_parts.var(ddof=0).mean()
    student = stdtrit(max(number - _SPENT, 1), _ONE_SIDE)
    width = math.hypot(student * math.sqrt(between), ndtri(_ONE_SIDE) * math.sqrt(inside))
    medians = errors.abs().groupby(parts).median().sort_values()
    rank = min(math.ceil(LEVEL * (number + 1)), number)
    return math.exp(max(width, medians.iloc[rank - 1]))


def shift(learnt: Sequence[float], asked: Sequence[float] = ()) -> float:
    """Return the logarithm by which the machine's state differs from when it was learnt from.

    These are times of the control, the oldest first: of all that was learnt from, and of what there
    is of the sweep that is asked for. The newest ones tell what the machine is like now.
    """
    if not learnt:
        return 0.0
    usual = np.median(learnt)
    now = [times for times in (learnt[-_NEWEST:], asked) if times]
    return max(abs(math.log(np.median(times) / usual)) for times in now)


def held(
    true: Floats | pd.Series[float], said: Floats | pd.Series[float], factor: Floats | float
) -> Floats:
    """Return 1 where a time lies in its interval, else 0."""
    return np.asarray((np.abs(np.log(true / said)) <= np.log(factor)).astype(float))
