"""Files are replaced as a whole, or stay as they were; a file system that fails is told so."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from benchmarks.chaos import faults
from hpcsweep import files
from hpcsweep.errors import ResultsError

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from localruns import Desk

TWO = "workload: noop\naxes: {model: [a, b]}\n"


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


def test_a_text_is_found_wherever_it_lies_in_the_blocks_of_a_file(tmp_path: Path) -> None:
    """Across two of them, too; how long the file is says that it is not there."""
    path = tmp_path / "log"
    for place in (0, 5, (1 << 20) - 3, 1 << 20, (1 << 21) - 1):
        path.write_bytes(b"x" * place + b"name" + b"x" * 9)
        with path.open("rb") as file:
            assert files.find(file, b"name") == files.find(file, b"name", place) == place
            assert files.find(file, b"name", place + 1) == place + 13
            assert files.last_lines(file, place, place + 4) == ["name"]
            assert len(files.last_bytes(file)) == min(place + 13, 1 << 20)


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


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library that makes calls fail."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc)")
    return faults.build(tmp_path_factory.mktemp("failing"))


def _run(
    desk: Desk, library: Path, call: str, under: str, *arguments: str, error: int = errno.EIO
) -> subprocess.CompletedProcess[str]:
    """Run a command where each such call below a path fails."""
    failing = {"CALL": call, "UNDER": under, "NTH": "1", "TIMES": "1000", "ERRNO": str(error)}
    env = {f"CHAOS_{name}": value for name, value in failing.items()}
    return desk.run_process(*arguments, LD_PRELOAD=str(library), **env)


@pytest.mark.parametrize(
    ("call", "under", "arguments"),
    [
        ("list", "results/sweep/submissions", ["status"]),
        ("list", "results/sweep/shards", ["collect", "sweep"]),
        ("mkdir", "results/other", ["submit", "other.yaml", "--cluster", "local"]),
    ],
)
def test_a_folder_that_cannot_be_read_ends_a_command_with_6(
    desk: Desk, library: Path, call: str, under: str, arguments: list[str]
):
    """The message names the folder, and says what the system said."""
    desk.spec(TWO)
    desk.spec(TWO, "other.yaml")
    assert desk.submit().returncode == 0
    done = _run(desk, library, call, under, *arguments)
    assert done.returncode == ResultsError.exit_code, done.stderr
    assert "unexpected" not in done.stderr
    assert under in done.stderr
    assert os.strerror(errno.EIO) in done.stderr
    assert desk.run("collect", "sweep").returncode == 0


def test_a_submission_that_may_not_be_looked_at_does_not_count_as_gone(desk: Desk, library: Path):
    """Else its points, which may be measured at this moment, are sent again."""
    desk.spec(TWO)
    assert desk.submit().returncode == 0
    done = _run(desk, library, "stat", "/manifest.json", "collect", "sweep", error=errno.EACCES)
    assert done.returncode == ResultsError.exit_code, done.stdout + done.stderr
    assert "manifest.json" in done.stderr


def test_a_supervisor_that_cannot_look_for_newer_attempts_says_so(desk: Desk, library: Path):
    """It writes no row then; the reason is in the attempt's record, and no traceback anywhere."""
    desk.spec(TWO)
    done = _run(
        desk, library, "stat", "0.1.overall.csv", "submit", "sweep.yaml", "--cluster", "local"
    )
    assert done.returncode == ResultsError.exit_code, done.stderr
    assert os.strerror(errno.EIO) in done.stderr
    (submission,) = desk.sweep().submissions()
    assert "Traceback" not in "".join(log.read_text() for log in submission.logs.iterdir())
    assert desk.rows() == []
    assert "0.1.overall.csv" in desk.run("status", "sweep").stdout
    assert desk.submit().returncode == 0
    assert len(desk.rows()) == 2


def test_leftovers_of_killed_writers_go_and_those_of_others_stay_for_a_day(tmp_path):
    """What another host writes now is not taken from it."""
    (dead := tmp_path / f"{files.aside(tmp_path / 'a.csv')}x1.tmp").touch()
    (other := tmp_path / ".a.csv.elsewhere.x2.tmp").touch()
    (old := tmp_path / ".a.csv.x3.tmp").touch()
    os.utime(old, (0, 0))
    files.remove_leftovers(tmp_path, [tmp_path / "a.csv"])
    assert [path.exists() for path in (dead, other, old)] == [False, True, False]
