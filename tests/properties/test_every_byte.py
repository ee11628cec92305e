"""Every byte of small files, flipped and cut: what is whole is read, what is not is named.

Through what reads the files; `test_damage` draws bytes and looks through `collect`. By day every
third byte has its turn, with `--all` each.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

import damaged
from hpcsweep.errors import ResultsError
from hpcsweep.store import chunk_file, ledger, manifest, rounds
from hpcsweep.store.jobs_file import Damaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


pytestmark = pytest.mark.no_second_try


@pytest.fixture(scope="module")
def step(pytestconfig: pytest.Config) -> int:
    """Return which bytes have their turn."""
    return 1 if pytestconfig.getoption("--all") else 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> damaged.Folder:
    """Return results of four points, in two submissions."""
    return damaged.make(tmp_path_factory.mktemp("every"))


def every_byte(path: Path, step: int) -> Iterator[bytes]:
    """Put a file into each state that one flipped bit or a cut leaves; restore it in the end."""
    whole = path.read_bytes()
    try:
        for at in range(0, len(whole), step):
            flipped = whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
            for found in (flipped, whole[:at]):
                path.write_bytes(found)
                manifest._read.cache_clear()  # two flips are within one tick of the file's time
                yield found
    finally:
        path.write_bytes(whole)


def assert_as_written(path: Path, read: Callable[[], Any], expected: Any) -> None:
    """Check that a file is read as it was written, or refused by its name in a line or two."""
    try:
        found = read()
    except ResultsError as error:
        told = str(error)
        assert told.startswith(f"{path}: ")
        assert len(told.splitlines()) <= 2
    else:
        assert found == expected


def _manifests(folder: damaged.Folder) -> Iterator[tuple[Path, Callable[[], Any]]]:
    for submission in folder.sweep_dir.submissions():
        yield submission.manifest, submission.read_manifest
    yield folder.sweep_dir.until, lambda: rounds.read_rounds(folder.sweep_dir)


def test_a_manifest_is_read_as_it_was_written_or_named(folder: damaged.Folder, step: int) -> None:
    """So is what says which points were chosen in which round."""
    for path, read in _manifests(folder):
        whole = read()
        assert whole is not None
        for _found in every_byte(path, step):
            assert_as_written(path, read, whole)


def test_a_chunk_holds_the_points_that_were_sent_or_is_named(
    folder: damaged.Folder, step: int
) -> None:
    """A changed axis would be measured under the name of another point."""
    path = folder.sweep_dir.submissions()[0].chunks
    whole, ids = chunk_file.read_chunk(path, 0), [*chunk_file.read_ids(path)]
    for found in every_byte(path, step):
        for read, expected in (
            (lambda: chunk_file.read_chunk(path, 0), whole),
            (lambda: [*chunk_file.read_ids(path)], ids if found else []),
        ):
            assert_as_written(path, read, expected)


def test_an_entry_of_a_journal_is_as_it_was_written_or_named(
    folder: damaged.Folder, step: int
) -> None:
    """With its line, unless its writer was killed within it."""
    for submission in folder.sweep_dir.submissions():
        whole = submission.read_jobs()
        for found in every_byte(submission.jobs, step):
            entries = submission.read_jobs()
            kept = [one for one in entries if not isinstance(one, Damaged)]
            assert [one for one in whole if one in kept] == kept
            lines = re.findall(rb".*\n|.+$", found)
            complete = sum(
                b'"crc": "' in line and len(line) > line.rindex(b'"crc"') + 17 for line in lines
            )
            assert len(entries) >= complete


@pytest.mark.slow
def test_what_waits_is_never_sent_again(folder: damaged.Folder, step: int) -> None:
    """Whichever byte of the files of its submission is damaged."""
    _, submission = folder.sweep_dir.submissions()
    for path in (submission.manifest, submission.chunks, submission.jobs):
        for found in every_byte(path, step):
            if path == submission.jobs and b"\n" not in found and not found.endswith(b"}"):
                continue  # cut in the first entry: as if the command was killed there
            try:
                known = ledger.read_ledger(folder.sweep_dir, folder.queue)
            except ResultsError:
                continue
            assert folder.waits in known.settled(), (path.name, found)
