"""Writes the merged tables: `overall.csv`, `layers.csv`, `samples.csv`.

Layer rows and samples are copied as bytes where all shards have the columns of this version. Each
block is checked against the checksum of its row. All three tables are renamed together at the end,
so a full disk leaves the old ones.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import IO, Final, NamedTuple

from hpcsweep import extras, files
from hpcsweep.catalog import columns as schema
from hpcsweep.errors import ResultsError, Unread
from hpcsweep.store import outcomes, seals, shards
from hpcsweep.store.collect import merge
from hpcsweep.store.collect.merge import Mixes, Pool, TableRow
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.seals import Blocks, Heads, parse_block
from hpcsweep.store.state import PointStatus
from hpcsweep.text import harmless

_COLUMNS: Final = (*schema.SAMPLES, *schema.LAYERS, *schema.OVERALL, *schema.COLLECTED)
_KINDS: Final = {column.name: column.kind for column in _COLUMNS}
_PARQUET_BLOCK: Final = 1 << 25  # bytes; a cell must fit in
_NO_NUMBER: Final = rb"(?!\d*\.?\d+(?:e[+-]?\d+)?(?:,|$))"
# the beginnings of cells that a spreadsheet may take for a formula, by sign. The rare sign comes
# first in the pattern: looking for a comma first takes a hundred times as long
_FORMULAS: Final = tuple(
    (sign, re.compile(pattern, re.MULTILINE | re.IGNORECASE))
    for sign, pattern in (
        (b"=", rb'=(?<=[,\n"]=)'),
        (b"@", rb'@(?<=[,\n"]@)'),
        (b"+", rb'\+(?<=[,\n"]\+)' + _NO_NUMBER),
        (b"-", rb'-(?<=[,\n"]-)' + _NO_NUMBER),
    )
)


class DamagedRows(Exception):
    """Damaged rows with the reason (`Unread`: unreadable for now); nothing was written."""

    def __init__(self, rows: list[tuple[TableRow, ResultsError]]) -> None:
        super().__init__(f"{len(rows)} rows")
        self.rows = rows


class Extras(NamedTuple):
    """Sorted columns of rows of other versions; they follow the columns of this version."""

    overall: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()

    def and_those_of(self, rows: Iterable[TableRow]) -> Extras:
        """Return the union with the extra columns in the shards of `rows`."""
        headers = {id(row.columns): row.columns for row in rows}.values()
        of_layers = {row.layer_columns or () for row in rows if row.layers[1]}
        overall = {*self.overall}.union(*headers).difference(schema.MERGED_COLUMNS, schema.COMMIT)
        layers = {*self.layers}.union(*of_layers).difference(schema.LAYER_COLUMNS)
        return Extras(tuple(sorted(overall)), tuple(sorted(layers)))


@dataclass
class TablePlan:
    """The planned points; those that left the sweep, or of which that is unknown; how to write."""

    planned: set[str] = field(default_factory=set)
    orphans: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    sources: Mapping[str, str] = field(default_factory=dict)  # of imported submissions
    raw: bool = False  # cells stay as they are, though a spreadsheet would compute some

    def orphan(self, point_id: str) -> str:
        """Return the cell of the column `orphan`."""
        return "" if point_id in self.unknown else str(point_id in self.orphans).lower()


@dataclass
class Written:
    """The written rows in order, the bytes of their blocks, and the number of layer rows."""

    rows: list[TableRow] = field(default_factory=list)
    mixes: Mixes = field(default_factory=dict)
    layers: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    layer_rows: int = 0

    def by_table(self, sweep_dir: SweepDir) -> Iterable[tuple[Path, int]]:
        """Return each table with a number that is 0 where it has no rows."""
        rows = len(self.rows), self.layer_rows, sum(self.samples)
        return zip((sweep_dir.overall, sweep_dir.layers, sweep_dir.samples), rows, strict=True)


def write_all(sweep_dir: SweepDir, pool: Pool, plan: TablePlan, extras: Extras) -> Written:
    """Write the three tables from the best row of each point; check the other rows, too.

    `DamagedRows` where some rows cannot be taken, `ResultsError` where the disk is full or
    read-only: the tables are as they were.
    """
    winners = pool.winners()
    written = Written(winners, merge.mixes(winners))
    with (
        files.replacing(sweep_dir.overall) as overall,
        files.replacing(sweep_dir.samples) as samples,
        files.replacing(sweep_dir.layers) as layers,
        Blocks() as blocks,
    ):
        for file, head in zip((layers, samples), heads(extras), strict=True):
            file.write(head)
        source = _Source(sweep_dir, blocks, (*schema.LAYER_COLUMNS, *extras.layers), plan.raw)
        for row in winners:
            layer_block, sample_block = source.blocks_of(row)
            written.layers.append(layers.write(layer_block))
            written.samples.append(samples.write(sample_block))
        for row in pool.losers():
            source.blocks_of(row)
        if source.damaged:
            raise DamagedRows(source.damaged)
        written.layer_rows = _write_rows(overall, written, plan, extras, pool)
        for file in (overall, samples, layers):  # nothing is renamed before everything is there
            file.flush()
            os.fsync(file.fileno())
        for file in (overall, samples, layers):  # some file systems report a full disk only here
            file.close()
    return written


def heads(extras: Extras) -> tuple[bytes, bytes]:
    """Return the header lines of layers.csv and samples.csv."""
    layers = (*schema.LAYER_COLUMNS, *extras.layers)
    return seals.header(layers), seals.header(schema.SAMPLE_COLUMNS)


def _write_rows(
    file: IO[bytes], written: Written, plan: TablePlan, extras: Extras, pool: Pool
) -> int:
    """Write the rows of points; return their number of layer rows, which checksums prove."""
    columns = (*schema.MERGED_COLUMNS, *extras.overall)
    layer_rows = 0
    headers = {id(row.columns): row.columns for row in written.rows}
    picks = {key: _picker(header, columns) for key, header in headers.items()}
    names = ("flags", "orphan", "source", "valid", "layer_rows", "submission")
    flags, orphan, source, valid, layers, submission = map(columns.index, names)
    minority = {(gpu, v) for gpu, rows in written.mixes.items() for v, _count in rows[1:]}
    apart = merge.lonely(written.rows)
    file.write(seals.header(tuple(columns)))
    for row in written.rows:
        cells = picks[id(row.columns)](shards.split(row.line))
        mixed = row.status is PointStatus.OK and (row.gpu, row.versions) in minority
        old = bool(pool.old_files(row))
        alone = row.point_id in apart
        doubted = not {merge.OLD_FILES, merge.LONELY}.isdisjoint(cells[flags].split(";"))
        cells[flags] = merge.flags(cells[flags], mixed=mixed, old=old, alone=alone)
        if old or alone or doubted:
            sound = schema.DOUBTFUL.isdisjoint(cells[flags].split(";"))
            cells[valid] = str(sound).lower()
            row.doubts = outcomes.doubts_of({"valid": cells[valid], "flags": cells[flags]})
        layer_rows += int(cells[layers] or 0)
        cells[orphan] = plan.orphan(row.point_id)
        cells[source] = plan.sources.get(row.origin.submission, "")
        cells[submission] = row.origin.submission  # an imported one may have another name here
        if not plan.raw and _may_hold_formulas(row.line):
            cells = list(map(harmless, cells))
        file.write(f"{shards.joined(cells)}\n".encode())
    return layer_rows


def _picker(header: Sequence[str], columns: Sequence[str]) -> Callable[[list[str]], list[str]]:
    """Return a function that puts cells into the order of `columns`; missing ones are empty."""
    place = {name: index for index, name in enumerate(header)}
    pick = itemgetter(*(place.get(name, -1) for name in columns))
    return lambda cells: [*pick([*cells, ""])]


@dataclass
class _Source:
    """Reads the blocks of points from shards, or from the tables of the last collect."""

    sweep_dir: SweepDir
    blocks: Blocks
    layer_columns: tuple[str, ...]
    raw: bool
    damaged: list[tuple[TableRow, ResultsError]] = field(default_factory=list)

    def blocks_of(self, row: TableRow) -> tuple[bytes, bytes]:
        """Return a row's layer rows for the table, and its samples; empty if it is damaged."""
        try:
            return self._intact(row)
        except ResultsError as error:
            self.damaged.append((row, error))
            return b"", b""

    def _intact(self, row: TableRow) -> tuple[bytes, bytes]:
        """Return the blocks of a row; `ResultsError` names the reason why it is not intact."""
        where = row.shard or self.sweep_dir
        layers = self.blocks.read(where.layers, *row.layers)
        samples = self.blocks.read(where.samples, *row.samples)
        if row.shard is None:
            return layers, samples
        if layers and row.layer_columns is None:
            raise Unread(f"{where.layers}: its header cannot be read")
        heads = Heads(row.columns, row.layer_columns or ())
        if not seals.fits(row.line, heads, layers, samples):
            raise ResultsError("its checksum does not fit")
        if layers and heads.layers != self.layer_columns:
            layers = _remapped(layers, heads.layers, self.layer_columns)
        return layers if self.raw else _harmless(layers), samples


def _may_hold_formulas(block: bytes) -> bool:
    text = b"\n" + block
    return any(sign in text and pattern.search(text) for sign, pattern in _FORMULAS)


def _harmless(block: bytes) -> bytes:
    """Return layer rows without formulas; nearly all are returned as they are."""
    if not _may_hold_formulas(block):
        return block
    text = io.StringIO()
    rows = csv.reader(io.StringIO(block.decode("utf-8", "replace")))
    csv.writer(text, lineterminator="\n").writerows(map(harmless, row) for row in rows)
    return text.getvalue().encode()


def _remapped(block: bytes, header: Sequence[str], columns: Sequence[str]) -> bytes:
    text = io.StringIO()
    rows = parse_block(block, header)
    csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def write_parquet(sweep_dir: SweepDir) -> list[Path]:
    """Write each merged table also as Parquet, with types and far smaller; return the paths.

    Cells have seven significant digits, so numbers are float32: doubles would add random bits that
    do not compress. `ResultsError` where a cell does not have its column's type, or a file cannot
    be written; `MissingDependency` without pyarrow.
    """
    extras.need("parquet", "--parquet")
    import pyarrow as pa  # noqa: PLC0415 - optional
    from pyarrow import csv as arrow_csv  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    kinds = {"int": pa.int64(), "float": pa.float32(), "bool": pa.bool_()}
    kinds["time"] = pa.timestamp("ms", "UTC")
    types = {name: kinds.get(kind, pa.string()) for name, kind in _KINDS.items()}
    options = arrow_csv.ReadOptions(block_size=_PARQUET_BLOCK)
    convert = arrow_csv.ConvertOptions(
        column_types=types, null_values=[""], strings_can_be_null=True,
        true_values=["true"], false_values=["false"],
    )  # fmt: skip
    written = []
    for table in filter(Path.exists, (sweep_dir.overall, sweep_dir.layers, sweep_dir.samples)):
        try:
            rows = arrow_csv.read_csv(table, options, convert_options=convert)
        except pa.ArrowInvalid as error:
            raise ResultsError(f"{table}: {error}") from error
        # the digits of times are random: their bytes compress by place, other cells by repetition
        split = [column.name for column in rows.schema if column.type == pa.float32()]
        repeated = [name for name in rows.column_names if name not in split]
        path = table.with_suffix(".parquet")
        with files.replacing(path) as file:
            parquet.write_table(
                rows, file, compression="zstd", compression_level=15, store_schema=False,
                use_dictionary=repeated, use_byte_stream_split=split,
            )  # fmt: skip
        written.append(path)
    return written
