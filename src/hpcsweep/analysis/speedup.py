"""Compares each row with its baseline: the row that is equal but for the named columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcsweep.analysis import columns, dataset
from hpcsweep.analysis.where import Condition, select
from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pandas as pd


def check_where(where: Sequence[Condition], match: Mapping[str, str]) -> None:
    """Raise `UsageError` where the rows that are chosen cannot have the values of a baseline."""
    for column, value in match.items():
        asked = [one for one in where if one.column == column and one.sign == "="]
        if asked and all(one.value != value and ".." not in one.value for one in asked):
            told, base = ",".join(map(str, asked)), f"{column}={value}"
            raise UsageError(
                f"--where {told} leaves out the rows of --baseline {base}; write no {column} in "
                f"--where: with --baseline {base} every {column} is compared with {value}"
            )


def compare(
    rows: pd.DataFrame, y: str, match: Mapping[str, str], ignore: Collection[str]
) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows with the columns `speedup` and `unsure`, and notes for the reader.

    `rows` has a column `doubtful`. The baseline of a row has the values of `match`, and the row's
    own value on every other axis that varies, except those in `ignore`. Where several rows are the
    baseline, their median counts. Of a time `speedup` is baseline over row, of anything else row
    over baseline, so more is faster. It is NaN where a row has no baseline, and `unsure` where the
    baseline is doubtful.

    Raises:
        UsageError: no row has the values of `match`.
    """
    axes = [a for a in dataset.varying_axes(rows) if a not in {*match, *ignore}]
    keys = ["all", *axes]  # so that there is a key where no axis varies
    rows = rows.assign(all=0)
    ours = [Condition(column, "=", value) for column, value in match.items()]
    base = select(rows, ours).groupby(keys, dropna=False)
    known = base.agg(base=(y, "median"), base_rows=(y, "count"), base_doubt=("doubtful", "any"))
    found = rows.merge(known.reset_index(), on=keys, how="left")
    ratio = found["base"] / found[y] if columns.is_time(y) else found[y] / found["base"]
    notes = []
    alone = int(found["base"].isna().sum())
    if alone:
        wanted = ", ".join(f"{column}={value}" for column, value in match.items())
        same = f" with the same {', '.join(axes)}" if axes else ""
        notes.append(f"{alone} points have no baseline: no row has {wanted}{same}")
    if (most := found["base_rows"].max()) > 1:
        notes.append(f"a baseline matches up to {most:g} rows; their median counts")
    return found.assign(speedup=ratio, unsure=found["base_doubt"].eq(other=True)), notes
