"""Chooses the row of each point, sorts the rows, and flags those that do not compare.

Of several rows of a point, from attempts that were requeued, retried or run twice, the one with the
highest `state.rank` counts, among equals the latest. The order of the shards changes nothing. Which
is later, one of here or an imported one, only the time can say at which it was measured.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, abc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain, repeat
from math import isfinite, nan
from typing import Final

from hpcsweep import catalog, sources
from hpcsweep.catalog import limits
from hpcsweep.catalog.columns import DOUBTFUL, MUST_AGREE, OWN, SCHEMA_VERSION, Row, cell
from hpcsweep.errors import ResultsError
from hpcsweep.store import outcomes, shards, state
from hpcsweep.store.folders import ShardPath, SubmissionOrder
from hpcsweep.store.row_reader import Blocks, Shard
from hpcsweep.store.shards import Heads
from hpcsweep.store.state import PointStatus

VERSION_MIX: Final = "version_mix"
OLD_FILES: Final = "old_files"
_BLOCKS: Final = ("layers_offset", "layers_bytes", "samples_offset", "samples_bytes")
_AXES: Final = tuple(catalog.AXES)
_NUMERIC: Final = tuple(axis.kind in {"int", "float"} for axis in catalog.AXES.values())
_MADE_OF: Final = ("own_files", "workload", "model", "dataset", "weights")
_MAJOR: Final = int(SCHEMA_VERSION.split(".")[0])

# A table repeats few tuples and texts many times; 1,000 of each take less than a megabyte.
_shared = lru_cache(maxsize=1000)(tuple)
_shared_names = lru_cache(maxsize=1000)(frozenset[str])

Key = tuple[int, object]  # sorts a cell
Versions = tuple[str, ...]  # the cells of `columns.MUST_AGREE`
Mixes = dict[str, list[tuple[Versions, int]]]  # rows by versions, the most first, by GPU type
Latest = dict[str, list[str]]  # by the user's file: when it was measured last, and its digest
OwnFiles = tuple[tuple[str, str], ...]  # the user's files behind a point, with digests


@dataclass(frozen=True, order=True, slots=True)
class Origin:
    """The place where a row was written; of two rows, the one with the larger origin is later."""

    age: SubmissionOrder  # of its submission
    attempt: int
    chunk: int
    at: int  # line in the shard

    @property
    def submission(self) -> str:
        return self.age[1]


@dataclass(eq=False, slots=True)
class TableRow:
    """A row as it lies in a shard: its text stays there, since there may be 100,000 rows."""

    point_id: str
    status: PointStatus
    valid: str  # this cell and the next two also end its layer rows
    flags: str
    visit: str
    gpu: str
    versions: Versions
    own_files: OwnFiles
    started: str  # when it was measured
    order: tuple[Key, ...]  # by axis
    origin: Origin
    columns: tuple[str, ...]
    filled: frozenset[str]  # columns
    places: tuple[int, ...]  # offset and length in bytes: of its line, layer rows and samples
    shard: ShardPath
    layer_columns: tuple[str, ...]  # of its shard
    own: tuple[tuple[str, ...], ...]  # a command's own names: of axes, and of results

    def ending(self) -> bytes:
        """Return what each of its layer rows ends with in the merged table."""
        return f",{self.valid},{self.flags},{self.visit}\n".encode()

    def texts(self, blocks: Blocks) -> tuple[bytes, bytes, bytes]:
        """Return its line, layer rows and samples; `ResultsError` where they are not intact."""
        line = blocks.read(self.shard.overall, *self.places[:2]).removesuffix(b"\n")
        return line, *self.blocks_of(line, blocks)

    def blocks_of(self, line: bytes, blocks: Blocks) -> tuple[bytes, bytes]:
        """Return the layer rows and samples of its line; `ResultsError` as of `texts`."""
        layers = blocks.read(self.shard.layers, *self.places[2:4])
        samples = blocks.read(self.shard.samples, *self.places[4:])
        if not shards.fits(line, Heads(self.columns, self.layer_columns), layers, samples):
            raise ResultsError("its checksum does not fit")
        return layers, samples

    def axis(self, name: str) -> object:
        """Return the value of an axis."""
        return self.order[_AXES.index(name)][1]

    def doubt(self, flag: str) -> None:
        """Add a flag that makes it not valid, unless it has that."""
        flags = list(filter(None, self.flags.split(";")))
        self.flags = ";".join(dict.fromkeys([*flags, flag]))
        self.valid = "false"

    @property
    def doubts(self) -> str:
        """Return the flags that make it not valid."""
        return outcomes.doubts_of({"valid": self.valid, "flags": self.flags})

    def rank(self) -> tuple[int, Origin]:
        """Return a key: of the rows of a point, the one with the largest key counts."""
        return state.rank(self.status), self.origin


def table_row(row: Row, content: Shard, age: SubmissionOrder) -> TableRow:
    """Make the `TableRow` of a shard's row; `ResultsError` if its version or numbers are wrong."""
    shard = content.path
    _check_schema(row.get("schema_version", ""))
    _number(row, "layer_rows")
    made = TableRow(
        point_id=row["point_id"],
        status=PointStatus(row["status"]),
        valid=sys.intern(row.get("valid", "")),
        flags=sys.intern(row.get("flags", "")),
        visit=sys.intern(row.get("visit", "")),
        gpu=sys.intern(row.get("gpu", "")),
        versions=_shared(tuple(row.get(name, "") for name in MUST_AGREE)),
        own_files=_own_files(*(row.get(name, "") for name in _MADE_OF)),
        started=row.get("started_at", ""),
        order=tuple(map(_sortable, map(row.get, _AXES, repeat("")), _NUMERIC)),
        filled=_shared_names(frozenset(row)),
        origin=Origin(age, shard.attempt, shard.chunk, row["_at"]),
        columns=content.columns,
        places=(row["_byte"], len(row["_line"]) + 1, *(_number(row, name) for name in _BLOCKS)),
        shard=shard,
        layer_columns=content.layer_columns,
        own=tuple(_names(row.get(name)) for name in OWN),
    )
    if made.status is PointStatus.OK and limits.is_impossible(row):
        made.doubt(limits.IMPOSSIBLE)
    return made


def _names(text: str | None) -> tuple[str, ...]:
    try:
        return _shared(tuple(json.loads(text))) if text else ()
    except ValueError:
        raise ResultsError("what a command has of its own is no JSON") from None


@dataclass
class Pool:
    """All rows of all points; for each of the user's files, the digest measured last, and when."""

    imported: abc.Set[str] = frozenset()  # submissions of other machines
    rows: dict[str, list[TableRow]] = field(default_factory=dict)

    def add(self, row: TableRow) -> None:
        """Add a row."""
        rows = self.rows.setdefault(row.point_id, [row])
        if rows[0] is not row:
            rows.append(row)

    @cached_property
    def latest(self) -> Latest:
        latest: Latest = {}
        for row in chain.from_iterable(self.rows.values()):
            for name, digest in row.own_files:
                if digest:
                    latest[name] = max(latest.get(name, []), [row.started, digest])
        return latest

    def old_files(self, row: TableRow) -> list[str]:
        """Return the user's files of which a row has an earlier or unknown version."""
        files = row.own_files if row.status is PointStatus.OK else ()
        return [name for name, digest in files if digest != self.latest.get(name, ["", digest])[1]]

    def best(self, rows: Sequence[TableRow]) -> TableRow:
        """Return the row of a point that counts."""
        own = [row for row in rows if row.origin.submission not in self.imported]
        brought = [row for row in rows if row.origin.submission in self.imported]
        best = [max(some, key=TableRow.rank) for some in (own, brought) if some]
        # the clocks of two machines are compared only where nothing else can be
        return max(best, key=lambda row: (state.rank(row.status), row.started))

    def winners(self) -> list[TableRow]:
        """Return one row per point, by axis values and then id."""
        best = map(self.best, self.rows.values())
        return sorted(best, key=lambda row: (row.order, row.point_id))


def mixes(winners: Iterable[TableRow]) -> Mixes:
    """Return the GPU types whose measured rows do not agree in `columns.MUST_AGREE`."""
    counts: dict[str, Counter[Versions]] = {}
    for row in winners:
        if row.status is PointStatus.OK:
            counts.setdefault(row.gpu, Counter())[row.versions] += 1
    mixed: Mixes = {}
    for gpu, rows in sorted(counts.items()):
        if len(rows) > 1:
            mixed[gpu] = sorted(rows.items(), key=lambda item: (-item[1], item[0]))
    return mixed


def mark(winners: Iterable[TableRow], pool: Pool, mixes: Mixes) -> None:
    """Add to each row the flags that other rows give it, and remove those that they gave before."""
    minority = set()
    for gpu, rows in mixes.items():
        # the first has the most rows
        minority |= {(gpu, versions) for versions, _count in rows[1:]}
    for row in winners:
        marks = {
            VERSION_MIX: row.status is PointStatus.OK and (row.gpu, row.versions) in minority,
            OLD_FILES: bool(pool.old_files(row)),
        }
        before = row.flags.split(";")
        flags = [flag for flag in before if flag and flag not in marks]
        flags += [flag for flag, raised in marks.items() if raised]
        row.flags = ";".join(flags)
        if OLD_FILES in {*before, *flags}:
            row.valid = str(DOUBTFUL.isdisjoint(flags)).lower()


def named_axes(winners: Iterable[TableRow]) -> set[str]:
    """Return the axes that have another value than the default in some row."""
    defaults = []
    for axis, numeric in zip(catalog.AXES.values(), _NUMERIC, strict=True):
        defaults.append({_sortable("", numeric), _sortable(cell(axis.default), numeric)})
    named = set[str]()
    for row in winners:
        for name, key, usual in zip(_AXES, row.order, defaults, strict=True):
            if key not in usual:
                named.add(name)
    return named


def _number(row: Mapping[str, str], name: str) -> int:
    try:
        return int(row.get(name) or 0)
    except ValueError:
        raise ResultsError(f"{name} is no number") from None


@lru_cache(maxsize=1000)
def _sortable(text: str, numeric: bool) -> Key:  # noqa: FBT001 - a cache's key
    """Return a key that orders empty, numbers, text; it never compares two types."""
    if not text:
        return (0, "")
    try:
        number = float(text) if numeric else nan
    except ValueError:
        number = nan
    return (1, number) if isfinite(number) else (2, text)


@lru_cache(maxsize=1000)
def _own_files(cell: str, workload: str, *values: str) -> OwnFiles:
    """Return the digests of the user's files and modules behind a point; empty if unknown."""
    if not catalog.workload_of(workload).runs_network:
        return ()
    digests = sources.parts(cell)
    named = dict(zip(_MADE_OF[2:], values, strict=True))
    for axis, value in named.items():
        if ":" in value if axis in sources.FACTORIES else sources.is_weights_file(value):
            digests.setdefault(axis, "")
    return tuple((f"{axis} {named.get(axis, '')}", digest) for axis, digest in digests.items())


def _check_schema(version: str) -> None:
    major = version.split(".", maxsplit=1)[0]
    # a damaged cell may have a million digits, which int() refuses or takes long for
    if major.isdecimal() and (len(major) > 9 or int(major) > _MAJOR):
        raise ResultsError(
            f"written by a newer hpcsweep (columns {version:.20}, this one knows "
            f"{SCHEMA_VERSION}); update hpcsweep to read it"
        )
