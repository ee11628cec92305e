"""Counts, durations and tables as text."""

from __future__ import annotations

import math

import pytest

from hpcsweep import text
from hpcsweep.text import number_in, printable


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


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2", 2), ("-0.50", -0.5), ("1e-3", 0.001), (".5", 0.5), ("+3", 3), ("-inf", -math.inf),
        ("007", None), ("12e5678", None), ("0x10", None), ("1_000", None), ("2.1.0", None),
        ("", None), ("12e", None), ("\u0663", None),
    ],
)  # fmt: skip
def test_a_text_is_a_number_as_programs_write_them(text, number):
    """Names of versions and commits are texts."""
    assert number_in(text) == number
    assert type(number_in(text)) is type(number)


def test_nan_is_a_number():
    """In any case."""
    assert math.isnan(number_in("NaN"))


def test_control_characters_are_shown_and_do_nothing():
    """Escape sequences, bells, returns and what turns the direction; lines and tabs stay."""
    assert printable("a\x1b[31mb\x07\r\x9b\u202ec") == "a\\x1b[31mb\\x07\\r\\x9b\\u202ec"
    assert printable("a\tb\nä 中 ✓") == "a\tb\nä 中 ✓"


def test_a_cell_stays_in_its_line_and_column():
    """Tabs and ends of lines are shown, too."""
    assert text.shown("a\tb\nc\u200b") == "a\\tb\\nc\\u200b"
    assert text.aligned([["a\nb", "c"]]) == ["a\\nb  c"]


@pytest.mark.parametrize(
    ("cell", "safe"),
    [
        ("=1+1", "'=1+1"), ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"), ("@SUM(1)", "'@SUM(1)"),
        ("-1+2", "'-1+2"), ("  =1", "'  =1"), ("\uff1d1", "'\uff1d1"), ("\t=1", "\\t=1"),
        ("\r=1", "\\r=1"), ("-1.5e-3", "-1.5e-3"), ("+3", "+3"), ("-inf", "-inf"), ("-", "-"),
        ("resnet18", "resnet18"), ("a=b", "a=b"), ("", ""),
    ],
)  # fmt: skip
def test_no_cell_is_a_formula_of_a_spreadsheet(cell, safe):
    """Numbers stay numbers."""
    assert text.in_sheet(cell) == safe


def test_a_table_fits_a_terminal_in_blocks():
    """Heads are broken at `_` first; what is left over follows, with the names again."""
    rows = [["model", "implicit_gemm", "gemm"], ["resnet18", "1.5", "12.5"]]
    assert text.fitted(rows, 1, None) == text.fitted(rows, 1, 29) == text.aligned(rows, 1)
    assert text.fitted(rows, 1, 25) == [
        "          implicit_",
        "model          gemm  gemm",
        "resnet18        1.5  12.5",
    ]
    assert text.fitted(rows, 1, 20) == [
        "          implicit_",
        "model          gemm",
        "resnet18        1.5",
        "",
        "model     gemm",
        "resnet18  12.5",
    ]


def test_lines_are_folded_or_cut_to_a_width():
    """Where there is one; a word that is longer stays whole."""
    assert text.folded(["aa bb cc", "d"], 6) == ["aa bb", "   cc", "d"]
    assert text.folded(["   /a/long/path"], 6) == ["   /a/long/path"]
    assert text.folded(["aa bb cc"], None) == ["aa bb cc"]
    assert (text.cut("123456789", 8), text.cut("12345678", 8)) == ("12345...", "12345678")


@pytest.mark.parametrize(
    "code", [0x200E, 0x200F, 0x61C, 0x202E, 0x2066, 0x200B, 0xFEFF, 0x9B, 0xE0041]
)
def test_marks_of_direction_and_of_no_width_are_shown(code):
    """A name looks as it is written."""
    assert text.printable(f"a{chr(code)}b").isascii()
