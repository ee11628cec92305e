"""Plots of a collected sweep: what makes a line, and what is marked."""

from __future__ import annotations

import matplotlib as mpl
import pytest

from analysistables import table_of
from collectedsweep import SWEEP, cells_of, collected
from hpcsweep.analysis import plot, plot_chart
from hpcsweep.errors import UsageError


def labels(found):
    """Return the labels of the lines."""
    return [line.label for line in found.lines]


def test_there_is_a_line_for_every_combination_of_what_else_varies(run):
    """In the order of the catalogue and of numbers; the model does not vary, so it is not said."""
    found = plot.read(run, "batch_size")
    assert found.by == ("algorithm", "num_threads")
    assert labels(found) == [
        f"{name}, num_threads {n}" for name in ("gemm", "winograd") for n in (1, 2, 4)
    ]
    assert [(dot.x, dot.y) for dot in found.lines[1].dots] == [(1, 4.0), (4, 16.0), (16, 64.0)]


def test_what_by_leaves_out_is_a_median_and_is_said(run):
    """Over threads here: 8, 4 and 2 ms."""
    found = plot.read(run, "batch_size", by=["algorithm"])
    assert labels(found) == ["gemm", "winograd"]
    assert (found.lines[0].dots[0].y, found.lines[0].dots[0].n) == (4.0, 3)
    assert "values are medians over num_threads, of up to 3 points each" in table_of(found)


def test_other_seeds_are_repeats(tmp_path):
    """Their median is shown; they make no lines."""
    text = SWEEP.replace("[1, 2, 4]", "[1]") + "  seed: [0, 1, 2]\n"
    times = {0: 3.0, 1: 1.0, 2: 10.0}
    found = plot.read(
        collected(tmp_path, text, lambda axes: {"median_ms": times[axes["seed"]]}), "batch_size"
    )
    assert found.by == ("algorithm",)
    assert {(dot.y, dot.n) for line in found.lines for dot in line.dots} == {(3.0, 3)}


def test_x_is_the_numeric_axis_that_varies_where_there_is_one(tmp_path, run):
    """Where there are several the question names them."""
    text = SWEEP.replace("[1, 2, 4]", "[1]")
    assert plot.read(collected(tmp_path, text)).x == "batch_size"
    with pytest.raises(UsageError, match="batch_size, num_threads"):
        plot.read(run)


def test_doubtful_values_are_marked_in_table_record_and_picture(tmp_path):
    """Also where only one of several rows is."""
    doubt = {(4, "gemm"): "noisy;few_samples", (16, "gemm"): "few_samples"}

    def cells(axes):
        flags = doubt.get((axes["batch_size"], axes["algorithm"]), "")
        return {**cells_of(axes), "flags": flags}

    found = plot.read(collected(tmp_path, SWEEP, cells), "batch_size", by=["algorithm"])
    assert [dot.doubtful for dot in found.lines[0].dots] == [False, True, False]
    assert "16?" in table_of(found)
    assert "?  unreliable: noisy (3 points)" in table_of(found)
    with mpl.rc_context({"svg.fonttype": "none"}):
        plot_chart.draw(found, tmp_path / "x.svg")
    legend = (tmp_path / "x.svg").read_text().partition("unreliable:")[2]
    assert "noisy" in legend
