"""Compares a request with what is there: the folder, its rows, what is on its way, own files.

A row has digests of the files that its point was made of. `submit` and `estimate` tell of changes;
`submit` takes points again whose network failed and was mended, `retry --changed` takes all.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import files, messages, sources
from hpcsweep.catalog import WORKLOADS
from hpcsweep.errors import Refused, UsageError
from hpcsweep.point import Point
from hpcsweep.store import ledger, outcomes, runs
from hpcsweep.store.folders import SubmissionDir, SweepDir
from hpcsweep.store.ledger import Ledger
from hpcsweep.store.state import FAILED, PointStatus
from hpcsweep.submit.estimate import Estimates
from hpcsweep.submit.passes import Operations
from hpcsweep.submit.request import Request, files_of, is_factory, names_on
from hpcsweep.text import count, tally

if TYPE_CHECKING:
    from hpcsweep.cluster.slurm.bad_nodes import BadNode
    from hpcsweep.cluster.slurm.journal import SlurmAnswer
    from hpcsweep.spec.profile import Profile

LIVE: Final = "queued or running"  # in `SettledPoints.settled`: points of another submission


@dataclass(frozen=True, kw_only=True)
class SettledPoints:
    """What a run through the points has seen of those that are not measured now."""

    settled: Counter[str] = field(default_factory=Counter)  # points by status, or `LIVE`
    holders: set[str] = field(default_factory=set)  # the submissions that hold the live ones
    too_large: list[dict[str, Any]] = field(default_factory=list)  # axes that ran out of memory


@dataclass(frozen=True, kw_only=True)
class AskedTime:
    """The time limit that jobs ask for (empty: the profile's), and why, for a person."""

    limit: str = ""
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Submit:
    """A request on its way into a folder of results, with what each step found out or made."""

    sweep_dir: SweepDir
    request: Request
    draft_dir: SweepDir | None = None  # where it is written instead, for its figures alone
    # `check_inputs`
    operations: Mapping[str, Operations] = field(default_factory=dict)  # of own networks
    # `ask`
    answer: SlurmAnswer | None = None  # of what was sent to Slurm before, if that was asked
    bad_nodes: Sequence[BadNode] = ()
    # `compare`
    known: Ledger = field(default_factory=Ledger)  # points that are measured, queued or running
    anew: frozenset[str] = frozenset()  # ids of points whose rows do not count as measured
    sweep_before: bytes | None = None  # the sweep file of the submission before
    # `pack`
    left_out: SettledPoints = field(default_factory=SettledPoints)
    estimates: Estimates = field(default_factory=Estimates)
    new: SubmissionDir | None = None  # None: nothing is left to measure
    round: int = 0  # its place among the submissions of the sweep
    points: int = 0
    chunk_seconds: Sequence[float] = ()  # what the estimate gives each chunk
    time: AskedTime = AskedTime()
    nodes: Mapping[str, int] = field(default_factory=dict)  # as in the manifest
    # `write`
    is_written: bool = False

    @property
    def profile(self) -> Profile:
        """The profile with the time limit that its jobs ask for."""
        profile = self.request.profile
        if not self.time.limit:
            return profile
        return profile.model_copy(update={"time": self.time.limit})

    @property
    def submission(self) -> SubmissionDir:
        """Return the new submission, of which there is one."""
        assert self.new  # noqa: S101 - `pack` found points
        return self.new

    @property
    def seconds(self) -> float:
        return sum(self.chunk_seconds)

    @property
    def gpu_seconds(self) -> float:
        """What the estimate gives the GPUs: those of a job are held until its last chunk ends."""
        per_job = self.request.profile.gpus_per_job
        held = 0.0
        left = iter(self.chunk_seconds)
        for chunks in self.nodes.values() or [len(self.chunk_seconds)]:
            of_node = [*islice(left, chunks)]
            for first in range(0, chunks, per_job):
                held += per_job * max(of_node[first : first + per_job])
        return held

    @property
    def wall_seconds(self) -> float:
        """What the estimate gives the points, workers side by side."""
        return self.seconds / max(self.request.workers, 1)

    @property
    def run(self) -> int | None:
        """Return the number of the run that it belongs to, if the request is for a new one."""
        return self.known.again + 1 if self.request.options.again else None

    @property
    def headline(self) -> str:
        """How many points go where, how long they may take, and what is measured already."""
        request = self.request
        run = f", run {self.run}" if self.run else ""
        seconds = self.wall_seconds
        settled = tally(self.left_out.settled, PointStatus)
        where = f"{request.device}, a rehearsal" if request.rehearsal else request.device
        before = f"; already measured or queued: {settled}" if settled else ""
        if any(self.nodes):
            where += f" ({count(len(self.nodes), 'node')})"
        return (
            f"{request.sweep.name}{run}: {count(self.points, 'point')} on {where}, "
            f"{self.estimates.about(seconds)}{before}{request.asks}"
        )


def in_results(results: Path, request: Request) -> Submit:
    """Return a request at the beginning of its way into the folder of all results."""
    return Submit(sweep_dir=SweepDir(results / request.sweep.name), request=request)


def compare(job: Submit) -> Submit:
    """Find what is measured, queued or running; say which rows are of other own files.

    Raises:
        Refused: points of the last run are still queued or running, and --again asks for the next.
    """
    job = told_of_changes(job)
    before: bytes | None = None
    if not job.draft_dir:
        with suppress(OSError):
            before = files.regular_bytes(job.sweep_dir.sweep_file)
    return replace(job, known=known_points(job), sweep_before=before)


def known_points(job: Submit) -> Ledger:
    """Return the points that are measured, queued or running.

    For one that measures everything again these are the points of the last run, as long as it lacks
    some of those that were sent; else of none, since the next run begins.

    Raises:
        Refused: points of the last run are still queued or running, and no other one lacks.
    """
    sweep_dir = job.sweep_dir
    request = job.request
    profiled = request.profile.wrapper != "none"
    if profiled and request.options.again:
        raise UsageError(f"--again: profile {request.profile.name} profiles, and measures nothing")
    queue = job.answer.live_chunks_of if job.answer else None
    found = ledger.read_ledger(sweep_dir, queue, profiled=profiled)
    every = runs.runs_of(sweep_dir)
    if not every:
        return found
    last = every[-1]
    found.again = last.number - 1
    if not request.options.again:
        return found
    found.status = ledger.statuses(last.dir)
    ids = {point.point_id for point in request.expansion}
    sent = last.planned() & ids
    if sent and sent <= found.status.keys():
        holders = sorted({found.live[point_id] for point_id in ids & found.live.keys()})
        if holders:  # no run begins while an earlier one is on its way
            told = f"{sweep_dir.name}: points of {', '.join(holders)} are queued or running"
            raise Refused(f"{told}: wait until they ended, or {sweep_dir.command('cancel')}")
        found.again = last.number
        found.status = {}
    return found


def unmeasured(job: Submit, left_out: SettledPoints) -> Iterator[Point]:
    """Return the points that are to be measured; note the others in `left_out`."""
    request = job.request
    known = job.known
    # points skipped by an earlier --skip-dominated are tried without this option
    skipped = set() if request.options.skip_dominated else {PointStatus.SKIPPED}
    done = known.settled(request.again | skipped) - (job.anew - known.live.keys())
    for point in request.expansion:
        point_id = point.point_id
        if request.options.skip_dominated and known.status.get(point_id) is PointStatus.OOM:
            left_out.too_large.append(dict(point.axes))
        if point_id not in done:
            yield point
        elif point_id in known.live:
            left_out.settled[LIVE] += 1
            left_out.holders.add(known.live[point_id])
        else:
            left_out.settled[known.status[point_id]] += 1


def check_same_name(sweep_dir: SweepDir, request: Request) -> None:
    """Refuse a folder that holds the results of another sweep file of the same name."""
    specs = [manifest.spec for manifest in sweep_dir.manifests() if manifest.spec]
    before = Path(specs[-1] if specs else "")
    sweep = request.sweep
    if request.again or request.options.join or before == sweep.path.resolve():
        return
    place = before.parent / os.path.relpath(sweep_dir.path, sweep.path.parent)
    if place.is_dir() and not place.samefile(sweep_dir.path):  # a copy of a folder with its results
        return
    with suppress(OSError):  # it is gone, or on another machine
        if files.regular_bytes(before) != sweep.text.encode():
            raise Refused(
                f"{sweep_dir.path} holds results of {before}, another sweep of this name: give one "
                f"of them another `name`; --join adds the points of {sweep.path}, and takes those "
                "that it lacks out of tables and reports"
            )


def warn_of_results_elsewhere(sweep_dir: SweepDir, request: Request) -> None:
    """Say where results of the sweep stand beside its file or a folder above, if none are here."""
    if sweep_dir.path.exists():
        return
    for folder in request.sweep.path.resolve().parents[:2]:
        other = SweepDir(folder / sweep_dir.path.parent.name / sweep_dir.path.name)
        if other.submissions_dir.is_dir():
            messages.warning(
                f"{other.path} has results of this sweep, here all is measured anew",
                f"`hpcsweep --results {other.path.parent} submit` goes on there",
            )


def changed(sweep_dir: SweepDir, request: Request) -> dict[str, str]:
    """Return what of the user's own is other by now than when a point was measured, by its id.

    Nobody can tell of modules that only the job's Python has, nor of points that are not measured.
    """
    factories = [name for axis in sources.FACTORIES for name in names_on(request.sweep, axis)]
    has_own = any(map(is_factory, factories)) or any(files_of(request.sweep).values())
    if not WORKLOADS[request.sweep.workload].runs_network or not has_own:
        return {}
    made_of = _made_of(sweep_dir)
    if not made_of:
        return {}
    now = sources.Sources(request.search_path)
    found = dict[str, str]()
    for point in request.expansion:
        if point.point_id not in made_of:
            continue
        before = sources.parts(made_of[point.point_id])
        values = {**point.measure, **point.axes}
        other = []
        for axis, digest in sources.parts(now.cell(point)).items():
            if before.get(axis) != digest:
                other.append(str(values[axis]))
        if other:
            found[point.point_id] = ", ".join(other)
    return found


def other_than(made_of: Mapping[str, str], request: Request) -> list[str]:
    """Return the networks of a sweep whose own files are others by now than in these cells."""
    now = sources.Sources(request.search_path)
    other = []
    for model in names_on(request.sweep, "model"):
        before = sources.parts(made_of.get(model, "")).get("model", "")
        if model in made_of and before != now.digest("model", model):
            other.append(model)
    return other


def told_of_changes(job: Submit) -> Submit:
    """Say which measured points were made of other files than there are now.

    A network that failed was mended: all its points are taken again, since one table needs one
    version. Without a failure a row is kept until a person asks.
    """
    sweep_dir = job.sweep_dir
    if job.request.expansion.chosen is not None or job.request.options.again:
        return job
    found = changed(sweep_dir, job.request)
    statuses = runs.statuses(sweep_dir) if found else {}
    mended = {what for point_id, what in found.items() if statuses[point_id] in FAILED}
    anew = frozenset(point_id for point_id, what in found.items() if what in mended)
    again = Counter(found[point_id] for point_id in anew)
    kept = Counter(found.values()) - again
    if again:
        points = count(again.total(), "point")
        why = "since some failed and files changed"
        messages.note(f"{points} measured again, {why}: {_counted(again)}")
    if kept:
        points = f"{count(kept.total(), 'point')} of {sweep_dir.name}"
        versions = "another version, or an unknown one, of your own files"
        messages.note(
            f"{points} measured with {versions}: {_counted(kept)}; they keep their rows",
            f"to measure them again: {sweep_dir.command('retry', '--changed')}",
        )
    return replace(job, anew=anew)


def _counted(points: Counter[str]) -> str:
    return ", ".join(f"{name} ({number:,})" for name, number in points.items())


def _made_of(sweep_dir: SweepDir) -> dict[str, str]:
    """Return the cell `own_files` of the row that counts, of each point that has one."""
    digests = {}
    for name, row in outcomes.rows_of(sweep_dir.shards(), ("own_files",)).items():
        if row["status"] != PointStatus.PROFILED:
            digests[name] = row.get("own_files", "")
    return digests
