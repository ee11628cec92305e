"""Which row of a point counts, the order of the rows, and whether they may be compared.

A point may have several rows, from attempts that were requeued, retried or run twice: `state.rank`
decides, then which row is later. Nothing here reads a file or depends on the order of the shards.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from math import isfinite, nan
from typing import Final

from hpcsweep import catalog, search_path, sources
from hpcsweep.catalog.columns import MUST_AGREE, SCHEMA_VERSION, Row
from hpcsweep.errors import ResultsError
from hpcsweep.store import outcomes, shards, state
from hpcsweep.store.rundir import ShardPath, SubmissionOrder
from hpcsweep.store.shards import Shard
from hpcsweep.store.state import PointStatus

VERSION_MIX: Final = "version_mix"
LONELY: Final = "lonely"
# flags of a row that explain it, where its neighbours have others
_EXPLAIN: Final = frozenset({"fallback", "uncovered", "recompiled"})
_TIMES: Final = 10.0
_BOTH: Final = 2
_NUMBER: Final = 1  # how the sorted cell of a number begins
OLD_FILES: Final = "old_files"
_AXES: Final = tuple(catalog.AXES)
_NUMERIC: Final = tuple(axis.kind in {"int", "float"} for axis in catalog.AXES.values())
_MADE_OF: Final = ("own_files", "workload", "model", "dataset", "weights")
_MAJOR: Final = int(SCHEMA_VERSION.split(".")[0])

Place = tuple[int, int]  # offset and length of a block, in bytes
Versions = tuple[str, ...]  # the cells of `columns.MUST_AGREE`
OwnFiles = tuple[tuple[str, str], ...]  # what of one's own a point is made of, and its digest


@dataclass(frozen=True, order=True)
class Origin:
    """Where a row was written; of two rows, the one with the larger origin is later."""

    age: SubmissionOrder  # of its submission
    attempt: int
    chunk: int
    at: int  # byte in the shard

    @property
    def submission(self) -> str:
        return self.age[1]


@dataclass(eq=False, slots=True)
class TableRow:
    """A row as it lies in a shard, or (`shard` None) in the merged table of the last collect."""

    point_id: str
    status: PointStatus
    doubts: str  # the flags that make it not valid
    explained: frozenset[str]  # what may make it differ from its neighbours
    ms: float  # median; 0 where there is none, as of a noop
    gpu: str
    versions: Versions
    own_files: OwnFiles
    started: str  # when it was measured
    order: tuple[tuple[int, object], ...]
    origin: Origin
    line: bytes
    columns: tuple[str, ...]
    layer_columns: tuple[str, ...] | None  # of its shard; None: they could not be read
    layers: Place
    samples: Place
    shard: ShardPath | None

    def values(self) -> list[str]:
        """Return the row's cells, in the order of `columns`."""
        return shards.split(self.line)

    def cells(self) -> dict[str, str]:
        """Return the row's cells by column."""
        return dict(zip(self.columns, self.values(), strict=False))

    def rank(self) -> tuple[int, Origin]:
        """Return what decides between rows of one point; the largest counts."""
        return state.rank(self.status), self.origin


def entry(  # noqa: PLR0913 - a record
    cells: Mapping[str, str],
    *,
    line: bytes,
    columns: tuple[str, ...],
    origin: Origin,
    shard: ShardPath | None,
    places: tuple[Place, Place],
    layer_columns: tuple[str, ...] | None = (),
) -> TableRow:
    """Return the entry of a row, which lies in `shard` or in the merged tables."""
    return TableRow(
        point_id=cells["point_id"],
        status=PointStatus(cells["status"]),
        doubts=sys.intern(outcomes.doubts_of(cells)),
        explained=_EXPLAIN.intersection(cells.get("flags", "").split(";")),
        ms=_ms(cells),
        gpu=cells.get("gpu", ""),
        versions=_shared(tuple(cells.get(name, "") for name in MUST_AGREE)),
        own_files=_own_files(*(cells.get(name, "") for name in _MADE_OF)),
        started=cells.get("started_at", ""),
        order=tuple(map(_sortable, map(cells.get, _AXES, repeat("")), _NUMERIC)),
        origin=origin,
        line=line,
        columns=columns,
        layer_columns=layer_columns,
        layers=places[0],
        samples=places[1],
        shard=shard,
    )


def shard_entry(row: Row, found: Shard, age: SubmissionOrder) -> TableRow:
    """Return a shard's row; `ResultsError` if a newer hpcsweep wrote it, or numbers are none."""
    shard = found.path
    origin = Origin(age, shard.attempt, shard.chunk, row["_at"])
    _check_schema(row.get("schema_version", ""))
    _number(row, "layer_rows")
    layers = _number(row, "layers_offset"), _number(row, "layers_bytes")
    samples = _number(row, "samples_offset"), _number(row, "samples_bytes")
    return entry(
        row,
        line=row["_line"],
        columns=found.columns,
        origin=origin,
        shard=shard,
        places=(layers, samples),
        layer_columns=found.layer_columns,
    )


@dataclass
class Pool:
    """All rows of all points; of each own file the digest that was measured last, and when."""

    rows: dict[str, list[TableRow]] = field(default_factory=dict)
    latest: dict[str, list[str]] = field(default_factory=dict)

    def add(self, found: TableRow) -> None:
        """Take a row."""
        self.rows.setdefault(found.point_id, []).append(found)
        for name, digest in found.own_files:
            if digest:
                self.latest[name] = max(self.latest.get(name, []), [found.started, digest])

    def old_files(self, found: TableRow) -> list[str]:
        """Return what a row was made of that is of an earlier version, or an unknown one."""
        return [
            name
            for name, digest in found.own_files
            if found.status is PointStatus.OK and digest != self.latest.get(name, ["", digest])[1]
        ]

    def drop(self, damaged: Iterable[TableRow]) -> None:
        """Leave rows out: their points get the next best one."""
        for found in damaged:
            rows = self.rows[found.point_id]
            rows.remove(found)
            if not rows:
                del self.rows[found.point_id]

    def losers(self) -> Iterator[TableRow]:
        """Return the rows that lie in shards and are not the best of their points."""
        for rows in self.rows.values():
            if len(rows) > 1:
                best = max(rows, key=TableRow.rank)
                yield from (found for found in rows if found is not best and found.shard)

    def winners(self) -> list[TableRow]:
        """Return one row per point, by axis values and then id."""
        best = (
            rows[0] if len(rows) == 1 else max(rows, key=TableRow.rank)
            for rows in self.rows.values()
        )
        return sorted(best, key=lambda found: (found.order, found.point_id))


@dataclass(frozen=True)
class Mix:
    """Library versions of the rows of one GPU type, with counts, the most frequent first."""

    gpu: str
    groups: tuple[tuple[Versions, int], ...]

    def minority(self) -> Iterator[tuple[str, Versions]]:
        """Yield GPU type and versions of the rows that get the flag: all but the most frequent."""
        return ((self.gpu, versions) for versions, _count in self.groups[1:])


def mixes(winners: Iterable[TableRow]) -> list[Mix]:
    """Return the GPU types whose measured rows do not agree in `columns.MUST_AGREE`."""
    counts: dict[str, Counter[Versions]] = {}
    for found in winners:
        if found.status is PointStatus.OK:
            counts.setdefault(found.gpu, Counter())[found.versions] += 1
    return [
        Mix(gpu, tuple(sorted(of.items(), key=lambda item: (-item[1], item[0]))))
        for gpu, of in sorted(counts.items())
        if len(of) > 1
    ]


def flags(before: str, *, mixed: bool, old: bool = False, alone: bool = False) -> str:
    """Return a row's flags with `version_mix`, `old_files` and `lonely` added or removed."""
    marks = {VERSION_MIX: mixed, OLD_FILES: old, LONELY: alone}
    kept = [flag for flag in before.split(";") if flag and flag not in marks]
    return ";".join([*kept, *(mark for mark, raised in marks.items() if raised)])


def _ms(cells: Mapping[str, str]) -> float:
    try:
        return float(cells.get("median_ms") or 0) if cells.get("workload") != "noop" else 0.0
    except ValueError:
        return 0.0


def _number(row: Mapping[str, str], name: str) -> int:
    try:
        return int(row.get(name) or 0)
    except ValueError:
        raise ResultsError(f"{name} is no number") from None


@lru_cache(maxsize=100_000)
def _sortable(text: str, numeric: bool) -> tuple[int, object]:  # noqa: FBT001 - a cache's key
    """Return a key that orders empty, numbers, text; it never compares two types."""
    if not text:
        return (0, "")
    try:
        number = float(text) if numeric else nan
    except ValueError:
        number = nan
    return (_NUMBER, number) if isfinite(number) else (2, text)


@lru_cache(maxsize=1000)
def _own_files(cell: str, workload: str, *values: str) -> OwnFiles:
    """Return the digest of each own file or module; empty where it is not known."""
    if workload == "noop":
        return ()
    digests = sources.parts(cell)
    named = dict(zip(_MADE_OF[2:], values, strict=True))
    for axis, value in named.items():
        if ":" in value if axis in sources.FACTORIES else search_path.is_file(value):
            digests.setdefault(axis, "")
    return tuple((f"{axis} {named.get(axis, '')}", digest) for axis, digest in digests.items())


@lru_cache(maxsize=1000)
def _shared(versions: Versions) -> Versions:
    """Return the same object for equal tuples, since a table holds few of them many times."""
    return versions


def _check_schema(version: str) -> None:
    major = version.split(".", maxsplit=1)[0]
    if major.isdecimal() and (len(major) > 9 or int(major) > _MAJOR):
        raise ResultsError(
            f"written by a newer hpcsweep (columns {version:.20}, this one knows "
            f"{SCHEMA_VERSION}); update hpcsweep to read it"
        )


def lonely(winners: Iterable[TableRow]) -> set[str]:
    """Return the ids of rows that take ten times as long as their neighbours, and nothing says why.

    Such a row was disturbed by what no counter saw. It is one between two others that differ from
    it in one axis alone, and both are ten times faster: no curve that rises or falls looks like
    that, nor do the steps of a library that changes its algorithm. Of repetitions all others are
    neighbours. Rows that are not valid have a reason, and prove nothing.
    """
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


def _lines(rows: Sequence[TableRow]) -> Iterator[tuple[Sequence[TableRow], bool]]:
    """Yield rows that differ in one axis of numbers alone, by its value; and if it repeats them."""
    for place, axis in enumerate(catalog.AXES.values()):
        if axis.kind not in {"int", "float"} or len({one.order[place] for one in rows}) <= _BOTH:
            continue
        lines: dict[object, list[tuple[float, TableRow]]] = defaultdict(list)
        for one in rows:
            if one.order[place][0] == _NUMBER:
                rest = one.order[:place], one.order[place + 1 :]
                lines[rest].append((float(str(one.order[place][1])), one))
        for line in lines.values():
            ordered = sorted(line, key=lambda pair: pair[0])
            yield [one for _, one in ordered], catalog.Role.REPETITION in axis.role


def _beside(line: Sequence[TableRow], place: int) -> Sequence[TableRow]:
    return [line[place - 1], line[place + 1]] if 0 < place < len(line) - 1 else []


def _is_lonely(one: TableRow, others: Sequence[TableRow]) -> bool:
    return (
        len(others) >= _BOTH
        and one.ms >= _TIMES * max(other.ms for other in others)
        and all(other.explained == one.explained for other in others)
    )
