"""What all pictures have in common: axes, names of files, hostile labels."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from matplotlib.figure import Figure

from hpcsweep.analysis import drawing
from hpcsweep.errors import UsageError


@pytest.mark.parametrize(
    ("ends", "labels"),
    [((0.012, 0.08), ["0.02", "0.05"]), ((30, 900), ["50", "100", "200", "500"]),
     ((0.01, 1000), ["0.01", "0.1", "1", "10", "100", "1000"])],
)  # fmt: skip
def test_a_logarithmic_axis_has_plain_numbers(ends, labels):
    """No powers of ten; where there would be one label or none, those of 2 and 5."""
    axes = Figure().add_subplot()
    axes.set(yscale="log", ylim=ends)
    drawing.plain_numbers(axes.yaxis)
    axes.figure.draw_without_rendering()
    ticks = [*axes.yaxis.get_major_ticks(), *axes.yaxis.get_minor_ticks()]
    shown = sorted((tick.get_loc(), tick.label1.get_text()) for tick in ticks)
    assert [text for at, text in shown if text and ends[0] <= at <= ends[1]] == labels


@pytest.mark.parametrize(
    ("name", "words"),
    [("x.gif", "pictures end in .png, .svg, .pdf"), ("no/x.png", "there is no folder")],
)
def test_a_picture_that_cannot_be_written_is_refused_before_it_is_drawn(tmp_path, name, words):
    """A large sweep takes a while to read."""
    with pytest.raises(UsageError, match=words):
        drawing.check_picture(tmp_path / name)


def test_a_picture_of_hostile_labels_is_one_that_browsers_read(tmp_path):
    """SVG is XML, which has no control characters; what turns the direction is shown."""
    with drawing.picture(tmp_path / "x.svg", drawing.LOOK, 3.0) as figure:
        figure.subplots().set_title("a\x1b[31m\u202eb")
    text = (tmp_path / "x.svg").read_text()
    assert ET.fromstring(text).tag.endswith("svg")
    assert "a\\x1b[31m\\u202eb" in text
