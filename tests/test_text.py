"""Counts, durations and tables as text."""

from __future__ import annotations

from hpcsweep import text


def test_one_is_singular_and_thousands_have_commas():
    """As people write them."""
    assert [text.count(n, "point") for n in (0, 1, 2000)] == [
        "0 points",
        "1 point",
        "2,000 points",
    ]
    assert text.count(2, "launch") == "2 launches"


def test_a_tally_keeps_its_order_and_forgets_nothing():
    """What the order does not name comes last, by name; zeros are left out."""
    counts = {"pending": 3, "error": 1, "ok": 2, "oom": 0, "else": 1}
    assert text.tally(counts, ("ok", "oom", "error")) == "2 ok, 1 error, 1 else, 3 pending"


def test_a_duration_is_as_exact_as_an_estimate():
    """Never nothing, and hours from an hour and a half on."""
    told = [text.duration(s) for s in (0.2, 89, 90, 5399, 5400, 7_200_000)]
    assert told == ["1 s", "89 s", "2 min", "90 min", "1.5 h", "2,000.0 h"]


def test_numbers_are_aligned_right_and_names_left():
    """Names come first; a table without numbers is aligned left."""
    rows = [["a", "b"], ["long", "1"], ["x", "1000"]]
    assert text.aligned(rows, left=1) == ["a        b", "long     1", "x     1000"]
    assert text.aligned(rows) == ["a     b", "long  1", "x     1000"]


def test_an_empty_table_has_no_lines_and_empty_cells_no_trailing_spaces():
    """Logs and copied text stay clean."""
    assert text.aligned([]) == []
    assert text.aligned([["", ""], ["ab", ""]]) == ["", "ab"]
