"""Says which rows are valid, which reliable, and what makes them doubtful; it measures nothing.

The cell `valid` and the flags were written where the point was measured (`catalog/checks`). An
invalid row is none to compare. A doubtful one may be, with a mark: its times are not reliable.
"""

from __future__ import annotations

from collections import Counter, abc
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import catalog
from hpcsweep.analysis.plain_rows import Rows, cells, column, truths
from hpcsweep.catalog.columns import DOUBTFUL, FOREIGN
from hpcsweep.text import count

if TYPE_CHECKING:
    import pandas as pd

# flags that make a time unreliable, though it may be valid
_DOUBT: Final = DOUBTFUL | {"noisy", "host_copies"}


def valid(rows: Rows | pd.DataFrame, *, noise: bool = False) -> Any:  # noqa: ANN401 - `truths`
    """Return which rows are valid; with `noise` also those that only noise makes invalid."""
    sound = [cell != "false" for cell in column(rows, "valid")]
    if noise:
        doubted = flagged(rows, DOUBTFUL - {"very_noisy"})
        sound = [is_sound or not doubt for is_sound, doubt in zip(sound, doubted, strict=True)]
    return truths(rows, sound)


def doubtful(rows: Rows | pd.DataFrame, *, noise: bool = True) -> Any:  # noqa: ANN401 - likewise
    """Return which rows carry a flag that makes times unreliable; `noise`: `noisy` is one."""
    names = _doubt(rows)
    return flagged(rows, names if noise else names - {"noisy"})


def suspect(rows: Rows | pd.DataFrame, *, noise: bool = True) -> Any:  # noqa: ANN401 - likewise
    """Return which rows are unreliable or not valid."""
    pairs = zip(doubtful(rows, noise=noise), valid(rows), strict=True)
    return truths(rows, [doubt or not sound for doubt, sound in pairs])


def _doubt(rows: Rows | pd.DataFrame) -> frozenset[str]:
    """Return the flags that make times unreliable; of a command all are foreign, which is none."""
    return _DOUBT - {FOREIGN} if is_of_command(rows) else _DOUBT


def is_of_command(rows: Rows | pd.DataFrame) -> bool:
    """Tell whether commands of the user's own made all rows."""
    return {*column(rows, "workload")} <= {catalog.COMMAND.name}


def is_foreign(rows: Rows | pd.DataFrame) -> bool:
    """Tell whether other programs measured all rows: what doubts them does not tell them apart."""
    return all(flagged(rows, {FOREIGN}))


def doubts(rows: Rows | pd.DataFrame) -> dict[str, int]:
    """Return the flags that make rows doubtful, and how many rows have each, most first."""
    names = _doubt(rows)
    counts: Counter[str] = Counter()
    for text, times in Counter(column(rows, "flags")).items():
        for flag in _flags_in(text):
            if flag in names:
                counts[flag] += times
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def unreliable(rows: Rows | pd.DataFrame) -> list[str]:
    """Return a line that says which times are unreliable, and why; none where all are reliable."""
    why = [f"{flag} ({count(points, 'point')})" for flag, points in doubts(rows).items()]
    return [f"?  unreliable: {', '.join(why)}"] if why else []


def flagged(rows: Rows | pd.DataFrame, names: abc.Set[str]) -> Any:  # noqa: ANN401 - likewise
    """Return which rows carry one of these flags."""
    return truths(rows, [not names.isdisjoint(_flags_in(cell)) for cell in column(rows, "flags")])


def _flags_in(cell: Any) -> list[str]:  # noqa: ANN401 - a cell
    return cell.split(";") if isinstance(cell, str) else []


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
