"""Compares the algorithms of a collected sweep in one table.

Rows are configurations, columns are algorithms, cells are medians in milliseconds. The fastest is
marked only where the confidence intervals of the two fastest do not overlap (or, where they are
unknown, the quartiles): a difference within the noise is no difference. Unreliable medians carry a
question mark. A note says how much of the network an algorithm did, since a `winograd` row that
mostly fell back to `auto` is not a Winograd time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import catalog
from hpcsweep.analysis import dataset, report_training

if TYPE_CHECKING:
    import pandas as pd

    from hpcsweep.analysis.dataset import Dataset
    from hpcsweep.analysis.report_training import TrainingReport
    from hpcsweep.store.rundir import RunDir

_AXES: Final = tuple(name for name in catalog.AXES if name != "algorithm")
_ALWAYS: Final = ("model", "input_size")
_USED: Final = ("point_id", "median_ms", "flags", "algorithm_coverage_pct")


@dataclass(frozen=True)
class Report:
    """The medians of one sweep: a row per configuration, which `keys` tell apart."""

    data: Dataset
    table: pd.DataFrame
    keys: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]

    @property
    def algorithms(self) -> tuple[str, ...]:
        names = self.table["algorithm"].unique()
        return tuple(sorted(names, key=lambda name: dataset.rank("algorithm", name)))

    @property
    def coverage(self) -> dict[str, list[float]]:
        """The lowest and highest coverage by algorithm, percent of the convolution FLOPs."""
        column = "algorithm_coverage_pct"
        if column not in self.table:
            return {}
        shares = self.table.groupby("algorithm")[column].agg(["min", "max"]).dropna()
        return {name: list(shares.loc[name]) for name in self.algorithms if name in shares.index}

    def to_json(self) -> dict[str, Any]:
        """Return the plain record: a row has its axes and `median_ms` by algorithm."""
        return self.data.record(self.rows, coverage_pct=self.coverage)

    def text(self) -> str:
        """Return the table for a terminal."""
        names = self.algorithms
        heading = f"{self.data.run.name}: median ms of one pass ({self.data.counts()})"
        table = dataset.table(
            self.keys, names, self.rows, lambda row: [_cell(row, name) for name in names]
        )
        fastest = any(row["fastest"] for row in self.rows)
        marks = ["*  fastest, beyond the noise of the two fastest"] if fastest else []
        notes = self.data.notes(self.table, self._partial())
        return "\n".join([heading, "", *table, "", *marks, *notes])

    def _partial(self) -> list[str]:
        """Return notes on algorithms that did not do all convolutions."""
        notes = []
        for name, (lowest, highest) in self.coverage.items():
            if lowest < 100:
                share = f"{lowest:.0f}" if lowest == highest else f"{lowest:.0f}-{highest:.0f}"
                notes.append(f"{name} did {share} % of the convolution FLOPs; auto did the rest")
        return notes


def read(run: RunDir) -> Report | TrainingReport:
    """Read the merged tables of a sweep; one that trains has a table of its own.

    Raises:
        UsageError: there are none yet, or no row was measured.

    """
    data = dataset.read(run)
    if "workload" in data.rows and (data.rows["workload"] == report_training.TRAINING).all():
        return report_training.make(data)
    rows = data.numbers(data.rows, "median_ms")
    table = rows[[name for name in rows if name in {*catalog.AXES, *_USED}]]
    table = table.assign(
        algorithm=table["algorithm"].astype(str),
        doubtful=dataset.doubtful(rows),
        lowest=_first_known(rows, "ci95_lo_ms", "q1_ms"),
        highest=_first_known(rows, "ci95_hi_ms", "q3_ms"),
    )
    keys = _keys(table)
    groups: dict[tuple[Any, ...], list[dict[Any, Any]]] = {}
    for record in table.sort_values(list(keys)).to_dict("records"):
        group = tuple(dataset.plain(key, record[key]) for key in keys)
        groups.setdefault(group, []).append(record)
    lines = ({**dict(zip(keys, k, strict=True)), **_compared(v)} for k, v in groups.items())
    return Report(data, table, keys, tuple(lines))


def _keys(table: pd.DataFrame) -> tuple[str, ...]:
    """Return what tells configurations apart: the axes that vary, and always model and input size.

    Points of two versions of a sweep file may agree in all axes, but were measured with other
    settings. Then the point's id is added, so that no row hides another.
    """
    varying = dataset.varying_axes(table)
    keys = tuple(a for a in _AXES if a in _ALWAYS or a in varying)
    return (*keys, "point_id") if table.duplicated([*keys, "algorithm"]).any() else keys


def _compared(group: list[dict[Any, Any]]) -> dict[str, Any]:
    """Return the medians of one configuration by algorithm, and which is the fastest.

    No algorithm is the fastest if its interval overlaps with the interval of the next one.
    """
    ranked = sorted(group, key=lambda record: record["median_ms"])
    clear = len(ranked) > 1 and ranked[0]["highest"] < ranked[1]["lowest"]  # false for NaN
    return {
        "median_ms": {record["algorithm"]: record["median_ms"] for record in group},
        "fastest": ranked[0]["algorithm"] if clear else "",
        "doubtful": [record["algorithm"] for record in group if record["doubtful"]],
    }


def _first_known(table: pd.DataFrame, *names: str) -> pd.Series[float]:
    """Return the first of several columns that has a number in a row, or NaN."""
    return table.reindex(columns=names).bfill(axis=1).iloc[:, 0]


def _cell(row: dict[str, Any], name: str) -> str:
    value = row["median_ms"].get(name)
    if value is None:
        return "-"
    mark = "*" if row["fastest"] == name else " "
    doubt = "?" if name in row["doubtful"] else " "
    return f"{value:.3f}{mark}{doubt}"
