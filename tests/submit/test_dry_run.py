"""A dry run shows and rehearses, and leaves nothing."""

from __future__ import annotations

import pytest

from hpcsweep.errors import PointsFailed
from localruns import TEN


def test_a_dry_run_rehearses_one_point_and_leaves_nothing(desk):
    """The plan is shown; the results folder is not even made."""
    desk.spec(TEN)
    done = desk.submit("--dry-run")
    assert done.returncode == 0, done.stderr
    assert "10 points" in done.stdout
    assert "nothing was submitted" in done.stdout
    assert not desk.results.exists()


def test_a_dry_run_whose_point_fails_ends_as_the_run_would(desk):
    """A script that rehearses before it submits must not go on."""
    desk.spec(TEN + "measure: {fail: [{how: error}]}\n")
    done = desk.submit("--dry-run")
    assert "the point measured here: 1 error" in done.stdout
    assert done.returncode == PointsFailed.exit_code


@pytest.mark.slow
def test_a_dry_run_measures_the_cheapest_point(desk):
    """Not the first one, which may take minutes on a login node; what it costs is said before."""
    desk.spec(
        "workload: inference\n"
        "axes: {model: [resnet152, squeezenet1_1], input_size: [224, 64], batch_size: [32, 1]}\n"
        "measure: {warmup: 0, iterations: 2, stop: fixed, layers: false, numerics: false}\n"
    )
    done = desk.submit("--dry-run")
    assert "measuring one point here: squeezenet1_1 64 1 auto on cpu, about " in done.stdout
    assert "the point measured here: 1 ok" in done.stdout, done.stdout + done.stderr
