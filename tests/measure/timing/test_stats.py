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
    assert found.cells().ci95_lo_ms is None


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


# passes of 10 ms run in blocks of 10
def run_of(chance, passes, offset=0.0, forgets=0.0, drift=0.0):
    """Return times around 10 ms with offsets of blocks and a drift that forgets itself."""
    noise = chance.normal(size=passes)
    blocks = chance.normal(size=passes // 10 + 2)
    shift = chance.integers(10)  # the first block is shorter
    follows = np.zeros(passes)
    follows[0] = chance.normal()
    stays = math.exp(-1 / forgets) if forgets else 0.0
    for place in range(1, passes if drift else 1):
        fresh = chance.normal() * math.sqrt(1 - stays**2)
        follows[place] = stays * follows[place - 1] + fresh
    each = offset * np.repeat(blocks, 10)[shift : shift + passes]
    return (10 + 0.01 * (noise + each + drift * follows)).tolist()


@pytest.mark.parametrize(
    "noise",
    [
        {"passes": 60, "offset": 1}, {"passes": 60, "offset": 3}, {"passes": 200, "offset": 1},
        {"passes": 200, "offset": 3}, {"passes": 1000, "offset": 3},
        {"passes": 100, "forgets": 5, "drift": 1}, {"passes": 300, "forgets": 20, "drift": 1},
    ],
)  # fmt: skip
def test_an_interval_holds_the_median_where_blocks_differ(noise):
    """In 90 % of runs or more, and nearly every run has one."""
    chance = np.random.default_rng(0)
    found = [stats.summarise(run_of(chance, **noise)).ci95 for _ in range(200)]
    given = [ends for ends in found if ends]
    assert len(given) >= 140
    assert np.mean([low <= 10 <= high for low, high in given]) >= 0.9


def test_no_interval_is_told_of_a_few_blocks_or_a_drift():
    """Twenty passes of 10 ms are two blocks; passes of 200 ms are blocks of their own."""
    chance = np.random.default_rng(1)
    noise = chance.normal(size=20)
    assert stats.summarise((10 + 0.01 * noise).tolist()).ci95 is None
    assert stats.summarise((200 + 0.01 * noise).tolist()).ci95
    rising = np.linspace(0, 1, 200)
    assert stats.summarise((10 + rising + 0.01 * chance.normal(size=200)).tolist()).ci95 is None
    assert stats.summarise([10.0] * 200).ci95 == (10.0, 10.0)
