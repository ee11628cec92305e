"""A table in each form; what the name of a column says."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from hpcsweep.analysis import formats
from hpcsweep.analysis.formats import View
from hpcsweep.catalog.columns import OVERALL_COLUMNS

FRAME = pd.DataFrame({"name": ["a|b", "c_d"], "ms": [1.23456, float("nan")]})
TEXTS = pd.DataFrame({"name": ["a|b", "c_d"], "ms": ["1.23 ", "-"]})
VIEW = View("title", FRAME, TEXTS, left=1, notes=["why"], record={"sweep": "demo"})


def test_a_terminal_gets_title_and_notes():
    """Names left, numbers right."""
    assert VIEW.written("table") == "title\n\nname     ms\na|b   1.23\nc_d       -\n\n   why"


def test_markdown_and_latex_escape_what_means_something_there():
    """A pipe would end a cell, and an underscore needs mathematics."""
    assert r"| a\|b | 1.23 |" in VIEW.written("md")
    assert r"c\_d & - \\" in VIEW.written("latex")
    assert r"\begin{tabular}{lr}" in VIEW.written("latex")


def test_latex_has_caption_label_and_notes():
    """Around the table, which booktabs rules."""
    texts = pd.DataFrame({"name": ["a", "b"], "ms": ["1.23 ?  83 %", "timeout"]})
    view = View("demo: ms (1 ok)", FRAME, texts, left=1, notes=["why_not"], marks=["%  share"])
    lines = view.written("latex").splitlines()
    assert lines[2:4] == [r"\caption{demo: ms (1 ok)}", r"\label{tab:demo-ms}"]
    assert r"\begin{tabular}{lr}" in lines
    assert r"a & 1.23 ?  83 \% \\" in lines
    assert r"\midrule" in lines
    assert lines[-3:-1] == [rf"\par\smallskip\footnotesize {x}" for x in (r"\% share", r"why\_not")]


def test_csv_and_json_hold_the_values():
    """Nothing is rounded; what is unknown is empty, or null."""
    assert VIEW.written("csv") == "name,ms\na|b,1.23456\nc_d,"
    record = json.loads(json.dumps(VIEW.to_json()))
    assert record["rows"] == [{"name": "a|b", "ms": 1.23456}, {"name": "c_d", "ms": None}]
    assert (record["sweep"], record["notes"]) == ("demo", ["why"])


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
    assert formats.label(column) == words


def test_times_and_rates_are_told_apart():
    """No column is both, and counts are neither."""
    assert not [c for c in OVERALL_COLUMNS if formats.is_time(c) and formats.is_rate(c)]
    assert formats.is_time("forward_ms")
    assert formats.is_rate("throughput_sps")
    assert not formats.is_time("params")


def test_markup_in_a_name_stands_in_markdown_as_it_was_typed():
    """A network may have any name; one with underscores stays readable in the source, too."""
    names = ["<img src=x>", "**a** `b` [c](d)", "efficientnet_b0", "_a_", "a\\|b &lt;"]
    frame = pd.DataFrame({"model": names})
    lines = View("t", frame, frame, 1).written("md").splitlines()[2:]
    assert lines == [
        r"| \<img src=x\> |",
        r"| \*\*a\*\* \`b\` \[c\](d) |",
        "| efficientnet_b0 |",
        r"| \_a\_ |",
        r"| a\\\|b \&lt; |",
    ]


def test_truth_values_are_written_as_in_the_merged_tables(tmp_path):
    """In small letters; what is unknown is an empty cell."""
    path = tmp_path / "x.csv"
    formats.write_csv(path, [{"a": True, "b": None}, {"a": False, "b": 1.5}])
    assert path.read_text() == "a,b\ntrue,\nfalse,1.5\n"


def test_a_table_without_rows_has_its_header():
    """A program that reads it finds the columns."""
    assert formats.csv_text(["a", "b"], []) == "a,b\n"
