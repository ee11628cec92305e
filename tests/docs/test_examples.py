"""The Python in the documents and the notebook: each runs as it stands, from top to bottom."""

from __future__ import annotations

import json
import re

import pytest

import quickstart
from docscripts import DOCS
from hpcsweep.collect import parquet
from paths import ROOT

PAGES = [ROOT / "README.md", DOCS / "python.md", DOCS / "results.md"]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Go where the results of the quickstart sweep are."""
    parquet.write(quickstart.collected(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_example_of_a_page_runs(page, here):
    """One after the other, as a reader would type them."""
    names = {}
    examples = PYTHON.findall(page.read_text())
    assert examples
    for code in examples:
        exec(compile(code, page.name, "exec"), names)


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.ipynb")), ids=lambda path: path.name)
def test_every_notebook_runs(path, here):
    """All cells of code, in order."""
    cells = json.loads(path.read_text())["cells"]
    names = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), path.name, "exec"), names)
    assert {"measured", "winner", "shares", "figure"} <= set(names)
