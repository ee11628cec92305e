"""One table in several forms."""

from __future__ import annotations

import json

import pandas as pd

from hpcsweep.analysis.formats import View

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


def test_csv_and_json_hold_the_values():
    """Nothing is rounded; what is unknown is empty, or null."""
    assert VIEW.written("csv") == "name,ms\na|b,1.23456\nc_d,"
    record = json.loads(json.dumps(VIEW.to_json()))
    assert record["rows"] == [{"name": "a|b", "ms": 1.23456}, {"name": "c_d", "ms": None}]
    assert (record["sweep"], record["notes"]) == ("demo", ["why"])
