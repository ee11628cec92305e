"""Results of several sites are one data set."""

from __future__ import annotations

import shutil

import pytest

import resultsfolder
from hpcsweep.analysis import dataset
from hpcsweep.collect import workflow as collecting
from hpcsweep.errors import UsageError
from hpcsweep.importing import workflow
from hpcsweep.store.rundir import RunDir
from paths import TESTS
from resultsfolder import SWEEP

HERE, THERE = "20260101-000000-v100", "20260102-000000-mi250"


def site(folder, submission, gpu, text=SWEEP):
    """Return the results of a site, measured on its GPU; points have its name."""
    folder.mkdir()
    made = resultsfolder.make(folder, text)
    points = resultsfolder.points_of(folder, text, gpu)
    made = resultsfolder.Folder(made.run, points)
    made.submit(
        submission, text=text, gpu=gpu, rehearsal=False, host=f"login.{gpu}", launcher="sbatch"
    )
    made.measure(made.shard(submission), median_ms=2.0)
    collecting.collect(made.run)
    return made.run


@pytest.fixture
def sites(tmp_path):
    """Return the results here, and those of another site."""
    return site(tmp_path / "here", HERE, "v100"), site(tmp_path / "there", THERE, "mi250")


def test_the_rows_of_both_sites_are_in_one_table(sites):
    """Each with its source; those of here have none."""
    here, there = sites
    found = workflow.bring(here.path.parent, there.path)
    collecting.collect(found.run)
    rows = dataset.read(here).rows
    assert found.source == "login.mi250"
    assert set(rows.loc[rows["gpu"] == "mi250", "source"]) == {"login.mi250"}
    assert rows.loc[rows["gpu"] == "v100", "source"].isna().all()
    assert rows["gpu"].value_counts().to_dict() == {"mi250": 8, "v100": 8}
    assert set(rows["orphan"]) == {"false"}
    assert [record.launcher for record in here.manifests()] == ["sbatch", "local"]


def test_importing_again_takes_only_what_is_new(sites):
    """More rows of a shard, or another submission."""
    here, there = sites
    workflow.bring(here.path.parent, there.path)
    assert workflow.bring(here.path.parent, there.path).notes[0].startswith("0 files copied")
    folder = resultsfolder.Folder(
        there, resultsfolder.points_of(there.path.parents[1], SWEEP, "mi250")
    )
    folder.measure(folder.shard(THERE, 0, 1), median_ms=3.0)
    workflow.bring(here.path.parent, there.path)
    collecting.collect(here)
    rows = dataset.read(here).rows
    assert set(rows.loc[rows["gpu"] == "mi250", "median_ms"]) == {3.0}
    assert [record.round for record in here.manifests()] == [0, 1]


def test_another_sweep_is_refused(sites, tmp_path):
    """Its rows would be orphans; under another name it is welcome."""
    here, _ = sites
    other = site(tmp_path / "other", THERE, "mi250", SWEEP.replace("64, 96", "64, 80"))
    with pytest.raises(UsageError, match=r"is not the sweep of .*--as imports it under another"):
        workflow.bring(here.path.parent, other.path)
    found = workflow.bring(here.path.parent, other.path.parent, "theirs")
    collecting.collect(found.run)
    assert len(dataset.read(found.run).rows) == 8
    with pytest.raises(UsageError, match="is that sweep already"):
        workflow.bring(here.path.parent, here.path)


def test_results_of_the_first_release_are_imported(tmp_path):
    """Any older version: shards are read as they were written."""
    old = RunDir(tmp_path / "old")
    source = next(path for path in (TESTS / "fixtures" / "layout_1").rglob("submissions")).parent
    shutil.copytree(source, old.path)
    found = workflow.bring(tmp_path / "results", old.path)
    assert collecting.collect(found.run).points == collecting.collect(old).points > 0
