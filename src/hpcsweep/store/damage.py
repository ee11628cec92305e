"""Says which submissions cannot be read in whole: manifest, chunk file, journal.

One of them must not hide the others. Commands leave out what they cannot read, unless they cannot
do what is asked safely without it, and tell in the end what this module finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcsweep.errors import ResultsError
from hpcsweep.store import chunk_file
from hpcsweep.store.jobs_file import Damaged
from hpcsweep.text import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcsweep.store.rundir import RunDir, SubmissionDir


def of(run: RunDir) -> list[str]:
    """Return a message for each file of a sweep's submissions that is damaged."""
    return [problem for submission in run.submissions() for problem in of_submission(submission)]


def of_submission(submission: SubmissionDir) -> list[str]:
    """Return a message for each file of a submission that is damaged."""
    problems, expected = [], 0
    try:
        expected = submission.read_manifest().chunks
    except ResultsError as error:
        problems.append(str(error))
    try:
        there = sum(1 for _chunk in chunk_file.read_ids(submission.chunks))
        if there < expected:
            lacks = f"has {there} of {count(expected, 'chunk')}"
            problems.append(f"{submission.chunks}: {lacks}; was the submission copied whole?")
    except ResultsError as error:
        problems.append(str(error))
    return [*problems, *of_journal(submission)]


def of_journal(submission: SubmissionDir) -> Iterator[str]:
    """Yield a message for each line of a journal that is damaged."""
    for entry in submission.read_jobs():
        if isinstance(entry, Damaged):
            where = f"{submission.jobs}:{entry.line}" if entry.line else str(submission.jobs)
            yield f"{where}: cannot be read ({entry.why}); its jobs may be unknown"
