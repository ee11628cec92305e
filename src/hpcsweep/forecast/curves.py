"""Seconds over work, from a few measured points: a line, corrected between its neighbours."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_LEAST: Final = 1e-6  # seconds


@dataclass(frozen=True)
class Curve:
    """A line `fixed + slope * work`, and the log errors that it has at measured works."""

    fixed: float
    slope: float
    works: Sequence[float]  # logs, in order
    errors: Sequence[float]

    def at(self, work: float) -> float:
        """Return the seconds; outside what was measured, the line with the error at its end."""
        log = math.log(work)
        after = bisect_left(self.works, log)
        if 0 < after < len(self.works):
            return self._with(log, self._between(log, after - 1, after))
        return self._with(log, self.errors[max(after - 1, 0)])

    def _with(self, log: float, error: float) -> float:
        return (self.fixed + self.slope * math.exp(log)) * math.exp(error)

    def _between(self, log: float, before: int, after: int) -> float:
        share = (log - self.works[before]) / (self.works[after] - self.works[before])
        return (1 - share) * self.errors[before] + share * self.errors[after]


def fit(points: Iterable[tuple[float, float]]) -> Curve:
    """Return the curve through (work, seconds); that of one point alone begins at nothing."""
    by_work: dict[float, list[float]] = defaultdict(list)
    for work, seconds in points:
        by_work[work].append(max(seconds, _LEAST))
    works = sorted(by_work)
    middle = [math.exp(statistics.median(map(math.log, by_work[work]))) for work in works]
    if len(works) > 1:
        fixed, slope = line(list(zip(works, middle, strict=True)))
    else:
        fixed, slope = 0.0, middle[0] / works[0]
    errors = [math.log(s / (fixed + slope * work)) for work, s in zip(works, middle, strict=True)]
    return Curve(fixed, slope, list(map(math.log, works)), errors)


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the non-negative line through (x, y) with the smallest squares of relative errors."""
    a = sum(1 / y**2 for _, y in points)
    b = sum(x / y**2 for x, y in points)
    c = sum(x**2 / y**2 for x, y in points)
    d = sum(1 / y for _, y in points)
    e = sum(x / y for x, y in points)
    scale = a * c - b * b
    fixed, slope = ((c * d - b * e) / scale, (a * e - b * d) / scale) if scale > 0 else (-1.0, 0.0)
    if fixed < 0:
        return 0.0, e / c
    return (fixed, slope) if slope >= 0 else (d / a, 0.0)
