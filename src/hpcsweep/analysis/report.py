"""One table that compares the algorithms of a collected sweep.

Rows are configurations, columns are algorithms, cells are medians in milliseconds. The fastest is
marked only where the confidence intervals of the two fastest do not overlap (or, without
intervals, their quartiles): a difference inside the noise is no difference. Doubtful medians carry
a question mark, and what an algorithm covered is said below, since a `winograd` row that mostly
fell back is not a Winograd time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from hpcsweep import catalog
from hpcsweep.analysis import dataset, report_training
from hpcsweep.errors import UsageError
from hpcsweep.text import aligned

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpcsweep.analysis.dataset import Dataset
    from hpcsweep.analysis.report_training import TrainingReport
    from hpcsweep.store.rundir import RunDir

_AXES: Final = tuple(name for name in catalog.AXES if name != "algorithm")
_ALWAYS: Final = ("model", "input_size")


@dataclass(frozen=True)
class Report:
    """The tables of one sweep, ready to be shown."""

    data: Dataset
    algorithms: tuple[str, ...]
    keys: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]
    coverage: dict[str, tuple[float, float]]
    files: tuple[Path, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the plain record: a row has its axes and `median_ms` by algorithm."""
        return {
            "sweep": self.data.run.name,
            "statuses": self.data.statuses,
            "orphans": self.data.orphans,
            "rows": list(self.rows),
            "coverage_pct": {name: list(pair) for name, pair in self.coverage.items()},
            "files": [str(path) for path in self.files],
        }

    def text(self) -> str:
        """Return the table for a terminal."""
        heading = [f"{self.data.run.name}: median ms of one pass ({self.data.counts()})", ""]
        return "\n".join([*heading, *self._table(), "", *self._notes()])

    def _table(self) -> list[str]:
        head = [*self.keys, *self.algorithms]
        body = [
            [
                *(dataset.shown(row[key]) for key in self.keys),
                *(_cell(row, name) for name in self.algorithms),
            ]
            for row in self.rows
        ]
        return aligned([head, *body], left=len(self.keys))

    def _notes(self) -> list[str]:
        notes = []
        if any(row["fastest"] for row in self.rows):
            notes.append("*  fastest, beyond the noise of the two fastest")
        if any(row["doubtful"] for row in self.rows):
            notes.append("?  doubtful: the column `flags` says why")
        for name, (lowest, highest) in self.coverage.items():
            if lowest < 100:
                share = f"{lowest:.0f}" if lowest == highest else f"{lowest:.0f}-{highest:.0f}"
                notes.append(f"   {name} did {share} % of the convolution FLOPs; auto the rest")
        return [*notes, *dataset.files(self.data.run)]


def read(run: RunDir) -> Report | TrainingReport:
    """Read the merged tables of a sweep; one that trains has a table of its own.

    Raises:
        UsageError: there are none yet, or no row was measured.

    """
    data = dataset.read(run)
    if "workload" in data.rows and (data.rows["workload"] == report_training.TRAINING).all():
        return report_training.make(data)
    return _compare(data)


def _compare(data: Dataset) -> Report:
    run = data.run
    table = data.rows[data.column("median_ms").notna()]
    if table.empty:
        raise UsageError(f"{run.overall}: no measured point has a time ({data.counts()})")
    keys = _keys(table)
    algorithms = _in_catalogue_order(list(table["algorithm"].astype(str).unique()))
    rows = tuple(_row(group, keys) for _, group in table.groupby(list(keys), dropna=False))
    files = (run.overall, run.layers, run.samples)
    return Report(
        data,
        algorithms,
        keys,
        rows,
        _coverage(table, algorithms),
        tuple(path for path in files if path.exists()),
    )


def _keys(table: pd.DataFrame) -> tuple[str, ...]:
    """Return what tells configurations apart: axes that vary, always model and input size.

    Where those do not (points of two sweep files that measured otherwise), the id does: no row is
    ever merged into another.
    """
    varying = dataset.varying_axes(table)
    keys = tuple(a for a in _AXES if a in _ALWAYS or a in varying)
    return (*keys, "point_id") if table.duplicated([*keys, "algorithm"]).any() else keys


def _row(group: pd.DataFrame, keys: Sequence[str]) -> dict[str, Any]:
    first = group.iloc[0]
    by_name = group.set_index(group["algorithm"].astype(str))
    return {
        **{key: dataset.plain(key, first[key]) for key in keys},
        "median_ms": {str(name): float(ms) for name, ms in by_name["median_ms"].items()},
        "fastest": _fastest(by_name),
        "doubtful": [str(name) for name, doubt in dataset.doubtful(by_name).items() if doubt],
    }


def _fastest(by_name: pd.DataFrame) -> str:
    """Return the fastest algorithm when its interval ends before the next one's begins."""
    if len(by_name) < 2:
        return ""
    ranked = by_name.sort_values("median_ms")
    best, second = ranked.iloc[0], ranked.iloc[1]
    high = _first_known(best, ("ci95_hi_ms", "q3_ms"))
    low = _first_known(second, ("ci95_lo_ms", "q1_ms"))
    return str(ranked.index[0]) if high is not None and low is not None and high < low else ""


def _first_known(row: pd.Series[Any], names: Sequence[str]) -> float | None:
    for name in names:
        if name in row and pd.notna(row[name]):
            return float(row[name])
    return None


def _coverage(table: pd.DataFrame, algorithms: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return the lowest and highest coverage of each algorithm, percent of convolution FLOPs."""
    if "algorithm_coverage_pct" not in table:
        return {}
    found = {}
    for name in algorithms:
        shares = table.loc[table["algorithm"].astype(str) == name, "algorithm_coverage_pct"]
        shares = shares.dropna()
        if not shares.empty:
            found[name] = (float(shares.min()), float(shares.max()))
    return found


def _in_catalogue_order(names: Sequence[str]) -> tuple[str, ...]:
    known = [name for name in catalog.ALGORITHMS if name in names]
    return (*known, *sorted(set(names) - set(known)))


def _cell(row: dict[str, Any], name: str) -> str:
    value = row["median_ms"].get(name)
    if value is None:
        return "-"
    mark = "*" if row["fastest"] == name else " "
    doubt = "?" if name in row["doubtful"] else " "
    return f"{value:.3f}{mark}{doubt}"
