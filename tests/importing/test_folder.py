"""Results of several sites are one data set."""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import replace

import pytest

import resultsfolder
from hpcsweep.analysis import dataset
from hpcsweep.collect import workflow as collecting
from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.importing import workflow
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


def test_results_of_another_minor_version_are_merged_by_column_name(sites):
    """Rows without a column that is known here, and with one that is new."""
    here, there = sites

    def newer(cells):
        del cells["tf32"]
        first = {name: cells.pop(name) for name in ("point_id", "status")}
        return {**first, "fan_rpm": "900", **cells, "schema_version": "1.9"}

    for shard in there.shards():
        resultsfolder.reseal(shard, newer)
    found = workflow.bring(here.path.parent, there.path)
    assert collecting.collect(found.run).left_out == []
    rows = resultsfolder.overall(here)
    assert {tuple(map(row.get, ("gpu", "tf32", "fan_rpm", "median_ms"))) for row in rows} == {
        ("v100", "false", "", "2"), ("mi250", "", "900", "2"),
    }  # fmt: skip


def odd(path, kind, outside):
    """Put something that is no file of its own in the place of a file."""
    path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to(outside)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one, pytest.MonkeyPatch.context() as patch:
            patch.chdir(path.parent)  # the name of a socket is short
            one.bind(path.name)
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 1 << 40)


@pytest.mark.parametrize("kind", ["link", "device", "pipe", "socket", "sparse"])
@pytest.mark.parametrize(
    "name", ["sweep.yaml", "submissions/*/manifest.json", "submissions/*/chunks.jsonl",
             "shards/*/0.0.overall.csv", "shards/*/0.0.env.json"],
)  # fmt: skip
def test_only_regular_files_are_imported(sites, tmp_path, kind, name):
    """Nothing is copied, nothing is waited for, and the message names the file."""
    here, there = sites
    path = next(there.path.glob(name), there.shards_dir / THERE / "0.0.env.json")
    (outside := tmp_path / "secret").write_text("a secret of this machine")
    odd(path, kind, outside)
    before = {one for one in here.path.rglob("*") if not one.name.startswith(".")}
    with pytest.raises(ResultsError, match=path.name.replace(".", r"\.")):
        workflow.bring(here.path.parent, there.path)
    with pytest.raises(ResultsError):
        workflow.bring(tmp_path / "empty", there.path, "new")
    assert {one for one in here.path.rglob("*") if not one.name.startswith(".")} == before


@pytest.mark.parametrize("name", ["submissions", "shards", "submissions/*", "shards/*"])
def test_a_folder_that_is_a_link_is_not_imported(sites, tmp_path, name):
    """It may lead anywhere."""
    here, there = sites
    (path,) = there.path.glob(name)
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(ResultsError, match="link"):
        workflow.bring(here.path.parent, there.path)


def test_names_that_would_run_a_terminal_are_not_imported(sites):
    """They are told as Python writes them."""
    here, there = sites
    (folder,) = there.shards_dir.iterdir()
    (folder / "a\x1b[2J\n.csv").touch()
    with pytest.raises(ResultsError, match=re.escape("'a\\x1b[2J\\n.csv'")):
        workflow.bring(here.path.parent, there.path)


def test_secrets_of_older_versions_are_not_imported(sites, tmp_path):
    """Nor what would run code of the other machine here, when points are measured again."""
    here, there = sites
    (theirs,) = there.submissions()
    record = theirs.read_manifest()
    fields = {"env": {"TOKEN": "hunter-1"}, "setup": ["export A=hunter-2"], "path": "/x/evil.yaml"}
    settings = replace(record.run, search_path=("/x",))
    theirs.write_manifest(replace(record, id="../..", profile_fields=fields, run=settings))
    (theirs.shards / "0.0.env.json").write_text(
        json.dumps({"slurm": {"SLURM_JWT": "hunter-3", "SLURM_JOB_ID": "1"}})
    )
    workflow.bring(here.path.parent, there.path)
    assert workflow.bring(here.path.parent, there.path).notes[0].startswith("0 files copied")
    mine = here.submission(theirs.id)
    texts = "".join(path.read_text() for path in here.path.rglob("*") if path.is_file())
    assert "hunter" not in texts
    assert '"SLURM_JOB_ID": "1"' in texts
    found = mine.read_manifest()
    assert (found.profile_path, found.run.search_path, found.id) == ("", (), theirs.id)


def test_results_of_a_newer_layout_are_not_imported(sites):
    """Their shards may mean something else."""
    here, there = sites
    (there.path / "layout.json").write_text('{"layout": 2}')
    with pytest.raises(ResultsError, match="newer hpcsweep") as told:
        workflow.bring(here.path.parent, there.path)
    assert str(told.value).startswith(f"{there.path / 'layout.json'}: ")
