"""What `submit --until-error` says at its end: how much was measured, and how good the rest is."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from hpcsweep.adaptive.judge import Why
from hpcsweep.store import outcomes
from hpcsweep.text import aligned, count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hpcsweep.adaptive.judge import Judged
    from hpcsweep.adaptive.planning import NextRound
    from hpcsweep.forecast.past_rows import Known
    from hpcsweep.store.rounds import Until
    from hpcsweep.store.rundir import RunDir

_SHOWN: Final = 20  # groups
_NEXT: Final = {
    Why.INVALID: "when some of them have valid rows, the same command goes on",
    Why.BUDGET: "the same command with a larger --max-gpu-hours goes on",
    Why.NOISE: "a larger target can be reached, or this one with less noise (more `iterations`)",
    Why.STUCK: "a larger target can be reached; without --until-error every point is measured",
    Why.COMPLETE: "points without a valid time cannot be measured in rounds: see `hpcsweep show`",
}
_WORST: Final = (Why.INVALID, Why.BUDGET, Why.STUCK, Why.NOISE, Why.REACHED, Why.COMPLETE)


def outcome(plan: NextRound) -> str:
    """Return why no further round comes: of several groups the worst reason."""
    return _worst(plan.why.values()).says


def _worst(found: Iterable[Why]) -> Why:
    return min(found, key=_WORST.index, default=Why.COMPLETE)


def missed(plan: NextRound, known: Known) -> list[Judged]:
    """Return the groups whose points are predicted worse than was asked, or nobody knows how."""
    return [
        one
        for one in plan.judged
        if plan.why.get(one.group.name) is not Why.REACHED
        and not known.done.issuperset(one.group.ids)
    ]


def lines(
    run: RunDir, plan: NextRound, known: Known, until: Until, predicted: int
) -> Iterator[str]:
    """Yield the summary: the whole sweep, then each group, then what was not measured."""
    name = run.name
    hours = known.seconds / 3600
    yield (
        f"{name}: measured {len(known.rows):,} of {count(until.of, 'point')} "
        f"({hours:.3g} GPU-hours); {until.error_text()}: {until.outcome}"
    )
    heads = ("group", "measured", "mean error", "over", "from", "90 % interval", "")
    rows = [heads, *(_row(one, plan) for one in plan.judged[:_SHOWN])]
    yield from (f"  {line}" for line in aligned(rows))
    if len(plan.judged) > _SHOWN:
        yield f"  and {count(len(plan.judged) - _SHOWN, 'group')} more"
    if known.doubtful:
        yield f"  measured, but not valid, so not used: {count(len(known.doubtful), 'point')}"
        yield f"  {outcomes.disturbance(run, known.doubtful.values())}"
    if known.failed:
        yield f"  without a time, since they failed: {count(len(known.failed), 'point')}"
    if groups := missed(plan, known):
        why = _worst(plan.why.get(one.group.name, Why.COMPLETE) for one in groups)
        of = count(len(plan.judged), "group")
        yield f"  target missed in {len(groups):,} of {of}; {_NEXT[why]}"
    if rest := until.of - len(known.done) - predicted:
        yield f"  without a time, and with none to predict it from: {count(rest, 'point')}"
    yield f"  {count(predicted, 'point')} predicted, the others as measured:"


def _row(one: Judged, plan: NextRound) -> tuple[str, ...]:
    error = "not known" if one.error is None else f"{100 * one.error:.1f} %"
    group = one.group
    return (
        group.name,
        f"{one.measured:,} of {len(group.points):,}",
        error,
        count(len(one.errors), "point"),
        str(one.basis),
        f"a factor of {one.factor:.2f}{', a guess' if one.width.is_guess else ''}",
        _why(one, plan),
    )


def _why(one: Judged, plan: NextRound) -> str:
    why = plan.why.get(one.group.name, Why.COMPLETE)
    if why is not Why.NOISE:
        return why.says
    return f"{why.says} ({100 * median(one.differences):.1f} %)"
