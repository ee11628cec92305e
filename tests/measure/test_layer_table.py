"""Layer rows."""

from __future__ import annotations

import pytest
import torch

from hpcsweep.catalog import columns
from hpcsweep.conv import backend as backends
from hpcsweep.conv.proof.forward_pass import Evidence
from hpcsweep.measure import layer_table, models
from hpcsweep.measure.convolutions import choose
from hpcsweep.measure.shape_pass import shape_pass
from hpcsweep.measure.timing.layer_timer import HostMarks, LayerTimer
from measuring import CPU, point, policy

PASSES = [10.0, 12.0, 11.0]


@pytest.fixture
def table():
    """Return the six calls of the small residual network, with times that are easy to add."""
    wanted = point(algorithm="winograd")
    model = models.build(models.ModelKey.of(wanted), CPU)
    shapes = shape_pass(model, torch.zeros(1, 3, 32, 32))
    timer = LayerTimer(model, shapes.calls, HostMarks())
    for index, times in enumerate(timer.times):
        times.extend([1.0 + index / 10] * 3)
    choices = choose(model, shapes, "winograd", policy("fallback"), backends.choose("cpu"))
    return wanted, layer_table.LayerTable(timer, PASSES), choices


def test_there_is_a_row_per_call_and_one_for_the_rest(table):
    """In call order, `__other__` last, every key a column, and the point's name on each."""
    wanted, layers, choices = table
    found = layers.rows(wanted, choices, ())
    assert [row["layer"] for row in found][-2:] == ["head", "__other__"]
    assert [row["call_index"] for row in found] == list(range(7))
    for row in found:
        assert set(row) <= set(columns.LAYER_COLUMNS)
        assert row["point_id"] == wanted.point_id
        assert (row["model"], row["device"], row["input_size"]) == ("tinynets:Residual", "cpu", 32)


def test_percentages_sum_to_a_hundred(table):
    """Means over the layer pass's mean, the rest included."""
    wanted, layers, choices = table
    assert sum(r["percentage"] for r in layers.rows(wanted, choices, ())) == pytest.approx(100)


def test_the_rest_is_the_pass_less_its_layers(table):
    """11 ms less 1.0 + 1.1 + ... + 1.5."""
    wanted, layers, choices = table
    assert layers.rows(wanted, choices, ())[-1]["mean_ms"] == pytest.approx(11 - 7.5)


def test_the_layer_pass_is_held_against_the_clean_pass(table):
    """Pass by pass with its neighbour, then the median: 10/9, 12/10, 11/11, and 7.5 over each."""
    _, layers, _ = table
    cells = layers.overall_cells([9.0, 10.0, 11.0])
    assert cells["hook_overhead_pct"] == pytest.approx(100 * (10 / 9 - 1))
    assert cells["layer_sum_over_total"] == pytest.approx(0.75)
    assert cells["other_pct"] == pytest.approx(100 * 3.5 / 11)
    assert cells["layer_pass_mean_ms"] == pytest.approx(11)


def test_a_burst_in_one_clean_pass_does_not_hide_the_overhead(table):
    """One clean pass that took ten times as long moves a mean, not the paired median."""
    _, layers, _ = table
    calm, burst = ([p / 1.02 for p in PASSES] for _ in range(2))
    burst[1] *= 10
    for times in (calm, burst):
        cells = layers.overall_cells(times)
        assert cells["hook_overhead_pct"] == pytest.approx(2)
        assert 0.5 < cells["layer_sum_over_total"] < 1


def test_every_convolution_says_what_ran_and_how_that_is_known(table):
    """Algorithm, evidence and, where they disagree, the contradiction; other layers say nothing."""
    wanted, layers, choices = table
    proofs = [Evidence("stem", "profiler: x"), Evidence("conv", "profiler: y", "ran z")]
    by_layer = {row["layer"]: row for row in layers.rows(wanted, choices, proofs)}
    assert by_layer["stem"]["algorithm_used"] == "winograd"
    assert by_layer["stem"]["algorithm_evidence"] == "profiler: x"
    assert by_layer["conv"]["algorithm_evidence"] == "mismatch (ran z); profiler: y"
    assert "algorithm_used" not in by_layer["relu"]
    unproven = layers.rows(wanted, choices, ())
    assert unproven[0]["algorithm_evidence"] == "none"


def test_only_convolutions_count_as_convolution_time(table):
    """Their means, in call order, for the coverage by time."""
    _, layers, _ = table
    assert layers.convolution_means() == pytest.approx([1.0, 1.2])
