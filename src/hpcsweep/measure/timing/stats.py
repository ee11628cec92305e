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

from hpcsweep.catalog.columns import Row

NOISY: Final = 0.10
VERY_NOISY: Final = 0.25
FEW: Final = 10


@dataclass(frozen=True)
class Summary:
    """Statistics of one list of times, in the unit of the times (`std` with n - 1).

    `ci95` are the order statistics that enclose the median with a probability of 95 % or more, for
    any distribution; None with fewer than 6 values. Where passes follow each other, they count as
    so many fewer: the autocorrelation of their sides of the median says how many.
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

    def row(self) -> Row:
        """Return the cells of an overall row."""
        low, high = self.ci95 or (None, None)
        return {
            **self.layer_row(),
            "p5_ms": self.p5,
            "p95_ms": self.p95,
            "p99_ms": self.p99,
            "iqr_rel": self.iqr_rel,
            "std_rel": self.std_rel,
            "ci95_lo_ms": low,
            "ci95_hi_ms": high,
        }

    def layer_row(self) -> Row:
        """Return the cells of a layer row."""
        return {
            "n": self.n,
            "mean_ms": self.mean,
            "std_ms": self.std,
            "min_ms": self.min,
            "max_ms": self.max,
            "median_ms": self.median,
            "q1_ms": self.q1,
            "q3_ms": self.q3,
        }

    def flags(self) -> list[str]:
        """Return the flags by the times alone: few samples, noise."""
        spread = self.iqr_rel or 0.0
        flags = ["few_samples"] if self.n < FEW else []
        if spread > VERY_NOISY:
            flags.append("very_noisy")
        elif spread > NOISY:
            flags.append("noisy")
        return flags


def summarise(times: Sequence[float]) -> Summary:
    """Return the statistics of at least one time."""
    ordered = sorted(times)
    n = len(ordered)
    middle = _quantile(ordered, 0.5)
    rank = _rank(times, middle)
    mean = math.fsum(ordered) / n
    return Summary(
        n=n,
        mean=mean,
        std=math.sqrt(math.fsum((x - mean) ** 2 for x in ordered) / (n - 1)) if n > 1 else None,
        min=ordered[0],
        p5=_quantile(ordered, 0.05) if n >= 20 else None,
        q1=_quantile(ordered, 0.25),
        median=middle,
        q3=_quantile(ordered, 0.75),
        p95=_quantile(ordered, 0.95) if n >= 20 else None,
        p99=_quantile(ordered, 0.99) if n >= 100 else None,
        max=ordered[-1],
        ci95=(ordered[rank - 1], ordered[-rank]) if rank else None,
    )


def _rank(times: Sequence[float], middle: float) -> int:
    """Return the rank at which the interval of the median begins; 0 for none."""
    n = len(times)
    sides = [(x > middle) - (x < middle) for x in times]
    rho = sum(a * b for a, b in pairwise(sides)) / n
    if rho <= 2 / math.sqrt(n):  # chance alone does that
        return median_rank(n)
    follows = math.sin(math.pi / 2 * rho)  # of an autoregressive process with such sides
    passes = (1 + follows) / (1 - follows)  # that count as one
    rank = median_rank(int(n / passes))
    return max(int((rank - 0.5) * passes), 1) if rank else 0


def median(times: Sequence[float]) -> float:
    """Return the median of at least one time."""
    return _quantile(sorted(times), 0.5)


def _quantile(ordered: Sequence[float], q: float) -> float:
    position = (len(ordered) - 1) * q
    low = math.floor(position)
    rest = position - low
    if not rest:
        return ordered[low]
    return ordered[low] + (ordered[low + 1] - ordered[low]) * rest


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
