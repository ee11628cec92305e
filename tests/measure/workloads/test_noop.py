"""No-op points."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hpcsweep.measure.bench_api import CannotMeasure, OutOfMemory
from hpcsweep.measure.workloads.noop import Noop
from hpcsweep.point import Point


def test_it_needs_the_standard_library_alone():
    """A node without torch can run the points that sleep, and those of a command."""
    code = (
        "import sys; from hpcsweep.node import worker; worker.bench_of('noop', {});"
        "worker.bench_of('command', {'search_path': ['.']});"
        "print({'torch', 'numpy', 'yaml', 'pydantic'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def _point(size=1, **measure):
    return Point("noop", {"input_size": size}, measure, "0123456789abcdef")


def test_a_point_sleeps_as_long_as_it_says():
    """The row has the time that it took."""
    done = Noop().measure(_point(sleep_ms=5))
    assert done.row["median_ms"] == done.samples[0] >= 5
    assert (done.row["n"], done.row["stop_reason"], done.row["timer"]) == (1, "fixed", "host")


@pytest.mark.parametrize(
    ("how", "kind"),
    [("error", RuntimeError), ("oom", OutOfMemory), ("unsupported", CannotMeasure)],
)
def test_a_rule_fails_the_points_that_it_matches(how, kind):
    """One value or a list of them; other points run."""
    for wanted in (2, [2, 3]):
        rules = [{"when": {"input_size": wanted}, "how": how}]
        with pytest.raises(kind):
            Noop().measure(_point(2, fail=rules))
        assert Noop().measure(_point(1, fail=rules)).row["n"] == 1


def test_a_rule_may_fail_the_first_tries_alone():
    """As a node that is broken for a while."""
    rules = [{"when": {}, "how": "error", "attempts": 2}]
    for tries in (0, 1):
        with pytest.raises(RuntimeError, match="injected error"):
            Noop().measure(_point(fail=rules), tries)
    assert Noop().measure(_point(fail=rules), 2).row["n"] == 1


def test_a_rule_without_a_condition_fails_every_point():
    """As the reference says."""
    with pytest.raises(RuntimeError, match="injected error"):
        Noop().measure(_point(fail=[{"how": "error"}]))


def test_the_environment_names_the_machine():
    """Without torch there is little else to say."""
    found = Noop().environment()
    assert found["host"]
    assert found["python"]
