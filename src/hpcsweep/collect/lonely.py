"""Rows that take ten times as long as their neighbours over an axis, and nothing says why.

Such a row was disturbed by what no counter saw. It is one between two others that differ from it in
this axis alone, and both are ten times faster: no curve that rises or falls looks like that, nor do
the steps of a library that changes its algorithm. Of repetitions all others are neighbours.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from hpcsweep import catalog
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hpcsweep.collect.merge import Entry

LONELY: Final = "lonely"
# flags of a row that explain it, where its neighbours have others
EXPLAIN: Final = frozenset({"fallback", "uncovered", "recompiled"})
_TIMES: Final = 10.0
_BOTH: Final = 2
NUMBER: Final = 1  # how the sorted cell of a number begins


def among(winners: Iterable[Entry]) -> set[str]:
    """Return the ids of these rows; those that are not valid have a reason, and prove nothing."""
    rows = [
        one
        for one in winners
        if one.status is PointStatus.OK and one.ms > 0 and one.doubts in {"", LONELY}
    ]
    return {
        one.point_id
        for line, again in _lines(rows)
        for place, one in enumerate(line)
        if _is_lonely(one, [*line[:place], *line[place + 1 :]] if again else _beside(line, place))
    }


def _lines(rows: Sequence[Entry]) -> Iterator[tuple[Sequence[Entry], bool]]:
    """Yield rows that differ in one axis of numbers alone, by its value; and if it repeats them."""
    for place, axis in enumerate(catalog.AXES.values()):
        if axis.kind not in {"int", "float"} or len({one.order[place] for one in rows}) <= _BOTH:
            continue
        lines: dict[object, list[tuple[float, Entry]]] = defaultdict(list)
        for one in rows:
            if one.order[place][0] == NUMBER:
                rest = one.order[:place], one.order[place + 1 :]
                lines[rest].append((float(str(one.order[place][1])), one))
        for line in lines.values():
            ordered = sorted(line, key=lambda pair: pair[0])
            yield [one for _, one in ordered], catalog.Role.REPETITION in axis.role


def _beside(line: Sequence[Entry], place: int) -> Sequence[Entry]:
    return [line[place - 1], line[place + 1]] if 0 < place < len(line) - 1 else []


def _is_lonely(one: Entry, others: Sequence[Entry]) -> bool:
    return (
        len(others) >= _BOTH
        and one.ms >= _TIMES * max(other.ms for other in others)
        and all(other.explained == one.explained for other in others)
    )
