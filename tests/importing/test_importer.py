"""What a path is: a results folder, tables, or nothing that can be imported."""

from __future__ import annotations

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
