"""Writes the merged tables: `overall.csv`, `details.csv`, `layers.csv`, `samples.csv`.

Layer rows and samples are copied as bytes where all shards have the columns of this version. Each
block is checked against the checksum of its row. All tables are renamed together at the end,
so a full disk leaves the old ones.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import IO, Final

from hpcsweep import files
from hpcsweep.catalog import columns as schema
from hpcsweep.catalog import short_table
from hpcsweep.errors import ResultsError
from hpcsweep.store import outcomes, seals, shards
from hpcsweep.store.collect import merge
from hpcsweep.store.collect.merge import Mixes, Pool, TableRow
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.seals import Blocks, Heads, parse_block

_UNTOLD: Final = {*schema.COMMIT, "_line", "_at", "_byte", "source"}


class DamagedRows(Exception):
    """Damaged rows with the reason (`Unread`: unreadable for now); nothing was written."""

    def __init__(self, rows: list[tuple[TableRow, ResultsError]]) -> None:
        super().__init__(f"{len(rows)} rows")
        self.rows = rows


@dataclass
class TablePlan:
    """The planned points; those that left the sweep, or of which that is unknown; how to write."""

    planned: set[str] = field(default_factory=set)
    orphans: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    sources: Mapping[str, str] = field(default_factory=dict)  # of imported submissions

    def orphan(self, point_id: str) -> str:
        """Return the cell of the column `orphan`."""
        return "" if point_id in self.unknown else str(point_id in self.orphans).lower()


@dataclass
class Written:
    """The written rows in order, what messages tell of them, the numbers of layer rows, samples."""

    rows: list[TableRow] = field(default_factory=list)
    mixes: Mixes = field(default_factory=dict)
    layer_rows: int = 0
    samples: int = 0
    told: list[Mapping[str, str]] = field(default_factory=list)

    def by_table(self, sweep_dir: SweepDir) -> Iterable[tuple[Path, int]]:
        """Return each table with its number of rows."""
        rows = len(self.rows), len(self.rows), self.layer_rows, self.samples
        return zip(sweep_dir.merged(), rows, strict=True)


def write_all(sweep_dir: SweepDir, pool: Pool, plan: TablePlan) -> Written:
    """Write the tables from the best row of each point; check the other rows, too.

    `DamagedRows` where some rows cannot be taken, `ResultsError` where the disk is full or
    read-only: the tables are as they were.
    """
    winners = pool.winners()
    written = Written(winners, merge.mixes(winners))
    merge.mark(winners, pool, written.mixes)
    others = {row.layer_columns for row in winners if row.places[3]}
    unknown = sorted(set[str]().union(*others).difference(schema.LAYER_COLUMNS))
    layer_columns = (*schema.LAYER_COLUMNS, *unknown)
    with ExitStack() as stack:
        overall, details, layers, samples = every = [
            stack.enter_context(files.replacing(path)) for path in sweep_dir.merged()
        ]
        layers.write(seals.header((*layer_columns, *short_table.OF_POINT)))
        samples.write(seals.header(schema.SAMPLE_COLUMNS))
        source = _Source(stack.enter_context(Blocks()), layer_columns)
        write_row = _row_writer(overall, details, winners, plan)
        for row in winners:
            line, layer_block, sample_block = source.texts_of(row)
            if line:
                written.told.append(write_row(row, line))
            layers.write(layer_block)
            samples.write(sample_block)
            written.layer_rows += layer_block.count(b"\n")
            written.samples += sample_block.count(b"\n")
        for row in pool.losers():
            source.texts_of(row)
        if source.damaged:
            raise DamagedRows(source.damaged)
        for file in every:  # nothing is renamed before everything is there
            file.flush()
            os.fsync(file.fileno())
        for file in every:  # some file systems report a full disk only here
            file.close()
    return written


def _row_writer(
    overall: IO[bytes], details: IO[bytes], winners: Sequence[TableRow], plan: TablePlan
) -> Callable[[TableRow, bytes], Mapping[str, str]]:
    """Return a function that splits a row, with its line, over both tables; write their headers.

    The function returns what messages tell of the row.
    """
    filled = set[str]().union(*{row.filled for row in winners}).difference(_UNTOLD)
    if any(row.origin.submission in plan.sources for row in winners):
        filled.add("source")
    own = [
        dict.fromkeys(chain(*of))
        for of in zip(*dict.fromkeys(row.own for row in winners), strict=True)
    ]
    tables = short_table.split(filled, merge.named_axes(winners), *own)
    columns = tuple(dict.fromkeys(chain(*tables)))
    headers = {id(row.columns): row.columns for row in winners}
    picks = {key: _picker(header, columns) for key, header in headers.items()}
    place = {name: at for at, name in enumerate(columns)}
    files = [*zip((overall, details), tables, strict=True)]
    parts = [(file, _picker(columns, names)) for file, names in files]
    for file, names in files:
        file.write(seals.header(names))

    def write(row: TableRow, line: bytes) -> Mapping[str, str]:
        cells = picks[id(row.columns)](shards.split(line))
        for text in [cells[place[name]] for name in schema.OWN if name in place]:
            for name, value in json.loads(text or "{}").items():
                cells[place[name]] = schema.cell(value)
        submission = row.origin.submission  # an imported one may have another name here
        cells[place["submission"]] = submission
        cells[place["valid"]] = row.valid
        cells[place["flags"]] = row.flags
        cells[place["orphan"]] = plan.orphan(row.point_id)
        if "source" in place:
            cells[place["source"]] = plan.sources.get(submission, "")
        of = dict(zip(columns, cells, strict=True)) if row.doubts else {"status": row.status}
        for file, part in parts:
            file.write(f"{shards.joined(part(cells))}\n".encode())
        return outcomes.told_of(of)

    return write


def _picker(header: Sequence[str], columns: Sequence[str]) -> Callable[[list[str]], list[str]]:
    """Return a function that puts cells into the order of `columns`; missing ones are empty."""
    place = {name: index for index, name in enumerate(header)}
    pick = itemgetter(*(place.get(name, -1) for name in columns))
    return lambda cells: [*pick([*cells, ""])]


@dataclass
class _Source:
    """Reads the texts of points from shards."""

    blocks: Blocks
    layer_columns: tuple[str, ...]
    damaged: list[tuple[TableRow, ResultsError]] = field(default_factory=list)

    def texts_of(self, row: TableRow) -> tuple[bytes, bytes, bytes]:
        """Return a row's line, its layer rows for the table, its samples; empty if damaged."""
        try:
            return self._intact(row)
        except ResultsError as error:
            self.damaged.append((row, error))
            return b"", b"", b""

    def _intact(self, row: TableRow) -> tuple[bytes, bytes, bytes]:
        """Return the texts of a row; `ResultsError` names the reason why it is not intact."""
        files = row.shard.overall, row.shard.layers, row.shard.samples
        places = zip(files, row.places[::2], row.places[1::2], strict=True)
        line, layers, samples = (self.blocks.read(*place) for place in places)
        line = line.removesuffix(b"\n")
        heads = Heads(row.columns, row.layer_columns)
        if not seals.fits(line, heads, layers, samples):
            raise ResultsError("its checksum does not fit")
        if layers and heads.layers != self.layer_columns:
            layers = _remapped(layers, heads.layers, self.layer_columns)
        return line, layers.replace(b"\n", row.ending()), samples


def _remapped(block: bytes, header: Sequence[str], columns: Sequence[str]) -> bytes:
    text = io.StringIO()
    rows = parse_block(block, header)
    csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
