"""Pictures of rooflines."""

from __future__ import annotations

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

import ncufiles
from hpcsweep.analysis.drawing import Look
from hpcsweep.analysis.roofline import chart, rooflines
from ncufiles import Launch

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
    chart.draw(found, path)
    head = path.read_bytes()[:400]
    assert {"png": b"PNG", "svg": b"<svg", "pdf": b"%PDF"}[suffix] in path.read_bytes()[:2000], head


def test_the_picture_says_what_its_axes_and_areas_are(tmp_path, step):
    """Units on both, roofs with their figures, the title; the longest launch is the largest."""
    found = rooflines.read_roofline([step], label="a step & more", **PEAKS)
    with mpl.rc_context({"svg.fonttype": "none"}):
        chart.draw(found, tmp_path / "step.svg")
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
    chart.draw(found, tmp_path / "k.png")
    assert imread(tmp_path / "k.png").std() > 0
    assert "1 launch without FLOPs: not in the picture" in found.text()


def test_marks_differ_by_name_and_a_paper_has_its_size(tmp_path, step):
    """Black and white prints and colour-blind readers; the bandwidth stands along its roof."""
    found = rooflines.read_roofline([step], **PEAKS)
    figure = Figure()
    chart.fill(figure, found, found.pieces)
    (legend,) = figure.legends
    shapes = {mark.get_paths()[0].vertices.tobytes() for mark in legend.legend_handles}
    assert len(shapes) == len(legend.legend_handles)
    figure.draw_without_rendering()
    (bandwidth,) = (text for text in figure.axes[0].texts if "GB/s" in text.get_text())
    assert 10 < bandwidth.get_rotation() < 80
    chart.draw(found, tmp_path / "x.svg", look=Look(3.5, 4, 7))
    assert 'width="252pt" height="288pt"' in (tmp_path / "x.svg").read_text()
