"""Pictures of plots: lines, bars, legends, logarithmic axes."""

from __future__ import annotations

import matplotlib as mpl
import pytest

from collectedsweep import SWEEP, cells_of, collected
from hpcsweep.analysis import plot, plot_chart
from hpcsweep.errors import UsageError


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
    labels = [line.label for line in found.lines]
    for words in ("median (ms)", "speed-up", "over num_threads=1", *labels):
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
