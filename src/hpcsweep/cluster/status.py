"""Reads which points of sweeps are measured, queued, running and failed.

Each shard is read once, and only a few cells of each row are parsed; `make bench`
measures the cost. Slurm gets two questions at most, whatever the number of sweeps, and none where
every chunk has its rows. Nothing here takes a lock, or writes but into the user's cache, what
Slurm said (`last_known`).
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Final

from hpcsweep.cluster import last_known, slurm, sweep_status
from hpcsweep.cluster.slurm import bad_nodes, journal, then_job
from hpcsweep.cluster.slurm.journal import ChunkStatus, Journal, SlurmAnswer
from hpcsweep.cluster.sweep_status import LastKnown, ProfileStatus, SweepStatus, Trouble
from hpcsweep.errors import ResultsError
from hpcsweep.store import chunk_file, folders, ledger, outcomes, rounds, runs
from hpcsweep.store.folders import ShardPath, SubmissionDir, SweepDir
from hpcsweep.store.manifest import Manifest
from hpcsweep.store.rounds import AdaptiveRun
from hpcsweep.store.row_reader import complete_lines, rows_in
from hpcsweep.store.runs import Listed, Run
from hpcsweep.store.state import ChunkState, PointStatus, best
from hpcsweep.text import count, printable

# Between two looks of `--watch`: here only files are read; slurmctld has better things to do.
_WATCH_SECONDS: Final = 2.0
_WATCH_SLURM_SECONDS: Final = 10.0
# The pace is that of the latest rows: networks and sizes come one after the other, so that earlier
# ones took other times.
_PACE_ROWS: Final = 30
# From fewer rows nothing is said of the others, of which they may be no example.
_FEW_ROWS: Final = 3
# Without a row for so long, or for so many times what a point took, the pace is not that of now.
_PACE_SECONDS: Final = 300.0
_PACE_POINTS: Final = 3.0
# In a list of an array's tasks.
_ONE_TASK: Final = re.compile(r"_\[(\d+)\]$")


def read_status(root: Path, names: Sequence[str]) -> list[SweepStatus]:
    """Return the status of the named sweeps below `root`, by default of all sweeps."""
    sweeps = runs.of_sweeps(root, names) if names else folders.all_sweeps(root)
    read_in = []
    journals = []
    for sweep in sweeps:
        submissions, problems = _submissions(sweep)
        read_in.append((sweep, submissions, problems))
        journals += [submission.sent for submission in submissions if submission.in_slurm]
    answer = journal.ask_journals(journals)  # one question about all of them
    return [_sweep(*read, answer) for read in read_in]


def watch_status(root: Path, names: Sequence[str]) -> None:
    """Print the table anew until no point is queued or running."""
    clear = "\x1b[H\x1b[J" if sys.stdout.isatty() else ""
    while True:
        sweeps = read_status(root, names)
        width = shutil.get_terminal_size().columns
        text = printable(sweep_status.as_text(sweeps, width, at_work=True))
        print(f"{clear}{text}", flush=True)  # noqa: T201
        if not any(
            profile.live or profile.then_live for sweep in sweeps for profile in sweep.profiles
        ):
            return
        in_slurm = any(sweep.in_slurm for sweep in sweeps)
        time.sleep(_WATCH_SLURM_SECONDS if in_slurm else _WATCH_SECONDS)


@dataclass
class _Submission:
    """A submission's manifest, journal, points and rows."""

    dir: SubmissionDir
    manifest: Manifest
    sent: Journal
    ids: dict[int, list[str]]
    rows: dict[str, PointStatus]  # status by point, of this submission only
    latest: dict[int, list[bytes]]  # by chunk: header and last rows of its newest attempt
    doubts: dict[str, str]  # by point with status ok: why its row is not valid
    attempts: dict[ShardPath, list[tuple[str, PointStatus]]]  # with point and status of their rows
    # where squeue is silent: by chunk, what it last said
    recalled: dict[int, LastKnown] = field(default_factory=dict)

    @property
    def label(self) -> str:
        kind = " (profiled)" if self.manifest.is_profiled else ""
        return f"{self.manifest.profile}{kind}"

    def taken(self) -> list[tuple[str, PointStatus]]:
        """Return the rows that count: profiled points of a profiled submission, else the others."""
        counting = []
        for point, status in self.rows.items():
            if (status is PointStatus.PROFILED) is self.manifest.is_profiled:
                counting.append((point, status))
        return counting

    @cached_property
    def newest(self) -> dict[int, ShardPath]:
        """Latest attempt by chunk."""
        return {shard.chunk: shard for shard in self.attempts}

    @cached_property
    def in_slurm(self) -> bool:
        """Whether chunks lack rows whose tasks may be in Slurm's queue."""
        if self.sent.open_then:
            return True
        if not self.sent.open_chunks:  # which is less to look through than the points
            return False
        return not self.rows.keys() >= {*chain.from_iterable(self.ids.values())}


def _submissions(sweep_dir: SweepDir) -> tuple[list[_Submission], list[str]]:
    submissions: list[_Submission] = []
    problems = sweep_dir.closed()
    for folder in sweep_dir.submissions():
        problems += folder.journal_damage()
        attempts: dict[ShardPath, list[tuple[str, PointStatus]]] = {}
        doubts: dict[str, str] = {}
        latest: dict[int, list[bytes]] = {}
        try:
            manifest = folder.read_manifest()
            ids = dict(chunk_file.read_ids(folder.chunks))
            for shard in sweep_dir.shards_of(folder.id):
                lines = complete_lines(shard.overall)
                attempts[shard] = []
                for row in rows_in(lines, outcomes.DOUBTS):
                    attempts[shard].append((row["point_id"], row["status"]))
                    if row["status"] is PointStatus.OK:
                        doubts[row["point_id"]] = outcomes.doubts_of(row)
                latest[shard.chunk] = [*lines[:1], *lines[1:][-_PACE_ROWS:]]
        except ResultsError as error:
            problems.append(str(error))
            continue
        rows = best(chain.from_iterable(attempts.values()))
        sent = journal.read_journal(folder)
        own = _Submission(folder, manifest, sent, ids, rows, latest, doubts, attempts)
        submissions.append(own)
    return submissions, problems


def _sweep(
    sweep_dir: SweepDir, submissions: list[_Submission], problems: list[str], answer: SlurmAnswer
) -> SweepStatus:
    groups: dict[str, list[_Submission]] = {}
    sent = []
    rowless = list[ShardPath]()
    in_slurm = False
    for submission in submissions:
        groups.setdefault(submission.label, []).append(submission)
        ids = chain.from_iterable(submission.ids.values())
        sent.append((submission.manifest.spec_sha256, ids))
        rowless += [shard for shard, rows in submission.attempts.items() if not rows]
        in_slurm = in_slurm or submission.in_slurm
    if in_slurm and answer.mute:
        recalled = last_known.recall(sweep_dir)
        for submission in submissions:
            submission.recalled = recalled.get(submission.dir.id, {})
    orphans = runs.known_orphans(sweep_dir, sent)
    profiles = []
    for label, group in groups.items():  # the table counts the newest run; `runs` lists them all
        again = group[-1].manifest.again
        newest = [submission for submission in group if submission.manifest.again == again]
        profiles.append(_profile(sweep_dir, label, newest, answer, orphans))
    if in_slurm and not answer.mute:
        last_known.keep(sweep_dir, [*chain.from_iterable(one.last_known for one in profiles)])
    avoided = list[bad_nodes.BadNode]()
    until = list[AdaptiveRun]()
    try:
        avoided = bad_nodes.current(sweep_dir, answer, rowless)
        until = [*rounds.read_rounds(sweep_dir).values()]
    except ResultsError as error:
        problems = [*problems, str(error)]
    return SweepStatus(
        sweep=sweep_dir.name,
        profiles=profiles,
        problems=problems,
        avoided=avoided,
        in_slurm=in_slurm,
        unanswered=[str(missing) for missing in answer.unanswered if in_slurm],
        until=until,
        runs=_runs(sweep_dir, submissions),
    )


def _runs(sweep_dir: SweepDir, submissions: Sequence[_Submission]) -> list[Listed]:
    def look(listed: Run) -> tuple[set[str], dict[str, PointStatus], dict[str, str]]:
        planned: set[str] = set()
        rows: list[tuple[str, PointStatus]] = []
        doubts: dict[str, str] = {}
        for submission in submissions:
            if submission.dir.id in (listed.dir.only or ()):
                planned.update(*submission.ids.values())
                rows += submission.taken()
                doubts |= submission.doubts
        return planned, best(rows), doubts

    return [Listed(listed, partial(look, listed)) for listed in runs.runs_of(sweep_dir)]


def _profile(
    sweep_dir: SweepDir,
    label: str,
    group: Sequence[_Submission],
    answer: SlurmAnswer,
    orphans: set[str],
) -> ProfileStatus:
    rows: list[tuple[str, PointStatus]] = []
    doubts: dict[str, str] = {}
    attempts: list[ShardPath] = []
    maps: dict[str, str] = {}  # names of maps of algorithms by their text
    for submission in group:
        rows += submission.taken()
        doubts |= submission.doubts
        attempts += submission.attempts
        maps |= submission.manifest.maps
    profile = ProfileStatus(label, status=best(rows), doubts=doubts, silent=answer.mute is not None)
    if {*profile.status.values()} - outcomes.WELL or any(doubts.values()):
        with suppress(ResultsError):  # `problems` names unreadable files
            current = []
            failed = []
            for point, row in outcomes.told_rows(attempts).items():
                if point in orphans:
                    continue
                current.append(row)
                if row["status"] not in outcomes.WELL:
                    failed.append(row)
            profile.failures = outcomes.failures_in(failed, maps)
            profile.disturbed = outcomes.disturbance(sweep_dir, current)
    if any(submission.manifest.gpus_per_job > 1 for submission in group):
        with suppress(ResultsError):
            rows_told = outcomes.rows_of(attempts, ("status", "flags", *outcomes.NEIGHBOURS))
            profile.neighbours = outcomes.beside_neighbours(rows_told.values())
    settled = profile.status.keys() | orphans
    for submission in reversed(group):
        then = then_job.status_of(submission.sent, answer)
        # how an earlier one failed is past; one that lives is not
        if then.words and (then.live or submission is group[-1]):
            profile.then.append(then.words)
            profile.then_live = profile.then_live or then.live
        _add(profile, submission, answer, settled)
        settled.update(*submission.ids.values())
        profile.planned.update(*submission.ids.values())
    profile.orphans = len(profile.planned & orphans)
    profile.planned -= orphans
    return profile


def _add(
    profile: ProfileStatus, submission: _Submission, answer: SlurmAnswer, settled: set[str]
) -> None:
    """Add a submission's chunks to its profile, but for those of which nothing is left to do.

    `settled` are points that a newer submission took over, or have a row, or left the sweep.
    """
    runs_here = ledger.local_is_live(submission.dir) if submission.manifest.is_local else None
    shown: dict[int, ChunkStatus] = {}
    troubles: dict[tuple[str, str], list[int]] = {}
    for index, ids in submission.ids.items():
        missing = len({point_id for point_id in ids if point_id not in submission.rows})
        chunk = journal.state_of(
            index,
            submission.sent,
            answer,
            submission.newest.get(index),
            missing=missing,
            runs_here=runs_here,
        )
        refused = chunk.state is ChunkState.RUNNING and chunk.why
        if chunk.state.live:
            profile.live += missing
            _add_live(profile, submission, index, chunk, len(ids) - missing)
        elif missing and settled.issuperset(ids):
            continue
        profile.chunks[chunk.state] += 1
        shown[index] = chunk
        failed = missing and not chunk.state.live and chunk.state is not ChunkState.DONE
        if chunk.to_change:
            words = f"will not start by waiting: {chunk.to_change} ({chunk.why})"
            troubles.setdefault((chunk.state, words), []).append(index)
        elif chunk.unseen or failed or refused or chunk is journal.UNCERTAIN:
            troubles.setdefault((chunk.state, chunk.why), []).append(index)
    for (state, why), chunks in troubles.items():
        words = _with_jobs(why, submission.sent, chunks)
        profile.troubles.append(Trouble(submission.dir.id, slurm.task_list(chunks), state, words))
    profile.last_known += _last_words(submission, shown, silent=profile.silent)


def _last_words(
    submission: _Submission, shown: Mapping[int, ChunkStatus], *, silent: bool
) -> Iterator[LastKnown]:
    """Yield what Slurm last said of chunks that lack rows: just now, or before it fell silent."""
    now = journal.now()
    sent = (ChunkState.PENDING, "when sent", submission.sent.submitted_at.isoformat())
    told: dict[tuple[str, str, str], list[int]] = {}
    for index, chunk in shown.items():
        if chunk.state is ChunkState.DONE or index not in submission.sent.open_chunks:
            continue
        last = submission.recalled.get(index)
        if silent:
            word = (last.state, last.why, last.at) if last else sent
        elif chunk.unseen:
            continue
        else:
            word = (chunk.state, chunk.why, now)
        told.setdefault(word, []).append(index)
    for (state, why, at), chunks in told.items():
        yield LastKnown(submission.dir.id, slurm.task_list(chunks), state, why, at)


def _add_live(
    profile: ProfileStatus, submission: _Submission, index: int, chunk: ChunkStatus, measured: int
) -> None:
    """Add a chunk that is queued or running."""
    points = len(submission.ids[index])
    done = f"{measured} of {count(points, 'point')} done"
    if chunk.state is ChunkState.RUNNING:
        profile.running_points += points
        profile.running_done += measured
        last = submission.newest.get(index)
        profile.pace += points_per_second(last, submission.latest.get(index, []))
        profile.at_work.append(f"{submission.dir.id}:{index} runs, {done}")
    elif chunk.why:
        profile.reasons[chunk.why] += 1
    if chunk.state is ChunkState.SUSPENDED:
        profile.at_work.append(f"{submission.dir.id}:{index} is suspended, {done}")
    if chunk.starts and chunk.starts > datetime.now(timezone.utc):  # else the guess is an old one
        profile.starts.append(chunk.starts)


def _with_jobs(why: str, sent: Journal, chunks: Sequence[int]) -> str:
    """Put the ids of the chunks' jobs, as a person types them, where a text has `{job}`."""
    if "{job}" not in why:
        return why
    jobs = [_ONE_TASK.sub(r"_\1", job) for job in sent.targets(chunks)]
    return why.replace("{job}", shlex.join(jobs))


def points_per_second(shard: ShardPath | None, lines: list[bytes]) -> float:
    """Return points per second between the ends of an attempt's latest points; 0 if unknown."""
    ends = []
    for row in rows_in(lines, ("started_at", "wall_s")):
        with suppress(KeyError, ValueError):  # of another version, or damaged
            began = datetime.fromisoformat(row["started_at"]).timestamp()
            ends.append(began + float(row["wall_s"]))
    if shard is None or len(ends) < _FEW_ROWS:
        return 0.0
    a_point = (max(ends) - min(ends)) / (len(ends) - 1)
    try:
        silent = time.time() - shard.overall.stat().st_mtime
    except OSError:  # removed, or unreadable, since its rows were read
        return 0.0
    if a_point <= 0 or silent > max(_PACE_SECONDS, _PACE_POINTS * a_point):
        return 0.0
    return 1 / a_point
