"""What a path is: a results folder, tables, or nothing that can be imported."""

from __future__ import annotations

import csv
import json

import pytest

import oldtables
from hpcsweep.errors import UsageError
from hpcsweep.importing import importer
from localruns import Desk


def test_the_command_imports_and_collects(tmp_path):
    """One command, then every other one works; the name is the folder's, or `--as`."""
    oldtables.folder(tmp_path / "tables", [("VGG16", "gemm", "V100")], (64,), layers=2)
    desk = Desk(tmp_path)
    done = desk.run("import", "tables", "--as", "old")
    assert done.returncode == 0, done.stderr
    assert "old: imported from tables" in done.stdout
    assert "2 tables: 1 network, 2 layer rows" in done.stdout
    assert "vgg16" in desk.run("report", "old").stdout
    record = json.loads(desk.run("import", "tables", "--as", "older", "--json").stdout)
    assert (record["source"], record["points"]) == ("tables", 1)


@pytest.mark.parametrize(
    ("path", "name", "words"),
    [
        ("nothing", "", "nothing: no such file or folder"),
        ("empty", "", "neither a results folder nor tables"),
        ("empty", "../x", "no sweep can have the name"),
    ],
)
def test_what_cannot_be_imported_is_told(tmp_path, monkeypatch, path, name, words):
    """And nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=words):
        importer.bring(tmp_path / "results", tmp_path / path, name)
    assert not (tmp_path / "results").exists()


def _table(path, seconds):
    """Write a table of one convolution, and the map of its columns beside the results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"s,N,C,K,H,W,R\n{seconds},2,4,8,9,7,3\n")


def _of_map(folder):
    """Return the map of these columns."""
    names = "{time: s, batch_size: N, in_channels: C, out_channels: K, in_h: H, in_w: W"
    (folder / "map.yaml").write_text(f"unit: s\ncolumns: {names}, kernel_size: R}}\n")
    return "--columns", "map.yaml", "--device", "v100"


def test_two_tables_of_one_name_are_not_mixed(tmp_path):
    """The second is refused, by both paths; the same times from elsewhere are no harm."""
    desk = Desk(tmp_path)
    options = _of_map(tmp_path)
    for folder, seconds in (("a", 0.001), ("b", 0.003), ("copy", 0.001)):
        _table(tmp_path / folder / "t.csv", seconds)
    assert desk.run("import", "a/t.csv", *options).returncode == 0
    before = (tmp_path / "results" / "t" / "layers.csv").read_bytes()
    refused = desk.run("import", "b/t.csv", *options)
    assert refused.returncode == 2
    assert "b/t.csv: t has other times of 1 point of it" in refused.stderr
    assert "a/t.csv" in refused.stderr
    assert (tmp_path / "results" / "t" / "layers.csv").read_bytes() == before
    assert desk.run("import", "copy/t.csv", *options).returncode == 0
    assert desk.run("import", "b/t.csv", *options, "--as", "other").returncode == 0


def test_a_table_that_another_machine_imported_is_known_without_its_path(tmp_path):
    """Its checksum travels with the results, the path there does not."""
    there = Desk(tmp_path / "there")
    here = Desk(tmp_path / "here")
    for desk, seconds in ((there, 0.001), (here, 0.003)):
        _table(desk.folder / "t.csv", seconds)
    options = _of_map(there.folder)
    assert there.run("import", "t.csv", *options).returncode == 0
    assert here.run("import", str(there.folder / "results/t")).returncode == 0
    (record,) = (here.folder / "results/t/submissions").glob("*/manifest.json")
    assert str(there.folder) not in record.read_text()
    refused = here.run("import", "t.csv", *_of_map(here.folder))
    assert refused.returncode == 2
    assert "(on another machine)" in refused.stderr


def test_a_table_that_changed_counts_as_it_is_now(tmp_path):
    """Its path says that it is the same one."""
    desk = Desk(tmp_path)
    options = _of_map(tmp_path)
    for seconds in (0.001, 0.003):
        _table(tmp_path / "t.csv", seconds)
        assert desk.run("import", "t.csv", *options).returncode == 0
    with (tmp_path / "results" / "t" / "layers.csv").open() as file:
        assert [row["median_ms"] for row in csv.DictReader(file)] == ["3"]


def test_two_folders_of_tables_of_one_name_are_not_mixed(tmp_path):
    """A folder that grew is the same one."""
    desk = Desk(tmp_path)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        oldtables.folder(tmp_path / folder / "old", [("VGG16", "gemm", "V100")], (64,), layers=2)
    (changed,) = (tmp_path / "b" / "old").glob("*layers.csv")
    changed.write_text(changed.read_text().replace("0", "1"))
    assert desk.run("import", "a/old").returncode == 0
    refused = desk.run("import", "b/old")
    assert refused.returncode == 2
    assert "from another file of that name" in refused.stderr
    (tmp_path / "a" / "old" / "more_overall.csv").write_text(
        (tmp_path / "a" / "old" / "combined_overall.csv").read_text().replace("gemm", "fft")
    )
    assert desk.run("import", "a/old").returncode == 0
