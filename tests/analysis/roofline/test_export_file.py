"""The reader of profilers' tables: strict, and with the line of what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcsweep.analysis.roofline import export_file
from hpcsweep.errors import UsageError

FILE = Path("x.csv")


def test_rows_are_labelled_with_their_lines():
    """Lines that are no part of the table are empty; cells stay text, commas included."""
    rows = export_file.table(FILE, ["", '"a","b"', "", '"1","2,3"', "", '"","n/a"'], 1, "how")
    assert list(rows.columns) == ["a", "b"]
    assert list(rows.index) == ["x.csv, line 4", "x.csv, line 6"]
    assert rows.to_numpy().tolist() == [["1", "2,3"], ["", "n/a"]]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("1", "x.csv, line 3: 1 of 2 cells: the export was cut; how"),
        ("1,2,3", "Expected 2 fields in line 3, saw 3: the export was cut; how"),
        ('"1","2', "x.csv: unexpected end of data: the export was cut; how"),
        ('"1"x,2', "the export was cut; how"),
    ],
)
def test_a_row_that_does_not_fit_the_header_is_refused(row, words):
    """Half of a table is no table."""
    with pytest.raises(UsageError) as told:
        export_file.table(FILE, ["a,b", "", row], 0, "how")
    assert words in str(told.value)
