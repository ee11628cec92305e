"""Renews the tables of a sweep before somebody reads them.

Where the folder cannot be written, or another process holds its lock, the tables are made in a
temporary folder for this process alone. Tables with rows whose shards are gone stay as they are,
with a message.
"""

from __future__ import annotations

import atexit
import csv
import shutil
import tempfile
from pathlib import Path
from typing import Final

from hpcsweep.collect import incremental, tables, workflow
from hpcsweep.errors import Busy, MissingDependency, ResultsError
from hpcsweep.records import replace
from hpcsweep.store.rundir import RunDir
from hpcsweep.text import count

_SECONDS: Final = 1.0  # to wait for another collect
_ROW: Final = ("submission", "chunk", "attempt")


def tables_of(run: RunDir) -> tuple[RunDir, list[str]]:
    """Return a sweep's results with tables of all its rows, and messages for the reader."""
    if run.only is not None:
        return _made_aside(run)
    attempts = run.shards()
    if not attempts or workflow.is_up_to_date(run):
        return run, []
    if gone := _in_tables_only(run):
        what = f"the shards of {count(len(gone), 'attempt')} are gone ({min(gone)})"
        again = f"{run.command('collect')} makes them from the shards that are there"
        return run, [f"{run.overall}: {what}, so the tables were not renewed: {again}"]
    memory = incremental.load(run)
    raw = bool(memory and memory.raw)
    try:
        report = workflow.collect(run, _SECONDS, raw=raw)
    except (Busy, ResultsError) as why:
        run, lines = _made_aside(run, raw=raw)
        news = f"its newest rows are shown, but its tables could not be renewed: {why}"
        return run, [news, *lines]
    error = report.error()
    return run, [*([str(error)] if error else []), *_parquet(run)]


def _made_aside(run: RunDir, *, raw: bool = False) -> tuple[RunDir, list[str]]:
    """Return a sweep with tables in a temporary folder for this process alone, and messages."""
    folder = Path(tempfile.mkdtemp(prefix="hpcsweep-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    run = replace(run, tables=folder / run.name)  # messages name the tables
    (folder / run.name).mkdir()
    error = workflow.collect(run, raw=raw).error()
    return run, [str(error)] if error else []


def _in_tables_only(run: RunDir) -> set[str]:
    """Return the attempts that have rows in the table, and whose shards are gone."""
    try:
        with run.overall.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            submission, *numbers = map(header.index, _ROW)
            named = {f"{row[submission]}/{'.'.join(row[at] for at in numbers)}" for row in rows}
    except (OSError, ValueError, IndexError, csv.Error):
        return set()  # no table yet, or a damaged one: collect writes it anew
    return named - {incremental.name_of(shard) for shard in run.shards()}


def _parquet(run: RunDir) -> list[str]:
    path = run.overall.with_suffix(".parquet")
    if run.tables or not path.exists():
        return []
    try:
        tables.write_parquet(run)
    except (MissingDependency, ResultsError) as error:
        return [f"{path} is older than the tables: {error}"]
    return []
