"""Statistics of a list of times: location, spread, confidence; without torch and numpy.

No time is dropped: slow passes are real, and hardly change the median. Quantiles are interpolated
linearly between order statistics (Hyndman and Fan's type 7, numpy's default). Values that need a
larger sample are None: the 5th and 95th percentiles need 20 passes, the 99th 100.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

from hpcsweep.catalog.columns import LIMITS
from hpcsweep.catalog.row_records import LayerCells, TimeCells

# Passes of a block, and its time: longer ones let the machine drift between lanes, and switching
# from lane to lane costs about as much as a short pass.
BLOCK_MOST: Final = 10
_BLOCK_MS: Final = 100.0
# Times below which a percentile would be the last one or two of the sample.
_FOR_5_PCT: Final = 20
_FOR_1_PCT: Final = 100
# Stretches of a run. Of 6 independent ones the lowest and the highest enclose the median with 97 %,
# of 8 with 99 %; more would be shorter than what drifts (docs/measuring_reasons.md: coverage).
_BATCHES: Final = 8
_FEWEST_BATCHES: Final = 6
# Chance alone goes below with 8 stretches in one run of fifteen.
_LEAST_RATIO: Final = 1.0


@dataclass(frozen=True)
class Summary:
    """Statistics of one list of times, in the unit of the times (`std` with n - 1).

    Passes of one block agree better with each other than with those of the next, so `ci95` is
    made of stretches of the run: it reaches from the lowest to the highest of their medians, and
    holds the order statistics that would enclose the median of independent passes. None where the
    passes ran in fewer than 6 blocks, or the stretches follow each other, as in a drift.
    """

    n: int
    mean: float
    std: float | None
    min: float
    p5: float | None
    q1: float
    median: float
    q3: float
    p95: float | None
    p99: float | None
    max: float
    ci95: tuple[float, float] | None

    @property
    def iqr_rel(self) -> float | None:
        return (self.q3 - self.q1) / self.median if self.median else None

    @property
    def std_rel(self) -> float | None:
        return self.std / self.mean if self.std is not None and self.mean else None

    @property
    def ci_rel(self) -> float | None:
        """Half the width of the confidence interval over the median."""
        if self.ci95 is None or not self.median:
            return None
        return (self.ci95[1] - self.ci95[0]) / 2 / self.median

    def cells(self) -> TimeCells:
        """Return the cells of a point's row; the times are in ms."""
        low, high = self.ci95 or (None, None)
        return TimeCells(
            n=self.n,
            mean_ms=self.mean,
            std_ms=self.std,
            min_ms=self.min,
            p5_ms=self.p5,
            q1_ms=self.q1,
            median_ms=self.median,
            q3_ms=self.q3,
            p95_ms=self.p95,
            p99_ms=self.p99,
            max_ms=self.max,
            iqr_rel=self.iqr_rel,
            std_rel=self.std_rel,
            ci95_lo_ms=low,
            ci95_hi_ms=high,
        )

    def layer_cells(self, whole: Summary) -> LayerCells:
        """Return the cells of a layer's row, with its share of the whole pass."""
        return LayerCells(
            n=self.n,
            mean_ms=self.mean,
            std_ms=self.std,
            min_ms=self.min,
            q1_ms=self.q1,
            median_ms=self.median,
            q3_ms=self.q3,
            max_ms=self.max,
            percentage=100 * self.mean / whole.mean,
        )

    def flags(self) -> list[str]:
        """Return the flags by the times alone: few samples, noise."""
        spread = self.iqr_rel or 0.0
        flags = []
        if self.n < LIMITS["few_samples"]:
            flags.append("few_samples")
        if spread > LIMITS["very_noisy"] / 100:
            flags.append("very_noisy")
        elif spread > LIMITS["noisy"] / 100:
            flags.append("noisy")
        return flags


def summarise(times: Sequence[float]) -> Summary:
    """Return the statistics of at least one time."""
    ordered = sorted(times)
    n = len(ordered)
    middle = _quantile(ordered, 0.5)
    mean = math.fsum(ordered) / n
    std = None
    if n > 1:
        std = math.sqrt(math.fsum((x - mean) ** 2 for x in ordered) / (n - 1))
    return Summary(
        n=n,
        mean=mean,
        std=std,
        min=ordered[0],
        p5=_quantile(ordered, 0.05) if n >= _FOR_5_PCT else None,
        q1=_quantile(ordered, 0.25),
        median=middle,
        q3=_quantile(ordered, 0.75),
        p95=_quantile(ordered, 0.95) if n >= _FOR_5_PCT else None,
        p99=_quantile(ordered, 0.99) if n >= _FOR_1_PCT else None,
        max=ordered[-1],
        ci95=_interval(times, ordered, middle),
    )


def block_passes(typical_ms: float) -> int:
    """Return the passes of a block."""
    if not typical_ms > 0:  # nor what is no number
        return BLOCK_MOST
    return max(1, min(BLOCK_MOST, round(_BLOCK_MS / typical_ms)))


def _interval(
    times: Sequence[float], ordered: Sequence[float], middle: float
) -> tuple[float, float] | None:
    """Return the interval of the median (see `Summary`)."""
    n = len(times)
    batches = min(_BATCHES, n // block_passes(middle))
    if batches < _FEWEST_BATCHES:
        return None
    ends = [place * n // batches for place in range(batches + 1)]
    medians = [median(times[begin:end]) for begin, end in pairwise(ends)]
    # von Neumann's ratio is 2 where batches are independent, and less where they follow each other
    from_first = [value - medians[0] for value in medians]  # equal ones are exactly 0
    mean = math.fsum(from_first) / batches
    spread = math.fsum((value - mean) ** 2 for value in from_first)
    steps = math.fsum((after - before) ** 2 for before, after in pairwise(from_first))
    if steps < _LEAST_RATIO * spread:
        return None
    rank = median_rank(n)
    return min(ordered[rank - 1], *medians), max(ordered[-rank], *medians)


def median(times: Sequence[float]) -> float:
    """Return the median of at least one time."""
    return _quantile(sorted(times), 0.5)


def _quantile(ordered: Sequence[float], q: float) -> float:
    position = (len(ordered) - 1) * q
    low = math.floor(position)
    above = position - low
    if not above:
        return ordered[low]
    return ordered[low] + (ordered[low + 1] - ordered[low]) * above


# the adaptive rule asks at each point for much the same numbers of passes
@lru_cache(maxsize=4096)
def median_rank(n: int, alpha: float = 0.05) -> int:
    """Return the largest r with P(Binomial(n, 1/2) < r) <= alpha / 2; 0 where there is none."""
    log_half = n * math.log(0.5)
    below = 0.0
    rank = 0
    while rank <= n // 2:
        log_ways = math.lgamma(n + 1) - math.lgamma(rank + 1) - math.lgamma(n - rank + 1)
        below += math.exp(log_ways + log_half)
        if below > alpha / 2:
            return rank
        rank += 1
    return 0
