"""Algorithms of one network are timed in turns, each beside the default."""

from __future__ import annotations

import math
from dataclasses import replace
from multiprocessing import Pipe, resource_tracker

import pytest

from hpcsweep.cli import pairs
from hpcsweep.measure.bench_api import CannotMeasure
from measuring import point


def test_a_ratio_is_that_of_neighbouring_passes():
    """A machine that becomes five times slower on the way hits both alike."""
    first = [1.0 + (at // 20) for at in range(100)]
    second = [0.8 * ms for ms in first]
    assert pairs.ratio(first, second) == pytest.approx((0.8, 0.8, 0.8))


def test_a_disturbed_pass_moves_no_pair():
    """A pair is that of two medians."""
    first = [2.0] * 100
    second = [3.0, 300.0, *([3.0] * 98)]
    assert pairs.ratio(first, second) == pytest.approx((1.5, 1.5, 1.5))


def test_with_too_few_pairs_there_is_no_interval():
    """As of any median."""
    middle, low, high = pairs.ratio([1.0] * 10, [2.0] * 10)
    assert middle == 2.0
    assert math.isnan(low)
    assert math.isnan(high)


def test_default_and_mixed_network_are_timed_in_turns(monkeypatch):
    """The default against itself tells what a difference has to exceed; a CPU has no autotuner."""
    monkeypatch.setattr(pairs, "_MOST_SECONDS", 0.0)  # one pass of each is enough here
    default = point(algorithm="auto")
    mixed = replace(default, axes={**default.axes, "algorithm": {"default": "gemm"}})
    found = pairs.measure(default, mixed, {"gpu": "cpu"})
    assert set(found.ratios) == {"itself", "mixed"}
    assert found.default_ms > 0
    assert all(ratio > 0 for ratio, _low, _high in found.ratios.values())


@pytest.mark.slow
def test_a_network_that_tunes_has_its_turns_in_a_process_of_its_own(monkeypatch):
    """Here one that does not: only a GPU has an autotuner."""
    monkeypatch.setattr(pairs, "_MOST_SECONDS", 0.0)
    monkeypatch.setattr(pairs, "_tunes", lambda point: point.axes["algorithm"] != "auto")
    monkeypatch.setattr(
        pairs.Inference, "tunes", property(lambda _: True, lambda *_: None), raising=False
    )
    default = point(algorithm="auto")
    mixed = replace(default, axes={**default.axes, "algorithm": {"default": "gemm"}})
    monkeypatch.setattr(pairs.catalog, "AUTOTUNE", "implicit_gemm")
    found = pairs.measure(default, mixed, {"gpu": "cpu"})
    resource_tracker._resource_tracker._stop()  # else it stays as long as the tests
    assert set(found.ratios) == {"itself", "mixed", "implicit_gemm"}
    assert all(ratio > 0 for ratio, _low, _high in found.ratios.values())


def test_what_is_raised_where_a_network_tunes_is_raised_here():
    """A CPU has no autotuner."""
    ours, theirs = Pipe()
    pairs._serve(theirs, point(algorithm="autotune"), "cpu")
    with pytest.raises(CannotMeasure, match="on cpu there is none"):
        pairs._answer(ours)
