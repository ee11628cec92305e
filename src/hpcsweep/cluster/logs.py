"""Reads the logs of what a person names: a submission, a chunk, or the chunk of a point.

`cancel` finds by `named`, too, what it is to cancel.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from hpcsweep.cluster.slurm import journal
from hpcsweep.errors import ResultsError, UsageError, suggest
from hpcsweep.store import chunk_file, ledger
from hpcsweep.store.folders import SubmissionDir, SweepDir

_ID_CHARACTERS: Final = frozenset("0123456789abcdef")
# Characters of a point's id: shorter ones may be numbers of chunks.
_SHORTEST_PREFIX: Final = 4
# Between two looks at a log: new lines seem to come at once.
_POLL_SECONDS: Final = 0.5
# Between two questions to Slurm: slurmctld has better things to do, and a reader does not notice
_ASK_SECONDS: Final = 5.0
# Bytes of a log that are shown: screens of text, and no burden to a login node's memory.
_MOST: Final = 1 << 20


def named(sweep_dir: SweepDir, what: str | None) -> tuple[SubmissionDir, int | None]:
    """Return the submission, and the chunk if one is named; `UsageError` where there is none."""
    by_id = {submission.id: submission for submission in sweep_dir.submissions()}
    if not by_id:
        raise UsageError(f"{sweep_dir.name}: nothing was submitted yet")
    newest = [*by_id.values()][-1]
    if what is None:
        return newest, None
    name, colon, chunk = what.rpartition(":")
    if not (colon and chunk.isdecimal()):
        name = what
        short = len(what) < _SHORTEST_PREFIX
        if what.isdecimal() and (short or int(what) < _chunk_count(newest)):
            return _chunk(newest, int(what))
        if name not in by_id and not short and _ID_CHARACTERS.issuperset(what):
            return _home_of_point(sweep_dir, what)
    if name not in by_id:
        have = ", ".join(by_id)
        raise UsageError(
            f"{sweep_dir.name}: no submission '{name}'{suggest(name, by_id)} (has: {have})"
        )
    return (by_id[name], None) if name == what else _chunk(by_id[name], int(chunk))


def _home_of_point(sweep_dir: SweepDir, prefix: str) -> tuple[SubmissionDir, int]:
    """Return the newest submission and chunk of a point; `UsageError` unless one point fits."""
    homes: dict[str, tuple[SubmissionDir, int]] = {}
    for submission in sweep_dir.submissions():
        with suppress(ResultsError):
            for chunk, ids in chunk_file.read_ids(submission.chunks):
                for point_id in ids:
                    if point_id.startswith(prefix):
                        homes[point_id] = (submission, chunk)
    if not homes:
        damaged = sweep_dir.damage()
        if damaged:
            what = f"'{prefix}' is not in what can be read; {damaged[0]}"
            raise ResultsError(f"{sweep_dir.name}: {what}")
        raise UsageError(f"{sweep_dir.name}: no submission, chunk or point '{prefix}'")
    if len(homes) > 1:
        first_three = ", ".join(sorted(homes)[:3])
        what = f"{len(homes)} points begin with '{prefix}' ({first_three}, ...)"
        raise UsageError(f"{sweep_dir.name}: {what}")
    (home,) = homes.values()
    return home


def _chunk_count(submission: SubmissionDir) -> int:
    """Return the number of chunks; by the attempts if the manifest is damaged."""
    manifest = submission.manifest_or_none()
    if manifest:
        return manifest.chunks
    attempts = submission.sweep_dir.shards_of(submission.id)
    return 1 + max((shard.chunk for shard in attempts), default=-1)


def _chunk(submission: SubmissionDir, number: int) -> tuple[SubmissionDir, int]:
    """Return a chunk that exists; `UsageError` for another one."""
    last = _chunk_count(submission) - 1
    if number > last:
        has = f"chunks 0 to {last}" if last else "chunk 0 alone"
        name = submission.sweep_dir.name
        raise UsageError(f"{name}: {submission.id} has no chunk {number}, it has {has}")
    return submission, number


def lines_of_logs(sweep_dir: SweepDir, what: str | None, *, follow: bool) -> Iterator[str]:
    """Yield the lines of the newest log; with `follow`, wait for more until the job is over.

    `what` is a submission, a chunk as SUBMISSION:CHUNK (or CHUNK of the newest submission), or a
    point id or its beginning; the newest submission by default. Where no worker has started, the
    log is the job's own output. The job's output after its worker's last line follows at the end.
    Of a long log, which may be larger than the memory, these are the last lines.
    `UsageError` where there is no such thing (the message lists the others), or no log yet.
    """
    submission, chunk = named(sweep_dir, what)
    newest = partial(_newest_log, submission, chunk)
    log = newest()
    manifest = submission.manifest_or_none()
    if manifest and manifest.source:
        raise UsageError(f"{submission.id}: was imported; its logs stayed at {manifest.source}")
    if log is None and not follow:
        raise UsageError(
            f"{submission.id}: no log yet; `hpcsweep logs {sweep_dir.name} -f` waits for it"
        )
    alive = _alive(submission, chunk) if follow else lambda: False
    while log is None and alive():
        time.sleep(_POLL_SECONDS)
        log = newest()

    def more(path: Path) -> bool:
        return newest() == path and alive()

    shown = None
    while log is not None and log != shown:
        shown = log
        size = log.stat().st_size
        only = f", the last {_MOST >> 20} MiB of {size >> 20:,}" if size > _MOST else ""
        yield f"==> {log}{only} <=="
        yield from _lines(log, partial(more, log))
        log = newest() if follow else log
    if shown is not None:
        yield from _last_words(submission, shown)


def _newest_log(submission: SubmissionDir, chunk: int | None) -> Path | None:
    """Return the latest attempt's log; if there is none, the latest output of a job."""
    attempts = submission.sweep_dir.shards_of(submission.id)
    logs = [submission.log(s.chunk, s.attempt) for s in attempts if chunk in {s.chunk, None}]
    outputs = list[Path]()
    for number, paths in _outputs(submission).items():
        if chunk in {number, None}:
            outputs += paths
    for paths in (logs, outputs):
        filled = [path for path in paths if path.exists() and path.stat().st_size]
        if filled:
            return max(filled, key=lambda path: path.stat().st_mtime)
    return None


def _outputs(submission: SubmissionDir) -> dict[int, list[Path]]:
    """Return where the output of each chunk's job is."""
    written = submission.job_outputs()
    task_of = journal.read_journal(submission).task_of
    return {chunk: written.get(task, []) for chunk, task in task_of.items()}


def _last_words(submission: SubmissionDir, log: Path) -> Iterator[str]:
    """Yield what a job printed after its workers' last line, such as Slurm's own messages."""
    chunk = log.name.partition(".")[0]
    outputs = _outputs(submission)
    printed = outputs.get(int(chunk), []) if chunk.isdecimal() else []
    logged = set[str]()
    for shard in submission.sweep_dir.shards_of(submission.id) if printed else ():
        own_log = submission.log(shard.chunk, shard.attempt)
        if outputs.get(shard.chunk) == printed and own_log.exists():
            logged.update(_lines(own_log))
    for output in printed:
        after: list[str] = []
        for line in _lines(output):
            after.append(line)
            if line in logged:
                after.clear()
        if after:
            yield f"==> {output}, after that <=="
            yield from after


def _alive(submission: SubmissionDir, chunk: int | None) -> Callable[[], bool]:
    """Return a function that says whether more lines may come; it asks Slurm every 5 s at most."""
    if not journal.read_journal(submission).arrays:
        return lambda: ledger.local_is_live(submission)
    asked_at = 0.0
    live = True

    def ask() -> bool:
        nonlocal asked_at, live
        if time.monotonic() - asked_at > _ASK_SECONDS or not asked_at:
            chunks = journal.ask_slurm([submission]).live_chunks_of(submission)
            asked_at = time.monotonic()
            live = bool(chunks if chunk is None else {chunk} & chunks)
        return live

    return ask


def _lines(path: Path, more: Callable[[], bool] = lambda: False) -> Iterator[str]:
    """Yield the last lines of a file, and wait for others as long as `more` says so."""
    with path.open(encoding="utf-8", errors="replace") as file:
        begin = os.fstat(file.fileno()).st_size - _MOST
        if begin > 0:
            file.seek(begin)
            file.readline(_MOST // 2)  # the rest of a line; of an endless one, half of it
        unfinished = ""
        while True:
            last_look = not more()
            unfinished += file.read()
            *lines, unfinished = unfinished.split("\n")
            yield from lines
            if last_look:
                break
            time.sleep(_POLL_SECONDS)
        if unfinished:
            yield unfinished
