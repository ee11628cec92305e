"""The journal of a submission: every kind of entry, and lines that are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pytest

from hpcsweep import processes
from hpcsweep.errors import ResultsError
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
    Then,
)

if TYPE_CHECKING:
    from pathlib import Path

ENTRIES = [
    Started(process=processes.identity(), at=1.5),
    Ended(ended=2.5),
    Sending(sending=4, tasks=9, per_task=8, at="2025-01-03T22:20:14+00:00"),
    Queued(job_id="12;emerald", first_chunk=4, tasks=2, submitted_at="2025-01-03T22:20:14+00:00"),
    NotSent(not_sent=4, at="2025-01-03T22:20:14+00:00"),
    Cancelled(cancelled="0-2,5", at="2025-01-03T22:20:14+00:00"),
    Over(over={"COMPLETED": "3"}, at="2025-01-03T22:20:14+00:00"),
    Then(then="queued", job="13", at="2025-01-03T22:20:14+00:00"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a journal lies."""
    return tmp_path / "jobs.jsonl"


def test_every_kind_of_entry_is_read_as_it_was_written(path: Path) -> None:
    """In order; a submission that nobody launched has none."""
    assert jobs_file.read_jobs(path) == []
    assert {type(entry) for entry in ENTRIES} == set(get_args(Entry))
    for entry in ENTRIES:
        jobs_file.append(path, entry)
    assert jobs_file.read_jobs(path) == ENTRIES


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_line_that_was_cut_anywhere_is_left_out_and_ended_by_the_next(
    path: Path, entry: Entry
) -> None:
    """The disk was full: also within a record in the entry, or after its first byte."""
    before, after = NotSent(not_sent=1), Ended(ended=3.0)
    jobs_file.append(path, before)
    first = path.read_bytes()
    jobs_file.append(path, entry)
    whole = path.read_bytes()
    for end in range(len(first), len(whole) - 1):
        path.write_bytes(whole[:end])
        assert jobs_file.read_jobs(path) == [before]
        jobs_file.append(path, after)
        assert jobs_file.read_jobs(path) == [before, after]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"[]", "not an object"),
        (b"null", "not an object"),
        (b"7", "not an object"),
        (b"[" * 100_000, "recursion"),
        (b"\0", "Expecting value"),
        (b'{"job_id": 7}', "`job_id` cannot be 7"),
        (b'{"job_id": "12-x"}', "'12-x' names no jobs"),
        (b'{"job_id": "12", "tasks": 1000000000000}', "[0, 1000000000000]"),
        (b'{"sending": -1, "tasks": 1}', "[-1, 1]"),
        (b'{"cancelled": "0"}', "keys are missing"),
        (b'{"cancelled": "0-99999999999", "at": ""}', "'0-99999999999' names no jobs"),
        (b'{"cancelled": "0-9999999", "at": ""}', "[0, 9999999]"),
        (b'{"over": {"FAILED": "0-9999999"}}', "[0, 9999999]"),
        (b'{"over": {"COMPLETED": 3}}', "3 names no jobs"),
        (b'{"then": "queued", "job": "x"}', "'x' names no jobs"),
    ],
)
def test_damaged_lines_are_told(path: Path, line: bytes, why: str) -> None:
    """They may have said that jobs were sent."""
    path.write_bytes(line + b'\n{"ended": 1}\n')
    damaged, ended = jobs_file.read_jobs(path)
    assert isinstance(damaged, jobs_file.Damaged)
    assert (damaged.line, ended) == (1, Ended(ended=1.0))
    assert why in damaged.why


@pytest.mark.parametrize("line", [b"", b'{"later": 1}', b'{"job_id": "12", "fi', b'{"'])
def test_lines_that_are_torn_or_of_a_later_version_are_left_out(path: Path, line: bytes) -> None:
    """The first of them were written before anything was done."""
    path.write_bytes(line + b'\n{"ended": 1}\n')
    assert jobs_file.read_jobs(path) == [Ended(ended=1.0)]


def test_a_journal_that_cannot_be_read_is_told(path: Path) -> None:
    """It may say anything."""
    path.mkdir()
    assert jobs_file.read_jobs(path) == [jobs_file.Damaged(0, "Is a directory")]


def test_a_journal_that_is_a_link_is_not_written_through(tmp_path):
    """It may point at a file of another person, or of another submission."""
    other, link = tmp_path / "other", tmp_path / "jobs.jsonl"
    other.write_text("theirs\n")
    link.symlink_to(other)
    with pytest.raises(ResultsError, match="cannot be written"):
        jobs_file.append(link, Ended(ended=1.0))
    assert other.read_text() == "theirs\n"
