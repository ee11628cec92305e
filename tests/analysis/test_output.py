"""Files that analysis writes: CSV as collect writes it, and messages where a file cannot be."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from matplotlib.figure import Figure

from hpcsweep.analysis import output
from hpcsweep.errors import UsageError
from hpcsweep.store.folders import SweepDir


def test_truth_values_are_written_as_in_the_merged_tables(tmp_path):
    """In small letters; what is unknown is an empty cell."""
    path = tmp_path / "x.csv"
    output.write_csv(path, [{"a": True, "b": None}, {"a": False, "b": 1.5}])
    assert path.read_text() == "a,b\ntrue,\nfalse,1.5\n"


def test_a_table_without_rows_has_its_header():
    """A program that reads it finds the columns."""
    assert output.csv_text(["a", "b"], []) == "a,b\n"


@pytest.mark.parametrize(
    ("ends", "labels"),
    [((0.012, 0.08), ["0.02", "0.05"]), ((30, 900), ["50", "100", "200", "500"]),
     ((0.01, 1000), ["0.01", "0.1", "1", "10", "100", "1000"])],
)  # fmt: skip
def test_a_logarithmic_axis_has_plain_numbers(ends, labels):
    """No powers of ten; where there would be one label or none, those of 2 and 5."""
    axes = Figure().add_subplot()
    axes.set(yscale="log", ylim=ends)
    output.plain_numbers(axes.yaxis)
    axes.figure.draw_without_rendering()
    ticks = [*axes.yaxis.get_major_ticks(), *axes.yaxis.get_minor_ticks()]
    shown = sorted((tick.get_loc(), tick.label1.get_text()) for tick in ticks)
    assert [text for at, text in shown if text and ends[0] <= at <= ends[1]] == labels


@pytest.mark.parametrize(
    ("name", "words"),
    [("x.gif", "pictures end in .png, .svg, .pdf"), ("no/x.png", "there is no folder")],
)
def test_a_picture_that_cannot_be_written_is_refused_before_it_is_drawn(tmp_path, name, words):
    """A large sweep takes a while to read."""
    with pytest.raises(UsageError, match=words):
        output.check_picture(tmp_path / name)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    """Here a folder has its name."""
    path = tmp_path / "x.png"
    path.mkdir()
    message = r"x\.png: is a folder"
    with pytest.raises(UsageError, match=message), output.picture(path, output.LOOK, 2):
        pass
    with pytest.raises(UsageError, match=message):
        output.write_csv(path, [{"a": 1}])


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
        with output.picture(path, output.LOOK, 2):
            pass
    elif path.suffix == ".yaml":
        output.write_sweep(path, "name: x\n")
    else:
        output.write_csv(path, [{"a": 1}])


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


def test_a_picture_of_hostile_labels_is_one_that_browsers_read(tmp_path):
    """SVG is XML, which has no control characters; what turns the direction is shown."""
    with output.picture(tmp_path / "x.svg", output.LOOK, 3.0) as figure:
        figure.subplots().set_title("a\x1b[31m\u202eb")
    text = (tmp_path / "x.svg").read_text()
    assert ET.fromstring(text).tag.endswith("svg")
    assert "a\\x1b[31m\\u202eb" in text


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
