"""A bundle comes back as it was written, or its files that differ are named."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import zipfile

import pytest

import resultsfolder
from hpcsweep import files
from hpcsweep.analysis import bundle as writing
from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.importing import importer
from hpcsweep.store.collect import collector
from hpcsweep.store.folders import SUMS
from waiting import wait_for

ID = "20260101-000000-v100"


@pytest.fixture(scope="module")
def _bundled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundled")
    made = resultsfolder.make(folder)
    made.submit(ID)
    made.measure(made.shard(ID), median_ms=2.0)
    kept = made.sweep_dir.own_files / "0123456789abcdef" / "parts" / "net.py"
    kept.parent.mkdir(parents=True)
    kept.write_text("measured")
    collector.collect(made.sweep_dir)
    assert writing.write(made.sweep_dir, folder / "some.zip") == []
    return folder, made.sweep_dir.path.relative_to(folder)


@pytest.fixture
def bundle(_bundled, tmp_path):
    """Return a sweep of eight points, and a bundle of it: copies of its own."""
    folder, sweep = _bundled
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return resultsfolder.SweepDir(tmp_path / sweep), tmp_path / "some.zip"


def rewritten(path, change):
    """Write the bundle anew, with members that `change` returns for a name and its content."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
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


def member(name, mode=stat.S_IFREG | 0o644, method=zipfile.ZIP_DEFLATED):
    """Return an entry of the directory of a zip file."""
    info = zipfile.ZipInfo()
    info.filename = info.orig_filename = name  # which would else end at a NUL
    info.external_attr = mode << 16
    info.compress_type = method
    return info


def encrypted(path):
    """Say in the directory, and before the content, that the first file is encrypted."""
    content = bytearray(path.read_bytes())
    content[6] |= 1
    content[content.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(content)


def of_many_folders(path):
    """Give a bundle 2,500 files, each in nine folders of its own: a hundred times its bytes."""
    with zipfile.ZipFile(path, "a") as archive:
        for number in range(2500):
            archive.writestr(f"demo/{number}/{'a/' * 8}b", b"")


ODD = {
    "absolute": member("/etc/passwd"),
    "above": member("../../outside"),
    "above, inside": member("demo/../../outside"),
    "empty part": member("demo//outside"),
    "here": member("demo/./outside"),
    "no name": member(""),
    "NUL": member("demo/outside\0.csv"),
    "line": member("demo/outside\n"),
    "long": member(f"demo/{'a' * 300}"),
    "deep": member("demo/" + "a/" * 2000 + "b"),
    "another folder": member("outside/a"),
    "twice": member("demo/overall.csv"),
    "file in a file": member("demo/overall.csv/a"),
    "link": member("demo/shards/link", stat.S_IFLNK | 0o777),
    "pipe": member("demo/shards/pipe", stat.S_IFIFO | 0o666),
    "bzip2": member("demo/more", method=zipfile.ZIP_BZIP2),
    "lzma": member("demo/more", method=zipfile.ZIP_LZMA),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("odd", [*ODD, "encrypted", "folders", "bomb"])
def test_what_no_bundle_has_is_refused_before_it_is_unpacked(bundle, tmp_path, odd):
    """In plain words and at once, whatever else a zip file can hold; nothing is left of it."""
    _, path = bundle
    if odd in ODD:
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(ODD[odd], b"/etc/passwd")
    elif odd == "encrypted":
        encrypted(path)
    elif odd == "folders":
        of_many_folders(path)
    else:
        rewritten(path, lambda members: {**members, "demo/own_files/a/b": bytes(100 << 20)})
    before = {*tmp_path.rglob("*")}
    why = "bytes would become" if odd in ("folders", "bomb") else ""
    with pytest.raises(ResultsError, match=rf"some\.zip.*{why}"), files.errors_named():
        importer.bring(tmp_path / "theirs", path)
    assert {*tmp_path.rglob("*")} == before


def test_a_link_with_a_checksum_is_unpacked_as_a_file(bundle, tmp_path):
    """Nothing in a bundle makes a link, whatever its checksums say."""
    _, path = bundle
    place = f"shards/{ID}/link"
    with zipfile.ZipFile(path) as archive:
        sums = archive.read(f"demo/{SUMS}").decode()
    digest = hashlib.sha256(b"/etc/passwd").hexdigest()
    rewritten(path, lambda all_: {**all_, f"demo/{SUMS}": f"{sums}{digest}  {place}\n"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(member(f"demo/{place}", stat.S_IFLNK | 0o777), b"/etc/passwd")
    link = importer.bring(tmp_path / "theirs", path).sweep_dir.path / place
    assert (link.is_symlink(), link.read_text()) == (False, "/etc/passwd")


def test_files_come_back_with_the_rights_that_they_had(bundle, tmp_path):
    """What was its owner's alone stays so; no file has more than it had there."""
    sweep_dir, path = bundle
    (shard,) = sweep_dir.shards()
    shard.samples.chmod(0o600)
    shard.layers.chmod(0o666)
    writing.write(sweep_dir, path)
    for source in (path, sweep_dir.path):
        found = importer.bring(tmp_path / f"from {source.name}", source).sweep_dir
        (theirs,) = found.shards()
        rights = [one.stat().st_mode & 0o777 for one in (theirs.samples, theirs.layers)]
        assert rights == [0o600, 0o666 & ~umask()]


def umask():
    """Return the rights that new files do not get."""
    before = os.umask(0)
    os.umask(before)
    return before


KILLED = """\
import sys, time
from pathlib import Path
from hpcsweep.importing import folder, importer
folder._copy = lambda *_: time.sleep(600)
importer.bring(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_what_a_killed_import_left_goes_with_the_next_and_what_runs_stays(bundle, tmp_path):
    """Also that of another sweep; it lies in the folder of the sweep, whose lock tells."""
    sweep_dir, path = bundle
    results = tmp_path / "theirs"
    other = tmp_path / "other"
    shutil.copytree(sweep_dir.path, other)
    with subprocess.Popen([sys.executable, "-c", KILLED, results, path]) as running:
        left = results / sweep_dir.name
        wait_for(
            "unpacked",
            lambda: (
                [*left.glob(".import-*/unpacked/*/SHA256SUMS")]
                or [*left.glob(".import-*/unpacked/*/page.html")]
            ),
        )
        importer.bring(results, other)
        assert [*left.glob(".import-*")]
        running.send_signal(signal.SIGKILL)
    importer.bring(results, other)
    assert [one.name for one in results.iterdir()] == ["other"]
