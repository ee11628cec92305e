"""The journal of a submission: every kind of entry, and lines that are none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, get_args

import pytest

from hpcsweep import processes
from hpcsweep.store import jobs_file
from hpcsweep.store.jobs_file import (
    Cancelled,
    Ended,
    Entry,
    NotSent,
    Over,
    Queued,
    Sending,
    Started,
)
from paths import LAYOUT_1

if TYPE_CHECKING:
    from pathlib import Path

ENTRIES = [
    Started(process=processes.identity(), at=1.5),
    Ended(ended=2.5),
    Sending(sending=4, tasks=2, at="2025-01-03T22:20:14+00:00"),
    Queued(job_id="12;emerald", first_chunk=4, tasks=2, submitted_at="2025-01-03T22:20:14+00:00"),
    NotSent(not_sent=4, at="2025-01-03T22:20:14+00:00"),
    Cancelled(cancelled="0-2,5", at="2025-01-03T22:20:14+00:00"),
    Over(over={"COMPLETED": "3"}, at="2025-01-03T22:20:14+00:00"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a journal lies."""
    return tmp_path / "jobs.jsonl"


def test_every_kind_of_entry_is_read_as_it_was_written(path: Path) -> None:
    """In order; a submission that nobody launched has none."""
    assert jobs_file.read(path) == []
    assert {type(entry) for entry in ENTRIES} == set(get_args(Entry))
    for entry in ENTRIES:
        jobs_file.append(path, entry)
    assert jobs_file.read(path) == ENTRIES


def test_what_the_first_release_wrote_is_written_again_as_it_was(path: Path) -> None:
    """No key is lost, renamed or added."""
    for old in LAYOUT_1.glob("demo/submissions/*/jobs.jsonl"):
        path.unlink(missing_ok=True)
        for entry in jobs_file.read(old):
            jobs_file.append(path, entry)
        then, now = (file.read_text().splitlines() for file in (old, path))
        assert list(map(json.loads, now)) == list(map(json.loads, then))


def test_the_journal_survives_a_torn_last_line(path: Path) -> None:
    """The launcher was killed while it wrote."""
    jobs_file.append(path, Queued(job_id="1"))
    jobs_file.append(path, Queued(job_id="2"))
    with path.open("ab") as file:
        file.write(b'{"job_id": "3')
    assert jobs_file.read(path) == [Queued(job_id="1"), Queued(job_id="2")]
    jobs_file.append(path, Queued(job_id="4"))
    assert jobs_file.read(path) == [Queued(job_id=number) for number in "124"]


@pytest.mark.parametrize(
    "line", [b"[]", b"null", b"7", b'{"job_id": 7}', b'{"cancelled": "0"}', b'{"later": 1}', b"\0"]
)
def test_lines_that_are_no_entries_are_left_out(path: Path, line: bytes) -> None:
    """Damaged, or of a later version."""
    path.write_bytes(line + b'\n{"ended": 1}\n')
    assert jobs_file.read(path) == [Ended(ended=1.0)]
