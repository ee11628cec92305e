"""Chooses the row of each point, flags those that do not compare, and writes the merged tables.

Of several rows of a point, from attempts that were requeued, retried or run twice, the one with the
highest `state.rank` counts, among equals the latest. The order of the shards changes nothing. Which
is later, one of here or an imported one, only the time can say at which it was measured.

`overall.csv` and `details.csv` have the cells of each row. For `layers.csv` and `samples.csv` bytes
are copied where all shards have the columns of this version. Each block is checked against the
checksum of its row. All tables are renamed together at the end, so a full disk leaves the old ones.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections import Counter, abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain, compress, islice
from math import isfinite, nan
from operator import itemgetter
from typing import IO, Final

from hpcsweep import catalog, files, sources
from hpcsweep.catalog import columns, limits
from hpcsweep.catalog.columns import DOUBTFUL, MUST_AGREE, OWN, SCHEMA_VERSION, cell
from hpcsweep.errors import ResultsError
from hpcsweep.store import outcomes, shards, state
from hpcsweep.store.folders import ShardPath, SubmissionOrder, SweepDir
from hpcsweep.store.row_reader import Blocks, Shard, WholeRow, parse_block
from hpcsweep.store.shards import Heads
from hpcsweep.store.state import PointStatus

VERSION_MIX: Final = "version_mix"
OLD_FILES: Final = "old_files"
# cells of a row that are no columns of the tables, or are filled here
_UNTOLD: Final = frozenset({*columns.COMMIT, "source"})
# cells of the tables that are filled here, in the order of `_cells`
_FILLED: Final = ("submission", "source", "valid", "flags", "orphan")
_BLOCKS: Final = (
    "layer_rows", "layers_offset", "layers_bytes", "samples_offset", "samples_bytes",
)  # fmt: skip
# what `table_row` asks of each row
_KEYS: Final = (
    "point_id", "status", "schema_version", "valid", "flags", "visit", "gpu", "device_name",
    "started_at", *_BLOCKS,
)  # fmt: skip
_AXES: Final = tuple(catalog.AXES)
_NUMERIC: Final = tuple(axis.kind in {"int", "float"} for axis in catalog.AXES.values())
_MADE_OF: Final = ("own_files", "workload", "model", "dataset", "weights")
_MAJOR: Final = int(SCHEMA_VERSION.split(".")[0])
_LONGEST_MAJOR: Final = 9  # digits; a damaged cell may have a million, which int() takes long for

# A table repeats few tuples and texts many times; 1,000 of each take less than a megabyte.
_shared = lru_cache(maxsize=1000)(tuple)
_shared_names = lru_cache(maxsize=1000)(frozenset[str])

Key = tuple[int, object]  # sorts a cell
Versions = tuple[str, ...]  # the cells of `columns.MUST_AGREE`
Mixes = dict[str, list[tuple[Versions, int]]]  # rows by versions, the most first, by GPU type
_Picker = Callable[[Sequence[str]], Sequence[str]]
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
    axes: tuple[str, ...]  # its cells of `_AXES`
    origin: Origin
    filled: frozenset[str]  # columns
    places: tuple[int, ...]  # offset and length in bytes: of its line, layer rows and samples
    shard: ShardPath
    heads: Heads  # of its shard
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
        if not shards.fits(line, self.heads, layers, samples):
            raise ResultsError("its checksum does not fit")
        return layers, samples

    def doubt(self, flag: str) -> None:
        """Add a flag that makes it not valid, unless it has that."""
        if flag not in self.flags.split(";"):
            self.flags = f"{self.flags};{flag}".lstrip(";")
        self.valid = "false"

    @property
    def doubts(self) -> str:
        """Return the flags that make it not valid."""
        return outcomes.doubts_of({"valid": self.valid, "flags": self.flags})

    def rank(self) -> tuple[int, Origin]:
        """Return a key: of the rows of a point, the one with the largest key counts."""
        return state.rank(self.status), self.origin


def table_row(row: WholeRow, content: Shard, age: SubmissionOrder) -> TableRow:
    """Make the `TableRow` of a shard's row; `ResultsError` if its version or numbers are wrong."""
    shard = content.path
    heads = content.heads
    # at once, and equal texts share their memory; they are taken below in the picker's order
    cells = map(sys.intern, _picker_of_shard(heads)(row.cells))
    point_id, status, schema, valid, flags, visit, gpu, device, started, *numbers = islice(
        cells, len(_KEYS)
    )
    _check_schema(schema)
    places = [_number(name, text) for name, text in zip(_BLOCKS, numbers, strict=True)]
    made = TableRow(
        point_id=point_id,
        status=PointStatus(status),
        valid=valid,
        flags=flags,
        visit=visit,
        gpu=gpu,
        started=started,
        versions=_shared(tuple(islice(cells, len(MUST_AGREE)))),
        own_files=_own_files(*islice(cells, len(_MADE_OF))),
        own=tuple(map(_names, islice(cells, len(OWN)))),
        axes=tuple(cells),
        filled=_shared_names(frozenset(compress(heads.columns, row.cells))),
        origin=Origin(age, shard.attempt, shard.chunk, row.at),
        places=(row.byte, len(row.line) + 1, *places[1:]),
        shard=shard,
        heads=heads,
    )
    may_be = columns.IMPOSSIBLE in flags or limits.sheet(device, gpu)
    if may_be and made.status is PointStatus.OK:
        named = dict(zip(heads.columns, row.cells, strict=False))
        if limits.is_impossible(named):
            made.doubt(columns.IMPOSSIBLE)
    return made


@lru_cache  # a merge reads one shard after the other
def _picker_of_shard(heads: Heads) -> _Picker:
    return _picker(heads.columns, (*_KEYS, *MUST_AGREE, *_MADE_OF, *OWN, *_AXES))


def _names(text: str) -> tuple[str, ...]:
    try:
        return _shared(tuple(json.loads(text))) if text else ()
    except ValueError:
        raise ResultsError("what a command has of its own is no JSON") from None


@dataclass
class Pool:
    """All rows of all points; for each of the user's files, the digest measured last."""

    imported: abc.Set[str] = frozenset()  # submissions of other machines
    rows: dict[str, list[TableRow]] = field(default_factory=dict)

    def add(self, row: TableRow) -> None:
        """Add a row."""
        self.rows.setdefault(row.point_id, []).append(row)

    @cached_property
    def latest(self) -> Mapping[str, str]:
        latest: dict[str, tuple[str, str]] = {}
        for row in chain.from_iterable(self.rows.values()):
            for name, digest in row.own_files:
                if digest:
                    latest[name] = max(latest.get(name, ("", "")), (row.started, digest))
        return {name: digest for name, (_started, digest) in latest.items()}

    def old_files(self, row: TableRow) -> list[str]:
        """Return the user's files of which a row has an earlier or unknown version."""
        if row.status is not PointStatus.OK:
            return []
        return [name for name, digest in row.own_files if digest != self.latest.get(name, digest)]

    def best(self, rows: Sequence[TableRow]) -> TableRow:
        """Return the row of a point that counts."""
        if len(rows) == 1:
            return rows[0]
        own = [row for row in rows if row.origin.submission not in self.imported]
        brought = [row for row in rows if row.origin.submission in self.imported]
        best = [max(side, key=TableRow.rank) for side in (own, brought) if side]
        # the clocks of two machines are compared only where nothing else can be; of equals the one
        # of here counts
        return max(best, key=lambda row: (state.rank(row.status), row.started))

    def winners(self) -> list[TableRow]:
        """Return one row per point, by axis values and then id."""
        best = [self.best(rows) for rows in self.rows.values()]
        # most axes have one value in all rows, and change no order
        varying = [place for place, texts in enumerate(_texts_of_axes(best)) if len(texts) > 1]

        def order(row: TableRow) -> tuple[list[Key], str]:
            keys = [_sortable(row.axes[place], _NUMERIC[place]) for place in varying]
            return keys, row.point_id

        return sorted(best, key=order)


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
    usual = {gpu: rows[0][0] for gpu, rows in mixes.items()}  # the versions of the most rows
    for row in winners:
        before = row.flags.split(";")
        flags = [flag for flag in before if flag not in {"", VERSION_MIX, OLD_FILES}]
        # a failure has no time that versions could make incomparable
        is_measured = row.status is PointStatus.OK
        if is_measured and row.versions != usual.get(row.gpu, row.versions):
            flags.append(VERSION_MIX)
        if pool.old_files(row):
            flags.append(OLD_FILES)
        row.flags = ";".join(flags)
        if OLD_FILES in {*before, *flags}:
            row.valid = str(DOUBTFUL.isdisjoint(flags)).lower()


def named_axes(winners: Iterable[TableRow]) -> set[str]:
    """Return the axes that have another value than the default in some row."""
    named = set[str]()
    for place, texts in enumerate(_texts_of_axes(winners)):
        default = cell(catalog.AXES[_AXES[place]].default)
        usual = {_sortable(text, _NUMERIC[place]) for text in ("", default)}
        if not usual.issuperset([_sortable(text, _NUMERIC[place]) for text in texts]):
            named.add(_AXES[place])
    return named


def _texts_of_axes(rows: Iterable[TableRow]) -> list[set[str]]:
    """Return of each axis the texts that its cells have."""
    return [set(texts) for texts in zip(*[row.axes for row in rows], strict=True)]


def _number(name: str, text: str) -> int:
    try:
        return int(text or 0)
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
        is_factory = axis in sources.FACTORIES
        is_own = ":" in value if is_factory else sources.is_weights_file(value)
        if is_own:
            digests.setdefault(axis, "")
    return tuple((f"{axis} {named.get(axis, '')}", digest) for axis, digest in digests.items())


def _check_schema(version: str) -> None:
    major = version.split(".", maxsplit=1)[0]
    if major.isdecimal() and (len(major) > _LONGEST_MAJOR or int(major) > _MAJOR):
        known = f"columns {version:.20}, this one knows {SCHEMA_VERSION}"
        raise ResultsError(f"written by a newer hpcsweep ({known}); update hpcsweep to read it")


@dataclass
class TablePlan:
    """The planned points; those that left the sweep, or of which that is unknown; how to write."""

    sources: Mapping[str, str]  # of imported submissions
    measured: abc.Set[str] = frozenset()  # of these, what hpcsweep measured elsewhere
    planned: set[str] = field(default_factory=set)
    orphans: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


@dataclass
class Written:
    """The written rows in order, what messages tell of them, the number of layer rows."""

    rows: list[TableRow] = field(default_factory=list)
    mixes: Mixes = field(default_factory=dict)
    layer_rows: int = 0
    for_messages: list[Mapping[str, str]] = field(default_factory=list)


def write_all(sweep_dir: SweepDir, pool: Pool, plan: TablePlan) -> Written:
    """Write the tables from the best row of each point.

    `ResultsError` where the disk is full or read-only: the tables are as they were.
    """
    winners = pool.winners()
    written = Written(winners, mixes(winners))
    mark(winners, pool, written.mixes)
    short, long = _columns_of_points(winners, plan)
    layer_columns = _columns_of_layers(winners)
    pickers: dict[object, list[_Picker]] = {}  # of each kind of row those of the two tables
    with ExitStack() as stack:
        every = [stack.enter_context(files.replacing(path)) for path in sweep_dir.merged()]
        overall, details, layers, samples = every
        overall.write(shards.header(short))
        details.write(shards.header(long))
        layers.write(shards.header((*layer_columns, *columns.OF_POINT)))
        samples.write(shards.header(columns.SAMPLE_COLUMNS))
        blocks = stack.enter_context(Blocks())
        for row in winners:
            line, layer_block, sample_block = row.texts(blocks)
            if row.origin.submission in plan.measured and not row.doubts:
                _doubt_impossible_calls(row, layer_block)
            kind = row.heads, row.own
            if kind not in pickers:
                pickers[kind] = [_picker(_names_of(row), table) for table in (short, long)]
            cells = _cells(row, line, plan)
            for file, picked in zip((overall, details), pickers[kind], strict=True):
                file.write(f"{shards.joined(picked(cells))}\n".encode())
            if row.doubts:  # of others a message tells nothing
                named = dict(zip(_names_of(row), cells, strict=False))
                written.for_messages.append(outcomes.told_of(named))
            if layer_block:
                if row.heads.layers != layer_columns:
                    layer_block = _remapped(layer_block, row.heads.layers, layer_columns)
                ending = row.ending()
                lines = layer_block.replace(b"\n", ending)
                layers.write(lines)
                # by how much longer they became: to count them takes a tenth of the whole merge
                written.layer_rows += (len(lines) - len(layer_block)) // (len(ending) - 1)
            samples.write(sample_block)
        _close_together(every)
    return written


def _close_together(tables: Sequence[IO[bytes]]) -> None:
    """Sync and close files: nothing is renamed before everything is there.

    They are synced at once: the file system writes its journal once, not four times, which takes
    3 ms instead of 16.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - 2 ms; few commands write

    for file in tables:
        file.flush()
    with ThreadPoolExecutor(len(tables)) as threads:
        for _ in threads.map(os.fsync, tables):
            pass  # the error of each is raised here
    for file in tables:  # some file systems report a full disk only here
        file.close()


def _columns_of_points(
    winners: Sequence[TableRow], plan: TablePlan
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns of overall.csv and details.csv."""
    filled = set[str]().union(*{row.filled for row in winners}) - _UNTOLD
    if any(row.origin.submission in plan.sources for row in winners):
        filled.add("source")
    own_axes: dict[str, None] = {}  # the names of commands, each once, in their order
    own_results: dict[str, None] = {}
    for axes, results in dict.fromkeys(row.own for row in winners):
        own_axes.update(dict.fromkeys(axes))
        own_results.update(dict.fromkeys(results))
    return columns.split(filled, named_axes(winners), [*own_axes, *own_results])


def _columns_of_layers(winners: Iterable[TableRow]) -> tuple[str, ...]:
    """Return the columns of this version, and then those that other versions wrote."""
    others = {row.heads.layers for row in winners if row.places[3]}
    unknown = set[str]().union(*others).difference(columns.LAYER_COLUMNS)
    return (*columns.LAYER_COLUMNS, *sorted(unknown))


def _doubt_impossible_calls(row: TableRow, block: bytes) -> None:
    """Doubt a row that an earlier version measured, which did not compare times with peaks."""
    amp = row.axes[_AXES.index("amp")]  # which a layer row does not tell
    for call in parse_block(block, row.heads.layers):
        if limits.is_impossible({**call, "amp": amp}):
            row.doubt(columns.IMPOSSIBLE)


def _names_of(row: TableRow) -> tuple[str, ...]:
    """Return the names of the cells of a row (`_cells`)."""
    return (*row.heads.columns, *chain.from_iterable(row.own), *_FILLED)


def _cells(row: TableRow, line: bytes, plan: TablePlan) -> list[str]:
    """Return all cells of a row: its shard's, those that a command has of its own, `_FILLED`."""
    cells = shards.split(line)
    for column, names in zip(OWN, row.own, strict=True):
        if names:
            for value in json.loads(cells[row.heads.columns.index(column)]).values():
                # a number of a command has all digits that it gave
                cells.append(repr(value) if isinstance(value, float) else cell(value))
    submission = row.origin.submission  # an imported one may have another name here
    is_orphan = "" if row.point_id in plan.unknown else cell(row.point_id in plan.orphans)
    source = plan.sources.get(submission, "")
    cells += submission, source, row.valid, row.flags, is_orphan, ""
    return cells


def _picker(there: Sequence[str], wanted: Sequence[str]) -> _Picker:
    """Return what picks the wanted cells of a row; one that it lacks is the empty one at its end.

    Of two cells of one name the later counts.
    """
    places = {name: place for place, name in enumerate(there)}
    return itemgetter(*[places.get(name, -1) for name in wanted])


def _remapped(block: bytes, header: Sequence[str], names: Sequence[str]) -> bytes:
    """Return a block with other columns; they hold all that it has, else `ValueError`."""
    text = io.StringIO()
    csv.DictWriter(text, names, lineterminator="\n").writerows(parse_block(block, header))
    return text.getvalue().encode()
