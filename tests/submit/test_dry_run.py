"""A dry run shows and rehearses, and leaves nothing."""

from __future__ import annotations

import re

import pytest

from hpcsweep.errors import PointsFailed
from hpcsweep.submit import dry_run
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


@pytest.mark.parametrize("launcher", ["sbatch", "submitit"])
def test_a_dry_run_without_slurms_programs_is_well(desk, launcher):
    """A laptop has none; what could not be shown or asked is a warning.

    The files that would be sent are kept where the output says so; submitit shows none.
    """
    desk.spec(TEN)
    (desk.folder / "l40.yaml").write_text(f"gpu: l40\ntime: 30\nlauncher: {launcher}\n")
    done = desk.run("submit", "sweep.yaml", "--cluster", "l40.yaml", "--dry-run", PATH="/nowhere")
    assert "Slurm was not asked" in done.stderr
    assert "the point measured here: 1 ok" in done.stdout
    assert done.returncode == 0, done.stderr
    kept = [str(path) for path in desk.folder.glob("hpcsweep-dry-run-*/*/submissions/*")]
    assert re.findall("submit would send the files in (.*)", done.stdout) == kept


@pytest.mark.parametrize(
    ("how", "on_slurm"), [("error", PointsFailed.exit_code), ("exit", 0), ("oom", 0)]
)
def test_a_point_that_fails_here_fails_the_dry_run_of_jobs_only_if_it_would_fail_there(
    desk, how, on_slurm
):
    """That this machine kills it, or is too small for it, says nothing of the cluster."""
    desk.spec(TEN + f"measure: {{fail: [{{how: {how}}}]}}\n")
    (desk.folder / "l40.yaml").write_text("gpu: l40\ntime: 30\n")
    done = desk.run("submit", "sweep.yaml", "--cluster", "l40.yaml", "--dry-run", PATH="/nowhere")
    assert "the point measured here: 1 " in done.stdout
    assert done.returncode == on_slurm, done.stderr


def test_a_dry_run_waits_a_minute_at_most_for_its_point(desk, monkeypatch):
    """What is too slow for this machine is stopped, which is no failure of it."""
    monkeypatch.setattr(dry_run, "_TRIAL_S", 1.0)
    desk.spec(TEN + "measure: {sleep_ms: 600000}\n")
    done = desk.submit("--dry-run")
    assert "about 10 min; at most 1 s" in done.stdout
    assert "the point here was stopped after 1 s, and did not fail until then" in done.stdout
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_dry_run_measures_the_smallest_point_with_few_passes(desk):
    """Not the first one, which may take minutes on a login node; what it costs is said before."""
    desk.spec(
        "workload: inference\n"
        "axes: {model: [resnet152, squeezenet1_1], input_size: [224, 64], batch_size: [32, 1]}\n"
        "measure: {iterations: 100000, layers: false, numerics: false}\n"
    )
    done = desk.submit("--dry-run")
    label = "squeezenet1_1 64 1 auto on cpu"
    told = rf"measuring one point here: {label}, about \d s by the table of peaks; at most 60 s"
    assert re.search(told, done.stdout)
    assert "the point measured here: 1 ok" in done.stdout, done.stdout + done.stderr
