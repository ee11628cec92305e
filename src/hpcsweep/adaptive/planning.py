"""The next round: what is still missing of the last one, or new points, or why there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcsweep.adaptive import choose
from hpcsweep.adaptive.judge import Judged, Why, judge
from hpcsweep.records import dataclass, field, replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcsweep.adaptive.choose import Chosen, Seconds
    from hpcsweep.adaptive.judge import Predictor
    from hpcsweep.forecast.groups import Group
    from hpcsweep.forecast.past_rows import Known
    from hpcsweep.store.rounds import Round

_DIFFERENCES: Final = 16  # of points measured twice: more are not needed to know the noise


@dataclass(frozen=True, kw_only=True)
class NextRound:
    """The points to measure next; none if it is over."""

    judged: Sequence[Judged] = ()
    new: Sequence[Chosen] = ()  # a round of its own
    again: Sequence[Chosen] = ()  # measured a second time with it
    wanted: float = 0.0  # the seconds of all points that a round should have
    missing: Sequence[str] = ()  # of the last round
    why: dict[str, Why] = field(default_factory=dict)  # of groups that are through, by name

    @property
    def points(self) -> list[str]:
        return [*self.missing, *(one.point_id for one in (*self.new, *self.again))]

    @property
    def held_out(self) -> int:
        return len(self._errors)

    @property
    def error(self) -> float | None:
        """The mean error of all groups together."""
        return float(np.mean(self._errors)) if self.held_out else None

    @property
    def _errors(self) -> list[float]:
        return [float(error) for one in self.judged for error in one.errors]


def plan(  # noqa: PLR0913 - what decides
    groups: Sequence[Group],
    known: Known,
    rounds: Sequence[Round],
    *,
    target: float,
    seconds_left: float,
    seconds: Seconds,
    layers: Predictor | None = None,
) -> NextRound:
    """Return what to measure next.

    The first round takes points that are spread over each group. Each further one takes a few of
    every group that is not good enough, the worthiest of all groups if not all can be afforded, and
    measures some points of such groups again, since their error may be the noise. A group whose
    last points brought no valid row ends: what disturbed these would disturb the next ones.
    """
    if rounds and seconds_left > 0 and (left := missing(rounds[-1], groups, known)):
        return NextRound(missing=left)
    judged = [judge(group, known, [one.points for one in rounds], layers) for group in groups]
    new: list[Chosen] = []
    if not rounds:
        new = [one for group in groups for one in choose.first(group, known.rows, seconds)]
    again: list[Chosen] = []
    why: dict[str, Why] = {}
    for one in judged if not new else ():
        found = Why.INVALID if _fruitless(one.group, known, rounds) else one.why(target)
        chosen = [] if found else _following(one, known, seconds)
        if not chosen:
            why[one.group.name] = found or Why.COMPLETE
        elif one.error is not None and len(known.differences) < _DIFFERENCES:
            again += choose.again(one.group, known.times, known.rows, seconds)
        new += chosen
    return _cut(NextRound(judged=judged, new=new, again=again, why=why), seconds_left)


def missing(last: Round, groups: Sequence[Group], known: Known) -> list[str]:
    """Return the points of a round that have no row, or no second one where they should."""
    here = {point_id for group in groups for point_id in group.ids}
    wanted = dict.fromkeys(last.points, 1) | dict.fromkeys(last.again, 2)
    return [p for p, rows in wanted.items() if p in here and known.rows.get(p, 0) < rows]


def _fruitless(group: Group, known: Known, rounds: Sequence[Round]) -> bool:
    """Say whether a group's points of its last round have rows that are not valid, and no other."""
    mine = {*group.ids}
    last = next((found for one in reversed(rounds) if (found := mine & {*one.points})), set())
    return bool(last & known.doubtful.keys()) and last.isdisjoint(known.times)


def _following(one: Judged, known: Known, seconds: Seconds) -> list[Chosen]:
    width = float(np.log(one.factor))
    return choose.following(one.group, known.times, known.rows, width, seconds)


def _cut(wanted: NextRound, seconds_left: float) -> NextRound:
    """Return what of a plan can be afforded; where that is nothing, say so."""
    new = choose.affordable(wanted.new, seconds_left)
    left = seconds_left - sum(one.seconds for one in new)
    again = choose.affordable(wanted.again, left) if new else []
    why = dict(wanted.why)
    if wanted.new and not new:
        names = [one.group.name for one in wanted.judged]
        why |= {name: Why.BUDGET for name in names if name not in why}
    seconds = sum(one.seconds for one in wanted.new)
    return replace(wanted, new=new, again=again, wanted=seconds, why=why)
