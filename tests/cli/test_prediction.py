"""`predict` on the command line."""

from __future__ import annotations

import json
import sys

import pytest

from hpcsweep.errors import MissingDependency
from hpcsweep.store.rundir import RunDir
from layeredsweep import SWEEP, layered
from localruns import Desk
from resultsfolder import Folder, points_of


@pytest.mark.slow
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


def test_controls_of_the_sweep_itself_say_what_the_machine_is_like_now(tmp_path):
    """Some of its points were measured a week later, on a machine that was a quarter slower."""
    then = {"control_ms": 1.0, "started_at": "2026-01-01T00:00:00Z", "workload": "inference"}
    layered(tmp_path, changes=dict.fromkeys(("auto", "gemm", "winograd"), then))
    text = SWEEP.replace("demo", "later")
    later = Folder(RunDir(tmp_path / "results" / "later"), points_of(tmp_path, text))
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
