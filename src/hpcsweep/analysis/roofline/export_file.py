"""What the exports of both profilers share: a strict reader of their CSV tables."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd

from hpcsweep.analysis.roofline.work import Work
from hpcsweep.errors import UsageError


def text(path: Path) -> str:
    """Return what an export holds; `UsageError` where the file cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


def table(path: Path, lines: Sequence[str], start: int, how: str) -> pd.DataFrame:
    """Return the cells below the header, which is ``lines[start]``, as text; skip empty lines.

    Rows are labelled ``FILE, line N``. `how` ends error messages: the command for a whole export.

    Raises:
        UsageError: a row has more or fewer cells than the header, or a quote is not closed.
    """
    try:
        rows = pd.read_csv(
            StringIO("\n".join(lines)), skiprows=start, header=None, dtype=str,
            keep_default_na=False, skip_blank_lines=False, engine="python",  # which is strict
        )  # fmt: skip
    except ValueError as error:  # pandas' parser errors are ValueErrors
        raise UsageError(f"{path}: {error}: the export was cut; {how}") from error
    rows.index = pd.Index([f"{path}, line {start + number}" for number in range(1, len(rows) + 1)])
    rows = rows.dropna(how="all")  # empty lines
    known, all_cells = rows.count(axis=1), len(rows.columns)
    for line in rows.index[known < all_cells]:
        raise UsageError(f"{line}: {known[line]} of {all_cells} cells: the export was cut; {how}")
    rows.columns = pd.Index(rows.iloc[0])
    return rows.iloc[1:]


def check_columns(path: Path, rows: pd.DataFrame, needed: Sequence[str], how: str) -> None:
    """Raise `UsageError` with the names of the columns that the table lacks."""
    missing = [name for name in needed if name not in rows]
    if missing:
        raise UsageError(f"{path}: no column {', '.join(missing)}; {how}")


def pieces(
    names: pd.Series[str], flops: pd.DataFrame, moved: pd.Series[float], seconds: pd.Series[float]
) -> tuple[Work, ...]:
    """Return a piece of work per launch: names by ID, operations by unit, bytes, seconds."""
    columns: Any = (names.index, names, flops.to_dict("records"), moved, seconds)
    return tuple(
        Work(str(name), str(ident), operations, float(size), float(time))
        for ident, name, operations, size, time in zip(*columns, strict=True)
    )
