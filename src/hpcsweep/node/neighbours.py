"""What the supervisors of one job know of each other, and what neighbours cost.

They share a file in memory that `node.side_by_side` makes: a byte for each of them, and one that
says whether all may begin. It tells how many measure beside a point.

**The control.** At the beginning of a job the first supervisor waits until the workers of the
others are ready, and measures its first point alone. Then all begin, and it measures the same point
again, in a worker as new as before. That row counts, and says how much slower it was. Nobody waits
for ever: who died is known to `side_by_side`, and every wait has an end. Standard library only.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hpcsweep import environment
from hpcsweep.catalog import COMMAND, workload_of
from hpcsweep.catalog.columns import LIMITS, NEIGHBOURS_DISTURB
from hpcsweep.catalog.record import row_of
from hpcsweep.catalog.row_records import NeighbourCells, OutcomeCells

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcsweep.catalog.columns import Row

_GONE, _STARTS, _READY, _MEASURES = range(4)  # the states of a supervisor
_BEGUN: Final = 1  # the last byte, once all may begin
# For the workers of the others to be ready: a cold import of torch from a loaded file system takes
# minutes. What is not ready then disturbs the control, which does not count.
_START_SECONDS: Final = 300.0
# For the point that is measured alone: meanwhile all other GPUs of the job are idle.
ALONE_SECONDS: Final = 120.0
# A shorter point is a no-op: all that a control could compare is the start of its pass.
_SHORTEST_SECONDS: Final = 0.01
# For the first supervisor to let the others begin: both of the above, with a margin
_LONGEST_SECONDS: Final = 600.0
# For those that wait to see that they may begin, which takes a tenth of a second
_HEARD_SECONDS: Final = 2.0
# Ten looks a second at a byte in memory are no load to measure.
_POLL_SECONDS: Final = 0.1


class Board:
    """The shared file, as the supervisor at `place` sees it; `side_by_side` has no place: -1."""

    def __init__(self, fd: int, gpus: int, place: int = -1) -> None:
        self.fd = fd
        self.place = place
        self._gpus = gpus

    def variable(self, place: int) -> str:
        """Return what a supervisor that inherits the file is told."""
        return f"{self.fd}:{self._gpus}:{place}"

    def starts(self, place: int) -> None:
        """Note that a supervisor is about to be started: the first one waits for its worker."""
        self._write(place, _STARTS)

    def has_ended(self, place: int) -> None:
        """Note that a supervisor is gone; without the first one, the others begin."""
        self._write(place, _GONE)
        if place == 0:
            self._write(self._gpus, _BEGUN)

    def let_all_begin(self) -> None:
        """End the time of the first supervisor alone; wait until those that are ready measure."""
        self._write(self._gpus, _BEGUN)
        until = time.monotonic() + _HEARD_SECONDS
        while _READY in self._states() and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)

    def wait_for_turn(self, stopped: Callable[[], bool]) -> float:
        """Wait until it is this supervisor's turn to measure, its worker being ready.

        The first one waits for the workers of the others, these for the first one; nobody waits
        once all may begin, nor when a stop is wanted. Return the seconds that it took.
        """
        began = time.monotonic()
        self._write(self.place, _READY)
        seconds = _LONGEST_SECONDS if self.place else _START_SECONDS
        until = began + seconds
        while not (self._has_turn() or stopped() or time.monotonic() > until):
            time.sleep(_POLL_SECONDS)
        self._write(self.place, _MEASURES)
        return time.monotonic() - began

    def others(self) -> int:
        """Return how many other supervisors measure."""
        states = self._states()
        return states.count(_MEASURES) - (states[self.place] == _MEASURES)

    def is_alone(self) -> bool:
        """Say whether all others wait, or are gone."""
        return self.others() == 0 and _STARTS not in self._states()

    def _has_turn(self) -> bool:
        if os.pread(self.fd, 1, self._gpus) == bytes([_BEGUN]):
            return True
        return self.place == 0 and _STARTS not in self._states()

    def _states(self) -> bytes:
        return os.pread(self.fd, self._gpus, 0)

    def _write(self, place: int, state: int) -> None:
        os.pwrite(self.fd, bytes([state]), place)


def make_board(gpus: int) -> Board:
    """Return a new board, whose file the supervisors inherit."""
    fd = os.memfd_create("hpcsweep")
    os.ftruncate(fd, gpus + 1)
    return Board(fd, gpus)


def board_of_job() -> Board | None:
    """Return the board of this supervisor's job; None where it has one GPU."""
    text = os.environ.pop(environment.NEIGHBOURS, "")  # a worker has not the file
    return Board(*map(int, text.split(":"))) if text else None


def has_control(workload: str, expected: float) -> bool:
    """Say whether the first point of a job may be measured once more, of so many seconds each.

    A command may not run twice, a training writes files, for a long point all others would wait
    too long, and a no-op has no time to compare.
    """
    repeatable = workload != COMMAND.name and not workload_of(workload).learns
    return repeatable and _SHORTEST_SECONDS < expected < ALONE_SECONDS


@dataclass(frozen=True)
class Alone:
    """The time of a point that nobody measured beside."""

    point_id: str
    row: Row


def cells_of(row: Row, others: int, alone: Alone | None) -> Row:
    """Return the cells of a row about its neighbours: how many there were, and what they cost.

    `alone` is what its job measured alone. The noise is what the intervals of both medians allow.
    """
    beside = row.get("median_ms")
    if alone is None or alone.point_id != row["point_id"] or not beside:
        return row_of(NeighbourCells(neighbours=others))
    before = alone.row["median_ms"]
    slower = 100 * (beside / before - 1)
    noise = 100 * math.hypot(_half_interval(row), _half_interval(alone.row))
    cells = NeighbourCells(
        neighbours=others,
        alone_ms=before,
        neighbour_slowdown_pct=slower,
        neighbour_noise_pct=noise or None,
    )
    if slower <= max(LIMITS[NEIGHBOURS_DISTURB], noise):
        return row_of(cells)
    flags = ";".join(filter(None, (row.get("flags"), NEIGHBOURS_DISTURB)))
    return row_of(cells, OutcomeCells(flags=flags))


def _half_interval(row: Row) -> float:
    """Return half of the interval of a median over the median; 0 where it is not known."""
    low = row.get("ci95_lo_ms")
    high = row.get("ci95_hi_ms")
    if low is None or high is None:
        return 0.0
    return float(high - low) / 2 / float(row["median_ms"])
