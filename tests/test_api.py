"""The tables in Python: what `hpcsweep.load` and `hpcsweep.run` return."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import hpcsweep
from hpcsweep.errors import ConfigError, SpecError, UsageError
from layeredsweep import REPEATED, layered


class Net:
    """A network that no test builds."""


NOOP = {"name": "trial", "workload": "noop", "axes": {"model": ["a"], "input_size": [1, 2]}}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return a folder in which a sweep of two points is measured, as Python does it."""
    folder = tmp_path_factory.mktemp("api") / "results"
    failing = [{"when": {"input_size": 2}, "how": "error"}]
    with pytest.warns(UserWarning, match="trial: 1 error: "):
        hpcsweep.run({**NOOP, "measure": {"fail": failing}}, results=folder)
    return folder


def test_import_loads_nothing_heavy():
    """So that it takes 30 ms at most: no pandas, torch or pydantic, and a handful of modules."""
    code = """
import sys
before = set(sys.modules)
import hpcsweep
more = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(more - sys.stdlib_module_names), len(set(sys.modules) - before))
print(sorted(set(hpcsweep.__all__) - set(dir(hpcsweep))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own, hidden = done.stdout.splitlines()
    assert own.startswith("['hpcsweep'] ")
    assert int(own.split()[-1]) < 5
    assert hidden == "[]"


def test_the_functions_need_nothing_of_the_command_line(tmp_path):
    """Neither click nor a module of the commands, whatever they do."""
    code = f"""
import sys
import hpcsweep
hpcsweep.run({NOOP!r}, results={str(tmp_path)!r})
hpcsweep.load("trial", results={str(tmp_path)!r}).overall
print([name for name in sys.modules if name.startswith(("click", "hpcsweep.cli"))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "thread", ["", "import threading\nt = threading.Thread(target=go)\nt.start()\nt.join()\n"]
)
def test_a_script_is_warned_in_its_own_line(tmp_path, thread):
    """Of a point that failed; from another thread, too, which hears no signals."""
    sweep = {**NOOP, "measure": {"fail": [{"how": "oom"}]}}
    text = f"import hpcsweep\ndef go():\n    hpcsweep.run({sweep!r}, results={str(tmp_path)!r})\n"
    (tmp_path / "script.py").write_text(text + (thread or "go()\n"))
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=True
    )
    assert "script.py:3: UserWarning: trial" in done.stderr
    assert "Traceback" not in done.stderr
    assert set(hpcsweep.load("trial", results=tmp_path).overall["status"]) == {"oom"}


def test_a_configuration_file_names_the_folder_of_results(results, monkeypatch, tmp_path):
    """Relative to the file, from every folder below it; what is wrong in it has its line."""
    below = results.parent / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    monkeypatch.delenv("HPCSWEEP_RESULTS", raising=False)
    file = results.parent / "hpcsweep.toml"
    file.write_text('results = "results"\n')
    assert hpcsweep.load("trial").sweep_dir.path == results / "trial"
    file.write_text("# ours\nresults = 3\n")
    with pytest.raises(ConfigError, match=r"hpcsweep\.toml:2: results: needs text"):
        hpcsweep.load("trial")
    file.unlink()


def test_run_measures_and_returns_the_tables(results):
    """A point that failed is a row with its reason; no exception."""
    found = hpcsweep.load("trial", results=results)
    assert list(found.overall["status"]) == ["ok", "error"]
    assert found.overall["status_reason"].notna().tolist() == [False, True]
    assert set(found.samples["point_id"]) == set(found.overall["point_id"][:1])
    assert found.layers.empty
    assert repr(found) == f"Results('{results / 'trial'}')"


def test_columns_have_the_types_of_the_catalogue(results):
    """A whole number stays one where cells are empty, and an empty cell is NA."""
    table = hpcsweep.load("trial", results=results).overall
    wanted = {
        "input_size": "Int64", "n": "Int64", "median_ms": "float64", "valid": "boolean",
        "point_id": "string", "flags": "string", "started_at": "datetime64[us, UTC]",
    }  # fmt: skip
    assert {name: str(table[name].dtype) for name in wanted} == wanted
    assert table.loc[1, ["n", "median_ms", "params"]].isna().all()
    assert table.loc[0, "valid"]


def test_lists_are_lists(tmp_path, results):
    """The seconds of each epoch, which the table holds as JSON."""
    overall = results / "trial" / "overall.csv"
    folder = tmp_path / "lists"
    (folder / "submissions").mkdir(parents=True)
    head, first, *rest = overall.read_text().splitlines()
    lines = [f"{head},epochs_s", f'{first},"[1.5, 2.5]"', *(f"{line}," for line in rest), ""]
    (folder / "overall.csv").write_text("\n".join(lines))
    table = hpcsweep.load(folder).overall
    assert table.loc[0, "epochs_s"] == [1.5, 2.5]
    assert pd.isna(table.loc[1, "epochs_s"])


def test_a_sweep_is_named_as_on_the_command_line(results, monkeypatch, tmp_path):
    """By its name, its results folder, or its file; the folder of results by a variable, too."""
    monkeypatch.setenv("HPCSWEEP_RESULTS", str(results))
    file = tmp_path / "other.yaml"
    file.write_text("name: trial\nworkload: noop\naxes: {model: [a]}\n")
    names = ["trial", results / "trial", file]
    assert [hpcsweep.load(name).sweep_dir.path for name in names] == [results / "trial"] * 3


def test_a_file_is_measured_too(tmp_path):
    """What was measured before is not measured again."""
    file = tmp_path / "two.yaml"
    file.write_text("workload: noop\naxes: {model: [a], input_size: [1, 2]}\n")
    first = hpcsweep.run(file, results=tmp_path / "results", sample=1)
    assert len(first.overall) == 1
    second = hpcsweep.run(file, results=tmp_path / "results")
    assert second.overall["attempt"].tolist() == [0, 0]
    assert second.overall["submission"].nunique() == 2


def test_a_dictionary_takes_what_python_has(tmp_path):
    """Ranges and arrays as values, a class as a model; a local one cannot be imported."""
    axes = {"model": [Net], "batch_size": range(1, 3)}
    found = hpcsweep.run({**NOOP, "axes": axes}, results=tmp_path).overall
    assert found["model"].tolist() == [f"{__name__}:Net"] * 2
    assert found["batch_size"].tolist() == [1, 2]
    sizes = {"name": "x", "workload": "noop", "axes": {"model": ["a"], "input_size": np.arange(3)}}
    with pytest.raises(SpecError, match=r"^axes.input_size\[0\]: found 0, needs at least 1"):
        hpcsweep.run(sizes, results=tmp_path)

    class Local: ...

    with pytest.raises(UsageError, match="cannot import it; write it into a file"):
        hpcsweep.run({**NOOP, "axes": {"model": [Local]}}, results=tmp_path)


def test_mistakes_say_what_is_wrong(tmp_path, results):
    """As on the command line."""
    with pytest.raises(UsageError, match="needs a name"):
        hpcsweep.run({"workload": "noop", "axes": {"model": ["a"]}}, results=tmp_path)
    (results / "raw" / "submissions").mkdir(parents=True)
    with pytest.raises(UsageError, match="run `hpcsweep collect raw` first"):
        _ = hpcsweep.load("raw", results=results).overall
    with pytest.raises(UsageError, match="a dictionary; found 3"):
        hpcsweep.run(3, results=tmp_path)
    with pytest.raises(UsageError, match="found a object, which the measuring process cannot"):
        hpcsweep.run({**NOOP, "axes": {"model": [object()]}}, results=tmp_path)
    lost = {**NOOP, "workload": "inference", "axes": {"model": ["nowhere_at_all:net"]}}
    with pytest.raises(SpecError, match=r"^axes\.model\[0\]: 'nowhere_at_all:net': no module"):
        hpcsweep.run(lost, results=tmp_path)
    with pytest.raises(UsageError, match="submit SPEC --cluster v100"):
        hpcsweep.run("quickstart", cluster="v100")
    loaded = hpcsweep.load("trial", results=results)
    with pytest.raises(UsageError, match='write where="input_size=224,model=a"'):
        loaded.report(where={"input_size": 224, "model": "a"})
    with pytest.raises(UsageError, match=r"found a DataFrame; give hpcsweep.load"):
        loaded.compare(loaded.overall)
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        _ = hpcsweep.laod


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Return the results of a sweep with layers."""
    layered(folder := tmp_path_factory.mktemp("demo"), REPEATED)
    return hpcsweep.load("demo", results=folder / "results")


def test_results_have_the_tables_of_the_commands(demo):
    """They are DataFrames of values; what the command prints around them is in `attrs`."""
    report = demo.report(where="input_size=64")
    assert type(report) is type(demo.layers) is pd.DataFrame
    assert report.attrs["title"].startswith("demo: median ms of one pass")
    assert report["input_size"].tolist() == [64]
    assert report.dtypes[["input_size", "auto"]].tolist() == ["int64", "float64"]
    assert report.columns[:3].tolist() == ["model", "input_size", "auto"]
    assert demo.slowest(by="op", top=1)["op"].tolist() == ["conv2d"]
    assert "values are means over" in " ".join(demo.slowest().attrs["notes"])
    assert len(demo.layers.query("layer == 'conv1'")) == 18
    best = demo.best()
    assert best["changed"].gt(0).all()
    assert {*best["map"]} == {*best.attrs["maps"]}
    assert "<table" in demo._repr_html_()
    with pytest.raises(UsageError, match="no measured point has input_size=65"):
        demo.report(where="input_size=65")


def test_results_are_compared_with_others(demo, tmp_path):
    """Given as results, by name, or as a run."""
    layered(tmp_path, REPEATED)
    other = hpcsweep.load(tmp_path / "results" / "demo")
    found = demo.compare(other)
    assert found.attrs["title"] == f"{other.side} against {demo.side}: median (ms)"
    assert list(found["ratio"]) == [1.0] * 6
    assert len(demo.compare("demo", where="input_size=64")) == 3
    assert hpcsweep.load("demo@1", results=demo.sweep_dir.path.parent).side.endswith("demo@1")


def test_results_draw_a_figure(demo):
    """It shows itself in a notebook, without pyplot."""
    figure = demo.plot("input_size", by=["algorithm"], width=3.4, height=2.6, font=8)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert tuple(figure.get_size_inches()) == (3.4, 2.6)


def test_flags_stand_beside_the_columns(demo):
    """A table of pandas has `flags` of its own."""
    flags = demo.flags
    assert list(flags.index) == list(demo.overall.index)
    assert flags.dtypes.eq(bool).all()


def test_a_sweep_in_which_nothing_was_measured_says_so_in_a_notebook(tmp_path):
    """And raises nothing."""
    failing = {**NOOP, "measure": {"fail": [{"when": {"model": "a"}, "how": "error"}]}}
    with pytest.warns(UserWarning, match="trial: 2 error: "):
        found = hpcsweep.run(failing, results=tmp_path)
    assert "no measured point (2 error)" in found._repr_html_()
