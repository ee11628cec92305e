"""Files that analysis writes: CSV as collect writes it, and messages where a file cannot be."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from hpcsweep.analysis import output
from hpcsweep.errors import UsageError


def test_truth_values_are_written_as_in_the_merged_tables(tmp_path):
    """In small letters; what is unknown is an empty cell."""
    path = tmp_path / "x.csv"
    output.write_csv(path, [{"a": True, "b": None}, {"a": False, "b": 1.5}])
    assert path.read_text() == "a,b\ntrue,\nfalse,1.5\n"


def test_a_table_without_rows_has_its_header():
    """A program that reads it finds the columns."""
    assert output.csv_text(["a", "b"], []) == "a,b\n"


def test_text_that_a_spreadsheet_would_compute_gets_a_quote(tmp_path):
    """Numbers stay numbers."""
    path = tmp_path / "x.csv"
    output.write_csv(path, [{"a": "=1+1", "b": -1.5}])
    assert path.read_text() == "a,b\n'=1+1,-1.5\n"


@pytest.mark.parametrize(
    ("ends", "labels"),
    [((0.012, 0.08), ["0.02", "0.05"]), ((30, 900), ["50", "100", "200", "500"]),
     ((0.01, 1000), ["0.01", "0.1", "1", "10", "100", "1000"])],
)  # fmt: skip
def test_a_logarithmic_axis_has_plain_numbers(ends, labels):
    """No powers of ten; where there would be one label or none, those of 2 and 5."""
    axes = Figure().add_subplot()
    axes.set(yscale="log", ylim=ends)
    output.plain_numbers(axes.yaxis)
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
        output.check_picture(tmp_path / name)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    """Here a folder has its name."""
    path = tmp_path / "x.png"
    path.mkdir()
    message = r"x\.png: Is a directory"
    with pytest.raises(UsageError, match=message), output.picture(path, output.LOOK, 2):
        pass
    with pytest.raises(UsageError, match=r"x\.png: Is a directory"):
        output.write_csv(path, [{"a": 1}])
