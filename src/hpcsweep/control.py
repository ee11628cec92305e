"""What a person does to what was launched: read its logs, end it."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Final

from hpcsweep import jobs, ledger, process
from hpcsweep.errors import UsageError, suggest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from hpcsweep.rundir import RunDir, SubmissionDir

_POLL_SECONDS: Final = 0.5
_ID_CHARACTERS: Final = frozenset("0123456789abcdef")
_SHORTEST_PREFIX: Final = 4


def logs(run: RunDir, what: str | None, *, follow: bool) -> Iterator[str]:
    """Return the lines of a log: of the newest attempt by default.

    `what` is a submission, a chunk as SUBMISSION:CHUNK (or CHUNK of the newest submission), or a
    point id or its beginning.

    Raises:
        UsageError: there is no such thing, or it has no log yet.

    """
    submission, chunk = _resolve(run, what)
    found = _newest_log(submission, chunk)
    if found is None and not follow:
        raise UsageError(f"{submission.id}: no log yet; `hpcsweep logs {run.name} -f` waits for it")
    alive = (lambda: ledger.local_is_live(submission)) if follow else None
    while found is None and alive and alive():
        time.sleep(_POLL_SECONDS)
        found = _newest_log(submission, chunk)
    if found is not None:
        yield f"==> {found} <=="
        yield from _lines(found, alive)


def cancel(run: RunDir, submission_ids: Sequence[str]) -> Iterator[str]:
    """End live submissions: the current points are finished if that is quick, or dropped.

    Raises:
        UsageError: no submission of that id.

    """
    wanted = [_submission(run, name) for name in submission_ids] or run.submissions()
    live = [submission for submission in wanted if ledger.local_is_live(submission)]
    for submission in live:
        who = [entry["process"] for entry in submission.read_jobs() if "process" in entry][-1]
        if process.is_alive(who):
            os.kill(who["pid"], signal.SIGTERM)
            yield f"{submission.id}: told process {who['pid']} to finish; what was measured stays"
        else:
            yield f"{submission.id}: runs on {who['host']}; cancel it there (process {who['pid']})"
    for submission in wanted:
        jobs_sent = [entry["job_id"] for entry in submission.read_jobs() if "job_id" in entry]
        if jobs_sent:
            yield f"{submission.id}: in Slurm's hands; end it with: scancel {' '.join(jobs_sent)}"
    if not live:
        yield f"{run.name}: nothing is live on this machine"


def find_point(run: RunDir, prefix: str) -> tuple[SubmissionDir, int]:
    """Return the newest submission and chunk that a point was sent in.

    Raises:
        UsageError: no such point, or several begin like that.

    """
    homes: dict[str, tuple[SubmissionDir, int]] = {}
    for submission in run.submissions():
        for chunk, ids in jobs.read_ids(submission.chunks):
            homes.update({i: (submission, chunk) for i in ids if i.startswith(prefix)})
    if not homes:
        raise UsageError(f"{run.name}: no submission, chunk or point '{prefix}'")
    if len(homes) > 1:
        some = ", ".join(sorted(homes)[:3])
        raise UsageError(f"{run.name}: {len(homes)} points begin with '{prefix}' ({some}, ...)")
    return next(iter(homes.values()))


def _resolve(run: RunDir, what: str | None) -> tuple[SubmissionDir, int | None]:
    submissions = run.submissions()
    if not submissions:
        raise UsageError(f"{run.name}: nothing was submitted yet")
    if what is None:
        return submissions[-1], None
    name, colon, chunk = what.rpartition(":")
    if colon and chunk.isdigit():
        return _submission(run, name), int(chunk)
    if any(what == submission.id for submission in submissions):
        return _submission(run, what), None
    if len(what) >= _SHORTEST_PREFIX and _ID_CHARACTERS.issuperset(what):
        return find_point(run, what)
    if what.isdigit():
        return submissions[-1], int(what)
    return _submission(run, what), None


def _submission(run: RunDir, name: str) -> SubmissionDir:
    known = {submission.id: submission for submission in run.submissions()}
    if name not in known:
        have = ", ".join(known) or "none"
        raise UsageError(f"{run.name}: no submission '{name}'{suggest(name, known)} (has: {have})")
    return known[name]


def _newest_log(submission: SubmissionDir, chunk: int | None) -> Path | None:
    shard_list = (
        submission.run.shards_of(submission.id) if chunk is None else submission.attempts(chunk)
    )
    found = [submission.log(shard.chunk, shard.attempt) for shard in shard_list]
    there = [path for path in found if path.exists()]
    return max(there, key=lambda path: path.stat().st_mtime) if there else None


def _lines(path: Path, alive: Callable[[], bool] | None) -> Iterator[str]:
    """Return the lines of a file; while `alive`, wait for more."""
    with path.open(encoding="utf-8", errors="replace") as file:
        rest = ""
        while True:
            last_look = alive is None or not alive()
            rest += file.read()
            *lines, rest = rest.split("\n")
            yield from lines
            if last_look:
                break
            time.sleep(_POLL_SECONDS)
        if rest:
            yield rest
