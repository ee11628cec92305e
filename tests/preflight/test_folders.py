"""Folders: whether they can be written, and whether nodes will see them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcsweep.preflight import folders
from hpcsweep.preflight.request import Wants


def test_results_in_memory_are_not_seen_by_nodes():
    """A tmpfs is of one machine alone."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm here")
    found = folders.shared(Path("/dev/shm/hpcsweep/not/yet/there"))
    assert (found.level, "memory of this machine" in found.detail) == ("warn", True)
    assert "--results" in found.do


@pytest.mark.parametrize(
    ("kind", "path", "level", "words"),
    [
        ("nfs4", "/", "ok", "nfs4"),
        ("lustre", "/", "ok", "lustre"),
        ("nfs4", "/tmp/x", "ok", "nfs4"),  # some sites do
        ("ext4", "/tmp/x", "warn", "temporary"),
        ("ext4", "/", "warn", "do the nodes mount it?"),
        ("tmpfs", "/", "warn", "memory"),
        ("", "/", "ok", "unknown"),
    ],
)
def test_the_kind_of_file_system_tells(kind, path, level, words, monkeypatch):
    """Network file systems are fine, disks of this machine are doubtful."""
    monkeypatch.setattr(folders, "_file_system", lambda _: kind)
    found = folders.shared(Path(path))
    assert (found.level, words in found.detail) == (level, True), found


def test_findmnt_names_this_machines_file_system():
    """Nothing is made up: the root has some kind."""
    assert folders._file_system(Path("/"))


def test_a_log_folder_that_is_not_there_is_told(tmp_path):
    """Slurm would take the job, fail it, and leave no word."""
    there, absent = tmp_path / "there", tmp_path / "absent"
    there.mkdir()
    places = {"output": "p.yaml:3"}
    (wrong,) = folders.logs(Wants({"output": f"{absent}/%j.out"}, places))
    assert (wrong.level, wrong.where) == ("fail", "p.yaml:3")
    assert str(absent) in wrong.detail
    fine = ("logs/x-%j.out", f"{there}/%j.out", "x.out", "", f"{tmp_path}/%u/x.out", "/dev/null")
    for text in fine:
        assert list(folders.logs(Wants({"output": text}, places))) == [], text


def test_a_relative_log_folder_lies_in_the_submission(tmp_path):
    """Jobs run there."""
    (tmp_path / "mine").mkdir()
    asked = Wants({"error": "mine/x.err"}, {})
    assert list(folders.logs(asked, tmp_path)) == []
    assert len(list(folders.logs(asked, tmp_path / "mine"))) == 1
