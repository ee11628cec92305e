"""The picture of the slowest layers."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from hpcsweep.analysis import layers, layers_chart, output
from hpcsweep.errors import UsageError
from layeredsweep import layered


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Return the layers of two sizes with three algorithms."""
    return layers.read(layered(tmp_path_factory.mktemp("layered")), metric="median_ms")


@pytest.fixture(scope="module")
def axes(table):
    """Return the axes of their picture."""
    figure = Figure(figsize=(8.5, 4), layout="constrained")
    layers_chart._fill(figure, table, table.record["algorithms"], log=False)
    figure.draw_without_rendering()
    return figure.axes[0]


def test_each_layer_has_a_row_and_each_algorithm_a_mark_of_its_own(table, axes):
    """The slowest layer is the first row; a mark stands at the time that the table has."""
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows[0].split()[0] == table.frame["layer"][0]
    assert rows[0].endswith(f"{table.frame['share_pct'][0]:.1f} %")
    assert axes.yaxis_inverted()
    marks = [line for line in axes.lines if len(line.get_xdata())]
    assert {line.get_marker() for line in marks} == {"o", "s", "^"}
    auto = [x for line in marks if line.get_marker() == "o" for x in line.get_xdata()]
    assert auto == table.frame["auto"].tolist()


def test_a_call_that_fell_back_is_half_filled_and_told(table, axes):
    """Winograd cannot do the first convolution."""
    half = [line for line in axes.lines if line.get_fillstyle() == "left" and len(line.get_xdata())]
    (place,) = half[0].get_ydata()
    assert table.frame["layer"][round(place)] == "conv1"
    (legend,) = axes.figure.legends
    words = [text.get_text() for text in legend.get_texts()]
    assert words == ["auto", "gemm", "winograd", "some calls ran another algorithm"]


def test_times_have_their_intervals_where_these_are_known(table, axes):
    """From the quartiles of median times; of other columns none are known."""
    frame = table.frame
    assert ((frame["gemm_lo"] < frame["gemm"]) & (frame["gemm"] < frame["gemm_hi"])).all()
    ends = axes.collections[0].get_segments()[0][:, 0].tolist()
    assert ends == [frame["auto_lo"][0], frame["auto_hi"][0]]


def test_labels_do_not_overlap_and_the_smallest_picture_is_refused(table, tmp_path):
    """Rows are as high as their text; a picture without room is refused."""
    for look in (output.LOOK, output.Look(3.4, None, 8), output.Look(5, None, 18)):
        layers_chart.draw(table, tmp_path / "x.svg", look=look)
    with pytest.raises(UsageError, match="leave no room"):
        layers_chart.draw(table, tmp_path / "y.svg", look=output.Look(1, 1))
    assert "<text" in (tmp_path / "x.svg").read_text()


def test_more_algorithms_than_colours_are_refused(table, tmp_path):
    """Nobody could tell them apart."""
    many = layers.View(
        "x", table.frame, table.texts, 1, record={**table.record, "algorithms": ["a"] * 13}
    )
    with pytest.raises(UsageError, match="13 algorithms are too many"):
        layers_chart.draw(many, tmp_path / "x.png")
