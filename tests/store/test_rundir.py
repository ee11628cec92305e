"""Where what lies, and which names sweeps may have."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest

from hpcsweep import files
from hpcsweep.errors import UsageError
from hpcsweep.store import rundir
from hpcsweep.store.manifest import Manifest
from hpcsweep.store.rundir import RunDir, ShardPath

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2025, 3, 4, 5, 6, 7, tzinfo=timezone.utc)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Return a results folder that does not exist yet."""
    return RunDir(tmp_path / "results" / "demo")


def test_a_submission_is_named_by_time_and_profile_and_never_reused(run: RunDir) -> None:
    """Two within a second are told apart."""
    first, second = (rundir.new_submission(run, "l40", NOW) for _ in range(2))
    assert (first.id, second.id) == ("20250304-050607-l40", "20250304-050607-l40.2")
    assert first.logs.is_dir()
    assert first.shards.is_dir()
    assert first.run == run


def test_a_submission_counts_once_its_manifest_is_written(run: RunDir) -> None:
    """A submit that was killed half way left a folder without one."""
    submission = rundir.new_submission(run, "l40", NOW)
    assert run.submissions() == []
    submission.write_manifest(Manifest(id=submission.id))
    assert run.submissions() == [submission]
    assert submission.read_manifest() == Manifest(id=submission.id)


def test_a_submission_is_known_by_another_path_to_its_folder(run: RunDir, tmp_path: Path) -> None:
    """Through a link, or as it is called where it cannot be seen; not that of another sweep."""
    submission = rundir.new_submission(run, "l40", NOW)
    twin = rundir.new_submission(RunDir(tmp_path / "results" / "other"), "l40", NOW)
    (tmp_path / "link").symlink_to("results")
    folder = f"demo/submissions/{submission.id}"
    for root in (tmp_path / "results", tmp_path / "link", "/nowhere/else"):
        assert submission.is_at(f"{root}/{folder}")
    for other in (twin.path, submission.logs, "/nowhere", f"/nowhere/other/submissions/{twin.id}"):
        assert not submission.is_at(str(other))


def test_shards_are_found_in_one_order_and_nothing_else_is(run: RunDir) -> None:
    """By submission, chunk and attempt, as numbers."""
    for name in ("b/2.0", "b/10.0", "a/0.1", "a/0.0", "b/2.10", "b/2.9"):
        path = run.shards_dir / f"{name}.overall.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for name in ("a/0.0.layers.csv", "a/x.0.overall.csv", "a/.0.0.overall.csv.tmp", "stray"):
        (run.shards_dir / name).touch()
    found = [f"{s.submission}/{s.chunk}.{s.attempt}" for s in run.shards()]
    assert found == ["a/0.0", "a/0.1", "b/2.0", "b/2.9", "b/2.10", "b/10.0"]
    attempts = run.submission("b").attempts(2)
    assert [shard.attempt for shard in attempts] == [0, 9, 10]


def test_submissions_and_shards_are_ordered_by_round_not_by_the_clock(run: RunDir) -> None:
    """A submission whose manifest cannot be read stands behind the one before it by name."""
    for name, number in (("d", 0), ("a", 1), ("b", None), ("c", 3), ("e", 2)):
        submission = run.submission(name)
        submission.path.mkdir(parents=True)
        if number is None:
            submission.manifest.write_text("{half")
        else:
            submission.write_manifest(Manifest(id=name, round=number))
        submission.shards.mkdir(parents=True)
        submission.shards.joinpath("0.0.overall.csv").touch()
    assert [submission.id for submission in run.submissions()] == list("dabec")
    assert [shard.submission for shard in run.shards()] == list("dabec")


def test_a_run_without_shards_has_none(run: RunDir) -> None:
    """Not even a folder."""
    assert run.shards() == []
    assert run.submissions() == []


def test_the_files_of_an_attempt_lie_side_by_side(tmp_path: Path) -> None:
    """Named by chunk and attempt."""
    shard = ShardPath(tmp_path, 3, 1)
    names = [path.name for path in (shard.overall, shard.layers, shard.samples, shard.env)]
    assert names == ["3.1.overall.csv", "3.1.layers.csv", "3.1.samples.csv", "3.1.env.json"]


def test_an_unknown_sweep_is_told_with_the_nearest_one(tmp_path: Path) -> None:
    """And with all that there are."""
    (tmp_path / "resnet152_gemm" / "submissions").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"did you mean 'resnet152_gemm'"):
        rundir.open_run(tmp_path, "resnet125_gemm")
    assert rundir.open_run(tmp_path, "resnet152_gemm").name == "resnet152_gemm"


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "", ".hidden", "/etc", "-x", "a..b", "é"])
def test_a_name_that_no_sweep_can_have_is_refused(tmp_path: Path, name: str) -> None:
    """By the rule of sweep files: it leaves the results, hides itself or looks like an option."""
    if "/" not in name:  # whatever lies there
        (tmp_path / name / "submissions").mkdir(parents=True, exist_ok=True)
    with pytest.raises(UsageError, match=re.escape(files.SWEEP_NAMES)):
        rundir.open_run(tmp_path, name)
    assert name not in [run.name for run in rundir.all_runs(tmp_path)]
