"""`hpcsweep submit --until-error`: measures in rounds until the rest can be predicted.

Each round is planned from the rows that there are, under the lock of the folder, and written to
`until.json` before it is sent (`submit.in_rounds`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pandas as pd

from hpcsweep import messages
from hpcsweep.catalog import WORKLOADS
from hpcsweep.errors import TargetMissed, UsageError
from hpcsweep.forecast import Basis, curves, groups, next_round, past_rows, unmeasured
from hpcsweep.forecast.groups import Group
from hpcsweep.forecast.intervals import Widths
from hpcsweep.forecast.next_round import Judged, NextRound, Why
from hpcsweep.forecast.past_rows import Known
from hpcsweep.spec.expansion import SAMPLED
from hpcsweep.store import locks, outcomes, rounds
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.rounds import AdaptiveRun, Round
from hpcsweep.submit import comparison, draft, estimate
from hpcsweep.submit.request import Request
from hpcsweep.text import aligned, count

_LOCKED_BY: Final = "hpcsweep submit --until-error"
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


@dataclass
class UntilError:
    """Wants points until the mean error at held-out ones is surely at most `target`."""

    sweep_dir: SweepDir
    asked: Request
    target: float
    until: AdaptiveRun = field(init=False)
    # of the last round that was planned
    plan: NextRound = field(init=False)
    known: Known = field(init=False)

    def __post_init__(self) -> None:
        _check(self.sweep_dir, self.asked, self.groups)

    @cached_property
    def groups(self) -> Sequence[Group]:
        return groups.groups_of(self.asked.expansion, self.asked.sweep.maps)

    def next_points(self) -> Collection[str]:
        """Plan the next round, and write it down.

        Raises:
            Refused: the first round would cost more than `max_gpu_hours`.
        """
        with locks.held(self.sweep_dir, _LOCKED_BY):
            every = rounds.read_rounds(self.sweep_dir)
            device = self.asked.device
            until = every.get(device, AdaptiveRun(device=device, target=self.target))
            ids = {point_id for group in self.groups for point_id in group.ids}
            sent = {point_id for each in until.rounds for point_id in each.points}
            known = past_rows.known_points(self.sweep_dir, ids, sent)
            self.known = next_round.with_too_large(self.groups, known)
            hours = self.asked.options.max_gpu_hours
            self.plan = next_round.plan(
                self.groups,
                self.known,
                until.rounds,
                target=self.target,
                seconds_left=math.inf if hours is None else 3600 * hours - known.seconds,
                seconds=estimate.estimator(self.sweep_dir, self.asked),
            )
            if not until.rounds:
                draft.check_budget(self.plan.wanted, hours)
            self.until = _with(replace(until, target=self.target, of=len(ids)), self.plan)
            rounds.write_rounds(self.sweep_dir, every, self.until)
        return self.plan.points

    def progress(self) -> str:
        """Say how far it is."""
        return self.until.text()

    def finish(self) -> int:
        """Fill in the rest, and tell how it went."""
        name = self.sweep_dir.name
        rows: list[Mapping[str, Any]] = []
        for judged in self.plan.judged:
            rows += filled(name, judged, self.known)
        table = unmeasured.Predicted(name, rows, pd.DataFrame(), {})
        overall, _ = table.write(self.sweep_dir.path)
        predicted = sum(row["status"] == unmeasured.PREDICTED for row in rows)
        missed = self._missed()
        for line in self._summary(predicted, missed):
            messages.progress(line)
        messages.progress(f"   {overall}")
        messages.progress(f"next: {self.sweep_dir.command('collect')}")
        return TargetMissed.exit_code if missed else 0

    def _missed(self) -> Sequence[Why]:
        """Return why groups ended whose points are predicted worse than was asked, or unknown."""
        missed = []
        for judged in self.plan.judged:
            why = self.plan.why[judged.group.name]
            if why is not Why.REACHED and not self.known.done.issuperset(judged.group.ids):
                missed.append(why)
        return missed

    def _summary(self, predicted: int, missed: Sequence[Why]) -> Iterator[str]:
        """Yield the whole sweep, then each group, then what was not measured."""
        known = self.known
        every = self.plan.judged
        yield (
            f"{self.sweep_dir.name}: measured {len(known.tried):,} of "
            f"{count(self.until.of, 'point')} ({known.seconds / 3600:.3g} GPU-hours); "
            f"{self.until.error_text()}: {self.until.outcome}"
        )
        heads = ("group", "measured", "mean error", "over", "90 % interval", "")
        rows = [_row(judged, self.plan.why[judged.group.name]) for judged in every[:_SHOWN]]
        for line in aligned([heads, *rows]):
            yield f"  {line}"
        if len(every) > _SHOWN:
            yield f"  and {count(len(every) - _SHOWN, 'group')} more"
        if known.doubtful:
            yield f"  measured, but not valid, so not used: {count(len(known.doubtful), 'point')}"
            yield f"  {outcomes.disturbance(self.sweep_dir, known.doubtful.values())}"
        larger = known.done.difference(known.tried)
        for number, why in (
            (len(known.failed), "since they failed"),
            (len(larger), "since a smaller one ran out of memory"),
            (self.until.of - len(known.done) - predicted, "and with none to predict it from"),
        ):
            if number:
                yield f"  without a time, {why}: {count(number, 'point')}"
        if missed:
            groups_missed = f"{len(missed):,} of {count(len(every), 'group')}"
            yield f"  target missed in {groups_missed}; {_NEXT[_worst(missed)]}"
        yield f"  {count(predicted, 'point')} predicted, the others as measured:"


def _check(sweep_dir: SweepDir, asked: Request, every: Sequence[Group]) -> None:
    """Raise `UsageError` for a sweep in which nothing could be predicted."""
    name = asked.sweep.name
    if WORKLOADS[asked.sweep.workload].learns:
        raise UsageError("--until-error predicts inference; leave it out for a training sweep")
    for point in asked.expansion:
        for axis in SAMPLED:
            value = point.axes.get(axis, 1)  # a command's points may have neither, or none, or 0
            if value is None or value <= 0:
                raise UsageError(
                    f"{name}: --until-error predicts between positive numbers, and {axis} has "
                    f"{value!r}; leave it out to measure every point"
                )
    if not any(group.places.shape[1] for group in every):
        axes = " or ".join(SAMPLED)
        raise UsageError(
            f"{name}: --until-error predicts between values of {axes}, and no algorithm, network "
            "and GPU has several of them; leave it out to measure every point"
        )
    if other := comparison.changed(sweep_dir, asked):
        again = sweep_dir.command("retry", "--changed")
        raise UsageError(
            f"{name}: {count(len(other), 'point')} measured with another version of "
            f"{', '.join(dict.fromkeys(other.values()))}, from which nothing can be predicted; "
            f"first: {again}"
        )


def _with(until: AdaptiveRun, plan: NextRound) -> AdaptiveRun:
    """Return the record with the error of the last round, and the round that comes now."""
    if not plan.is_new:
        return replace(until, outcome="")
    done = until.rounds
    errors = np.concatenate([judged.errors for judged in plan.judged])
    if done and len(errors):
        judged = replace(done[-1], error=float(errors.mean()), held_out=len(errors))
        done = (*done[:-1], judged)
    if plan.points:
        return replace(until, rounds=(*done, Round(points=tuple(plan.points))), outcome="")
    return replace(until, rounds=done, outcome=_worst(plan.why.values()).says)


def _worst(reasons: Collection[Why]) -> Why:
    return min(reasons, key=[*_NEXT].index)


def filled(name: str, judged: Judged, known: Known) -> Iterator[Mapping[str, Any]]:
    """Yield the points of a group, measured or predicted; without those that cannot be measured.

    The interval is wide beyond all measured points.
    """
    group = judged.group
    if not judged.measured.any():
        return
    places = group.places[judged.measured]
    said = curves.between(places, judged.ms[judged.measured], group.places)
    beyond = curves.outside(places, group.places)
    wide = max(judged.width, Widths(), key=lambda each: each.total)
    for row, point in enumerate(group.points):
        if judged.measured[row]:
            ms = float(judged.ms[row])
            yield unmeasured.row(point, Basis.MEASURED, ms, Widths(1.0), name)
        elif point.point_id not in known.done:
            width = wide if beyond[row] else judged.width
            yield unmeasured.row(point, Basis.LINES, float(said[row]), width, unmeasured.PREDICTED)


def _row(judged: Judged, why: Why) -> tuple[str, ...]:
    error = "not known" if judged.error is None else f"{100 * judged.error:.1f} %"
    interval = f"a factor of {judged.width.total:.2f}"
    if judged.width.is_guess:
        interval += ", a guess"
    return (
        judged.group.name,
        f"{judged.measured.sum():,} of {len(judged.group.points):,}",
        error,
        count(len(judged.errors), "point"),
        interval,
        why.says,
    )
