"""Says which rows are valid, which reliable, and what makes them doubtful; it measures nothing.

The cell `valid` and the flags were written where the point was measured (`catalog/checks`). An
invalid row is none to compare. A doubtful one may be, with a mark: its times are not reliable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from hpcsweep import catalog
from hpcsweep.analysis.merged import cells
from hpcsweep.catalog.columns import DOUBTFUL, FOREIGN
from hpcsweep.text import count

if TYPE_CHECKING:
    import pandas as pd

# flags that make a time unreliable, though it may be valid
_DOUBT: Final = DOUBTFUL | {"noisy", "host_copies"}


def valid(rows: pd.DataFrame, *, noise: bool = False) -> pd.Series[bool]:
    """Return which rows are valid; with `noise` also those that only noise makes invalid."""
    sound = cells(rows, "valid") != "false"
    if noise:
        return sound | ~flagged(rows, DOUBTFUL - {"very_noisy"})
    return sound


def doubtful(rows: pd.DataFrame, *, noise: bool = True) -> pd.Series[bool]:
    """Return which rows carry a flag that makes times unreliable; `noise`: `noisy` is one."""
    names = _doubt(rows)
    return flagged(rows, names if noise else names - {"noisy"})


def suspect(rows: pd.DataFrame) -> pd.Series[bool]:
    """Return which rows are unreliable or not valid."""
    return doubtful(rows) | ~valid(rows)


def _doubt(rows: pd.DataFrame) -> frozenset[str]:
    """Return the flags that make times unreliable; of a command all are foreign, which is none."""
    return _DOUBT - {FOREIGN} if is_of_command(rows) else _DOUBT


def is_of_command(rows: pd.DataFrame) -> bool:
    """Tell whether commands of the user's own made all rows."""
    return bool((cells(rows, "workload") == catalog.COMMAND.name).all())


def is_foreign(rows: pd.DataFrame) -> bool:
    """Tell whether other programs measured all rows: what doubts them does not tell them apart."""
    return bool(flagged(rows, {FOREIGN}).all())


def doubts(rows: pd.DataFrame) -> dict[str, int]:
    """Return the flags that make rows doubtful, and how many rows have each, most first."""
    names = _doubt(rows)
    counts = Counter(flag for flag in flags(rows).dropna() if flag in names)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def unreliable(rows: pd.DataFrame) -> list[str]:
    """Return a line that says which times are unreliable, and why; none where all are reliable."""
    why = [f"{flag} ({count(points, 'point')})" for flag, points in doubts(rows).items()]
    return [f"?  unreliable: {', '.join(why)}"] if why else []


def flagged(rows: pd.DataFrame, names: Collection[str]) -> pd.Series[bool]:
    """Return which rows carry one of these flags."""
    by_row = flags(rows).isin(names).groupby(level=0)
    return by_row.any().reindex(rows.index, fill_value=False)


def flags(rows: pd.DataFrame) -> pd.Series[str]:
    """Return the flags one by one, each with the index of its row."""
    return cells(rows, "flags").str.split(";").explode()


def fell_back(rows: pd.DataFrame) -> pd.Series[bool]:
    """Return which calls ran another algorithm than their point's; the framework's may be any."""
    used = cells(rows, "algorithm_used", None)
    why = cells(rows, "fallback_reason", None).fillna("")
    algorithm = rows["algorithm"]
    other = (used != algorithm) & ~algorithm.isin(catalog.CHOOSING)
    return used.notna() & (why.ne("") | other)
