"""Reports of sweeps of commands."""

from __future__ import annotations

import csv
import io

import pandas as pd
import pytest

from hpcsweep import api

SPEC = """\
axes: {lr: [0.1, 0.2], kind: [one, two], flag: [true, false]}
exclude: [{kind: two, flag: false}]
run: python one.py {lr} {kind}
measure: {repeats: 2}
"""
SCRIPT = """\
import json, sys
if sys.argv[1:] == ["0.2", "two"]:
    raise SystemExit(3)
print(json.dumps({"score": float(sys.argv[1]) * 10, "word": sys.argv[2]}))
"""


def _measured(desk, script, spec, code=0):
    """Measure and collect a sweep over a program, which says its results in its last line."""
    (desk.folder / "one.py").write_text(script)
    desk.spec(f"workload: command\nresults: {{json: last_line}}\n{spec}")
    assert desk.submit("--collect").returncode == code
    return desk


@pytest.fixture
def run(desk):
    """Measure and collect the sweep."""
    return _measured(desk, SCRIPT, SPEC, code=3)


def _table(text: str) -> list[dict[str, str]]:
    return [*csv.DictReader(io.StringIO(text))]


def test_every_command_that_reads_tables_knows_its_axes_and_results(run):
    """Report, page, conditions, plot and compare; best and layers say why they cannot."""
    table = _table(run.run("report", "sweep", "--format", "csv").stdout)
    told = [(row["lr"], row["kind"], row["flag"], row["status"], row["score"]) for row in table]
    assert sorted(told) == [
        ("0.1", "one", "false", "ok", "1.0"), ("0.1", "one", "true", "ok", "1.0"),
        ("0.1", "two", "true", "ok", "1.0"), ("0.2", "one", "false", "ok", "2.0"),
        ("0.2", "one", "true", "ok", "2.0"), ("0.2", "two", "true", "crashed", ""),
    ]  # fmt: skip
    shown = run.run("report", "sweep").stdout
    assert "foreign: what the command said" in shown
    assert "exit code 3" in shown
    some = run.run(
        "report", "sweep", "--metric", "score", "--where", "kind=one,flag=true", "--format", "csv"
    )
    assert [row["score"] for row in _table(some.stdout)] == ["1.0", "2.0"]
    assert run.run("report", "sweep", "--html", "page.html").returncode == 0
    drawn = run.run("plot", "sweep", "--y", "score", "--format", "csv")
    assert drawn.returncode == 0, drawn.stderr
    assert {row["doubtful"] for row in _table(drawn.stdout)} == {"false"}
    compared = run.run("compare", "sweep:kind=one", "sweep:kind=two", "--metric", "median_ms")
    assert "compared: kind one and two" in compared.stdout, compared.stderr
    for command in ("best", "layers"):
        assert run.run(command, "sweep").returncode == 2
    assert "no numbers" in run.run("report", "sweep", "--metric", "word").stderr


def test_results_keep_all_digits(desk):
    """Such as those of a time in seconds since 1970."""
    script = 'print(\'{"ended": 1764281234.123, "loss": 0.123456789012}\')\n'
    _measured(desk, script, "axes: {k: [0.123456789]}\nrun: python one.py {k}\n")
    (row,) = _table(desk.sweep().overall.read_text())
    assert (row["k"], row["ended"], row["loss"]) == (
        "0.123456789",
        "1764281234.123",
        "0.123456789012",
    )


def test_texts_of_results_stay_texts(desk):
    """Versions, commits and names that numbers would make equal, endless or shorter."""
    said = [{"version": "2.10", "commit": "12e5678", "name": "007", "loss": 0.5}]
    said += [{"version": "2.1", "commit": "0123456", "name": "7", "loss": float("nan")}]
    script = f"import json, sys\nprint(json.dumps({said!r}[int(sys.argv[1])]))\n"
    script = script.replace("nan", "float('nan')")
    _measured(desk, script, "axes: {k: [0, 1]}\nrun: python one.py {k}\n")
    rows = api.load("sweep", results=desk.results).overall.sort_values("k")
    for name in ("version", "commit", "name"):
        assert [*rows[name]] == [of[name] for of in said]
    assert pd.api.types.is_float_dtype(rows["loss"])
    table = _table(desk.run("report", "sweep", "--format", "csv").stdout)
    assert [row["version"] for row in table] == ["2.10", "2.1"]


@pytest.fixture
def numbers(desk):
    """Measure and collect a sweep over numbers alone, a point of which fails."""
    spec = "axes: {lr: [0.1, 0.2], depth: [1, 2, two]}\nexclude: [{lr: 0.1, depth: two}]\n"
    return _measured(desk, SCRIPT, f"{spec}run: python one.py {{lr}} {{depth}}\n", code=3)


def test_a_failed_point_is_named_by_all_axes_of_its_command(numbers):
    """One that networks have as well, and one of its own."""
    for command in ("status", "report"):
        assert "exit code 3 (lr 0.2 depth two)" in numbers.run(command, "sweep").stdout
    shown = numbers.run("show", "sweep", "--status", "crashed").stdout
    assert all(words in shown for words in ("0.2", "depth two", "exit code 3")), shown


def test_only_what_a_command_has_is_compared(numbers):
    """It has no network."""
    compared = numbers.run("compare", "sweep:lr=0.1", "sweep:lr=0.2")
    assert compared.returncode == 0, compared.stderr
    assert "\ndepth  " in compared.stdout
    assert "model" not in compared.stdout


def test_any_name_may_be_that_of_an_axis_or_a_result(desk):
    """Readers keep columns of their own apart."""
    script = 'import sys\nprint(\'{"speedup": %s, "low": 2}\' % sys.argv[1])\n'
    spec = "axes: {run: [1, 2], key: [1, 2], all: [1, 2], ratio: [3, 4]}\n"
    _measured(desk, script, f"{spec}run: python one.py {{run}} {{key}} {{all}} {{ratio}}\n")
    axes = ("run", "key", "all", "ratio")
    table = _table(desk.run("report", "sweep", "--format", "csv").stdout)
    assert len({tuple(row[axis] for axis in axes) for row in table}) == 16
    compared = desk.run("compare", "sweep", "sweep")
    head = compared.stdout.splitlines()[2].split()
    assert head == ["all", "key", "ratio_", "run", "first", "second", "ratio", "verdict"]
    drawn = ("plot", "sweep", "--x", "run", "--by", "all", "--format", "csv", "--y")
    rows = _table(desk.run(*drawn, "speedup").stdout)
    assert [(row["run"], row["speedup"]) for row in rows[:2]] == [("1", "1.0"), ("2", "2.0")]
    assert {row["low"] for row in _table(desk.run(*drawn, "low").stdout)} == {"2.0"}
    twice = _table(desk.run(*drawn, "speedup", "--baseline", "run=1").stdout)
    assert twice
    assert desk.run("report", "sweep", "--html", "page.html").returncode == 0


@pytest.fixture
def versions(desk):
    """Measure and collect a sweep over texts that would be equal as numbers."""
    (desk.folder / "v.py").write_text(
        "import sys, json\nold = sys.argv[1] == '3.1'\n"
        "print(json.dumps({'score': 10 if old else 90, 'old': old, **({'age': 7} if old else {})}))"
    )
    desk.spec(
        'workload: command\naxes: {version: ["3.1", "3.10"], lr: [0.1, 0.2]}\n'
        "run: python v.py {version} {lr}\nresults: {json: last_line}\n"
    )
    assert desk.submit().returncode == 0
    assert desk.run("collect", "sweep", "--parquet").returncode == 0
    return desk


def test_python_sees_what_a_command_said_as_it_was(versions):
    """True and false, whole numbers with a gap, texts of digits."""
    rows = api.load("sweep", results=versions.results).overall
    types = {name: str(rows[name].dtype) for name in ("score", "old", "age", "version", "lr")}
    assert types == {
        "score": "Int64", "old": "boolean", "age": "Int64", "version": "string", "lr": "float64"
    }  # fmt: skip
    assert set(rows[rows["old"]]["version"]) == {"3.1"}
    for where, score in (("old=true", "10"), ("old!=true", "90")):
        shown = versions.run("report", "sweep", "--metric", "score", "--where", where)
        assert (" 10" in shown.stdout, " 90" in shown.stdout) == (score == "10", score == "90")


def test_texts_that_look_like_numbers_stay_apart(versions):
    """Each version is a configuration of its own, in every reader; numbers stay numbers."""
    table = _table(versions.run("report", "sweep", "--format", "csv").stdout)
    assert sorted((row["version"], row["lr"], float(row["score"])) for row in table) == [
        ("3.1", "0.1", 10), ("3.1", "0.2", 10), ("3.10", "0.1", 90), ("3.10", "0.2", 90),
    ]  # fmt: skip
    drawn = versions.run("plot", "sweep", "--x", "lr", "--y", "score", "--format", "csv").stdout
    assert len(_table(drawn)) == 4
    some = versions.run("report", "sweep", "--where", "version=3.10", "--format", "csv")
    assert [float(row["score"]) for row in _table(some.stdout)] == [90, 90]
    joined = versions.run("compare", "sweep", "sweep", "--format", "csv").stdout
    assert {row["version"] for row in _table(joined)} == {"3.1", "3.10"}
    assert len(_table(joined)) == 4
    rows = api.load("sweep", results=versions.results).overall
    assert {*rows["version"]} == {"3.1", "3.10"}
    assert pd.api.types.is_float_dtype(rows["lr"])
    (parquet,) = versions.results.rglob("overall.parquet")
    assert {*pd.read_parquet(parquet)["version"]} == {"3.1", "3.10"}
    assert versions.run("report", "sweep", "--html", "page.html").returncode == 0
    assert "3.10" in (versions.folder / "page.html").read_text()
