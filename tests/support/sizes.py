"""Points of many sizes, and devices whose times are known: what the choice of points works on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hpcsweep.forecast import next_round
from hpcsweep.forecast.past_rows import Known
from hpcsweep.point import Point
from hpcsweep.store.rounds import Round

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from hpcsweep.forecast.groups import Group
    from hpcsweep.forecast.next_round import NextRound


def points(
    sizes: Iterable[int], batches: Sequence[int] = (1,), algorithms: Sequence[str] = ("auto",)
) -> list[Point]:
    """Return the points of one network."""
    return [
        Point(
            "inference",
            {"model": "net", "input_size": size, "batch_size": batch, "algorithm": algorithm},
            point_id=f"{algorithm}-{size}-{batch}",
        )
        for algorithm in algorithms
        for size in sizes
        for batch in batches
    ]


def smooth(point: Point) -> float:
    """Return a time that a constant and the pixels make, each of which costs more among many."""
    pixels = point.axes["input_size"] ** 2 * point.axes["batch_size"]
    return 1.0 + 0.001 * pixels * (1 + pixels / 10_000)


def known(ms: Mapping[str, float], failed: Collection[str] = ()) -> Known:
    """Return what is known where each point was measured once."""
    return Known(ms=ms, tried={*ms, *failed}, failed=failed)


@dataclass
class Measuring:
    """An adaptive run whose rounds are measured at once, and can be cut off after any point."""

    groups: Sequence[Group]
    law: Callable[[Point], float] = smooth
    target: float = 0.03
    budget: float = np.inf  # seconds
    fails: Callable[[Point], bool] = lambda _point: False
    oom: bool = False  # how they fail
    rounds: list[Round] = field(default_factory=list)
    times: dict[str, float] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    spent: float = 0.0
    history: list[set[str]] = field(default_factory=list)

    def plan(self) -> NextRound:
        """Return the next round, from what is measured so far alone."""
        failed = self.rows.keys() - self.times.keys()
        known = Known(
            ms=self.times,
            tried=self.rows.keys(),
            failed=failed,
            too_large=failed if self.oom else frozenset(),
            seconds=self.spent,
        )
        known = next_round.with_too_large(self.groups, known)
        left = self.budget - self.spent
        return next_round.plan(
            self.groups,
            known,
            self.rounds,
            target=self.target,
            seconds_left=left,
            seconds=self.cost,
        )

    def measured(self, ms: Mapping[str, float]) -> None:
        """Replace what was measured by these times."""
        self.times = dict(ms)
        self.rows = Counter(ms)

    def cost(self, point: Point) -> float:
        """Return the seconds of a point."""
        return 0.1 + 0.02 * self.law(point)

    def go(self, most: int = 10_000) -> NextRound:
        """Measure until nothing is left to do, or `most` points; return the last plan."""
        by_id = {point.point_id: point for group in self.groups for point in group.points}
        while (plan := self.plan()).points and most > 0:
            if plan.is_new:
                self.rounds.append(Round(points=tuple(plan.points)))
            for point_id in plan.points[:most]:
                point = by_id[point_id]
                self.rows[point_id] += 1
                if not self.fails(point):
                    self.times[point_id] = self.law(point)
                self.spent += self.cost(point)
                most -= 1
            self.history.append({*self.rows})
        return plan
