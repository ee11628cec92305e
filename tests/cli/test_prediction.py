"""`predict` on the command line."""

from __future__ import annotations

import json
import sys

import pytest

from layeredsweep import layered
from localruns import Desk


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """Return the folder of a collected sweep with layers."""
    folder = tmp_path_factory.mktemp("prediction")
    layered(folder)
    return Desk(folder)


def test_check_prints_the_errors_of_what_was_left_out(desk):
    """As a table, and as a record."""
    told = desk.run("predict", "--check", "demo")
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("6 points of 1 network, 3 algorithms, cpu")
    assert "left out: an algorithm (3 fits)" in told.stdout
    record = json.loads(desk.run("predict", "--check", "demo", "--json").stdout)
    assert [part["left_out"] for part in record["checks"]] == ["algorithm"]


def test_without_scikit_learn_the_extra_is_named(desk, monkeypatch):
    """It is optional."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    told = desk.run("predict", "--check", "demo")
    assert told.returncode == 2
    assert "pip install 'hpcsweep[predict]'" in told.stderr
