"""The Python in the documents and the notebook: each runs as it stands, from top to bottom."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch

import hpcsweep
import quickstart
from docscripts import DOCS
from hpcsweep import api
from hpcsweep.analysis import merged
from hpcsweep.spec import sweep_file
from paths import ROOT

MEASURING = DOCS / "python.md"
PAGES = [ROOT / "README.md", MEASURING, DOCS / "results.md"]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Go where the results of the quickstart sweep are."""
    merged.write_parquet(quickstart.collected(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    return tmp_path


@pytest.fixture
def measures_nothing(here, monkeypatch):
    """Let what an example would measure be what was measured of the quickstart sweep."""
    load = hpcsweep.load

    def run(spec):
        with api._read(spec):  # a sweep that is wrong is refused
            return load("quickstart")

    monkeypatch.setattr(hpcsweep, "run", run)
    monkeypatch.setattr(hpcsweep, "load", lambda _name: load("quickstart"))
    return here


@pytest.mark.slow
def test_every_example_of_the_page_that_measures_runs(here):
    """As the others; every day, it measures nothing."""
    run_examples(MEASURING)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_example_of_a_page_runs(page, request):
    """One after the other, as a reader would type them."""
    request.getfixturevalue("measures_nothing" if page == MEASURING else "here")
    run_examples(page)


def run_examples(page):
    """Run the examples of a page."""
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


def test_every_model_of_the_example_of_own_networks_is_a_network():
    """What the sweep names is in the file beside it."""
    spec = importlib.util.spec_from_file_location("own", ROOT / "examples" / "own_networks.py")
    spec.loader.exec_module(own := importlib.util.module_from_spec(spec))
    models = sweep_file.load(ROOT / "examples" / "own_networks.yaml").values("model")
    for name in (model.partition(":")[2] for model in models):
        assert getattr(own, name)().eval()(torch.zeros(1, 3, 32, 32)).shape[0] == 1


@pytest.mark.slow
def test_the_examples_of_own_networks_run(tmp_path):
    """Each form is measured; what is called as a function has no layer for an algorithm."""
    folder = shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copytree(ROOT / "cluster_profiles", folder / "cluster_profiles")
    file, environment = folder / "own_networks.yaml", {**os.environ, "OMP_NUM_THREADS": "1"}
    quick = (
        file.read_text()
        .replace("[auto, gemm]", "[gemm]")
        .replace("iterations: 10", "iterations: 2")
    )
    file.write_text(quick)
    submit = ("submit", "own_networks.yaml", "--cluster", "local", "--sample", "1", "--collect")
    for command in (("own_networks.py",), ("-c", "from hpcsweep.cli import run; run()", *submit)):
        subprocess.run([sys.executable, *command], cwd=folder, env=environment, check=True)
    rows = hpcsweep.load("own_networks", results=folder / "results").overall
    assert len(rows) == len(rows.groupby(["model", "weights"])) == 5
    assert set(rows["status"]) == {"ok"}
    absent = rows[rows["flags"].str.contains("algorithm_absent", na=False)]
    assert set(absent["model"]) == {"own_networks:Functional"}
