"""Tells where the time of a collected sweep goes: the slowest layers, under each algorithm.

A value is the time of all calls of a layer in one pass, as a mean over the configurations that
every algorithm has. A call's time is its mean, which adds up; where a few slow passes have moved
that away from the median, it is the median, and the value is marked. Points whose times are
unreliable are left out and counted. Calls and share are those under the first algorithm, whose
times stand beside them. A share is that of the layer pass; the shares of all layers and of the rest
of the pass add up to 100. Convolutions that were timed alone have shares of their sum, and a note
says how much of a pass that is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import pandas as pd

from hpcsweep.analysis import conditions, dataset, formats, plain_rows, reliability
from hpcsweep.analysis.formats import View
from hpcsweep.analysis.plain_rows import cells
from hpcsweep.catalog.columns import KERNELS
from hpcsweep.errors import UsageError, suggest
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count

# what tells layers apart, by the name of the option's value
BY: Final = {"layer": "layer", "op": "op", "shape": "unique_key"}
_ALONE: Final = ("isolated", "batched", "plans")  # in `layer_timer`
_FELL: Final = "fallbacks"  # the algorithms under which a call fell back, joined by semicolons
_APART: Final = "medians"  # those under which a call counts with its median, likewise
_MARKS: Final = {_FELL: "~", _APART: "^"}
# Of the median: a mean so far from it was moved by a few slow passes, which say nothing of the
# layer. Below, the mean is better, since means add up to the pass.
_FAR: Final = 0.25
_MEAN: Final = "mean_ms"
_USED: Final = (
    "layer", "algorithm", _MEAN, "median_ms", "min_ms", "direction", "algorithm_used",
    "fallback_reason", "layer_timer", "percentage",
)  # fmt: skip
_MOST_VALUES: Final = 4  # of an axis that a line names; of more the first two and the last


def slowest_layers(  # noqa: PLR0913 - one argument per option
    sweep_dir: SweepDir,
    *,
    by: str = "layer",
    where: str = "",
    metric: str = "",
    top: int = 20,
    unreliable: bool = False,
) -> View:
    """Return the slowest layers; `UsageError` where nothing was collected, chosen or timed."""
    if by not in BY:
        raise UsageError(f"layers are summed by {', '.join(BY)}, not by {by}")
    key = BY[by]
    asked = [condition.column for condition in conditions.parse(where)]
    data = dataset.read_dataset(sweep_dir, columns=asked)
    foreign = reliability.is_foreign(data.rows)
    chosen, left_out = data.chosen(where, unreliable=unreliable or foreign)
    every, _ = data.chosen(where, unreliable=True)
    points, lacking = _comparable(chosen, left_out)
    rows = data.of_layers(points, {*_USED, key, metric})
    time = metric or _time_of(rows)
    _check(sweep_dir, rows, time)
    grouped = _grouped(rows, key, time, given=bool(metric))
    names = dataset.values(grouped, "algorithm")  # plans have rows of their own
    table = _table(grouped, key, names)
    under = f", under {names[0]}" if len(names) > 1 else ""
    about = f"times are {time}; shares are {_of_what(rows)}{under}, means over all points"
    notes = [about, *_notes(points, grouped), *lacking, *left_out]
    if foreign:
        notes += reliability.unreliable(points)
    if len(table) > top:
        notes.append(f"{count(len(table) - top, by)} more; --top {len(table)} shows all")
    what = "ms" if time.endswith("_ms") else formats.label(time)
    slowest = table.head(top).rename(columns={key: by})
    return View(
        title=f"{sweep_dir.name}: slowest by {by}, {what} of one pass{_at(every, points)}",
        frame=slowest, texts=_texts(slowest, names), left=1, notes=notes,
        record={
            "sweep": sweep_dir.name, "by": by, "metric": time, "algorithms": names,
            "points": len(points), "hardware": dataset.hardware(points),
        },
    )  # fmt: skip


def _of_what(rows: pd.DataFrame) -> str:
    """Say what the shares are shares of; there is no pass of layers that were timed alone."""
    timers = cells(rows, "layer_timer").fillna("")
    if set(timers) == {KERNELS}:
        return "of the kernels of all convolutions"
    alone = timers.isin(_ALONE)
    if not alone.any():
        return "of the layer pass"
    of_pass = rows[alone & (timers != "plans")].groupby("point_id")["percentage"].sum()
    part = f"{of_pass.min():.0f} to {of_pass.max():.0f} % of the pass"
    return f"of the sum of convolutions timed alone, which is {part}"


def _time_of(rows: pd.DataFrame) -> str:
    """Return the time that is filled: imported rows may have the shortest alone."""
    for name in (_MEAN, "median_ms", "min_ms"):
        if cells(rows, name, None).any():
            return name
    return _MEAN


def _check(sweep_dir: SweepDir, rows: pd.DataFrame, metric: str) -> None:
    path = sweep_dir.layers
    if rows.empty:
        raise UsageError(f"{path}: no layer rows (`layers: false`, or nothing chosen)")
    if metric not in rows:
        raise UsageError(f"{path}: no column '{metric}'{suggest(metric, plain_rows.header(path))}")
    if not pd.api.types.is_numeric_dtype(rows[metric]) or rows[metric].isna().all():
        raise UsageError(f"{path}: {metric} holds no numbers")


def _comparable(points: pd.DataFrame, left_out: list[str]) -> tuple[pd.DataFrame, list[str]]:
    """Return the points of configurations that every algorithm has, and a note on the others.

    `UsageError` where there are none; it tells of the points that were left out before.
    """
    wanted = points["algorithm"].nunique()
    by_configuration = points.groupby(dataset.configurations(points))["algorithm"]
    kept = points[by_configuration.transform("nunique") == wanted]
    if kept.empty:
        choose = "choose algorithms with --where algorithm=..."
        raise UsageError("; ".join(["no configuration has every algorithm", choose, *left_out]))
    missing = len(points) - len(kept)
    if not missing:
        return kept, []
    why = "left out: not every algorithm has that configuration"
    return kept, [f"{count(missing, 'point')} {why}"]


def _grouped(rows: pd.DataFrame, key: str, metric: str, *, given: bool) -> pd.DataFrame:
    """Return the rows with their time and its share, and whether a call fell back.

    A metric that was given counts as it is.
    """
    name = rows[key].fillna(rows["layer"])
    direction = cells(rows, "direction").fillna("").astype(str)
    grouped = rows.assign(ms=rows[metric], apart=False, fell=reliability.fell_back(rows))
    grouped[key] = name.where(~dataset.gradients(rows), name + " (" + direction + ")")
    if not given:
        median = rows.get("median_ms", rows[_MEAN])
        grouped["apart"] = (rows[_MEAN] - median).abs() > _FAR * median
        grouped["ms"] = grouped["ms"].mask(grouped["apart"], median)
    whole = grouped.groupby(["point_id", "algorithm"])["ms"].transform("sum")
    grouped["share"] = 100 * grouped["ms"] / whole
    return grouped


def _table(grouped: pd.DataFrame, key: str, names: Sequence[str]) -> pd.DataFrame:
    """Return rows by share, the largest first; times of each algorithm.

    A time is a mean over the points that have it, and so are the calls; a share over all points.
    What only other algorithms have, has no share and stands last, with the calls of these.
    """
    first = names[0]
    by_name = grouped.groupby([key, "algorithm"])
    sums = by_name.agg(
        ms=("ms", "sum"), share=("share", "sum"), fell=("fell", "any"), apart=("apart", "any"),
    )  # fmt: skip
    # a column per value and algorithm
    wide = sums.reset_index().pivot(index=key, columns="algorithm")  # noqa: PD010 - truth values stay so
    each = grouped.groupby([key, "algorithm", "point_id"]).size()
    calls = each.groupby(level=[0, 1]).mean().unstack()  # noqa: PD010 - a column per algorithm
    calls = calls[first].fillna(calls.max(axis=1)).convert_dtypes()
    points_of_first = grouped["point_id"][grouped["algorithm"] == first].nunique()
    table = pd.DataFrame({"calls": calls, "share_pct": wide["share"][first] / points_of_first})
    for column, flag in ((_FELL, "fell"), (_APART, "apart")):
        raised = wide[flag][names].eq(other=True)
        table[column] = raised.dot(raised.columns + ";").str.rstrip(";")
    timed = grouped[grouped["ms"].notna()].groupby([key, "algorithm"])["point_id"].nunique()
    having = timed.unstack().reindex(index=wide.index, columns=list(names))  # noqa: PD010 - likewise
    table = table.join(wide["ms"][names] / having)
    return table.sort_values("share_pct", ascending=False, kind="stable").reset_index()


def _texts(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    times = {}
    for name in names:
        marks = [""] * len(table)
        for column, mark in _MARKS.items():
            for row, raised in enumerate(table[column]):
                if name in raised.split(";"):
                    marks[row] += mark
        width = max(map(len, marks), default=0) or 1
        texts = []
        for ms, mark in zip(table[name], marks, strict=True):
            number = "-" if math.isnan(ms) else f"{ms:.4g}"
            texts.append(f"{number}{mark:{width}}")
        times[name] = texts
    kept = table[[table.columns[0], "calls", "share_pct", *names]].assign(**times)
    kept["calls"] = table["calls"].map("{:.4g}".format)
    kept["share_pct"] = table["share_pct"].map("{:.1f}".format, na_action="ignore").fillna("-")
    return kept


def _notes(points: pd.DataFrame, grouped: pd.DataFrame) -> Iterator[str]:
    """Return what the values are means over, and what the mark means."""
    axes = dataset.varying_axes(points, {"algorithm"})
    over = [f"{axis} {_values(points, axis)}" for axis in axes]
    if over:
        yield f"values are means over {'; '.join(over)}; --where chooses"
    if grouped["fell"].any():
        yield f"{_MARKS[_FELL]} some calls ran another algorithm than requested"
    if grouped["apart"].any():
        yield f"{_MARKS[_APART]} the median; the mean of a call is over 25 % apart"


def _at(every: pd.DataFrame, points: pd.DataFrame) -> str:
    """Say which part of the points the values are of, on the axes on which it is only a part."""
    text = ""
    for axis in dataset.varying_axes(every, {"algorithm", *dataset.REPEATS}):
        if points[axis].nunique(dropna=False) < every[axis].nunique(dropna=False):
            text += f", at {axis} {_values(points, axis)} alone, of {_values(every, axis)}"
    return text


def _values(points: pd.DataFrame, axis: str) -> str:
    values = dataset.ordered(points, axis)
    if len(values) > _MOST_VALUES:
        values = [*values[:2], "...", values[-1]]
    return ", ".join(values)
