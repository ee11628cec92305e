"""The commands that help to decide: what they print, and in which form."""

from __future__ import annotations

import csv
import json

import pytest

import repeatedruns
from localruns import Desk


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
    done = desk.run("compare", *names, "--fail-on", "slower:5%")
    assert done.returncode == 3
    assert "SLOWER by at least 5 %: resnet18 input_size 32 auto (1." in done.stderr
    assert "12 SLOWER" in done.stdout
    both = json.loads(desk.run("compare", *names, "--fail-on", "slower:5%", "--json").stdout)
    assert (both["error"]["kind"], len(both["comparisons"][0]["rows"])) == ("Regression", 12)
    assert desk.run("compare", *names, "--fail-on", "slower:50%").returncode == 0
    assert desk.run("compare", *names, "--fail-on", "faster:5%").returncode == 0
    record = json.loads(desk.run("compare", *names, names[0], "--json").stdout)
    assert record["comparisons"][0]["verdicts"] == {"SLOWER": 12}
    assert len(record["comparisons"]) == 2
    for wrong in ("slow:5%", "slower", "slower:x%"):
        assert desk.run("compare", *names, "--fail-on", wrong).returncode == 2
