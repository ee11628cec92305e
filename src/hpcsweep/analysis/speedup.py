"""How every row compares with its baseline: the row that is equal but for the named columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from hpcsweep.analysis import columns, dataset
from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


def ratios(
    rows: pd.DataFrame, y: str, match: Mapping[str, str], ignore: Collection[str]
) -> tuple[pd.Series[Any], pd.Series[Any], list[str]]:
    """Return each row's ratio to its baseline (above 1 is faster), its doubt, and what to say.

    The baseline of a row has the values of `match`, and the row's own on every other axis that
    varies but those in `ignore`. Of a time the ratio is baseline over row, of anything else row
    over baseline. It is NaN where a row has no baseline, and in doubt where the baseline is.

    Raises:
        UsageError: no row has the values of `match`.

    """
    base = rows
    for column, value in match.items():
        base = base[dataset.equals(base[column], value)]
        if base.empty:
            there = dataset.values(rows[column])
            raise UsageError(
                f"no row is a baseline: none has {_said(match)} ({column} there is: {there})"
            )
    skip = {*match, *ignore}
    keys = [axis for axis in dataset.varying_axes(rows) if axis not in skip]
    known = _medians(base, y, keys)
    found = rows[keys].merge(known, on=keys, how="left") if keys else _same(known, len(rows))
    found.index = rows.index
    ratio = found["base_"] / rows[y] if columns.is_time(y) else rows[y] / found["base_"]
    return ratio, found["doubt_"].fillna(value=0) > 0, _notes(found, keys, match)


def _medians(base: pd.DataFrame, y: str, keys: list[str]) -> pd.DataFrame:
    """Return median, number of rows and number of doubtful ones for each value of the keys."""
    base = base.assign(doubt_=dataset.doubtful(base).astype(int))
    if not keys:
        known = {"base_": base[y].median(), "rows_": len(base), "doubt_": base["doubt_"].sum()}
        return pd.DataFrame([known])
    grouped = base.groupby(keys, dropna=False)
    return grouped.agg(
        base_=(y, "median"), rows_=(y, "count"), doubt_=("doubt_", "sum")
    ).reset_index()


def _same(known: pd.DataFrame, length: int) -> pd.DataFrame:
    return known.loc[[0] * length]


def _notes(found: pd.DataFrame, keys: list[str], match: Mapping[str, str]) -> list[str]:
    notes = []
    alone = int(found["base_"].isna().sum())
    if alone:
        same = f" with the same {', '.join(keys)}" if keys else ""
        notes.append(f"{alone} points have no baseline: no row has {_said(match)}{same}")
    most = found["rows_"].max()
    if most > 1:
        notes.append(f"a baseline matches up to {most:g} rows; their median counts")
    return notes


def _said(match: Mapping[str, str]) -> str:
    return ", ".join(f"{column}={value}" for column, value in match.items())
