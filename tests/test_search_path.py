"""Where the user's own networks and files are looked for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hpcsweep import search_path


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the path of the process as it was."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(search_path, "_in_use", [])


def test_the_folders_are_absolute_and_each_is_named_once(tmp_path, monkeypatch):
    """The sweep's, the working directory, then those of PYTHONPATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["src", "", str(tmp_path)]))
    found = search_path.beside(Path("sweeps/a.yaml"))
    assert found == tuple(map(str, (tmp_path / "sweeps", tmp_path, tmp_path / "src")))


def test_modules_are_looked_for_there_last_and_not_in_the_working_directory(tmp_path, monkeypatch):
    """`python -m` puts that first, and a job has another one."""
    monkeypatch.chdir(tmp_path)
    sys.path.insert(0, str(tmp_path))
    search_path.use(["/one", "/two"])
    assert str(tmp_path) not in sys.path
    assert sys.path[-2:] == ["/one", "/two"]


def test_a_file_is_the_first_that_is_there(tmp_path):
    """Else it is where it should be; an absolute name stays as it is."""
    folders = [str(tmp_path / "a"), str(tmp_path / "b")]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "w.pt").touch()
    assert search_path.file("w.pt") == Path("w.pt")
    search_path.use(folders)
    assert search_path.file("w.pt") == tmp_path / "b" / "w.pt"
    assert search_path.file("v.pt") == tmp_path / "a" / "v.pt"
    assert search_path.file("/x/w.pt") == Path("/x/w.pt")


def test_a_password_in_pythonpath_is_not_kept(tmp_path, monkeypatch):
    """The folders go into the manifest; a URL is none, and its colons part it."""
    urls = ("https://user:secret@host/simple", "ftp://secret@host:21/a")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/first", *urls, "/last"]))
    found = search_path.beside(tmp_path / "a.yaml")
    assert "secret" not in " ".join(found)
    assert {"/first", "/last"} <= {*found}
