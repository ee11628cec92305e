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
