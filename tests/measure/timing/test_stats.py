"""Statistics of times: held against numpy and the standard library."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsweep.measure.timing import stats

TIMES = st.lists(st.floats(1e-3, 1e5), min_size=1, max_size=300)


@given(TIMES)
def test_location_and_spread_agree_with_numpy(times):
    """Mean, quartiles, extremes and the n - 1 deviation are numpy's."""
    found = stats.summarise(times)
    q1, median, q3 = np.quantile(times, [0.25, 0.5, 0.75])
    expected = (np.mean(times), q1, median, q3, min(times), max(times))
    assert (found.mean, found.q1, found.median, found.q3, found.min, found.max) == pytest.approx(
        expected, rel=1e-9
    )
    if len(times) > 1:
        assert found.std == pytest.approx(np.std(times, ddof=1), rel=1e-6, abs=1e-9)
        assert found.std == pytest.approx(statistics.stdev(times), rel=1e-9, abs=1e-9)


@given(TIMES)
def test_a_summary_is_ordered_and_forgets_nothing(times):
    """Every quantile lies between its neighbours, and n counts every time."""
    found = stats.summarise(times)
    steps = [found.min, found.p5, found.q1, found.median, found.q3, found.p95, found.p99, found.max]
    known = [value for value in steps if value is not None]
    assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(known))
    assert found.n == len(times)
    if found.ci95:
        assert found.ci95[0] <= found.median <= found.ci95[1]


def test_percentiles_need_enough_passes():
    """No 95th percentile of 19 passes and no 99th of 99: the cells stay empty."""
    assert stats.summarise([1.0] * 19).p95 is stats.summarise([1.0] * 19).p5 is None
    assert stats.summarise(range(1, 21)).p95 == pytest.approx(np.quantile(range(1, 21), 0.95))
    assert stats.summarise(range(1, 21)).p5 == pytest.approx(np.quantile(range(1, 21), 0.05))
    assert stats.summarise([1.0] * 99).p99 is None
    assert stats.summarise(range(100)).p99 == pytest.approx(98.01)


def test_one_time_has_no_deviation():
    """A single pass is a summary without spread, not a division by zero."""
    found = stats.summarise([2.0])
    assert (found.mean, found.std, found.std_rel, found.ci95) == (2.0, None, None, None)
    assert found.row()["ci95_lo_ms"] is None


@pytest.mark.parametrize("n", [6, 7, 10, 20, 31, 100, 999])
def test_the_median_interval_covers_95_percent_and_no_rank_less_would(n):
    """The rank is the exact binomial one: one step inwards would cover too little."""
    rank = stats.median_rank(n)

    def outside(r: int) -> float:
        return 2 * sum(math.comb(n, k) for k in range(r)) / 2**n

    assert outside(rank) <= 0.05 < outside(rank + 1)


def test_five_passes_have_no_interval():
    """The range of five values holds the median with 93.75 %: not enough."""
    assert stats.median_rank(5) == 0
    assert stats.summarise([1, 2, 3, 4, 5]).ci95 is None


@pytest.mark.parametrize(
    ("times", "flags"),
    [
        ([10.0] * 20, []),
        ([10.0] * 9, ["few_samples"]),
        ([9.0, 10.0, 11.2] * 7, ["noisy"]),
        ([5.0, 10.0, 20.0] * 7, ["very_noisy"]),
    ],
)
def test_noise_is_flagged_and_kept(times, flags):
    """Spread raises a flag at 10 and at 25 % of the median; the times stay in the summary."""
    found = stats.summarise(times)
    assert found.flags() == flags
    assert found.max == max(times)


def test_passes_that_follow_each_other_widen_the_interval_of_the_median():
    """It holds as often as it says; independent passes keep theirs."""
    chance = np.random.default_rng(0)

    def holds(stays):
        held = 0
        for _ in range(100):
            noise = chance.normal(size=200)
            for place in range(1, 200):
                noise[place] += stays * noise[place - 1]
            found = stats.summarise((noise + 100).tolist())
            held += found.ci95 is None or found.ci95[0] <= 100 <= found.ci95[1]
        return held

    assert holds(0.0) >= 90
    assert holds(0.8) >= 90
