"""The commands that help to decide: what they print, and in which form."""

from __future__ import annotations

import csv
import json
import sys

import pytest

import repeatedruns
from hpcsweep import sources
from hpcsweep.errors import MissingDependency
from hpcsweep.store.folders import SweepDir
from layeredsweep import REPEATED, SWEEP, layered
from localruns import Desk
from resultsfolder import Folder, points_of


def test_layers_prints_every_form(layered_desk):
    """`--json` is one of them; no name is needed where there is one sweep."""
    told = layered_desk.run("layers", "--top", "3")
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("demo: slowest by layer")
    rows = list(csv.DictReader(layered_desk.run("layers", "--format", "csv").stdout.splitlines()))
    record = json.loads(layered_desk.run("layers", "demo", "--json").stdout)
    assert [row["layer"] for row in rows] == [row["layer"] for row in record["rows"]]


def test_best_writes_the_maps_and_names_the_file(layered_desk):
    """In the document; on stderr where stdout is a table for a machine."""
    told = layered_desk.run("best", "demo", "--out", "map.yaml", "--json")
    assert told.returncode == 0, told.stderr
    record = json.loads(told.stdout)
    assert set(record["maps"]) == {row["map"] for row in record["rows"]}
    assert record["files"] == ["map.yaml"]
    told = layered_desk.run("best", "demo", "--out", "map.yaml", "--format", "csv")
    assert "map.yaml" in told.stderr
    assert "map.yaml" not in told.stdout
    used = told.stderr.split("runs it so:\n")[1].splitlines()[:2]
    code = "\n".join(line.strip() for line in ("model = images = None", *used))
    compile(code.replace("images)", "images)\n"), "two lines", "exec")
    assert 'hpcsweep.algorithms(model, "map.yaml"' in used[1]
    assert "4 points" in layered_desk.run("expand", "map.yaml", "--cluster", "local").stdout
    refused = layered_desk.run("best", "demo", "--out", "no/map.yaml")
    assert (refused.returncode, "No such file" in refused.stderr) == (2, True)


@pytest.mark.slow
def test_compare_fails_where_it_is_told_to(tmp_path):
    """Exit code 3 and the rows, for continuous integration."""
    sides = [
        [repeatedruns.run(tmp_path, seed, factor=lambda _axes, by=by: by) for seed in seeds]
        for by, seeds in ((1.0, (1, 2, 3)), (1.1, (4, 5, 6)))
    ]
    desk, names = Desk(tmp_path), ["+".join(str(run.path) for run in runs) for runs in sides]
    done = desk.run("compare", *names, names[0], "--fail-on", "slower:5%", "--json")
    record = json.loads(done.stdout)
    assert (done.returncode, record["error"]["kind"]) == (3, "Regression")
    assert "SLOWER by at least 5 %: resnet18 input_size 32 auto (1." in done.stderr
    first, _second = record["comparisons"]
    assert (first["verdicts"], len(first["rows"])) == ({"SLOWER": 12}, 12)
    for limit, code in (("slower:50%", 0), ("faster:5%", 0), ("slow:5%", 2), ("slower:x%", 2)):
        assert desk.run("compare", *names, "--fail-on", limit).returncode == code


@pytest.mark.slow
def test_check_prints_the_errors_of_what_was_left_out(layered_desk):
    """As a table, and as a record."""
    told = layered_desk.run("predict", "--check", "demo")
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("6 points of 1 network, 3 algorithms, cpu")
    assert "left out: an algorithm (3 fits)" in told.stdout
    record = json.loads(layered_desk.run("predict", "--check", "demo", "--json").stdout)
    assert [part["left_out"] for part in record["checks"]] == ["algorithm"]


def test_a_picture_of_a_check_is_refused_before_it_learns(tmp_path):
    """Before it even looks for the sweep."""
    told = Desk(tmp_path).run("predict", "--check", "nowhere", "--out", "errors.png")
    assert told.returncode == 2
    assert "errors.png: what is left out is written as a table" in told.stderr


def test_without_scikit_learn_the_extra_is_named(layered_desk, monkeypatch):
    """It is optional."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    told = layered_desk.run("predict", "--check", "demo")
    assert told.returncode == MissingDependency.exit_code
    assert "pip install 'hpcsweep[predict]'" in told.stderr


def test_a_prediction_finds_the_network_beside_its_sweep(tmp_path, monkeypatch):
    """As the jobs will."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sources, "_in_use", [])
    layered(tmp_path)
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "ownnet.py").write_text(
        "from torch import nn\n\ndef net():\n    return nn.Conv2d(3, 8, 3)\n"
    )
    (beside / "new.yaml").write_text(
        "name: new\nworkload: inference\naxes: {model: ['ownnet:net'], input_size: [64]}\n"
    )
    told = Desk(tmp_path).run("predict", "beside/new.yaml", "--from", "demo", "--json")
    assert told.returncode == 0, told.stderr
    assert len(json.loads(told.stdout)["rows"]) == 1


def test_controls_of_the_sweep_itself_say_what_the_machine_is_like_now(tmp_path):
    """Some of its points were measured a week later, on a machine that was a quarter slower."""
    then = {"control_ms": 1.0, "started_at": "2026-01-01T00:00:00Z", "workload": "inference"}
    layered(tmp_path, changes=dict.fromkeys(("auto", "gemm", "winograd"), then))
    text = SWEEP.replace("demo", "later")
    later = Folder(SweepDir(tmp_path / "results" / "later"), points_of(tmp_path, text))
    (tmp_path / "later.yaml").write_text(text)
    words = ("predict", "later.yaml", "--from", "demo", "--json")
    before = json.loads(Desk(tmp_path).run(*words).stdout)
    later.submit("s1", text=text)
    late = {"started_at": "2026-01-08T00:00:00Z", "workload": "inference"}
    later.measure(later.shard("s1"), later.points[:3], control_ms=1.25, **late)
    later.measure(later.shard("s1", 1), later.points[3:], control_ms=9.0, valid=False, **late)
    after = json.loads(Desk(tmp_path).run(*words).stdout)
    assert before["machine_shift_pct"] == pytest.approx(0)
    assert after["machine_shift_pct"] == pytest.approx(25)
    for one, other in zip(before["rows"], after["rows"], strict=True):
        assert other["median_ms"] == one["median_ms"]
        assert other["predicted_hi_ms"] == pytest.approx(1.25 * one["predicted_hi_ms"])


def test_best_writes_nothing_where_nothing_gains(tmp_path):
    """It says so; the table is there all the same."""
    layered(tmp_path, REPEATED, spread=8.0)
    desk = Desk(tmp_path)
    words = ("best", "demo", "--out", "map.yaml")
    done = desk.run(*words)
    assert done.returncode == 0, done.stderr
    assert "nothing is written: no layer gains beyond the noise" in done.stderr
    assert "no layer has an algorithm that beats auto" in done.stdout
    assert "map.yaml" not in done.stdout
    assert not (tmp_path / "map.yaml").exists()
