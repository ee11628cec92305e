"""Plots of a collected sweep: what makes a line, what is marked, what a baseline is."""

from __future__ import annotations

import csv
import json

import matplotlib as mpl
import pytest

import resultsfolder
from hpcsweep.analysis import columns, plot, plot_chart
from hpcsweep.catalog.columns import OVERALL_COLUMNS
from hpcsweep.collect import workflow
from hpcsweep.errors import UsageError
from hpcsweep.store import shards
from localruns import COMMAND, Desk

SUBMISSION = "20260101-000000-aaaaaa"
SWEEP = """\
name: demo
workload: inference
axes:
  model: [resnet18]
  batch_size: [1, 4, 16]
  algorithm: [winograd, gemm]
  num_threads: [1, 2, 4]
"""


def cells_of(axes):
    """Return times that are exact: 8 ms per image with gemm, half of it with winograd."""
    ms = 8.0 * axes["batch_size"] / axes.get("num_threads", 1)
    ms /= 2 if axes.get("algorithm") == "winograd" else 1
    return {"median_ms": ms, "throughput_ips": 1000 * axes["batch_size"] / ms}


def collected(path, text=SWEEP, cells=cells_of):
    """Return a collected sweep, measured as `cells` of each point's axes says."""
    folder = resultsfolder.make(path, text)
    folder.submit(SUBMISSION, text=text)
    shard = folder.shard(SUBMISSION)
    with shards.ShardWriter(shard) as writer:
        for point in folder.points:
            resultsfolder.commit(writer, point, shard, **cells(point.axes))
    workflow.collect(folder.run)
    return folder.run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a sweep of 18 points: batch sizes, algorithms, threads."""
    return collected(tmp_path_factory.mktemp("run"))


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
    assert "values are medians over num_threads, of up to 3 points each" in found.text()


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
    assert "16?" in found.text()
    assert "?  unreliable: noisy (3 points)" in found.text()
    with mpl.rc_context({"svg.fonttype": "none"}):
        plot_chart.draw(found, tmp_path / "x.svg")
    legend = (tmp_path / "x.svg").read_text().partition("unreliable:")[2]
    assert "noisy" in legend


def test_only_measured_points_that_the_sweep_still_has_are_shown(tmp_path):
    """Failures have no time; orphans are no longer asked for."""
    folder = resultsfolder.make(tmp_path, SWEEP)
    folder.submit(SUBMISSION, text=SWEEP)
    shard = folder.shard(SUBMISSION)
    with shards.ShardWriter(shard) as writer:
        for point in folder.points:
            status = "oom" if point.axes["batch_size"] == 16 else "ok"
            cells = cells_of(point.axes) if status == "ok" else {}
            resultsfolder.commit(writer, point, shard, status=status, **cells)
    smaller = SWEEP.replace("[1, 4, 16]", "[1, 16]")
    folder.submit(
        "20260102-000000-bbbbbb", resultsfolder.points_of(tmp_path, smaller), text=smaller
    )
    workflow.collect(folder.run)
    found = plot.read(folder.run, "batch_size")
    assert found.places == [1]
    assert "(6 ok, 6 oom, 6 orphans left out)" in found.text()


def test_a_baseline_is_the_point_that_is_equal_but_for_what_is_named(run):
    """Of a time: baseline over value."""
    found = plot.read(run, "num_threads", by=["algorithm"], baseline="num_threads=1")
    assert [dot.speedup for dot in found.lines[0].dots] == [1.0, 2.0, 4.0]
    assert found.compared == "speed-up over num_threads=1"
    assert "4x" in found.text()


def test_of_a_rate_more_is_faster(run):
    """Value over baseline."""
    found = plot.read(run, "num_threads", "throughput_ips", baseline="num_threads=1")
    assert {tuple(dot.speedup for dot in line.dots) for line in found.lines} == {(1.0, 2.0, 4.0)}


def test_a_baseline_may_differ_in_several_columns(run):
    """Then every point is compared with one of another algorithm and other threads."""
    found = plot.read(run, "batch_size", baseline="algorithm=gemm,num_threads=1")
    best = next(line for line in found.lines if line.label == "winograd, num_threads 4")
    assert [dot.speedup for dot in best.dots] == [8.0, 8.0, 8.0]


def test_of_what_is_neither_time_nor_rate_a_ratio_is_told(tmp_path):
    """More memory is no speed-up."""
    memory = collected(tmp_path, SWEEP, lambda axes: {"mem_peak_bytes": 1000 * axes["batch_size"]})
    found = plot.read(memory, "num_threads", "mem_peak_bytes", baseline="batch_size=1")
    assert found.compared == "ratio to batch_size=1"
    assert {dot.speedup for line in found.lines for dot in line.dots} == {1.0, 4.0, 16.0}


def test_points_without_a_baseline_are_counted(tmp_path):
    """A missing cell stays a missing cell."""
    text = SWEEP + "exclude:\n  - {batch_size: 16, num_threads: 1}\n"
    found = plot.read(collected(tmp_path, text), "batch_size", baseline="num_threads=1")
    assert "4 points have no baseline: no row has num_threads=1 with the same" in found.text()
    assert [dot.speedup for dot in found.lines[1].dots] == [2.0, 2.0, None]


def test_a_baseline_of_several_rows_is_told_and_is_their_median(tmp_path):
    """Repeats with other seeds."""
    text = SWEEP.replace("[1, 4, 16]", "[1]") + "  seed: [0, 1, 2]\n"
    run = collected(
        tmp_path, text, lambda a: {"median_ms": 6.0 + a["seed"] * (a["num_threads"] < 2)}
    )
    found = plot.read(run, "num_threads", baseline="num_threads=1")
    assert "a baseline matches up to 3 rows; their median counts" in found.text()
    assert [dot.speedup for dot in found.lines[0].dots][1:] == pytest.approx([7 / 6, 7 / 6])


def test_a_doubtful_baseline_puts_what_is_compared_in_doubt(tmp_path):
    """A ratio is as good as the worse of the two."""
    run = collected(
        tmp_path, SWEEP,
        lambda a: {**cells_of(a), "flags": "very_noisy" if a["num_threads"] == 1 else ""},
    )  # fmt: skip
    found = plot.read(run, "num_threads", baseline="num_threads=1")
    assert [dot.doubtful for dot in found.lines[0].dots] == [True, False, False]
    assert all(dot.unsure for dot in found.lines[0].dots)
    assert "2x?" in found.text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"x": "bach_size"}, "no column 'bach_size'; did you mean 'batch_size'"),
        ({"y": "troughput_ips"}, "did you mean 'throughput_ips'"),
        ({"by": ["algoritm"]}, "did you mean 'algorithm'"),
        ({"y": "layer_rows", "where": "num_threads=3"}, r"has num_threads=3 \(.*1, 2, 4\)"),
        ({"where": "num_threads"}, "is no column=value"),
        ({"baseline": "num_threads=3"}, r"has num_threads=3 \(.*1, 2, 4\)"),
        ({"baseline": "num_thread=1"}, "did you mean 'num_threads'"),
        ({"y": "status"}, "status holds no numbers"),
        ({"x": "energy_j"}, "no measured point has both energy_j and median_ms"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(run, options, words):
    """The nearest column, or the values that there are."""
    given = {"x": "batch_size", **options}
    with pytest.raises(UsageError, match=words):
        plot.read(run, given.pop("x"), given.pop("y", "median_ms"), **given)


def test_a_picture_holds_twelve_lines(tmp_path):
    """More are refused with the remedy; the table still shows them."""
    text = SWEEP.replace("[1, 2, 4]", "[1, 2, 3, 4, 5, 6, 7]")
    found = plot.read(collected(tmp_path, text), "batch_size")
    assert len(found.lines) == 14
    with pytest.raises(UsageError, match=r"14 lines \(algorithm x num_threads\).*--by"):
        plot_chart.draw(found, tmp_path / "x.png")
    assert "num_threads  batch_size" in found.text()


@pytest.mark.parametrize("x", ["batch_size", "algorithm"])
def test_pictures_say_quantities_units_and_lines(tmp_path, run, x):
    """Lines over quantities, bars over names; a panel more with a baseline."""
    found = plot.read(run, x, baseline="num_threads=1", where="model=resnet18")
    with mpl.rc_context({"svg.fonttype": "none"}):
        plot_chart.draw(found, tmp_path / "x.svg", log_x=x == "batch_size", log_y=True)
    text = (tmp_path / "x.svg").read_text()
    for words in ("median (ms)", "speed-up", "over num_threads=1", *labels(found)):
        assert words in text, words
    assert ("batch size (images)" if x == "batch_size" else "winograd") in text


def test_a_logarithmic_axis_needs_positive_quantities(tmp_path, run):
    """Dropping values silently would be worse."""
    names = plot.read(run, "algorithm")
    with pytest.raises(UsageError, match="algorithm holds names"):
        plot_chart.draw(names, tmp_path / "x.png", log_x=True)
    zeros = plot.read(
        collected(tmp_path, SWEEP, lambda _axes: {**cells_of(_axes), "other_pct": 0.0}),
        "batch_size", "other_pct",
    )  # fmt: skip
    with pytest.raises(UsageError, match="other_pct has values that are not positive"):
        plot_chart.draw(zeros, tmp_path / "x.png", log_y=True)


def test_the_command_writes_table_picture_csv_and_json(run):
    """The same values everywhere."""
    desk = Desk(run.path.parent.parent)
    arguments = (
        "--x",
        "num_threads",
        "--by",
        "algorithm,batch_size",
        "--baseline",
        "num_threads=1",
    )
    done = desk.run_process(
        "plot", "demo", *arguments, "--out", "x.png", "--summary", "x.csv", "--json"
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    rows = list(csv.DictReader((desk.folder / "x.csv").read_text().splitlines()))
    assert [float(row["median_ms"]) for row in rows] == [r["median_ms"] for r in record["rows"]]
    assert rows[0] == {
        "algorithm": "gemm", "batch_size": "1", "num_threads": "1", "median_ms": "8.0", "n": "1",
        "doubtful": "false", "baseline": "num_threads=1", "speedup": "1.0",
    }  # fmt: skip
    assert (desk.folder / "x.png").read_bytes().startswith(b"\x89PNG")
    assert "x.png" in done.stderr


def test_the_command_says_what_is_wrong_in_a_line(run):
    """Exit code 2; nothing is written."""
    desk = Desk(run.path.parent.parent)
    assert COMMAND
    for arguments, words in (
        (("demo", "--x", "bach_size"), "did you mean 'batch_size'"),
        (("demo", "--x", "batch_size", "--out", "x.gif"), "pictures end in .png"),
        (("dmeo",), "did you mean 'demo'"),
    ):
        done = desk.run("plot", *arguments)
        assert done.returncode == 2
        assert words in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("median_ms", "median (ms)"),
        ("wall_s", "wall (s)"),
        ("pct_peak_compute", "peak compute (%)"),
        ("achieved_tflops", "achieved (TFLOP/s)"),
        ("input_size", "input size (pixels)"),
        ("mem_peak_bytes", "mem peak (bytes)"),
        ("params", "params"),
    ],
)
def test_axes_are_labelled_with_units(column, words):
    """From the suffix, as docs/results.md says."""
    assert columns.label(column) == words


def test_times_and_rates_are_told_apart():
    """No column is both, and counts are neither."""
    assert not [c for c in OVERALL_COLUMNS if columns.is_time(c) and columns.is_rate(c)]
    assert columns.is_time("forward_ms")
    assert columns.is_rate("throughput_sps")
    assert not columns.is_time("params")
