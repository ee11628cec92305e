"""Points that take a few milliseconds each travel in one message, since a message costs as much."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from hpcsweep.catalog.sharing import worker_key
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcsweep.node.protocol import Outcome
    from hpcsweep.point import Point

_SHORT_SECONDS: Final = 0.01  # of a point; what takes longer does not feel a message of 0.3 ms
_TOGETHER_SECONDS: Final = 0.05  # of points in one message: a crash costs no more
TOGETHER_LIMIT: Final = 5.0  # seconds for such a message; a point that hangs is then found alone


class ShortPoints:
    """How many points the next message has, by the time of those in the last one."""

    def __init__(self, *, skips: bool) -> None:
        """`skips`: each point must have its row before it is known whether the next is skipped."""
        self._never = skips
        self._pace = math.inf  # seconds of a point in the last message, with its row
        self._alone = 0  # points that go one by one, since one of them stopped a worker

    def next_message(self, todo: Sequence[Point], at: int) -> list[Point]:
        """Return the next point, with those after it that go into the same message."""
        key = worker_key(todo[at])
        is_first = at == 0 or worker_key(todo[at - 1]) != key
        if is_first or self._never or self._alone or self._pace >= _SHORT_SECONDS:
            return [todo[at]]
        most = int(_TOGETHER_SECONDS / self._pace)
        return [point for point in todo[at : at + most] if worker_key(point) == key]

    def sent(self, points: Sequence[Point]) -> None:
        """Note a message of several points, which go alone until they have been answered."""
        self._alone = len(points)

    def answered(self, outcomes: Sequence[Outcome], seconds: float) -> None:
        """Note what a message took with its rows, but for the start of a worker."""
        self._alone = max(0, self._alone - len(outcomes))
        if not outcomes:
            return
        slowest = max(outcome.seconds for outcome in outcomes)
        self._pace = max(seconds / len(outcomes), slowest)
        if any(outcome.status is not PointStatus.OK for outcome in outcomes):
            self._pace = math.inf  # one that failed at once says nothing of the next
