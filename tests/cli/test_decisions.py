"""The commands that help to decide: what they print, and in which form."""

from __future__ import annotations

import csv
import json

import pytest

from layeredsweep import layered
from localruns import Desk


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return the folder of a collected sweep with layers."""
    folder = tmp_path_factory.mktemp("decisions")
    layered(folder)
    return Desk(folder)


def test_layers_prints_every_form(measured):
    """`--json` is one of them; no name is needed where there is one sweep."""
    told = measured.run("layers", "--top", "3")
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("demo: slowest by layer")
    rows = list(csv.DictReader(measured.run("layers", "--format", "csv").stdout.splitlines()))
    record = json.loads(measured.run("layers", "demo", "--json").stdout)
    assert [row["layer"] for row in rows] == [row["layer"] for row in record["rows"]]


def test_best_writes_the_maps_and_names_the_file(measured):
    """On stderr where stdout is for a machine."""
    told = measured.run("best", "demo", "--out", "map.yaml", "--json")
    assert told.returncode == 0, told.stderr
    record = json.loads(told.stdout)
    assert set(record["maps"]) == {row["map"] for row in record["rows"]}
    assert "map.yaml" in told.stderr
    assert "4 points" in measured.run("expand", "map.yaml", "--cluster", "local").stdout
    refused = measured.run("best", "demo", "--out", "no/map.yaml")
    assert (refused.returncode, "No such file" in refused.stderr) == (2, True)
