"""Our statistics of given times, held against those of numpy, scipy, torch and pyperf."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import scipy
import scipy.stats
from torch.utils.benchmark import Measurement
from torch.utils.benchmark.utils.common import TaskSpec

from benchmarks.markdown import print_head, print_row
from benchmarks.measurement.printing import need
from hpcsweep.measure.timing import stats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcsweep.measure.timing.stats import Summary

    Times = Sequence[float]

_PYPERF: Final = "pyperf==2.10.0"
_SIZES: Final = (1, 2, 3, 5, 6, 7, 10, 19, 20, 33, 64, 100, 101, 1000)
_ROUNDING: Final = 1e-12  # what sums in another order may differ by; quantiles by less


@dataclass(frozen=True)
class Comparison:
    """A quantity, whose it is held against, and both; fewer than `least` times have none."""

    quantity: str
    whose: str
    ours: Callable[[Summary], float]
    theirs: Callable[[Times], float]
    least: int = 1


def main() -> bool:
    """Print a row per quantity and other program; return whether all agree but for rounding."""
    need(_PYPERF)
    samples = list(_samples())
    print(f"{len(samples)} samples of {_SIZES[0]} to {_SIZES[-1]} times, {_PYPERF}\n")
    print_head("quantity | held against | samples | equal to the bit | largest relative difference")
    good = True
    for one in _comparisons():
        pairs = [
            (one.ours(stats.summarise(times)), one.theirs(times))
            for times in samples
            if len(times) >= one.least
        ]
        equal = sum(ours == theirs for ours, theirs in pairs)
        worst = max(abs(ours - theirs) / max(abs(theirs), 1e-9) for ours, theirs in pairs)
        print_row(one.quantity, one.whose, len(pairs), equal, f"{worst:.1e}" if worst else "0")
        good &= worst <= _ROUNDING
    return good


def _samples() -> list[list[float]]:
    """Return times as they come: skewed, with ties, with outliers, all equal; in milliseconds."""
    draw = random.Random(0)
    kinds = (
        lambda: draw.lognormvariate(1, 0.1),
        lambda: round(draw.lognormvariate(1, 0.5), 1),
        lambda: draw.choice((1.0, 1.0, 1.0, 30.0)) * draw.uniform(1, 1.01),
        lambda: 2.5,
    )
    return [[kind() for _ in range(size)] for size in _SIZES for kind in kinds for _ in range(5)]


def _comparisons() -> list[Comparison]:
    numpy_ = f"numpy {np.__version__}"
    scipy_ = f"scipy {scipy.__version__}"
    torch_ = "torch.utils.benchmark"
    pyperf_ = "pyperf"
    return [
        Comparison("median", numpy_, lambda s: s.median, lambda t: float(np.median(t))),
        Comparison("median", "statistics", lambda s: s.median, statistics.median),
        Comparison("median", torch_, lambda s: s.median, lambda t: _torch(t).median),
        Comparison("median", pyperf_, lambda s: s.median, lambda t: _pyperf(t).median()),
        Comparison("quartile 1", numpy_, lambda s: s.q1, lambda t: float(np.quantile(t, 0.25))),
        Comparison("quartile 1", pyperf_, lambda s: s.q1, lambda t: _pyperf(t).percentile(25)),
        Comparison("quartile 3", numpy_, lambda s: s.q3, lambda t: float(np.quantile(t, 0.75))),
        Comparison("quartile 3", pyperf_, lambda s: s.q3, lambda t: _pyperf(t).percentile(75)),
        Comparison("IQR", torch_, lambda s: s.q3 - s.q1, lambda t: _torch(t).iqr),
        Comparison("95th percentile", numpy_, lambda s: s.p95 or 0.0,
                   lambda t: float(np.quantile(t, 0.95)), 20),
        Comparison("mean", numpy_, lambda s: s.mean, lambda t: float(np.mean(t))),
        Comparison("mean", pyperf_, lambda s: s.mean, lambda t: _pyperf(t).mean()),
        Comparison("standard deviation", numpy_, lambda s: s.std or 0.0,
                   lambda t: float(np.std(t, ddof=1)), 2),
        Comparison("standard deviation", pyperf_, lambda s: s.std or 0.0,
                   lambda t: _pyperf(t).stdev(), 2),
        Comparison("CI of the median, low", scipy_, lambda s: (s.ci95 or (0, 0))[0],
                   lambda t: _interval(t)[0], 6),
        Comparison("CI of the median, high", scipy_, lambda s: (s.ci95 or (0, 0))[1],
                   lambda t: _interval(t)[1], 6),
    ]  # fmt: skip


def _torch(times: Times) -> Measurement:
    return Measurement(1, list(times), TaskSpec(stmt="", setup=""))


def _pyperf(times: Times) -> Any:  # noqa: ANN401 - a pyperf.Benchmark
    import pyperf  # noqa: PLC0415 - may have been installed just now

    run = pyperf.Run(list(times), metadata={"name": "x"}, collect_metadata=False)
    return pyperf.Benchmark([run])


def _interval(times: Times) -> tuple[float, float]:
    """Return scipy's interval of the median: it inverts the sign test, which is also our rule."""
    found = scipy.stats.quantile_test(times, p=0.5).confidence_interval(0.95)
    return float(found.low), float(found.high)
