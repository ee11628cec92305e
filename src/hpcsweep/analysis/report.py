"""Compares the algorithms of a collected sweep in one table.

Rows are configurations, columns are algorithms, cells are medians in milliseconds, or the values of
another column. A cell says how
much of the convolutions its algorithm did, if not all, since a `winograd` time of a network that
mostly fell back to `auto` is not a Winograd time. Unreliable medians carry a question mark.

The fastest is marked only if it is valid and reliable, its algorithm did a part of the work, and
its confidence interval does not overlap with that of the next (or, where they are unknown, the
quartiles): a difference within the noise is no difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from hpcsweep import catalog
from hpcsweep.analysis import columns, dataset, report_training
from hpcsweep.analysis.formats import View
from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    from hpcsweep.analysis.dataset import Dataset
    from hpcsweep.analysis.report_training import TrainingReport
    from hpcsweep.store.rundir import RunDir

_AXES: Final = tuple(name for name in catalog.AXES if name != "algorithm")
_ALWAYS: Final = ("model", "input_size")
_MEDIAN: Final = "median_ms"
_USED: Final = ("point_id", "flags", "algorithm_coverage_pct")


@dataclass(frozen=True)
class Report:
    """The medians of one sweep, or another `metric`: a row per configuration.

    `keys` tell these apart.
    """

    data: Dataset
    table: pd.DataFrame
    keys: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]
    metric: str

    @property
    def algorithms(self) -> tuple[str, ...]:
        names = self.table["algorithm"].unique()
        return tuple(sorted(names, key=lambda name: dataset.rank("algorithm", name)))

    def views(self) -> list[View]:
        """Return the table: its values, with coverage and doubts, and what people read."""
        names, shares = self.algorithms, self._partial()
        keys = {key: [row[key] for row in self.rows] for key in self.keys}
        values = {name: [row[self.metric].get(name) for row in self.rows] for name in names}
        covered = {
            f"{name}_coverage_pct": [row["coverage_pct"].get(name) for row in self.rows]
            for name in names
            if name in shares
        }
        doubtful = [";".join(row["doubtful"]) for row in self.rows]
        fastest = [row["fastest"] for row in self.rows]
        texts = {
            name: [_cell(row, name, self.metric, with_share=name in shares) for row in self.rows]
            for name in names
        }
        shown = {key: [dataset.shown(key, cell) for cell in keys[key]] for key in self.keys}
        marks = ["*  fastest: valid, and beyond the noise of the next"] if any(fastest) else []
        marks += [f"%  {dataset.COVERAGE}"] if shares else []
        what = "median ms of one pass" if self.metric == _MEDIAN else columns.label(self.metric)
        return [View(
            title=f"{self.data.run.name}: {what} ({self.data.counts()})",
            frame=pd.DataFrame(
                {**keys, **values, **covered, "fastest": fastest, "doubtful": doubtful},
                dtype=object,
            ),
            texts=pd.DataFrame({**shown, **texts}),
            left=len(self.keys),
            notes=self.data.notes(),
            record=self.data.record(self.rows),
            marks=[*marks, *dataset.unreliable(self.table)],
        )]  # fmt: skip

    def _partial(self) -> set[str]:
        """Return the algorithms that did not do all convolutions of some configuration."""
        cells = (cell for row in self.rows for cell in row["coverage_pct"].items())
        return {name for name, share in cells if share is not None and share < 100}


def read(run: RunDir, *, where: str = "", metric: str = "") -> Report | TrainingReport:
    """Read the merged tables of a sweep; one that trains has a table of its own without `metric`.

    Raises:
        UsageError: there are none yet, or no row was measured, or has these values.

    """
    return make(dataset.read(run, where), metric)


def make(data: Dataset, metric: str = "") -> Report | TrainingReport:
    """Return the report of measured points; `UsageError` where none has a number."""
    if data.trains and not metric:
        return report_training.make(data)
    metric = metric or _MEDIAN
    if metric in catalog.AXES:
        raise UsageError(f"{metric} is an axis, which tells the rows apart; --metric takes a value")
    rows = data.numbers(data.rows, metric)
    table = rows[[name for name in rows if name in {*catalog.AXES, *_USED, metric}]]
    known = metric == _MEDIAN  # only of medians are intervals stored
    table = table.assign(
        algorithm=table["algorithm"].astype(str),
        doubtful=dataset.doubtful(rows) | ~dataset.valid(rows),
        lowest=dataset.first_known(rows, "ci95_lo_ms", "q1_ms") if known else math.nan,
        highest=dataset.first_known(rows, "ci95_hi_ms", "q3_ms") if known else math.nan,
    )
    keys = _keys(table)
    groups: dict[tuple[Any, ...], list[dict[Any, Any]]] = {}
    for record in table.sort_values(list(keys)).to_dict("records"):
        group = tuple(dataset.plain(key, record[key]) for key in keys)
        groups.setdefault(group, []).append(record)
    lines = ({**dict(zip(keys, k, strict=True)), **_compared(v, metric)} for k, v in groups.items())
    return Report(data, table, keys, tuple(lines), metric)


def _keys(table: pd.DataFrame) -> tuple[str, ...]:
    """Return what tells configurations apart: the axes that vary, and always model and input size.

    Points of two versions of a sweep file may agree in all axes, but were measured with other
    settings. Then the point's id is added, so that no row hides another.
    """
    varying = dataset.varying_axes(table)
    keys = tuple(a for a in _AXES if a in _ALWAYS or a in varying)
    return (*keys, "point_id") if table.duplicated([*keys, "algorithm"]).any() else keys


def _compared(group: list[dict[Any, Any]], metric: str) -> dict[str, Any]:
    """Return values and coverage of one configuration by algorithm, and which is the fastest.

    An algorithm that did nothing of the network is not compared. None is the fastest if the first
    one is unreliable, or if its interval overlaps with the interval of the next one.
    """
    column = "algorithm_coverage_pct"
    compared = [record for record in group if record.get(column) != 0]
    ranked = sorted(compared, key=lambda record: record[metric])
    clear = len(ranked) > 1 and ranked[0]["highest"] < ranked[1]["lowest"]  # false for NaN
    sure = clear and not ranked[0]["doubtful"] and ranked[0].get(column, 0) > 0
    return {
        metric: {record["algorithm"]: record[metric] for record in group},
        "coverage_pct": {
            record["algorithm"]: dataset.plain(column, record.get(column)) for record in group
        },
        "fastest": ranked[0]["algorithm"] if sure else "",
        "doubtful": [record["algorithm"] for record in group if record["doubtful"]],
    }


def _cell(row: dict[str, Any], name: str, metric: str, *, with_share: bool) -> str:
    value = row[metric].get(name)
    share = dataset.share(row["coverage_pct"].get(name)) if with_share else ""
    if value is None:
        return f"-{share}"
    mark = "*" if row["fastest"] == name else " "
    doubt = "?" if name in row["doubtful"] else " "
    return f"{value:{'.3f' if columns.is_time(metric) else '.5g'}}{mark}{doubt}{share}"
