"""`predict` on the command line."""

from __future__ import annotations

import json
import sys

from hpcsweep.errors import MissingDependency


def test_check_prints_the_errors_of_what_was_left_out(layered_desk):
    """As a table, and as a record."""
    told = layered_desk.run("predict", "--check", "demo")
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("6 points of 1 network, 3 algorithms, cpu")
    assert "left out: an algorithm (3 fits)" in told.stdout
    record = json.loads(layered_desk.run("predict", "--check", "demo", "--json").stdout)
    assert [part["left_out"] for part in record["checks"]] == ["algorithm"]


def test_without_scikit_learn_the_extra_is_named(layered_desk, monkeypatch):
    """It is optional."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    told = layered_desk.run("predict", "--check", "demo")
    assert told.returncode == MissingDependency.exit_code
    assert "pip install 'hpcsweep[predict]'" in told.stderr
