"""Points of many sizes, and devices whose times are known: what the choice of points works on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hpcsweep.adaptive import planning
from hpcsweep.adaptive.measured import Known
from hpcsweep.point import Point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hpcsweep.adaptive.groups import Group
    from hpcsweep.adaptive.planning import Plan


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
    """Return a time that a constant and the pixels make."""
    pixels = point.axes["input_size"] ** 2 * point.axes["batch_size"]
    return 1.0 + 0.001 * pixels


@dataclass
class Measuring:
    """An adaptive run whose rounds are measured at once, and can be cut off after any point."""

    groups: Sequence[Group]
    law: Callable[[Point], float] = smooth
    target: float = 0.03
    budget: float = np.inf  # seconds
    noise: float = 0.0
    fails: Callable[[Point], bool] = lambda _point: False
    rounds: list[list[str]] = field(default_factory=list)
    ms: dict[str, float] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    spent: float = 0.0
    history: list[set[str]] = field(default_factory=list)

    def plan(self) -> Plan:
        """Return the next round, from what is measured so far alone."""
        spread = dict.fromkeys(self.ms, self.noise)
        known = Known(self.ms, spread, {*self.ms, *self.failed}, self.failed, self.spent)
        left = self.budget - self.spent
        return planning.plan(
            self.groups,
            known,
            self.rounds,
            target=self.target,
            seconds_left=left,
            seconds=self.cost,
        )

    def cost(self, point: Point) -> float:
        """Return the seconds of a point."""
        return 0.1 + 0.02 * self.law(point)

    def go(self, most: int = 10_000) -> Plan:
        """Measure until nothing is left to do, or `most` points; return the last plan."""
        by_id = {point.point_id: point for group in self.groups for point in group.points}
        while (plan := self.plan()).points and most > 0:
            if plan.new:
                self.rounds.append(plan.points)
            for point_id in plan.points[:most]:
                point = by_id[point_id]
                if self.fails(point):
                    self.failed.add(point_id)
                else:
                    self.ms[point_id] = self.law(point)
                self.spent += self.cost(point)
                most -= 1
            self.history.append({*self.ms, *self.failed})
        return plan
