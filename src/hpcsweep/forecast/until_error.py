"""`hpcsweep submit --until-error`: rounds of ordinary submissions, until the rest can be predicted.

Each round is planned from the rows that there are, under the lock of the folder, and written to
`until.json` before it is sent. So a kill at any moment costs nothing: the same command goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from hpcsweep import messages
from hpcsweep.catalog import WORKLOADS
from hpcsweep.cluster.slurm import journal
from hpcsweep.errors import EXIT_INTERRUPTED, Incomplete, PointsFailed, TargetMissed, UsageError
from hpcsweep.forecast import Basis, groups, next_round, past_rows, unmeasured
from hpcsweep.forecast.groups import Group
from hpcsweep.forecast.intervals import Widths
from hpcsweep.forecast.next_round import Judged, NextRound, Why
from hpcsweep.forecast.past_rows import Known
from hpcsweep.spec.expansion import SAMPLED
from hpcsweep.store import ledger, locks, outcomes, rounds
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.rounds import AdaptiveRun, Round
from hpcsweep.submit import comparison, draft, estimate, steps
from hpcsweep.submit.request import Request
from hpcsweep.text import aligned, count

_LOCKED_BY: Final = "hpcsweep submit --until-error"
_ASK_SECONDS: Final = 10.0  # slurmctld has better things to do
_SHOWN: Final = 20  # groups: what fits a screen
# why a group has ended, the worst first, and what to do about it
_NEXT: Final = {
    Why.INVALID: "when some of them have valid rows, the same command goes on",
    Why.BUDGET: "the same command with a larger --max-gpu-hours goes on",
    Why.STUCK: "a larger target can be reached; without --until-error every point is measured",
    Why.FAILED: "`hpcsweep show` tells what they failed with",
    Why.REACHED: "",
    Why.COMPLETE: "points without a valid time cannot be measured in rounds: see `hpcsweep show`",
}


@dataclass(frozen=True)
class _Job:
    """What all rounds share."""

    sweep_dir: SweepDir
    asked: Request
    target: float

    @cached_property
    def groups(self) -> Sequence[Group]:
        return groups.groups_of(self.asked.expansion, self.asked.sweep.maps)

    @cached_property
    def ids(self) -> frozenset[str]:
        return frozenset(point_id for group in self.groups for point_id in group.ids)


def submit_rounds(results: Path, asked: Request, target: float, *, watch: bool = False) -> int:
    """Measure in rounds until the mean error at held-out points is surely at most `target`.

    Returns 0, or the exit code for points that failed or are missing, or for a target that was
    missed. Without `watch` a round in Slurm's queue is not waited for.

    Raises:
        Refused: the first round would cost more than `max_gpu_hours`.
        UsageError: there are no sizes or batches between which something could be predicted.
    """
    job = _Job(SweepDir(results / asked.sweep.name), asked, target)
    _check(job)
    worst = 0
    fruitless = 0
    while True:
        plan, known, until = _planned(job)
        if not plan.points:
            return max(worst, _finish(job, plan, known, until))
        code = _send(job, plan, until)
        if asked.profile.in_slurm and watch and not code:
            fruitless = 0 if _waited(job, until, known) else fruitless + 1
            code = Incomplete.exit_code if fruitless > 1 else 0
        elif asked.profile.in_slurm or code not in {0, PointsFailed.exit_code}:
            return _left(job, until, code)
        if code == Incomplete.exit_code:
            return _left(job, until, code)
        worst = max(worst, code)


def _check(job: _Job) -> None:
    """Raise `UsageError` for a sweep in which nothing could be predicted."""
    asked = job.asked
    if WORKLOADS[asked.sweep.workload].learns:
        raise UsageError("--until-error predicts inference; leave it out for a training sweep")
    points = (point for group in job.groups for point in group.points)
    for point, name in product(points, SAMPLED):
        value = point.axes.get(name, 1)  # a command's points may have neither, or none, or 0
        if value is None or value <= 0:
            raise UsageError(
                f"{asked.sweep.name}: --until-error predicts between positive numbers, and "
                f"{name} has {value!r}; leave it out to measure every point"
            )
    if not any(group.places.shape[1] for group in job.groups):
        axes = " or ".join(SAMPLED)
        raise UsageError(
            f"{asked.sweep.name}: --until-error predicts between values of {axes}, and no "
            "algorithm, network and GPU has several of them; leave it out to measure every point"
        )
    if other := comparison.changed(job.sweep_dir, asked):
        again = job.sweep_dir.command("retry", "--changed")
        raise UsageError(
            f"{asked.sweep.name}: {count(len(other), 'point')} measured with another version of "
            f"{', '.join(dict.fromkeys(other.values()))}, from which nothing can be predicted; "
            f"first: {again}"
        )


def _planned(job: _Job) -> tuple[NextRound, Known, AdaptiveRun]:
    """Return what comes next, and write it down."""
    with locks.held(job.sweep_dir, _LOCKED_BY):
        every = rounds.read_rounds(job.sweep_dir)
        device = job.asked.device
        before = every.get(device, AdaptiveRun(device=device, target=job.target))
        until = replace(before, target=job.target, of=len(job.ids))
        sent = until.rounds
        known = past_rows.known_points(
            job.sweep_dir, job.ids, {name for each in sent for name in each.points}
        )
        known = next_round.with_too_large(job.groups, known)
        hours = job.asked.options.max_gpu_hours
        left = math.inf if hours is None else 3600 * hours - known.seconds
        plan = next_round.plan(
            job.groups,
            known,
            sent,
            target=job.target,
            seconds_left=left,
            seconds=estimate.estimator(job.sweep_dir, job.asked),
        )
        if not sent:
            draft.check_budget(plan.wanted, hours)
        until = _with(until, plan)
        rounds.write_rounds(job.sweep_dir, every, until)
    return plan, known, until


def _with(until: AdaptiveRun, plan: NextRound) -> AdaptiveRun:
    """Return the record with the error of the last round, and the round that comes now."""
    if plan.missing:
        return replace(until, outcome="")
    done = until.rounds
    if done and plan.error is not None:
        done = (*done[:-1], replace(done[-1], error=plan.error, held_out=plan.held_out))
    if plan.new:
        new = Round(points=tuple(plan.new))
        return replace(until, rounds=(*done, new), outcome="")
    return replace(until, rounds=done, outcome=_worst(plan.why.values()).says)


def _send(job: _Job, plan: NextRound, until: AdaptiveRun) -> int:
    """Submit the points of a round as any others; return the exit code of that."""
    asked = job.asked
    options = replace(asked.options, max_gpu_hours=None, suppress_next_hint=True)
    messages.progress(f"{job.sweep_dir.name}: {until.text()}")
    points = asked.expansion.only(frozenset(plan.points))
    of_round = replace(asked, expansion=points, options=options)
    return steps.submit(job.sweep_dir.path.parent, of_round)


def _waited(job: _Job, until: AdaptiveRun, before: Known) -> bool:
    """Wait until nothing of a round is queued or running; say whether it brought new rows."""
    wanted = {*until.rounds[-1].points}
    while True:
        queue = journal.ask_slurm(job.sweep_dir.submissions())
        found = ledger.read_ledger(job.sweep_dir, queue.live_chunks_of)
        if wanted.isdisjoint(found.live):
            known = past_rows.known_points(job.sweep_dir, job.ids, ())
            return sum(known.rows.values()) > sum(before.rows.values())
        time.sleep(_ASK_SECONDS)


def _left(job: _Job, until: AdaptiveRun, code: int) -> int:
    """Say how to go on; return the exit code of a round that is not through."""
    if code == EXIT_INTERRUPTED:
        return code
    how = "the same command again goes on"
    if job.asked.profile.in_slurm:
        how = "the same command again judges this round and sends the next; --watch does it alone"
    messages.progress(f"{job.sweep_dir.name}: {until.error_text()}; {how}")
    return code


def _finish(job: _Job, plan: NextRound, known: Known, until: AdaptiveRun) -> int:
    """Fill in the rest, and tell how it went."""
    name = job.sweep_dir.name
    rows = [row for each in plan.judged for row in filled(name, each, known)]
    overall, *_ = unmeasured.Predicted(name, rows, pd.DataFrame(), {}).write(job.sweep_dir.path)
    predicted = sum(row["status"] == unmeasured.PREDICTED for row in rows)
    for line in _summary(job, plan, known, until, predicted):
        messages.progress(line)
    messages.progress(f"   {overall}")
    messages.progress(f"next: {job.sweep_dir.command('collect')}")
    return TargetMissed.exit_code if _missed(plan, known) else 0


def filled(name: str, judged: Judged, known: Known) -> Iterator[Mapping[str, Any]]:
    """Yield the points of a group, measured or predicted; without those that cannot be measured.

    The interval is wide beyond all measured points.
    """
    group = judged.group
    seen = [point_id for point_id in group.ids if point_id in known.ms]
    ids = [point_id for point_id in group.ids if point_id not in known.done]
    said: dict[str, tuple[float, Widths]] = {}
    if seen and ids:
        places = group.places_of(seen)
        wanted = group.places_of(ids)
        ms = groups.between(places, np.array([known.ms[name] for name in seen]), wanted)
        unknown = Widths().shifted(judged.width.shift)
        wide = max(judged.width, unknown, key=lambda each: each.total)
        for point_id, time_ms, is_outside in zip(
            ids, ms, groups.outside(places, wanted), strict=True
        ):
            said[point_id] = float(time_ms), wide if is_outside else judged.width
    for point in group.points:
        if point.point_id in known.ms:
            measured = known.ms[point.point_id]
            yield unmeasured.row(point, Basis.MEASURED, measured, Widths(1.0), name)
        elif point.point_id in said:
            yield unmeasured.row(point, Basis.LINES, *said[point.point_id], unmeasured.PREDICTED)


def _missed(plan: NextRound, known: Known) -> list[Judged]:
    """Return the groups whose points are predicted worse than was asked, or nobody knows how."""
    missed = []
    for judged in plan.judged:
        is_whole = known.done.issuperset(judged.group.ids)
        if plan.why[judged.group.name] is not Why.REACHED and not is_whole:
            missed.append(judged)
    return missed


def _worst(reasons: Iterable[Why]) -> Why:
    return min(reasons, key=[*_NEXT].index)


def _summary(
    job: _Job, plan: NextRound, known: Known, until: AdaptiveRun, predicted: int
) -> Iterator[str]:
    """Yield the whole sweep, then each group, then what was not measured."""
    every = plan.judged
    yield (
        f"{job.sweep_dir.name}: measured {len(known.rows):,} of {count(until.of, 'point')} "
        f"({known.seconds / 3600:.3g} GPU-hours); {until.error_text()}: {until.outcome}"
    )
    heads = ("group", "measured", "mean error", "over", "90 % interval", "")
    rows = [heads, *(_row(judged, plan) for judged in every[:_SHOWN])]
    yield from (f"  {line}" for line in aligned(rows))
    if len(every) > _SHOWN:
        yield f"  and {count(len(every) - _SHOWN, 'group')} more"
    if known.doubtful:
        yield f"  measured, but not valid, so not used: {count(len(known.doubtful), 'point')}"
        yield f"  {outcomes.disturbance(job.sweep_dir, known.doubtful.values())}"
    if known.failed:
        yield f"  without a time, since they failed: {count(len(known.failed), 'point')}"
    larger = {*known.too_large} - known.rows.keys()
    if larger:
        why = "a smaller one ran out of memory"
        yield f"  without a time, since {why}: {count(len(larger), 'point')}"
    missed = _missed(plan, known)
    if missed:
        worst = _worst(plan.why[judged.group.name] for judged in missed)
        yield f"  target missed in {len(missed):,} of {count(len(every), 'group')}; {_NEXT[worst]}"
    unknown = until.of - len(known.done) - predicted
    if unknown:
        yield f"  without a time, and with none to predict it from: {count(unknown, 'point')}"
    yield f"  {count(predicted, 'point')} predicted, the others as measured:"


def _row(judged: Judged, plan: NextRound) -> tuple[str, ...]:
    error = "not known" if judged.error is None else f"{100 * judged.error:.1f} %"
    interval = f"a factor of {judged.width.total:.2f}"
    if judged.width.is_guess:
        interval += ", a guess"
    return (
        judged.group.name,
        f"{judged.measured:,} of {len(judged.group.points):,}",
        error,
        count(len(judged.errors), "point"),
        interval,
        plan.why[judged.group.name].says,
    )
