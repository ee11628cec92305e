"""What `submit --until-error` says at its end: how much was measured, and how good the rest is."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from hpcsweep.adaptive.judge import Why
from hpcsweep.text import aligned, count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcsweep.adaptive.judge import Judged
    from hpcsweep.adaptive.measured import Known
    from hpcsweep.adaptive.planning import Plan
    from hpcsweep.store.rounds import Until

_SHOWN: Final = 20  # groups
_WORST: Final = (Why.BUDGET, Why.STUCK, Why.NOISE, Why.REACHED, Why.COMPLETE)


def outcome(plan: Plan) -> str:
    """Return why no further round comes: of several groups the worst reason."""
    found = set(plan.why.values())
    return next((why.says for why in _WORST if why in found), Why.COMPLETE.says)


def lines(name: str, plan: Plan, known: Known, until: Until) -> Iterator[str]:
    """Yield the summary: the whole sweep, then each group, then what was not measured."""
    hours = known.seconds / 3600
    yield (
        f"{name}: measured {len(known.rows):,} of {count(until.of, 'point')} "
        f"({hours:.3g} GPU-hours); {until.error_text()}: {until.outcome}"
    )
    heads = ("group", "measured", "held-out error", "over", "from", "90 % interval", "")
    rows = [heads, *(_row(one, plan) for one in plan.judged[:_SHOWN])]
    yield from (f"  {line}" for line in aligned(rows))
    if len(plan.judged) > _SHOWN:
        yield f"  and {count(len(plan.judged) - _SHOWN, 'group')} more"
    doubtful = len(known.rows) - len(known.done)
    if doubtful:
        yield f"  measured, but not valid, so not used: {count(doubtful, 'point')}"
    if known.failed:
        yield f"  without a time, since they failed: {count(len(known.failed), 'point')}"
    rest = until.of - len(known.done)
    yield f"  {count(rest, 'point')} predicted, the others as measured:"


def _row(one: Judged, plan: Plan) -> tuple[str, ...]:
    error = "not known" if one.error is None else f"{100 * one.error:.1f} %"
    group = one.group
    return (
        group.name,
        f"{one.measured:,} of {len(group.points):,}",
        error,
        count(len(one.errors), "point"),
        str(one.basis),
        f"a factor of {one.factor:.2f}",
        _why(one, plan),
    )


def _why(one: Judged, plan: Plan) -> str:
    why = plan.why.get(one.group.name, Why.COMPLETE)
    if why is not Why.NOISE:
        return why.says
    return f"{why.says} ({100 * median(one.differences):.1f} %)"
