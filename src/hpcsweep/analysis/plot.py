"""Puts one column of a collected sweep over another, with a line per combination of the rest.

A value is the median of the measured rows that share a line and an x: repeats with other seeds, and
the values of axes that `by` leaves out. It is doubtful if any of these rows is doubtful. Its
baseline is the row that is equal but for the columns that the baseline names. `charts` draws.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from hpcsweep.analysis import conditions, dataset, formats, reliability
from hpcsweep.analysis.conditions import Condition
from hpcsweep.analysis.dataset import REPEATS, Dataset
from hpcsweep.analysis.formats import View
from hpcsweep.analysis.plain_rows import cells
from hpcsweep.errors import UsageError
from hpcsweep.spec import space
from hpcsweep.store.folders import SweepDir

_ENDS: Final = {"median_ms": ("ci95_lo_ms", "ci95_hi_ms")}  # the interval of a column
_COVERAGE: Final = "algorithm_coverage_pct"


@dataclass(frozen=True)
class Plot:
    """Values of y over x; `against` is the baseline, as `column=value`.

    `cells` has a row per value: its `line` and `place` on x, the `value`, the median of `n` rows,
    its 95 % interval from `low` to `high`, and whether it is `doubtful`, or `partial`: the
    algorithm did not run in all convolutions. With a baseline: the `speedup`, and if that is
    `unsure`. `keys` has the values of the columns `by`, and of x, in the same rows.
    """

    data: Dataset
    rows: pd.DataFrame
    x: str
    y: str
    by: tuple[str, ...]
    cells: pd.DataFrame
    keys: pd.DataFrame
    notes: tuple[str, ...]
    against: str = ""
    where: str = ""

    @property
    def numeric(self) -> bool:
        """Tell whether x is a quantity, rather than names."""
        return all(isinstance(place, int | float) for place in self.places)

    @property
    def lines(self) -> list[str]:
        return list(dict.fromkeys(self.cells["line"]))

    @property
    def places(self) -> list[Any]:
        return sorted({*self.cells["place"]}, key=lambda value: dataset.rank(self.x, value))

    @property
    def compared(self) -> str:
        is_speed = formats.is_time(self.y) or formats.is_rate(self.y)
        return f"{'speed-up over' if is_speed else 'ratio to'} {self.against}"

    def frame(self) -> pd.DataFrame:
        """Return the values, with the columns of the tables."""
        names = {"value": self.y, "n": "n", "doubtful": "doubtful"}
        if self.cells["low"].notna().any():
            names["low"], names["high"] = _ENDS[self.y]
        values = self.cells[[*names]].rename(columns=names)
        if self.against:
            values = values.assign(baseline=self.against, speedup=self.cells["speedup"])
        return pd.concat([self.keys, values], axis=1)

    @property
    def views(self) -> list[View]:
        """Return the values, and the comparison with the baseline; the first has both values."""
        name = self.data.sweep_dir.name
        what = f"{formats.label(self.y)} over {formats.label(self.x)}"
        where = f", where {self.where}" if self.where else ""
        title = f"{name}: {what}{where} ({self.data.counts()})"
        frame = self.frame()
        left = 0 if self.numeric else 1
        record = {
            "sweep": name, "x": self.x, "y": self.y, "by": list(self.by),
            "baseline": self.against or None, "notes": list(self.notes),
        }  # fmt: skip
        marks = reliability.unreliable(self.rows)
        texts = self._table("value", ".5g", "", "doubtful")
        if not self.against:
            return [View(title, frame, texts, left, self.notes, record, marks)]
        speedups = self._table("speedup", ".3g", "x", "unsure")
        return [
            View(title, frame, texts, left, record=record),
            View(self.compared, frame, speedups, left, self.notes, marks=marks),
        ]

    def _table(self, column: str, form: str, unit: str, doubt: str) -> pd.DataFrame:
        texts = {}
        for cell in self.cells.dropna(subset=column).to_dict("records"):
            mark = "?" if cell[doubt] else " "
            texts[cell["line"], cell["place"]] = f"{cell[column]:{form}}{unit}{mark}"
        table = {self.x: [formats.format_value(self.x, x) for x in self.places]}
        for line in self.lines:
            table[f"{line or self.y} "] = [texts.get((line, x), "- ") for x in self.places]
        return pd.DataFrame(table)


def read_plot(  # noqa: PLR0913 - one argument per option
    sweep_dir: SweepDir,
    x: str | None = None,
    y: str = "median_ms",
    *,
    by: Sequence[str] = (),
    where: str = "",
    baseline: str = "",
) -> Plot:
    """Read a collected sweep as lines of y over x.

    Without `x` it is the numeric axis that varies. Without `by` every axis that varies tells lines
    apart. `where` has conditions, `baseline` pairs `column=value`. `UsageError` where a column or a
    value is not there, or y has no numbers.
    """
    named = [name for name in (x, y, *by) if name]
    bases = [condition.column for condition in conditions.parse(baseline)]
    columns = {*named, *bases, *_ENDS.get(y, ()), "flags", _COVERAGE}
    data = dataset.read_dataset(sweep_dir, where, columns)
    match = data.pairs(baseline)
    data.check(named)
    rows = data.numbers(y)
    notes: list[str] = []
    if not x:
        x, notes = _axis(rows)
    rows = rows[rows[x].notna()]
    if rows.empty:
        raise UsageError(f"{sweep_dir.overall}: no measured point has both {x} and {y}")
    lacking = len(data.rows) - len(rows)
    if lacking:
        notes.append(f"{lacking} points without {x} or {y} left out")
    telling = tuple(name for name in dict.fromkeys(by) if name != x) or _telling(rows, x, y)
    notes += [*data.of_earlier_files(), *_medians(rows, x, telling), *space.legend(data.maps)]
    rows = rows.assign(_doubtful=reliability.doubtful(rows), _speedup=math.nan, _unsure=False)
    if match:
        rows, more = speedups(rows, y, match, ignore={*REPEATS, y} - {*by})
        notes += more
    values, keys = _cells(rows, x, y, telling)
    return Plot(data, rows, x, y, telling, values, keys, tuple(notes), baseline, where)


def _axis(rows: pd.DataFrame) -> tuple[str, list[str]]:
    """Return the numeric axis with most values, and a note where it was one of several."""
    varying = dataset.varying_axes(rows, REPEATS)
    axes = [axis for axis in varying if dataset.is_quantity(axis, rows)] or varying
    if not axes:
        raise UsageError("which column is x? give --x (no axis varies; try --x input_size)")
    most = max(axes, key=lambda axis: rows[axis].nunique())  # of equal ones the first
    others = ", ".join(axis for axis in axes if axis != most)
    return most, [f"x is {most}, with most values; --x chooses {others}"] if others else []


def _telling(rows: pd.DataFrame, x: str, y: str) -> tuple[str, ...]:
    """Return the axes that tell lines apart: those that vary, without x, y and repeats.

    If x is no axis (`flops`), it follows from the sizes, so numeric axes tell nothing more.
    """
    varying = dataset.varying_axes(rows, {x, y, *REPEATS})
    if x in dataset.axes_in(rows):
        return varying
    return tuple(axis for axis in varying if not dataset.is_quantity(axis, rows))


def _medians(rows: pd.DataFrame, x: str, by: Sequence[str]) -> list[str]:
    """Return a note where values are medians of several rows, and over what."""
    most = int(rows.groupby([*by, x], dropna=False).size().max())
    if most == 1:
        return []
    over = dataset.varying_axes(rows, {x, *by})
    what = f" over {', '.join(over)}" if over else ""
    return [f"values are medians{what}, of up to {most} points each"]


def _cells(
    rows: pd.DataFrame, x: str, y: str, by: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a row per line and x, in catalogue order, and the columns that tell them apart."""
    low, high = _ENDS.get(y, ("", ""))
    table = rows.assign(_unsure=rows["_unsure"] | rows["_doubtful"])
    table["_partial"] = cells(rows, _COVERAGE, 100.0).astype(float) < 100
    table["_low"] = cells(rows, low, math.nan)
    table["_high"] = cells(rows, high, math.nan)
    by_cell = table.groupby([*by, x], dropna=False, sort=False)
    found = by_cell.agg(value=(y, "median"), n=(y, "size"))
    for name in ("doubtful", "partial", "unsure"):
        found[name] = by_cell[f"_{name}"].any()
    for name, statistic in {"speedup": "median", "low": "min", "high": "max"}.items():
        numbers = by_cell[f"_{name}"]
        # that of some of the rows would stand beside a value of all of them
        found[name] = numbers.agg(statistic).where(numbers.count() == found["n"])
    keys = found.index.to_frame(index=False)
    ranks = [[*map(dataset.rank, keys, key)] for key in keys.itertuples(index=False)]
    order = sorted(range(len(keys)), key=ranks.__getitem__)
    keys = keys.iloc[order].reset_index(drop=True)
    lines = [_line(by, key) for key in keys.itertuples(index=False)]
    places = pd.Series([formats.to_json(x, value) for value in keys[x]], dtype=object)
    return found.iloc[order].reset_index(drop=True).assign(line=lines, place=places), keys


def _line(by: Sequence[str], values: Iterable[Any]) -> str:
    return ", ".join(map(formats.format_labelled, by, values))


def speedups(
    rows: pd.DataFrame, y: str, match: Mapping[str, str], ignore: Collection[str]
) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows with the columns `_speedup` and `_unsure`, and notes for the reader.

    `rows` has a column `_doubtful`. The baseline of a row has the values of `match`, and the row's
    own value on every other axis that varies, except those in `ignore`. Where several rows are the
    baseline, their median counts. Of a time `_speedup` is baseline over row, of anything else row
    over baseline, so more is faster. It is NaN where a row has no baseline, and `_unsure` where the
    baseline is doubtful. `UsageError` where no row has the values of `match`.
    """
    axes = dataset.varying_axes(rows, {*match, *ignore})
    keys = ["_all", *axes]  # so that there is a key where no axis varies
    rows = rows.assign(_all=0)
    wanted = [Condition(column, "=", value) for column, value in match.items()]
    base = conditions.select(rows, wanted).groupby(keys, dropna=False)
    bases = base.agg(_base=(y, "median"), _rows=(y, "count"), _doubt=("_doubtful", "any"))
    both = rows.merge(bases.reset_index(), on=keys, how="left")
    ratio = both["_base"] / both[y] if formats.is_time(y) else both[y] / both["_base"]
    notes = []
    alone = int(both["_base"].isna().sum())
    if alone:
        same = f" with the same {', '.join(axes)}" if axes else ""
        no_row = f"no row has {', '.join(map(str, wanted))}{same}"
        notes.append(f"{alone} points have no baseline: {no_row}")
    most = both["_rows"].max()
    if most > 1:
        notes.append(f"a baseline matches up to {most:g} rows; their median counts")
    return both.assign(_speedup=ratio, _unsure=both["_doubt"].eq(other=True)), notes
