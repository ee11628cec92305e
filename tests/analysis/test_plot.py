"""Lines of one column over another, and how they compare with a baseline."""

from __future__ import annotations

import math

import matplotlib as mpl
import pytest

from analysistables import table_of
from collectedsweep import SWEEP, cells_of, collected
from hpcsweep.analysis import charts, plot
from hpcsweep.errors import UsageError


def dots(found, line, *columns):
    """Return columns of the cells of a line, by its place; of one column its values."""
    cells = found.cells[found.cells["line"] == found.lines[line]][[*columns]]
    rows = [*cells.itertuples(index=False, name=None)]
    return rows if len(columns) > 1 else [value for (value,) in rows]


def test_there_is_a_line_for_every_combination_of_what_else_varies(run):
    """In the order of the catalogue and of numbers; the model does not vary, so it is not said."""
    found = plot.read_plot(run, "batch_size")
    assert found.by == ("algorithm", "num_threads")
    assert found.lines == [
        f"{name}, num_threads {n}" for name in ("gemm", "winograd") for n in (1, 2, 4)
    ]
    assert dots(found, 1, "place", "value") == [(1, 4.0), (4, 16.0), (16, 64.0)]


def test_what_by_leaves_out_is_a_median_and_is_said(run):
    """Over threads here: 8, 4 and 2 ms."""
    found = plot.read_plot(run, "batch_size", by=["algorithm"])
    assert found.lines == ["gemm", "winograd"]
    assert dots(found, 0, "value", "n")[0] == (4.0, 3)
    assert "values are medians over num_threads, of up to 3 points each" in table_of(found)


def test_a_speed_up_stands_beside_a_value_of_the_same_rows_alone(tmp_path):
    """At batch 4 one of two sizes has no baseline: the value is of both."""
    text = SWEEP.replace("[1, 2, 4]", "[1]") + "  input_size: [64, 96]\n"
    lacks = "exclude: [{algorithm: gemm, batch_size: 4, input_size: 96}]\n"
    found = plot.read_plot(
        collected(tmp_path, text + lacks), "batch_size", by=["algorithm"], baseline="algorithm=gemm"
    )
    shown = found.frame().set_index(["algorithm", "batch_size"])
    assert shown.loc[("winograd", 1), ["n", "speedup"]].tolist() == [2, 2.0]
    assert shown.loc[("winograd", 4), "n"] == 2
    assert math.isnan(shown.loc[("winograd", 4), "speedup"])


def test_other_seeds_are_repeats(tmp_path):
    """Their median is shown; they make no lines."""
    text = SWEEP.replace("[1, 2, 4]", "[1]") + "  seed: [0, 1, 2]\n"
    times = {0: 3.0, 1: 1.0, 2: 10.0}
    found = plot.read_plot(
        collected(tmp_path, text, lambda axes: {"median_ms": times[axes["seed"]]}), "batch_size"
    )
    assert found.by == ("algorithm",)
    assert {*zip(found.cells["value"], found.cells["n"], strict=True)} == {(3.0, 3)}


def test_x_is_the_numeric_axis_that_varies_where_there_is_one(tmp_path, run):
    """Of several the one with most values, and a note names the others."""
    text = SWEEP.replace("[1, 2, 4]", "[1]")
    assert plot.read_plot(collected(tmp_path, text)).x == "batch_size"
    several = plot.read_plot(run)
    assert several.x == "batch_size"
    assert "x is batch_size, with most values; --x chooses num_threads" in several.notes
    with pytest.raises(UsageError, match="no axis varies"):
        plot.read_plot(
            collected(tmp_path / "one", text.replace("[1, 4, 16]", "[1]")), where="algorithm=gemm"
        )


def test_doubtful_values_are_marked_in_table_record_and_picture(tmp_path):
    """Also where only one of several rows is."""
    doubt = {(4, "gemm"): "noisy;few_samples", (16, "gemm"): "few_samples"}

    def cells(axes):
        flags = doubt.get((axes["batch_size"], axes["algorithm"]), "")
        return {**cells_of(axes), "flags": flags}

    found = plot.read_plot(collected(tmp_path, SWEEP, cells), "batch_size", by=["algorithm"])
    assert dots(found, 0, "doubtful") == [False, True, False]
    assert "16?" in table_of(found)
    assert "?  unreliable: noisy (3 points)" in table_of(found)
    with mpl.rc_context({"svg.fonttype": "none"}):
        charts.draw_plot(found, tmp_path / "x.svg")
    legend = (tmp_path / "x.svg").read_text().partition("unreliable:")[2]
    assert "noisy" in legend


def test_a_baseline_is_the_point_that_is_equal_but_for_what_is_named(run):
    """Of a time: baseline over value."""
    found = plot.read_plot(run, "num_threads", by=["algorithm"], baseline="num_threads=1")
    assert dots(found, 0, "speedup") == [1.0, 2.0, 4.0]
    assert found.compared == "speed-up over num_threads=1"
    assert "4x" in table_of(found)


def test_of_a_rate_more_is_faster(run):
    """Value over baseline."""
    found = plot.read_plot(run, "num_threads", "throughput_ips", baseline="num_threads=1")
    lines = range(len(found.lines))
    assert {tuple(dots(found, line, "speedup")) for line in lines} == {(1.0, 2.0, 4.0)}


def test_a_baseline_may_differ_in_several_columns(run):
    """Then every point is compared with one of another algorithm and other threads."""
    found = plot.read_plot(run, "batch_size", baseline="algorithm=gemm,num_threads=1")
    best = found.lines.index("winograd, num_threads 4")
    assert dots(found, best, "speedup") == [8.0, 8.0, 8.0]


def test_of_what_is_neither_time_nor_rate_a_ratio_is_told(tmp_path):
    """More memory is no speed-up."""
    memory = collected(tmp_path, SWEEP, lambda axes: {"mem_peak_bytes": 1000 * axes["batch_size"]})
    found = plot.read_plot(memory, "num_threads", "mem_peak_bytes", baseline="batch_size=1")
    assert found.compared == "ratio to batch_size=1"
    assert {*found.cells["speedup"]} == {1.0, 4.0, 16.0}


def test_points_without_a_baseline_are_counted(tmp_path):
    """A missing cell stays a missing cell."""
    text = SWEEP + "exclude:\n  - {batch_size: 16, num_threads: 1}\n"
    found = plot.read_plot(collected(tmp_path, text), "batch_size", baseline="num_threads=1")
    assert "4 points have no baseline: no row has num_threads=1 with the same" in table_of(found)
    assert dots(found, 1, "speedup")[:2] == [2.0, 2.0]
    assert math.isnan(dots(found, 1, "speedup")[2])


def test_a_baseline_of_several_rows_is_told_and_is_their_median(tmp_path):
    """Repeats with other seeds."""
    text = SWEEP.replace("[1, 4, 16]", "[1]") + "  seed: [0, 1, 2]\n"
    run = collected(
        tmp_path, text, lambda a: {"median_ms": 6.0 + a["seed"] * (a["num_threads"] < 2)}
    )
    found = plot.read_plot(run, "num_threads", baseline="num_threads=1")
    assert "a baseline matches up to 3 rows; their median counts" in table_of(found)
    assert dots(found, 0, "speedup")[1:] == pytest.approx([7 / 6, 7 / 6])


def test_a_doubtful_baseline_puts_what_is_compared_in_doubt(tmp_path):
    """A ratio is as good as the worse of the two."""
    run = collected(
        tmp_path, SWEEP,
        lambda a: {**cells_of(a), "flags": "very_noisy" if a["num_threads"] == 1 else ""},
    )  # fmt: skip
    found = plot.read_plot(run, "num_threads", baseline="num_threads=1")
    assert dots(found, 0, "doubtful") == [True, False, False]
    assert all(dots(found, 0, "unsure"))
    assert "2x?" in table_of(found)


def test_a_baseline_that_where_leaves_out_is_told(run):
    """One value of a column cannot be compared with another of the same column."""
    with pytest.raises(UsageError, match=r"has algorithm=gemm \(algorithm is one of winograd\)"):
        plot.read_plot(run, "batch_size", where="algorithm=winograd", baseline="algorithm=gemm")
