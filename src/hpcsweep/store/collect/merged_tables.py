"""Writes the merged tables: `overall.csv`, `details.csv`, `layers.csv`, `samples.csv`.

Layer rows and samples are copied as bytes where all shards have the columns of this version. Each
block is checked against the checksum of its row. All tables are renamed together at the end,
so a full disk leaves the old ones.
"""

from __future__ import annotations

import csv
import io
import json
import operator
import os
from collections import abc, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import compress
from typing import IO, Final

from hpcsweep import files
from hpcsweep.catalog import limits, short_table
from hpcsweep.catalog.columns import COMMIT, LAYER_COLUMNS, OWN, SAMPLE_COLUMNS, cell
from hpcsweep.store import outcomes, shards
from hpcsweep.store.collect import merge
from hpcsweep.store.collect.merge import Mixes, Pool, TableRow
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.row_reader import Blocks, parse_block

_UNTOLD: Final = {*COMMIT, "_line", "_at", "_byte", "source"}


@dataclass
class TablePlan:
    """The planned points; those that left the sweep, or of which that is unknown; how to write."""

    sources: Mapping[str, str]  # of imported submissions
    measured: abc.Set[str] = frozenset()  # of these, what hpcsweep measured elsewhere
    planned: set[str] = field(default_factory=set)
    orphans: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def orphan(self, point_id: str) -> str:
        """Return the cell of the column `orphan`."""
        return "" if point_id in self.unknown else str(point_id in self.orphans).lower()


@dataclass
class Written:
    """The written rows in order, what messages tell of them, the number of layer rows."""

    rows: list[TableRow] = field(default_factory=list)
    mixes: Mixes = field(default_factory=dict)
    layer_rows: int = 0
    told: list[Mapping[str, str]] = field(default_factory=list)


def write_all(sweep_dir: SweepDir, pool: Pool, plan: TablePlan) -> Written:
    """Write the tables from the best row of each point.

    `ResultsError` where the disk is full or read-only: the tables are as they were.
    """
    winners = pool.winners()
    written = Written(winners, merge.mixes(winners))
    merge.mark(winners, pool, written.mixes)
    others = {row.layer_columns for row in winners if row.places[3]}
    unknown = sorted(set[str]().union(*others).difference(LAYER_COLUMNS))
    layer_columns = (*LAYER_COLUMNS, *unknown)
    with ExitStack() as stack:
        overall, details, layers, samples = every = [
            stack.enter_context(files.replacing(path)) for path in sweep_dir.merged()
        ]
        layers.write(shards.header((*layer_columns, *short_table.OF_POINT)))
        samples.write(shards.header(SAMPLE_COLUMNS))
        blocks = stack.enter_context(Blocks())
        write_row = _row_writer(overall, details, winners, plan)
        for row in winners:
            line, layer_block, sample_block = row.texts(blocks)
            # an earlier version elsewhere did not hold its times against the GPU's peak
            unheld = row.origin.submission in plan.measured and not row.doubts
            calls = parse_block(layer_block, row.layer_columns) if unheld else ()
            types = {"amp": row.axis("amp")}  # which a layer row does not tell
            if any(limits.is_impossible({**call, **types}) for call in calls):
                row.doubt(limits.IMPOSSIBLE)
            written.told.append(write_row(row, line))
            if layer_block and row.layer_columns != layer_columns:
                layer_block = _remapped(layer_block, row.layer_columns, layer_columns)
            layers.write(layer_block.replace(b"\n", row.ending()))
            samples.write(sample_block)
            written.layer_rows += layer_block.count(b"\n")
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
    own: list[dict[str, None]] = [{} for _ in OWN]  # the names of commands, each once
    for of_row in dict.fromkeys(row.own for row in winners):
        for known, more in zip(own, of_row, strict=True):
            known.update(dict.fromkeys(more))
    split = short_table.split(filled, merge.named_axes(winners), *own)
    tables = []
    for file, names in zip((overall, details), split, strict=True):
        file.write(shards.header(names))
        tables.append((file, operator.itemgetter(*names)))

    def write(row: TableRow, line: bytes) -> Mapping[str, str]:
        texts = shards.split(line)
        cells = defaultdict(str, compress(zip(row.columns, texts, strict=True), texts))
        for text in filter(None, map(cells.get, OWN)):  # a command's
            for name, value in json.loads(text).items():
                cells[name] = _own_cell(value)
        submission = row.origin.submission  # an imported one may have another name here
        cells |= {
            "submission": submission, "valid": row.valid, "flags": row.flags,
            "orphan": plan.orphan(row.point_id), "source": plan.sources.get(submission, ""),
        }  # fmt: skip
        for file, cells_of in tables:
            file.write(f"{shards.joined(cells_of(cells))}\n".encode())
        return outcomes.told_of(cells)

    return write


def _own_cell(value: object) -> str:
    """Return the cell of a command's axis or result, with all digits that it gave."""
    return repr(value) if isinstance(value, float) else cell(value)


def _remapped(block: bytes, header: Sequence[str], columns: Sequence[str]) -> bytes:
    """Return a block with other columns; they hold all that it has, else `ValueError`."""
    text = io.StringIO()
    rows = parse_block(block, header)
    csv.DictWriter(text, columns, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
