"""Reads the merged tables of a sweep: the measured rows that it still has, and what was left out.

One row per point, as `collect` wrote it. Columns of text stay text (an id of digits is no number),
empty cells are unknown (NaN). Nothing here is averaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from hpcsweep import catalog
from hpcsweep.catalog.columns import COLLECTED, DOUBTFUL, LAYERS, OVERALL
from hpcsweep.errors import UsageError, suggest
from hpcsweep.store.state import PointStatus
from hpcsweep.text import count, tally

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable
    from pathlib import Path

    from hpcsweep.catalog.columns import Column
    from hpcsweep.store.rundir import RunDir

# A reader of times distrusts these; `records` says which make a row invalid.
DOUBT: Final = DOUBTFUL | {"noisy"}
_NUMBERS: Final = frozenset({"int", "float"})


@dataclass(frozen=True)
class Dataset:
    """The measured rows of one sweep; `statuses` counts all points but orphans."""

    run: RunDir
    rows: pd.DataFrame
    statuses: dict[str, int]
    orphans: int

    def counts(self) -> str:
        """Return how many points there are of each status, and how many were left out."""
        counts = tally(self.statuses, PointStatus)
        orphans = f"{count(self.orphans, 'orphan')} left out" if self.orphans else ""
        return ", ".join(filter(None, (counts, orphans)))

    def column(self, name: str) -> pd.Series[Any]:
        """Return a column; `UsageError` names the nearest one."""
        if name not in self.rows:
            raise UsageError(
                f"{self.run.overall}: no column '{name}'{suggest(name, self.rows.columns)}"
            )
        return self.rows[name]

    def pairs(self, text: str) -> dict[str, str]:
        """Return column to value of `a=b,c=d`.

        Raises:
            UsageError: it is not written like that, or a column is not in the table.

        """
        found = {}
        for part in filter(None, text.split(",")):
            name, equals_sign, value = (piece.strip() for piece in part.partition("="))
            if not equals_sign or not value:
                raise UsageError(f"'{part}' is no column=value (several are joined by commas)")
            self.column(name)
            found[name] = value
        return found

    def where(self, text: str) -> pd.DataFrame:
        """Return the rows that have the values of `a=b,c=d`; `UsageError` where there are none."""
        rows = self.rows
        for name, value in self.pairs(text).items():
            found = rows[equals(rows[name], value)]
            if found.empty:
                there = values(rows[name])
                raise UsageError(f"{self.run.overall}: no {name} is '{value}' (there are: {there})")
            rows = found
        return rows

    def layers(self) -> pd.DataFrame:
        """Return the layer rows of the measured points.

        Raises:
            UsageError: there is no such table; collect writes it.

        """
        table = _table(self.run.layers, LAYERS, self.run.name)
        return table[table["point_id"].isin(self.rows["point_id"])]


def read(run: RunDir) -> Dataset:
    """Read the merged table of a sweep.

    Raises:
        UsageError: there is none yet, or no row was measured.

    """
    table = _table(run.overall, (*OVERALL, *COLLECTED), run.name)
    orphan = (
        table["orphan"] == "true" if "orphan" in table else pd.Series(data=False, index=table.index)
    )
    kept = table[~orphan]
    statuses = {str(k): int(v) for k, v in kept["status"].value_counts().items()}
    found = Dataset(run, kept[kept["status"] == PointStatus.OK], statuses, int(orphan.sum()))
    if found.rows.empty:
        raise UsageError(f"{run.overall}: no measured point ({found.counts() or 'no rows'})")
    return found


def _table(path: Path, columns: Iterable[Column], sweep: str) -> pd.DataFrame:
    if not path.exists():
        raise UsageError(f"{path}: not there yet; run `hpcsweep collect {sweep}` first")
    texts: dict[Hashable, type[str]] = {
        column.name: str for column in columns if column.kind not in _NUMBERS
    }
    try:
        return pd.read_csv(
            path, low_memory=False, keep_default_na=False, na_values=[""], dtype=texts
        )
    except (ValueError, OSError) as error:  # pandas' parser errors are ValueErrors
        why = str(error).splitlines()[0]
        raise UsageError(f"{path}: {why}; run `hpcsweep collect {sweep}` again") from error


def files(run: RunDir) -> list[str]:
    """Return the merged tables that are there, for people: one without rows says so."""
    there = [path for path in (run.overall, run.layers, run.samples) if path.exists()]
    return [f"   {path}{'' if _has_rows(path) else ' (0 rows)'}" for path in there]


def _has_rows(path: Path) -> bool:
    with path.open("rb") as file:
        return bool(file.readline() and file.readline())


def varying_axes(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return the axes that have more than one value in these rows; unset is a value."""
    return tuple(a for a in catalog.AXES if a in rows and len(rows[a].unique()) > 1)


def plain(name: str, value: Any) -> Any:  # noqa: ANN401 - numpy scalars to Python's own
    """Return a cell of a column as JSON takes it; None where it is empty."""
    if pd.isna(value):
        return None
    if name in catalog.AXES and catalog.AXES[name].kind == "int":
        return int(value)  # a float where other rows have none
    return value.item() if hasattr(value, "item") else value


def shown(value: object) -> str:
    """Return an axis's value for people."""
    return "unset" if value is None else str(value)


def doubtful(rows: pd.DataFrame) -> pd.Series[Any]:
    """Return which rows carry a flag that puts their times in doubt."""
    if "flags" not in rows:
        return pd.Series(data=False, index=rows.index)
    return rows["flags"].map(lambda text: bool(DOUBT.intersection(str(text).split(";"))))


def equals(cells: pd.Series[Any], text: str) -> pd.Series[Any]:
    """Return which cells a person means by a text: numbers as numbers, `unset` for empty ones."""
    if text == "unset":
        return cells.isna()
    if pd.api.types.is_numeric_dtype(cells):
        number = pd.to_numeric(text, errors="coerce")
        return cells == number
    return cells.astype(str) == text


def values(cells: pd.Series[Any]) -> str:
    """Return the different values of a column, the first few, as a person writes them."""
    found = [*cells.dropna().sort_values().unique(), *(["unset"] if cells.isna().any() else [])]
    texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in found]
    return ", ".join([*texts[:8], *(["..."] if len(texts) > 8 else [])])
