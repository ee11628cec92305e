"""Points that take a few milliseconds each travel in one message, since a message costs as much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcsweep.catalog.sharing import worker_key
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcsweep.node.protocol import Outcome
    from hpcsweep.point import Point

_SHORT_SECONDS: Final = 0.01  # of a point; what takes longer does not feel a message of 0.3 ms
_TOGETHER: Final = 50  # points of a message: a crash costs half a second, a message nearly nothing
TOGETHER_LIMIT: Final = 5.0  # seconds for such a message; a point that hangs is then found alone


class ShortPoints:
    """How many points the next message has, by those of the last one."""

    def __init__(self, *, skips: bool) -> None:
        """`skips`: each point must have its row before it is known whether the next is skipped."""
        self._skips = skips
        self._were_short = False
        self._alone = 0  # points that go one by one, since one of them stopped a worker

    def next_message(self, todo: Sequence[Point], at: int) -> list[Point]:
        """Return the next point, with those after it that go into the same message."""
        if self._skips or self._alone or not self._were_short:
            return [todo[at]]
        key = worker_key(todo[at])
        if worker_key(todo[at - 1]) != key:  # of another network nothing is known
            return [todo[at]]
        return [point for point in todo[at : at + _TOGETHER] if worker_key(point) == key]

    def sent(self, points: Sequence[Point]) -> None:
        """Note a message of several points, which go alone until they have been answered."""
        self._alone = len(points)

    def answered(self, outcomes: Sequence[Outcome]) -> None:
        """Note the outcomes of a message; one that failed at once says nothing of the next."""
        self._alone = max(0, self._alone - len(outcomes))
        self._were_short = bool(outcomes)
        for outcome in outcomes:
            if outcome.status is not PointStatus.OK or outcome.seconds >= _SHORT_SECONDS:
                self._were_short = False
