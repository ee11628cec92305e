"""Reads merged tables; one that is not as `collect` writes it is refused, with the place."""

from __future__ import annotations

import csv
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from hpcsweep.catalog.columns import COLLECTED, LAYERS, OVERALL, SAMPLES
from hpcsweep.errors import UsageError
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

KINDS: Final = {column.name: column.kind for column in (*SAMPLES, *LAYERS, *OVERALL, *COLLECTED)}
_NUMBERS: Final = {name for name, kind in KINDS.items() if kind in {"int", "float"}}
_TEXTS: Final = {name: str for name in KINDS if name not in _NUMBERS}
_SHOWN: Final = 40  # characters of a cell
_NEEDED: Final = {  # what no report can do without
    "overall.csv": ("point_id", "status", "model", "algorithm", "input_size"),
    "layers.csv": ("point_id", "layer", "algorithm", "unique_key", "mean_ms"),
}


def read(path: Path, sweep: str, types: Mapping[str, Any] = _TEXTS) -> pd.DataFrame:
    """Return a merged table; cells are text or numbers, or of the given types.

    Raises:
        UsageError: it is not there yet, or not as it was written.
    """
    if not path.exists():
        raise UsageError(f"{path}: not there yet; run `hpcsweep collect {sweep}` first")
    try:
        if not (wrong := _wrong_header(path)):
            table = pd.read_csv(
                path, low_memory=False, keep_default_na=False, na_values=[""], dtype={**types}
            )
            wrong = _wrong(path, table)
    except (ValueError, OSError, csv.Error) as error:  # pandas' parser errors are ValueErrors
        wrong = f"{path}: {str(error).splitlines()[0]}"
    if wrong:
        raise UsageError(f"{wrong}; run `hpcsweep collect {sweep}` again")
    return table


def _wrong_header(path: Path) -> str:
    """Say what pandas would mend on its own: columns that are there twice, or are not named."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        rows = csv.reader(file)
        names = Counter(next(rows, []))
        if len(next(rows, [])) > sum(names.values()):
            return f"{path}: rows have more cells than the header"
    found = next((name for name, times in names.items() if times > 1), None)
    return "" if found is None else f"{path}: column '{found:.40}' stands there twice"


def _wrong(path: Path, table: pd.DataFrame) -> str:
    """Say what `collect` would not have written."""
    if missing := [name for name in _NEEDED.get(path.name, ()) if name not in table]:
        return f"{path}: no column {', '.join(missing)}"
    for name in _NUMBERS.intersection(map(str, table)):
        if (place := _first(_no_numbers(table[name], KINDS[name]))) is not None:
            cell = str(table[name][place])[:_SHOWN]
            return f"{path}:{place + 2}: {name} is '{cell}', and needs a number"
    if path.name != "overall.csv":
        return ""
    if (place := _first(~table["status"].isin([*PointStatus]))) is not None:
        return f"{path}:{place + 2}: no status '{str(table['status'][place])[:_SHOWN]}'"
    ids = table["point_id"]
    if (place := _first(ids.notna() & ids.duplicated())) is not None:
        return f"{path}:{place + 2}: point {ids[place]:.16} stands there twice"
    return ""


def _no_numbers(cells: pd.Series[Any], kind: str) -> pd.Series[bool]:
    """Return which cells are neither empty nor numbers."""
    numbers = cells
    if not pd.api.types.is_numeric_dtype(cells) or pd.api.types.is_bool_dtype(cells):
        texts = cells.astype(str)
        numbers = pd.to_numeric(texts, errors="coerce")
        if kind == "float":  # a loss that diverged is measured
            numbers = numbers.mask(texts.str.lower() == "nan", 0.0)
    odd = cells.notna() & numbers.isna()
    return odd | np.isinf(numbers.astype(float)) if kind == "int" else odd


def _first(found: pd.Series[bool]) -> int | None:
    """Return the number of the first row that was found."""
    places = np.flatnonzero(found)
    return int(places[0]) if len(places) else None
