"""Files are replaced as a whole, or stay as they were."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from hpcsweep import files
from hpcsweep.errors import ResultsError

if TYPE_CHECKING:
    from pathlib import Path


def test_replacing_shows_the_old_file_until_the_end(tmp_path: Path) -> None:
    """A reader never sees half of one."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with files.replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_replacement_leaves_the_old_file_and_no_rubbish(tmp_path: Path) -> None:
    """Whatever went wrong."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(UnicodeEncodeError), files.replacing(path) as file:
        file.write("half of it \ud800".encode())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    """As a message about results, not a traceback."""
    with pytest.raises(ResultsError, match="cannot be written"), files.replacing(tmp_path / "a/b"):
        pass


def test_replaced_files_have_the_rights_that_others_have(tmp_path: Path) -> None:
    """A temporary file is private; a table is for the group, as the umask says."""
    before = os.umask(0o027)
    try:
        with files.replacing(tmp_path / "file"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe", b""])
def test_json_that_is_none_is_told_with_its_file(tmp_path: Path, content: bytes) -> None:
    """Damaged, or of another kind."""
    path = tmp_path / "manifest.json"
    path.write_bytes(content)
    with pytest.raises(ResultsError, match=r"manifest\.json"):
        files.read_json(path)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "Free space, or"),
        (errno.EDQUOT, "Free space, or"),
        (errno.EROFS, "Make it writable, or"),
        (errno.EACCES, "Make it writable, or"),
    ],
)
def test_what_cannot_be_written_comes_with_what_helps(
    tmp_path: Path, number: int, remedy: str
) -> None:
    """Space does not make a read-only file system writable."""
    told = str(files.cannot_write(tmp_path, OSError(number, os.strerror(number))))
    assert os.strerror(number) in told
    assert remedy in told
