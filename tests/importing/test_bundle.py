"""A bundle comes back as it was written, or its files that differ are named."""

from __future__ import annotations

import shutil
import zipfile

import pytest

import resultsfolder
from hpcsweep.analysis import bundle as writing
from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.importing import importer
from hpcsweep.store.collect import collector
from hpcsweep.store.folders import SUMS

ID = "20260101-000000-v100"


@pytest.fixture
def bundle(tmp_path):
    """Return a bundle of eight points."""
    made = resultsfolder.make(tmp_path)
    made.submit(ID)
    made.measure(made.shard(ID), median_ms=2.0)
    kept = made.sweep_dir.own_files / "0123456789abcdef" / "parts" / "net.py"
    kept.parent.mkdir(parents=True)
    kept.write_text("measured")
    collector.collect(made.sweep_dir)
    path = tmp_path / "some.zip"
    assert writing.write(made.sweep_dir, path) == []
    shutil.copytree(made.sweep_dir.own_files, tmp_path / "own_files")
    return made.sweep_dir, path


def rewritten(path, change):
    """Write the bundle anew, with members that `change` returns for a name and its content."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in change(members).items():
            archive.writestr(name, content)


def test_rows_come_back(bundle, tmp_path):
    """Under the sweep's name, whatever the file's; a second import adds nothing."""
    sweep_dir, path = bundle
    found = importer.bring(tmp_path / "theirs", path)
    assert found.sweep_dir.path == tmp_path / "theirs" / sweep_dir.name
    assert str(path) in found.notes[0]
    collector.collect(found.sweep_dir)
    own, theirs = (resultsfolder.by_point(one, "median_ms") for one in (sweep_dir, found.sweep_dir))
    assert own == theirs
    assert len(own) == 8
    assert importer.bring(tmp_path / "theirs", path).notes == (f"0 files copied from {path}",)
    assert [one.name for one in (tmp_path / "theirs").iterdir()] == [sweep_dir.name]


def test_own_files_come_back_once(bundle, tmp_path):
    """Those that are here already stay as they are."""
    sweep_dir, path = bundle
    rewritten(path, lambda members: members)
    results = tmp_path / "theirs"
    folder = tmp_path / "unpacked"
    shutil.copytree(sweep_dir.path, folder / sweep_dir.name)
    here = importer.bring(results, folder).sweep_dir
    (copy,) = here.own_files.rglob("net.py")
    assert copy.read_text() == "measured"
    copy.write_text("here")
    importer.bring(results, folder)
    assert copy.read_text() == "here"


def test_what_differs_is_named(bundle, tmp_path):
    """Changed, missing and new files; nothing is imported."""
    sweep_dir, path = bundle
    root = sweep_dir.name

    def change(members):
        members[f"{root}/overall.csv"] += b"1\n"
        members[f"{root}/more"] = b""
        del members[f"{root}/sweep.yaml"]
        return members

    rewritten(path, change)
    told = r"missing: sweep.yaml; new: more; changed: overall.csv"
    with pytest.raises(ResultsError, match=told):
        importer.bring(tmp_path / "theirs", path)
    assert not (tmp_path / "theirs").exists()


def test_another_zip_is_refused(bundle, tmp_path):
    """One without checksums, and one whose bytes are damaged."""
    _, path = bundle
    damaged = tmp_path / "damaged.zip"
    content = bytearray(path.read_bytes())
    content[60:90] = bytes(30)
    damaged.write_bytes(content)
    with pytest.raises(ResultsError, match="is damaged"):
        importer.bring(tmp_path / "theirs", damaged)
    rewritten(path, lambda members: {n: c for n, c in members.items() if SUMS not in n})
    with pytest.raises(UsageError, match="is no bundle of hpcsweep"):
        importer.bring(tmp_path / "theirs", path)


def test_a_name_that_leads_out_of_the_folder_stays_inside(bundle, tmp_path):
    """Of the one that is unpacked into, and goes with it."""
    _, path = bundle
    rewritten(path, lambda members: {**members, "../../outside": b""})
    importer.bring(tmp_path / "theirs", path)
    assert not [*tmp_path.rglob("outside")]
