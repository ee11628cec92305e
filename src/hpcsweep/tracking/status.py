"""What is measured, running and failed: rows first, then attempts, then what is queued.

Each shard is read once, and only a few cells of each row are parsed; `benchmarks/status.py`
measures what that costs. Slurm is asked two questions at most, whatever the number of sweeps, and
none where all is known. Nothing here waits for a lock, or writes anything that stays.
"""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from hpcsweep import slurm
from hpcsweep.errors import ResultsError
from hpcsweep.store import chunk_file, ledger, outcomes, rounds, rundir, runs, shards
from hpcsweep.store.runs import Listed, Run
from hpcsweep.store.state import ChunkState, PointStatus, best
from hpcsweep.text import count, printable
from hpcsweep.tracking import bad_nodes, chunk_state, journal, sweep_status
from hpcsweep.tracking.sweep_status import ProfileStatus, SweepStatus, Trouble

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from hpcsweep.store.manifest import Manifest
    from hpcsweep.store.rounds import Until
    from hpcsweep.store.rundir import RunDir, ShardPath, SubmissionDir
    from hpcsweep.tracking.chunk_state import ChunkStatus
    from hpcsweep.tracking.journal import Answer, Sent

_WATCH_SECONDS: Final = 2.0
_WATCH_SLURM_SECONDS: Final = 10.0  # slurmctld has better things to do
_PACE_SECONDS: Final = 300.0  # rows older than this say nothing about the pace of now


def read(root: Path, names: Sequence[str]) -> list[SweepStatus]:
    """Return the status of some sweeps below `root`, of all by default."""
    runs = [rundir.open_run(root, name) for name in names] if names else rundir.all_runs(root)
    read_in = [(run, *_submissions(run)) for run in runs]
    open_journals = [one.sent for _, found, _ in read_in for one in found if one.in_slurm]
    answer = journal.ask_about(open_journals)
    return [_sweep(run, found, problems, answer) for run, found, problems in read_in]


def watch(root: Path, names: Sequence[str]) -> None:
    """Show the table again and again until nothing is live."""
    from rich.live import Live  # noqa: PLC0415 - 0.1 s, only for who watches
    from rich.text import Text  # noqa: PLC0415

    found = read(root, names)

    def screen() -> Text:
        return Text(
            printable(sweep_status.text(found, shutil.get_terminal_size().columns, at_work=True))
        )

    with Live(screen(), auto_refresh=False) as shown:
        while any(profile.live for one in found for profile in one.profiles):
            in_slurm = any(one.in_slurm for one in found)
            time.sleep(_WATCH_SLURM_SECONDS if in_slurm else _WATCH_SECONDS)
            found = read(root, names)
            shown.update(screen(), refresh=True)
    if not shown.console.is_terminal:
        print()  # noqa: T201 - where lines are not drawn over, rich leaves the last one open
    sys.stdout.flush()


@dataclass
class _Submission:
    """What the files of one submission say."""

    dir: SubmissionDir
    manifest: Manifest
    sent: Sent
    ids: dict[int, list[str]]
    rows: dict[str, PointStatus]  # status by point, of this submission only
    doubts: dict[str, str]  # of its ok rows: why they are not valid
    attempts: list[ShardPath]
    rowless: list[ShardPath]

    @property
    def label(self) -> str:
        return self.manifest.profile + " (profiled)" * self.manifest.is_profiled

    def taken(self) -> Iterable[tuple[str, PointStatus]]:
        """Return the rows of the kind that this submission is for: measured, or profiled."""
        asked, rows = self.manifest.is_profiled, self.rows
        if not asked and PointStatus.PROFILED not in rows.values():
            return rows.items()
        return (row for row in rows.items() if (row[1] is PointStatus.PROFILED) is asked)

    @cached_property
    def in_slurm(self) -> bool:
        """Say whether Slurm has to be asked about chunks that lack rows."""
        complete = all(map(self.rows.keys().__ge__, map(set, self.ids.values())))
        return bool(self.sent.open_chunks) and not complete


def _submissions(run: RunDir) -> tuple[list[_Submission], list[str]]:
    found: list[_Submission] = []
    problems: list[str] = []
    for submission in run.submissions():
        problems += submission.journal_damage()
        keys_of: dict[ShardPath, list[shards.RowKey]] = {}
        doubts: dict[str, str] = {}
        try:
            manifest = submission.read_manifest()
            ids = dict(chunk_file.read_ids(submission.chunks))
            attempts = run.shards_of(submission.id)
            for shard in attempts:
                lines = shards.complete_lines(shard.overall)
                keys_of[shard] = shards.keys_in(lines)
                doubts |= outcomes.doubts_in_lines(lines)
        except ResultsError as error:
            problems.append(str(error))
            continue
        rows = best(chain.from_iterable(keys_of.values()))
        rowless = [shard for shard, keys in keys_of.items() if not keys]
        sent = journal.sent(submission)
        found.append(_Submission(submission, manifest, sent, ids, rows, doubts, attempts, rowless))
    return found, problems


def _sweep(
    run: RunDir, found: list[_Submission], problems: list[str], answer: Answer
) -> SweepStatus:
    groups: dict[str, list[_Submission]] = {}
    for one in found:
        groups.setdefault(one.label, []).append(one)
    for label, group in groups.items():  # earlier runs are listed, and not counted once more
        groups[label] = [one for one in group if one.manifest.again == group[-1].manifest.again]
    profiles = [_profile(run, label, group, answer) for label, group in groups.items()]
    try:
        avoided = bad_nodes.current(run, answer, [shard for one in found for shard in one.rowless])
    except ResultsError as error:
        avoided, problems = [], [*problems, str(error)]
    until: list[Until] = []
    try:
        until = [*rounds.read(run).values()]
    except ResultsError as error:
        problems = [*problems, str(error)]
    in_slurm = any(one.in_slurm for one in found)
    return SweepStatus(
        sweep=run.name,
        profiles=profiles,
        problems=problems,
        avoided=avoided,
        in_slurm=in_slurm,
        unanswered=[str(missing) for missing in answer.unanswered if in_slurm],
        artifacts=run.artifacts(),
        until=until,
        runs=_runs(run, found),
    )


def _runs(run: RunDir, found: Sequence[_Submission]) -> list[Listed]:
    """Return the runs, with the points of the submissions of each."""

    def look(one: Run) -> tuple[set[str], dict[str, PointStatus], dict[str, str]]:
        own = [sent for sent in found if sent.dir.id in (one.dir.only or ())]
        planned = {point for sent in own for ids in sent.ids.values() for point in ids}
        doubts = dict(chain.from_iterable(sent.doubts.items() for sent in own))
        return planned, best(chain.from_iterable(sent.taken() for sent in own)), doubts

    return [Listed(one, partial(look, one)) for one in runs.of(run)]


def _profile(
    run: RunDir, label: str, group: Sequence[_Submission], answer: Answer
) -> ProfileStatus:
    rows = chain.from_iterable(one.taken() for one in group)
    doubts = dict(chain.from_iterable(one.doubts.items() for one in group))
    profile = ProfileStatus(label, status=best(rows), doubts=doubts)
    if set(profile.status.values()) - outcomes.WELL:
        with suppress(ResultsError):  # `problems` names what cannot be read
            maps = {text: name for one in group for text, name in one.manifest.maps.items()}
            attempts = (shard for one in group for shard in one.attempts)
            profile.failures = outcomes.failures_of(attempts, maps)
    if any(doubts.values()):
        with suppress(ResultsError):
            found = outcomes.rows_of(shard for one in group for shard in one.attempts)
            profile.disturbed = outcomes.disturbance(run, found.values())
    for one in reversed(group):
        _add(profile, one, answer, newer=profile.planned)
        profile.planned.update(*one.ids.values())
    return profile


def _add(profile: ProfileStatus, one: _Submission, answer: Answer, newer: set[str]) -> None:
    """Add the chunks of a submission; what a newer one took over is not told twice."""
    newest = {shard.chunk: shard for shard in one.attempts}
    rows_of = _rows_by_chunk(one)
    runs_here = ledger.local_is_live(one.dir) if one.manifest.is_local else None
    told: dict[tuple[str, str], list[int]] = {}
    for index, ids in one.ids.items():
        missing = len(ids) - rows_of[index]
        last = newest.get(index)
        chunk = chunk_state.of_chunk(
            index, one.sent, answer, last, missing=missing, runs_here=runs_here
        )
        if chunk.state.live:
            _add_live(profile, chunk, last, len(ids), missing)
            if chunk.state is ChunkState.RUNNING:
                done = f"{len(ids) - missing} of {count(len(ids), 'point')}"
                profile.at_work.append(f"{one.dir.id}:{index} runs, {done} done")
        elif missing and all(i in newer or i in profile.status for i in ids):
            continue
        profile.chunks[chunk.state] += 1
        if chunk.to_change:
            words = f"will not start by waiting: {chunk.to_change} ({chunk.why})"
            told.setdefault((chunk.state, words), []).append(index)
        elif (
            chunk.unseen
            or (missing and not chunk.state.live)
            or chunk in {chunk_state.ASKED, chunk_state.DOUBTFUL}
        ):
            told.setdefault((chunk.state, chunk.why), []).append(index)
    for (state, why), chunks in told.items():
        profile.troubles.append(Trouble(one.dir.id, slurm.task_list(chunks), state, why))


def _add_live(
    profile: ProfileStatus, chunk: ChunkStatus, last: ShardPath | None, points: int, missing: int
) -> None:
    profile.live += missing
    if chunk.state is ChunkState.RUNNING:
        profile.running_points += points
        profile.running_done += points - missing
        profile.pace += _pace(last)
    elif chunk.why:
        profile.reasons[chunk.why] += 1


def _rows_by_chunk(one: _Submission) -> dict[int, int]:
    rows = one.rows.keys()
    return {
        index: len(ids) if rows >= (mine := set(ids)) else len(mine & rows)
        for index, ids in one.ids.items()
    }


def _pace(shard: ShardPath | None) -> float:
    """Return points per second of an attempt since its worker was ready; 0 where nothing moves."""
    if shard is None:
        return 0.0
    last, began = _modified(shard.overall), _modified(shard.env)
    if time.time() - last > _PACE_SECONDS:
        return 0.0
    return len(shards.read_keys(shard.overall)) / max(last - began, 0.1)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
