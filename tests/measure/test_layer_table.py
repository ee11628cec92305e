"""Layer rows."""

from __future__ import annotations

import pytest
import torch

import tinynets
from hpcsweep.catalog import columns
from hpcsweep.measure.layer_table import LayerTable
from hpcsweep.measure.shape_pass import shape_pass
from hpcsweep.measure.timing.layer_timer import LayerTimes
from measuring import point

PASSES = [10.0, 12.0, 11.0]
CALLS = shape_pass(tinynets.Residual().eval(), torch.zeros(1, 3, 32, 32)).calls
POINT = point(algorithm="winograd")
ABOUT = [{"algorithm_used": "winograd"}, {"algorithm_used": "auto"}]


def _table(clean=PASSES, backward=0):
    """Return the six calls of the small residual network, with times that are easy to add."""
    times = [[1.0 + index / 10] * 3 for index in range(len(CALLS))]
    return LayerTable(LayerTimes(CALLS, times, "host", backward), PASSES, clean)


def test_there_is_a_row_per_call_and_one_for_the_rest():
    """In call order, `__other__` last, every key a column, and the point's name on each."""
    found = _table().rows(POINT, ABOUT)
    assert [row["layer"] for row in found][-2:] == ["head", "__other__"]
    assert [row["call_index"] for row in found] == list(range(7))
    for row in found:
        assert set(row) <= set(columns.LAYER_COLUMNS)
        assert row["point_id"] == POINT.point_id
        assert (row["model"], row["device"], row["input_size"]) == ("tinynets:Residual", "cpu", 32)


def test_percentages_sum_to_a_hundred():
    """Means over the layer pass's mean, the rest included."""
    assert sum(r["percentage"] for r in _table().rows(POINT, ABOUT)) == pytest.approx(100)


def test_the_rest_is_the_pass_less_its_layers():
    """11 ms less 1.0 + 1.1 + ... + 1.5."""
    assert _table().rows(POINT, ABOUT)[-1]["mean_ms"] == pytest.approx(11 - 7.5)


def test_the_layer_pass_is_held_against_the_clean_pass():
    """Pass by pass with its neighbour, then the median: 10/9, 12/10, 11/11, and 7.5 over each."""
    cells = _table(clean=[9.0, 10.0, 11.0]).overall_cells()
    assert cells["hook_overhead_pct"] == pytest.approx(100 * (10 / 9 - 1))
    assert cells["layer_sum_over_total"] == pytest.approx(0.75)
    assert cells["other_pct"] == pytest.approx(100 * 3.5 / 11)
    assert cells["layer_pass_mean_ms"] == pytest.approx(11)


def test_a_burst_in_one_clean_pass_does_not_hide_the_overhead():
    """One clean pass that took ten times as long moves a mean, not the paired median."""
    calm, burst = ([p / 1.02 for p in PASSES] for _ in range(2))
    burst[1] *= 10
    for times in (calm, burst):
        cells = _table(clean=times).overall_cells()
        assert cells["hook_overhead_pct"] == pytest.approx(2)
        assert 0.5 < cells["layer_sum_over_total"] < 1


def test_every_convolution_says_what_ran_and_other_layers_say_nothing():
    """What is known of the convolutions comes in call order."""
    by_layer = {row["layer"]: row for row in _table().rows(POINT, ABOUT)}
    assert by_layer["stem"]["algorithm_used"] == "winograd"
    assert by_layer["conv"]["algorithm_used"] == "auto"
    assert "algorithm_used" not in by_layer["relu"]


def test_kernel_times_stand_beside_the_times_of_all_layers():
    """Convolutions have theirs from their evidence, other layers in call order; the rest none."""
    about = [{**cells, "kernel_ms": 0.5} for cells in ABOUT]
    found = _table().rows(POINT, about, (0.1, 0.2, None, 0.4))
    assert [row.get("kernel_ms") for row in found] == [0.5, 0.1, 0.5, 0.2, None, 0.4, None]
    assert "kernel_ms" not in _table().rows(POINT, ABOUT, (0.1, 0.2))[1]


def test_the_last_calls_may_be_backward_passes():
    """Every other row is of the forward pass, but for the rest, which is of both."""
    directions = [row["direction"] for row in _table(backward=2).rows(POINT, ABOUT)]
    assert directions == [*["forward"] * 4, *["backward"] * 2, None]


def test_only_convolutions_count_as_convolution_time():
    """Their means, in call order, for the coverage by time."""
    assert _table().convolution_means() == pytest.approx([1.0, 1.2])


def test_networks_without_layers_leave_everything_to_the_rest():
    """No call at all: the rest is the pass."""
    (row,) = LayerTable(LayerTimes((), (), "host"), PASSES, PASSES).rows(POINT, ())
    assert (row["layer"], row["mean_ms"]) == ("__other__", pytest.approx(11))


def test_layers_that_convolve_otherwise_have_their_own_means():
    """Transposed and one-dimensional ones, in order; plain ones are not among them."""
    calls = shape_pass(tinynets.OtherKinds().eval(), torch.zeros(1, 3, 16, 16)).calls
    table = LayerTable(LayerTimes(calls, [[1.0], [2.0], [3.0]], "host"), [7.0], [7.0])
    assert table.convolution_means() == [1.0]
    assert table.other_convolution_means() == [2.0, 3.0]
