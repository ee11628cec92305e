"""Files that users name: each kind of output replaces its own, and messages where it cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcsweep.analysis import best, drawing, formats
from hpcsweep.errors import UsageError
from hpcsweep.store.folders import SweepDir


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    """Here a folder has its name."""
    path = tmp_path / "x.png"
    path.mkdir()
    message = r"x\.png: is a folder"
    with pytest.raises(UsageError, match=message), drawing.picture(path, drawing.LOOK, 2):
        pass
    with pytest.raises(UsageError, match=message):
        formats.write_csv(path, [{"a": 1}])


@pytest.fixture
def folder(tmp_path):
    """Return a results folder with a shard."""
    run = SweepDir(tmp_path / "results" / "demo")
    (run.submissions_dir / "a").mkdir(parents=True)
    (run.shards_dir / "a").mkdir(parents=True)
    (run.shards_dir / "a" / "0.0.overall.csv").write_text("rows\n")
    run.sweep_file.write_text("name: demo\n")
    return run


def write(path):
    """Write each kind of output to a path, as far as its name allows it."""
    if path.suffix in {".png", ".svg", ".pdf"}:
        with drawing.picture(path, drawing.LOOK, 2):
            pass
    elif path.suffix == ".yaml":
        best.write_sweep(path, "name: x\n")
    else:
        formats.write_csv(path, [{"a": 1}])


@pytest.mark.parametrize("kind", ["csv", "yaml", "png", "svg", "pdf"])
def test_an_output_replaces_its_own_kind_and_nothing_else(tmp_path, kind):
    """Also through a link, which stays; an empty file may go, and so may yesterday's output."""
    path = tmp_path / f"out.{kind}"
    path.touch()
    write(path)
    write(path)
    (link := tmp_path / f"link.{kind}").symlink_to(path)
    write(link)
    assert link.is_symlink()
    for other in (
        b"mine",
        b"name: x\n",
        b"\x89PNG mine",
        b"<?xml mine",
        b"%PDF mine",
        b"a,b\n1,2\n",
    ):
        path.write_bytes(other)
        for name in (path, link):
            with pytest.raises(UsageError, match="did not write it"):
                write(name)
        assert path.read_bytes() == other


def test_a_sweep_that_was_edited_stays(tmp_path):
    """The checksum tells."""
    write(path := tmp_path / "map.yaml")
    path.write_text("# my remark\n" + path.read_text())
    with pytest.raises(UsageError, match="edited"):
        write(path)


def test_nothing_is_written_among_results(folder, tmp_path, monkeypatch):
    """Whatever names lead there; beside the tables of a sweep there is room for a page."""
    (tmp_path / "link").symlink_to(folder.shards_dir / "a")
    (tmp_path / "new.csv").symlink_to(folder.shards_dir / "a" / "new.csv")
    monkeypatch.chdir(folder.submissions_dir)
    for path in (
        folder.shards_dir / "a" / "0.0.overall.csv", folder.shards_dir / "new.csv",
        folder.submissions_dir / "a" / "map.yaml", folder.sweep_file, folder.overall,
        folder.path / "SWEEP.yaml", tmp_path / "link" / "new.csv", tmp_path / "new.csv",
        Path("../shards/a/../new.csv"), Path("new.csv"), folder.path / ".collect.json",
    ):  # fmt: skip
        with pytest.raises(UsageError, match="belongs to the results"):
            write(path)
    write(folder.path / "summary.csv")
    assert sorted(path.name for path in folder.shards_dir.rglob("*.*")) == ["0.0.overall.csv"]


def test_devices_and_pipes_are_written_and_folders_are_not(tmp_path):
    """As a shell offers them."""
    os.mkfifo(pipe := tmp_path / "pipe.csv")
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write(pipe)
    assert os.read(end, 100) == b"a\n1\n"
    os.close(end)
    write(Path("/dev/null"))
    with pytest.raises(UsageError, match="is a folder"):
        write(tmp_path)
