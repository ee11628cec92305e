"""The next round: what is still missing of the last one, or new points, or why there are none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hpcsweep.adaptive import choose
from hpcsweep.adaptive.judge import Judged, Why, judge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcsweep.adaptive.choose import Chosen, Seconds
    from hpcsweep.adaptive.groups import Group
    from hpcsweep.adaptive.judge import Predictor
    from hpcsweep.adaptive.measured import Known


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The points to measure next; none if it is over."""

    judged: Sequence[Judged] = ()
    new: Sequence[Chosen] = ()  # a round of its own
    wanted: float = 0.0  # the seconds of all points that a round should have
    missing: Sequence[str] = ()  # of the last round
    why: dict[str, Why] = field(default_factory=dict)  # of groups that are through, by name

    @property
    def points(self) -> list[str]:
        return [*self.missing, *(one.point_id for one in self.new)]

    @property
    def held_out(self) -> int:
        return len(self._errors)

    @property
    def error(self) -> float | None:
        """The median error of all groups together."""
        return float(np.median(self._errors)) if self.held_out else None

    @property
    def _errors(self) -> list[float]:
        return [float(error) for one in self.judged for error in one.errors]


def plan(  # noqa: PLR0913 - what decides
    groups: Sequence[Group],
    known: Known,
    rounds: Sequence[Sequence[str]],
    *,
    target: float,
    seconds_left: float,
    seconds: Seconds,
    layers: Predictor | None = None,
) -> Plan:
    """Return what to measure next.

    The first round takes the ends and the middle of each group. Each further one takes a few points
    of every group that is not good enough, the worthiest of all groups if not all can be afforded.
    """
    if rounds and seconds_left > 0:
        here = {point_id for group in groups for point_id in group.ids}
        missing = [p for p in rounds[-1] if p in here and p not in known.settled]
        if missing:
            return Plan(missing=missing)
    judged = [judge(group, known, rounds, layers) for group in groups]
    new: list[Chosen] = []
    if not rounds:
        new = [one for group in groups for one in choose.first(group, known.settled, seconds)]
    why: dict[str, Why] = {}
    for one in judged if not new else ():
        found = one.why(target)
        chosen = [] if found else _following(one, known, seconds)
        if not chosen:
            why[one.group.name] = found or Why.COMPLETE
        new += chosen
    affordable = choose.affordable(new, seconds_left)
    if new and not affordable:
        why |= {one.group.name: Why.BUDGET for one in judged if one.group.name not in why}
    wanted = sum(one.seconds for one in new)
    return Plan(judged=judged, new=affordable, wanted=wanted, why=why)


def _following(one: Judged, known: Known, seconds: Seconds) -> list[Chosen]:
    width = float(np.log(one.factor))
    return choose.following(one.group, known.ms, known.settled, width, seconds)
