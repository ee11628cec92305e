"""Pictures of plots and rooflines: lines, bars, marks, legends, logarithmic axes."""

from __future__ import annotations

import re
from itertools import pairwise

import matplotlib as mpl
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.image import imread

import ncufiles
from analysistables import table_of
from collectedsweep import SWEEP, cells_of, collected
from hpcsweep.analysis import charts, drawing, plot
from hpcsweep.analysis.drawing import Look
from hpcsweep.analysis.roofline import rooflines
from hpcsweep.errors import UsageError
from ncufiles import Launch


def test_a_picture_holds_twelve_lines(tmp_path):
    """More are refused with the remedy; the table still shows them."""
    text = SWEEP.replace("[1, 2, 4]", "[1, 2, 3, 4, 5, 6, 7]")
    found = plot.read_plot(collected(tmp_path, text), "batch_size")
    assert len(found.lines) == 14
    with pytest.raises(UsageError, match=r"14 lines \(algorithm x num_threads\).*--by"):
        charts.draw_plot(found, tmp_path / "x.png")
    assert all(line in table_of(found) for line in found.lines)


@pytest.mark.slow
@pytest.mark.parametrize("x", ["batch_size", "algorithm"])
def test_pictures_say_quantities_units_and_lines(tmp_path, run, x):
    """Lines over quantities, bars over names; a panel more with a baseline."""
    found = plot.read_plot(run, x, baseline="num_threads=1", where="model=resnet18")
    with mpl.rc_context({"svg.fonttype": "none"}):
        charts.draw_plot(found, tmp_path / "x.svg", log_x=x == "batch_size", log_y=True)
    text = (tmp_path / "x.svg").read_text()
    labels = found.lines
    for words in ("median (ms)", "speed-up", "over num_threads=1", *labels):
        assert words in text, words
    assert ("batch size (images)" if x == "batch_size" else "winograd") in text


def test_a_logarithmic_axis_needs_positive_quantities(tmp_path, run):
    """Dropping values silently would be worse."""
    names = plot.read_plot(run, "algorithm")
    with pytest.raises(UsageError, match="algorithm holds names"):
        charts.draw_plot(names, tmp_path / "x.png", log_x=True)
    zeros = plot.read_plot(
        collected(tmp_path, SWEEP, lambda _axes: {**cells_of(_axes), "other_pct": 0.0}),
        "batch_size", "other_pct",
    )  # fmt: skip
    with pytest.raises(UsageError, match="other_pct has values that are not positive"):
        charts.draw_plot(zeros, tmp_path / "x.png", log_y=True)


LONG = """\
name: demo
workload: inference
axes:
  model: [resnet18]
  input_size: [64, 65, 66, 128, 224]
  algorithm: [auto, implicit_precomp_gemm, winograd_nonfused, implicit_gemm]
"""


def paper_cells(axes):
    """Return a time with its interval; winograd_nonfused did a part of the work."""
    ms = axes["input_size"] / 10
    covered = 60.0 if axes["algorithm"] == "winograd_nonfused" else 100.0
    return {
        "median_ms": ms, "ci95_lo_ms": ms - 1, "ci95_hi_ms": ms + 2,
        "algorithm_coverage_pct": covered, "device_name": "Tesla V100-SXM2-32GB",
        "driver_version": "550.54",
    }  # fmt: skip


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    """Return a sweep with intervals, partial coverage and long names."""
    return collected(tmp_path_factory.mktemp("paper"), LONG, paper_cells)


def drawn(plotted, look=drawing.LOOK):
    """Return the figure of a plot."""
    with mpl.rc_context({"font.size": look.font}):
        figure = charts.picture_of(plotted, look)
        figure.draw_without_rendering()
    return figure


def test_values_have_their_stored_intervals(paper):
    """In the picture, in JSON and in CSV; a column without an interval has none."""
    found = plot.read_plot(paper, "input_size")
    assert found.frame()["ci95_lo_ms"][0] == pytest.approx(5.4)
    bars = [c for c in drawn(found).axes[0].collections if isinstance(c, LineCollection)]
    ends = sorted(bar.get_segments()[0][:, 1].tolist() for bar in bars)
    assert len(ends) == 4 * 5
    assert ends[0] == pytest.approx([5.4, 8.4])
    other = plot.read_plot(paper, "input_size", "algorithm_coverage_pct")
    assert "ci95_lo_ms" not in other.frame()
    assert not drawn(other).axes[0].collections


def test_markers_differ_and_partial_coverage_is_half_filled(paper):
    """So that a print in black and white can be read."""
    axes = drawn(plot.read_plot(paper, "input_size")).axes[0]
    marks = [line for line in axes.lines if line.get_marker() not in {"None", None, ""}]
    assert len({line.get_marker() for line in marks}) == 4
    halves = {line.get_marker() for line in marks if line.get_fillstyle() == "left"}
    assert len(halves) == 1


def test_bars_of_partial_coverage_are_hatched(paper):
    """And the legend says what that means."""
    figure = drawn(plot.read_plot(paper, "algorithm", where="input_size=64"))
    hatched = [bar for bar in figure.axes[0].patches if bar.get_hatch()]
    assert len(hatched) == 1
    words = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    words += [text.get_text() for text in getattr(figure.axes[0].get_legend(), "texts", [])]
    assert "in a part of\nthe convolutions" in words


def test_hatches_are_seen_on_every_colour(tmp_path):
    """Black lines on a black bar would be none."""
    text = LONG.replace("[64, 65, 66, 128, 224]", "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]")
    found = plot.read_plot(collected(tmp_path, text, paper_cells), "algorithm", by=["input_size"])
    hatched = [bar for bar in drawn(found).axes[0].patches if bar.get_hatch()]
    assert len(hatched) == 12
    for bar in hatched:
        light = [0.2 * red + 0.7 * green + 0.1 * blue for red, green, blue, _ in
                 (bar.get_facecolor(), bar.get_edgecolor())]  # fmt: skip
        assert abs(light[0] - light[1]) > 0.25


@pytest.mark.slow
@pytest.mark.parametrize("x", ["input_size", "algorithm"])
@pytest.mark.parametrize("look", [drawing.LOOK, Look(3.4, 3.4, 7)])
def test_no_label_is_printed_over_another(paper, x, look):
    """Close numbers are left out, long names are turned."""
    axis = drawn(plot.read_plot(paper, x), look).axes[0].xaxis
    labels = [one for one in axis.get_ticklabels() if one.get_text() and one.get_visible()]
    assert len(labels) >= 3
    if x == "input_size":
        boxes = [label.get_window_extent() for label in labels]
        assert all(a.x1 <= b.x0 for a, b in pairwise(boxes))
    else:
        assert len(labels) == 4
        assert {label.get_rotation() for label in labels} == {30.0}
        for label, place in zip(labels, axis.get_ticklocs(), strict=True):
            tick = axis.axes.transData.transform((place, 0))[0]
            assert abs(label.get_window_extent().x1 - tick) < 2 * label.get_fontsize()


def test_a_picture_has_size_font_hardware_and_text_that_is_text(tmp_path, paper):
    """As a paper's column needs it; text can be searched and edited."""
    path = tmp_path / "x.svg"
    look = Look(width=3.5, height=2.5, font=8)
    charts.draw_plot(plot.read_plot(paper, "input_size"), path, look=look)
    text = path.read_text()
    assert 'width="252pt" height="180pt"' in text
    assert "Tesla V100-SXM2-32GB; driver 550.54" not in text  # that is for the caption
    charts.draw_plot(plot.read_plot(paper, "input_size"), tmp_path / "wide.svg")
    assert "Tesla V100-SXM2-32GB; driver 550.54" in (tmp_path / "wide.svg").read_text()
    assert "implicit_precomp_gemm</text>" in text
    assert re.search(r"font(-size)?: 8px", text)
    pdf = tmp_path / "x.pdf"
    charts.draw_plot(plot.read_plot(paper, "input_size"), pdf, look=look)
    assert b"/TrueType" in pdf.read_bytes() or b"/CIDFontType2" in pdf.read_bytes()
    assert b"/Type3" not in pdf.read_bytes()


def test_in_a_column_of_a_paper_the_plot_keeps_two_thirds(paper):
    """Of 3.4 x 2.6 inches with text of 8 points."""
    figure = drawn(plot.read_plot(paper, "input_size"), Look(3.4, 2.6, 8))
    box = figure.axes[0].get_position()
    assert box.width * box.height > 2 / 3


def test_an_algorithm_has_one_colour_and_mark_everywhere(paper):
    """Whatever else is drawn beside it; other axes change the mark and the dashes."""

    def styles(**options):
        found = plot.read_plot(paper, "input_size", by=["algorithm"], **options)
        drawn_ones = [(one.get_color(), one.get_marker()) for one in drawn(found).axes[0].lines]
        marked = [look for look in dict.fromkeys(drawn_ones) if look[1] in drawing.MARKERS]
        return dict(zip(found.lines, marked, strict=True))

    among = styles()
    assert styles(where="algorithm=implicit_gemm") == {"implicit_gemm": among["implicit_gemm"]}
    assert among["implicit_gemm"] == drawing.styles(["x", "implicit_gemm"])["implicit_gemm"]
    assert len({*among.values()}) == len(among)
    twelve = drawing.styles(map(str, range(12)))
    assert len({*twelve.values()}) == 12
    assert len(drawing.styles(map(str, range(40)))) == 40


def test_intervals_of_unreliable_values_do_not_set_the_scale(tmp_path):
    """They are drawn, and may leave the picture."""

    def cells(axes):
        wide = {"ci95_lo_ms": 0.1, "ci95_hi_ms": 500.0, "flags": "very_noisy", "valid": False}
        near = {"ci95_lo_ms": 0.9, "ci95_hi_ms": 1.4}
        return {"median_ms": 1.0, **(wide if axes["batch_size"] == 1 else near)}

    found = plot.read_plot(collected(tmp_path, SWEEP, cells), "batch_size", by=["algorithm"])
    assert drawn(found).axes[0].get_ylim()[1] == pytest.approx(1.4 * 1.1)


def test_a_picture_too_small_for_its_labels_is_refused(tmp_path, paper):
    """With what to change; the picture would hold labels only."""
    with pytest.raises(UsageError, match=r"2 x 1 inches leave no room .*--width"):
        charts.draw_plot(plot.read_plot(paper, "algorithm"), tmp_path / "x.png", look=Look(2, 1))
    assert not (tmp_path / "x.png").exists()


def test_any_name_can_stand_in_a_picture(tmp_path):
    """A dollar is no formula; a letter that the font lacks is a box, and no warning."""
    name = "H100 $x^ 名前 <script>"
    run = collected(tmp_path, LONG, lambda axes: {**paper_cells(axes), "device_name": name})
    charts.draw_plot(plot.read_plot(run, "input_size"), tmp_path / "x.svg")
    assert "H100 $x^ 名前 &lt;script&gt;" in (tmp_path / "x.svg").read_text()


PEAKS = {"peak_compute": 10.0, "peak_bw": 1000.0}


@pytest.mark.parametrize(
    "suffix",
    [
        "png",
        pytest.param("svg", marks=pytest.mark.slow),
        pytest.param("pdf", marks=pytest.mark.slow),
    ],
)
def test_pictures_are_drawn_without_a_display(tmp_path, step, suffix):
    """By suffix."""
    found = rooflines.read_roofline([step], label="a step", **PEAKS)
    path = tmp_path / f"step.{suffix}"
    charts.draw_roofline(found, path)
    head = path.read_bytes()[:400]
    assert {"png": b"PNG", "svg": b"<svg", "pdf": b"%PDF"}[suffix] in path.read_bytes()[:2000], head


def test_the_picture_says_what_its_axes_and_areas_are(tmp_path, step):
    """Units on both, roofs with their figures, the title; the longest launch is the largest."""
    found = rooflines.read_roofline([step], label="a step & more", **PEAKS)
    with mpl.rc_context({"svg.fonttype": "none"}):
        charts.draw_roofline(found, tmp_path / "step.svg")
    text = (tmp_path / "step.svg").read_text()
    longest = found.export.work["seconds"].max()
    for words in (
        "arithmetic intensity (FLOP/byte)", "performance (TFLOP/s)", "peak 10 TFLOP/s",
        "1000 GB/s", "a step &amp; more", "26 others", "area: time", f">{1e3 * longest:.3g} ms<",
        " us or less<",
    ):  # fmt: skip
        assert words in text


def test_nothing_to_draw_is_still_a_picture(tmp_path):
    """A kernel without FLOPs has no place on a logarithmic axis; the roofs stand."""
    path = ncufiles.write_wide(tmp_path / "k.csv", [Launch(0, "copy")])
    found = rooflines.read_roofline([path], **PEAKS)
    charts.draw_roofline(found, tmp_path / "k.png")
    assert imread(tmp_path / "k.png").std() > 0
    assert "1 launch without FLOPs: not in the picture" in found.text()


def test_marks_differ_by_name_and_a_paper_has_its_size(tmp_path, step):
    """Black and white prints and colour-blind readers; the bandwidth stands along its roof."""
    found = rooflines.read_roofline([step], **PEAKS)
    figure = Figure()
    charts.fill_roofline(figure, found, found.pieces)
    (legend,) = figure.legends
    shapes = {mark.get_paths()[0].vertices.tobytes() for mark in legend.legend_handles}
    assert len(shapes) == len(legend.legend_handles)
    figure.draw_without_rendering()
    (bandwidth,) = (text for text in figure.axes[0].texts if "GB/s" in text.get_text())
    assert 10 < bandwidth.get_rotation() < 80
    charts.draw_roofline(found, tmp_path / "x.svg", look=Look(3.5, 4, 7))
    assert 'width="252pt" height="288pt"' in (tmp_path / "x.svg").read_text()
