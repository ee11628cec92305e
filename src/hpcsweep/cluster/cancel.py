"""Reads the logs of submissions, chunks and points; cancels queued and running jobs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TextIO

from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm import journal, liveness, settling, slurm_answer
from hpcsweep.errors import ResultsError, SchedulerError, UsageError, suggest
from hpcsweep.store import chunk_file, ledger, locks
from hpcsweep.store.folders import SubmissionDir, SweepDir
from hpcsweep.store.jobs_file import Cancelled

_POLL_SECONDS: Final = 0.5
_ASK_SECONDS: Final = 5.0  # between two questions to Slurm
_ID_CHARACTERS: Final = frozenset("0123456789abcdef")
_SHORTEST_PREFIX: Final = 4
_MOST: Final = 1 << 20  # bytes of a log that are shown: a login node's memory does not hold all


def logs(sweep_dir: SweepDir, what: str | None, *, follow: bool) -> Iterator[str]:
    """Yield the lines of the newest log; with `follow`, wait for more until the job is over.

    `what` is a submission, a chunk as SUBMISSION:CHUNK (or CHUNK of the newest submission), or a
    point id or its beginning; the newest submission by default. Where no worker has started, the
    log is the job's own output. The job's output after its worker's last line follows at the end.
    Of a long log, which may be larger than the memory, these are the last lines.
    `UsageError` where there is no such thing (the message lists the others), or no log yet.
    """
    submission, chunk = _resolve(sweep_dir, what)
    newest = partial(_newest_log, submission, chunk)
    log = newest()
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


def cancel(sweep_dir: SweepDir, names: Sequence[str]) -> Iterator[str]:
    """Cancel the queued and running jobs of submissions, chunks or points, by default of all.

    A chunk that runs finishes its current point if the time allows. In Slurm only live tasks are
    cancelled; the journal keeps which. `UsageError` for a name that nothing has, or for a part of a
    local submission. `SchedulerError` where Slurm could not be asked, and nothing was recorded, or
    where some jobs cannot be seen from here, such as those of another cluster.
    """
    wanted: dict[SubmissionDir, set[int] | None] = {}
    for submission, chunk in map(partial(_resolve, sweep_dir), names):
        before = wanted.setdefault(submission, set())
        wanted[submission] = None if chunk is None or before is None else before | {chunk}
    if not names:
        wanted = dict.fromkeys(sweep_dir.submissions())
    left: list[str] = []
    messages = [*_cancel_here(wanted), *_cancel_in_slurm(wanted, left)]
    yield from messages
    if left:
        raise SchedulerError("\n".join(left))
    if not messages:
        yield f"{sweep_dir.name}: nothing is queued or running"


def _cancel_here(wanted: Mapping[SubmissionDir, set[int] | None]) -> Iterator[str]:
    live = [submission for submission in wanted if ledger.local_is_live(submission)]
    for submission in live:
        if wanted[submission] is not None:
            raise UsageError(
                f"{submission.id}: a run on this machine can be cancelled only as a whole: "
                f"{submission.sweep_dir.command('cancel', submission.id)}"
            )
    for submission in live:
        who = ledger.runner(submission)
        if who and who.is_alive():
            os.kill(who.pid, signal.SIGTERM)
            yield f"{submission.id}: asked process {who.pid} to finish; results are kept"
        elif who:
            yield f"{submission.id}: runs on {who.host}; cancel it there (process {who.pid})"


def _cancel_in_slurm(
    wanted: Mapping[SubmissionDir, set[int] | None], left: list[str]
) -> Iterator[str]:
    """Cancel the live tasks of the chunks with one call, then record them.

    scancel gets only ids of jobs that are surely of this submission; `left` collects messages about
    the others.
    """
    if any(sent.uncertain for sent in map(journal.read_journal, wanted)):
        with locks.held(next(iter(wanted)).sweep_dir, "hpcsweep cancel"):
            yield from settling.settle(wanted)
    answer = slurm_answer.ask_slurm(wanted)
    hit: dict[SubmissionDir, set[int]] = {}
    targets: list[str] = []
    for submission, chunks in wanted.items():
        sent = journal.read_journal(submission)
        others = dict[str, set[int]]()
        hit[submission] = set()
        for chunk in sent.open_chunks if chunks is None else sent.open_chunks & chunks:
            verdict = liveness.liveness(chunk, sent, answer)
            if not verdict.live:
                continue
            job = answer.tasks.get(sent.task_of[chunk])
            if not verdict.elsewhere and (sent.owns(job) if job else sent.is_mine(answer.here)):
                hit[submission].add(chunk)
            else:
                others.setdefault(verdict.why, set()).add(chunk)
        targets += sent.targets(hit[submission])
        left += [_not_ours(sent, why, numbers) for why, numbers in others.items()]
    slurm.cancel(targets)
    for submission, chunks in hit.items():
        if chunks:
            text = slurm.task_list(chunks)
            submission.append_job(Cancelled(cancelled=text, at=journal.now()))
            yield (
                f"{submission.id}: cancelled chunks {text}; results are kept, a point that "
                "runs is finished if the site's KillWait allows, and submit sends the rest again"
            )


def _not_ours(sent: journal.Journal, why: str, chunks: set[int]) -> str:
    text = f"{slurm.task_list(chunks)} (jobs {', '.join(sent.targets(chunks))})"
    there = why.endswith("ask there")
    then = "cancel them there" if there else "try again later, or as who sent them"
    return f"{sent.submission.id}: did not cancel chunks {text}: {why}; {then}"


def find_point(sweep_dir: SweepDir, prefix: str) -> tuple[SubmissionDir, int]:
    """Return the newest submission and chunk of a point; `UsageError` unless one point fits."""
    homes: dict[str, tuple[SubmissionDir, int]] = {}
    for submission in sweep_dir.submissions():
        with suppress(ResultsError):
            for chunk, ids in chunk_file.read_ids(submission.chunks):
                homes.update({i: (submission, chunk) for i in ids if i.startswith(prefix)})
    if not homes and (damaged := sweep_dir.damage()):
        raise ResultsError(f"{sweep_dir.name}: '{prefix}' is not in what can be read; {damaged[0]}")
    if not homes:
        raise UsageError(f"{sweep_dir.name}: no submission, chunk or point '{prefix}'")
    if len(homes) > 1:
        some = ", ".join(sorted(homes)[:3])
        raise UsageError(
            f"{sweep_dir.name}: {len(homes)} points begin with '{prefix}' ({some}, ...)"
        )
    return next(iter(homes.values()))


def _resolve(sweep_dir: SweepDir, what: str | None) -> tuple[SubmissionDir, int | None]:
    submissions = sweep_dir.submissions()
    if not submissions:
        raise UsageError(f"{sweep_dir.name}: nothing was submitted yet")
    newest = submissions[-1]
    if what is None:
        return newest, None
    name, colon, chunk = what.rpartition(":")
    if colon and chunk.isdecimal():
        return _chunk(_submission(sweep_dir, name), int(chunk))
    if any(what == submission.id for submission in submissions):
        return _submission(sweep_dir, what), None
    short = len(what) < _SHORTEST_PREFIX
    if what.isdecimal() and (short or int(what) < _chunks(newest)):
        return _chunk(newest, int(what))
    if len(what) >= _SHORTEST_PREFIX and _ID_CHARACTERS.issuperset(what):
        return find_point(sweep_dir, what)
    return _submission(sweep_dir, what), None


def _chunks(submission: SubmissionDir) -> int:
    """Return the number of chunks; by the attempts if the manifest is damaged."""
    if manifest := submission.manifest_or_none():
        return manifest.chunks
    attempts = submission.sweep_dir.shards_of(submission.id)
    return 1 + max((shard.chunk for shard in attempts), default=-1)


def _chunk(submission: SubmissionDir, number: int) -> tuple[SubmissionDir, int]:
    """Return a chunk that exists; `UsageError` for another one."""
    last = _chunks(submission) - 1
    if number > last:
        has = f"chunks 0 to {last}" if last else "chunk 0 alone"
        name = submission.sweep_dir.name
        raise UsageError(f"{name}: {submission.id} has no chunk {number}, it has {has}")
    return submission, number


def _submission(sweep_dir: SweepDir, name: str) -> SubmissionDir:
    by_id = {submission.id: submission for submission in sweep_dir.submissions()}
    if name not in by_id:
        have = ", ".join(by_id) or "none"
        raise UsageError(
            f"{sweep_dir.name}: no submission '{name}'{suggest(name, by_id)} (has: {have})"
        )
    return by_id[name]


def _newest_log(submission: SubmissionDir, chunk: int | None) -> Path | None:
    """Return the latest attempt's log; if there is none, the latest output of a job."""
    attempts = submission.sweep_dir.shards_of(submission.id)
    own = (submission.log(s.chunk, s.attempt) for s in attempts if chunk in {s.chunk, None})
    outputs = _outputs(submission).items()
    return _newest(own) or _newest(path for number, path in outputs if chunk in {number, None})


def _outputs(submission: SubmissionDir) -> dict[int, Path]:
    """Return where Slurm puts the output of each chunk's job."""
    return {
        chunk: submission.job_output(job, task)
        for chunk, (job, task, _cluster) in journal.read_journal(submission).task_of.items()
        if job is not None and task is not None
    }


def _newest(paths: Iterable[Path]) -> Path | None:
    there = [path for path in paths if path.exists() and path.stat().st_size]
    return max(there, key=lambda path: path.stat().st_mtime) if there else None


def _last_words(submission: SubmissionDir, log: Path) -> Iterator[str]:
    """Yield what a job printed after its worker's last line, such as Slurm's own messages."""
    chunk = log.name.partition(".")[0]
    output = _outputs(submission).get(int(chunk)) if chunk.isdecimal() else None
    if output is None or not output.exists():
        return
    logged = set(_lines(log))
    lines = [*_lines(output)]
    after = max((n for n, line in enumerate(lines, 1) if line in logged), default=0)
    if lines[after:]:
        yield f"==> {output}, after that <=="
        yield from lines[after:]


def _alive(submission: SubmissionDir, chunk: int | None) -> Callable[[], bool]:
    """Return a function that says whether more lines may come; it asks Slurm every 5 s at most."""
    if not journal.read_journal(submission).arrays:
        return lambda: ledger.local_is_live(submission)
    asked_at = 0.0
    live = True

    def ask() -> bool:
        nonlocal asked_at, live
        if time.monotonic() - asked_at > _ASK_SECONDS or not asked_at:
            chunks = liveness.live_chunks_of(slurm_answer.ask_slurm([submission]), submission)
            asked_at = time.monotonic()
            live = bool(chunks if chunk is None else {chunk} & chunks)
        return live

    return ask


def _lines(path: Path, more: Callable[[], bool] = lambda: False) -> Iterator[str]:
    """Yield the last lines of a file, and wait for others as long as `more` says so."""
    with path.open(encoding="utf-8", errors="replace") as file:
        _go_to_last_lines(file)
        rest = ""
        while True:
            last_look = not more()
            rest += file.read()
            *lines, rest = rest.split("\n")
            yield from lines
            if last_look:
                break
            time.sleep(_POLL_SECONDS)
        if rest:
            yield rest


def _go_to_last_lines(file: TextIO) -> None:
    """Go to the first line that begins in the last bytes; into a line that is longer than these."""
    begin = os.fstat(file.fileno()).st_size - _MOST
    if begin > 0:
        file.buffer.seek(begin - 1)
        inside = len(file.buffer.readline(_MOST + 1))
        file.buffer.seek(begin if inside > _MOST else begin - 1 + inside)
