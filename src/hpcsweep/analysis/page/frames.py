"""Makes the data of the figures: one table per kind of figure, small enough for one page.

Axes that vary, other than x, colour and GPU, are filters of the page. Their values are text, as the
page's controls show them. What is drawn of the tables, and how, is said in `sections`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from hpcsweep.analysis import best_layers, dataset, formats, plot, reliability
from hpcsweep.analysis.dataset import Dataset
from hpcsweep.analysis.workload_reports import PHASES
from hpcsweep.errors import UsageError
from hpcsweep.text import count

# Each keeps the page small: a browser draws so many marks, places and cells at once.
MOST_POINTS: Final = 2000  # in figures; more are thinned
_MOST_PLACES: Final = 12  # values of x for which layers are shown
_MOST_CELLS: Final = 20_000  # of the map of the best algorithm
_TOP: Final = 15  # layers in the figure of the slowest ones: as many as have a readable name each
_TIMES: Final = ("median_ms", "ci95_lo_ms", "ci95_hi_ms", "q1_ms", "q3_ms", "n")
_PHASES: Final = tuple(f"phase_{part}_ms" for part in PHASES)
# columns of figures of their own, where they were measured
MORE: Final = ("mem_peak_gib", "energy_j")
RATES: Final = ("throughput_ips", "throughput_sps")  # with the time, of which they are another form
_SHOWN: Final = ("algorithm_coverage_pct", "flags", "point_id")


@dataclass(frozen=True)
class Layout:
    """Which axis is where: `x`, `colour`, a figure per GPU, and `filters` for the rest."""

    x: str
    colour: str
    filters: tuple[str, ...]
    gpus: tuple[str, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(("gpu", *self.filters, self.colour, self.x)))


def layout(rows: pd.DataFrame) -> Layout:
    """Choose what stands on x, what tells colours apart, and what is left to filters."""
    varying = dataset.varying_axes(rows, dataset.REPEATS)
    numbers = [axis for axis in varying if dataset.is_quantity(axis, rows)]
    names = [axis for axis in varying if axis not in numbers and axis != "gpu"]
    colour = "algorithm"
    if names and colour not in names:
        colour = names[0]
    x = colour
    for axis in ("input_size", "batch_size", *numbers):
        if axis in numbers:
            x = axis
            break
    filters = tuple(axis for axis in varying if axis not in {x, colour, "gpu"})
    gpus = sorted(map(str, rows["gpu"].dropna().unique()))
    return Layout(x, colour, filters, tuple(gpus))


def thinned(rows: pd.DataFrame, x: str, most: int) -> tuple[pd.DataFrame, str]:
    """Return rows of evenly spread values of x, and a note where some are left out."""
    if len(rows) <= most:
        return rows, ""
    places = dataset.values(rows, x)
    kept = rows[rows[x].isin(_spread(places, max(2, most * len(places) // len(rows))))]
    step = -(-len(kept) // most)  # rounded up
    kept = kept.iloc[::step]
    return kept, f"{count(len(kept), 'point')} of {len(rows):,} are shown, evenly spread over {x}"


def points(rows: pd.DataFrame, seen: Layout) -> pd.DataFrame:
    """Return the points, with the speed-up over the baseline if there is one."""
    own = [name for name in dataset.own_results(rows) if dataset.is_quantity(name, rows)]
    wanted = {*seen.axes, *_TIMES, *MORE, *RATES, *_PHASES, *own, *_SHOWN}
    kept = [name for name in rows if name in wanted and rows[name].notna().any()]
    table = rows[kept].assign(doubtful=reliability.doubtful(rows))
    base = baseline(rows, seen)
    if base:
        needed = {*dataset.axes_in(rows), "own_axes", "median_ms"}
        times = rows[[name for name in rows if name in needed]]
        times = times.assign(_doubtful=table["doubtful"])
        compared, _ = plot.speedups(times, "median_ms", {seen.colour: base}, dataset.REPEATS)
        table["speedup"] = compared["_speedup"].to_numpy()
    return _texts(table, seen)


def baseline(rows: pd.DataFrame, seen: Layout) -> str:
    """Return the value of the colour axis that others are compared with; empty if there is one."""
    values = dataset.ordered(rows, seen.colour)
    if len(values) < 2:
        return ""
    return "auto" if "auto" in values else values[0]


def kinds(layers: pd.DataFrame, seen: Layout) -> pd.DataFrame:
    """Return the time of each kind of layer in each point, at some values of x."""
    return _sums(layers, seen, "op")


def _sums(layers: pd.DataFrame, seen: Layout, *by: str) -> pd.DataFrame:
    sums = layers.groupby(["point_id", *seen.axes, *by], dropna=False, sort=False)["mean_ms"].sum()
    return _texts(sums.rename("ms").reset_index(), seen)


def slowest(layers: pd.DataFrame, seen: Layout) -> pd.DataFrame:
    """Return the rows of the layers that take longest, some for each model."""
    named = layers[layers["layer"] != "__other__"]
    means = named.groupby(["model", "layer"])["mean_ms"].mean().sort_values(ascending=False)
    top = means.groupby("model").head(_TOP).index
    slow = named[pd.MultiIndex.from_frame(named[["model", "layer"]]).isin(top)]
    return _sums(slow, seen, "layer", "op")


def at_some_places(layers: pd.DataFrame, seen: Layout) -> pd.DataFrame:
    """Return the layers at evenly spread values of x, few enough for a page."""
    places = dataset.values(layers.dropna(subset=seen.x), seen.x)
    return layers[layers[seen.x].isin(_spread(places, _MOST_PLACES))]


def best(data: Dataset, rows: pd.DataFrame, seen: Layout) -> pd.DataFrame:
    """Return the fastest algorithm of each convolution; nothing without times of the default."""
    rows = rows[reliability.valid(rows, noise=True)]
    default = baseline(rows, seen)
    if seen.colour != "algorithm" or not default:
        return pd.DataFrame()
    try:
        calls = best_layers.per_layer(data, rows, default).calls
    except UsageError:
        return pd.DataFrame()
    axes = [axis for axis in seen.axes if axis != seen.colour]
    configs = rows[axes].assign(config=dataset.configurations(rows)).drop_duplicates("config")
    calls = calls[calls["tried"] > 0].merge(configs, on="config").sort_values("call_index")
    calls["gain_pct"] = 100 * (calls["default_ms"] / calls["ms"] - 1)
    kept, _ = thinned(calls, seen.x, _MOST_CELLS)
    columns = [*axes, "layer", "algorithm", "ms", "default_ms", "gain_pct", "tried"]
    return _texts(kept[columns], seen)


def phases(points: pd.DataFrame, seen: Layout) -> pd.DataFrame:
    """Return the phases of training steps, one row each."""
    measured = [name for name in _PHASES if name in points]
    keys = [key for key in ("point_id", *seen.axes) if key in points]
    rows = points.melt(keys, measured, "phase", "ms").dropna()
    return rows.assign(phase=rows["phase"].str.removeprefix("phase_").str.removesuffix("_ms"))


def with_axes(data: Dataset, rows: pd.DataFrame, seen: Layout) -> pd.DataFrame:
    """Return the layer rows of these points, with the axes of their points."""
    layers = data.of_layers(rows).drop(columns=[*seen.axes], errors="ignore")
    return layers.merge(rows[["point_id", *seen.axes]], on="point_id")


def _spread(places: Sequence[Any], most: int) -> list[Any]:
    """Return at most so many of the values, evenly spread, with the first and the last."""
    if len(places) <= most:
        return list(places)
    return [places[round(i * (len(places) - 1) / (most - 1))] for i in range(most)]


def _texts(rows: pd.DataFrame, seen: Layout) -> pd.DataFrame:
    """Return the rows with text on every axis but x."""
    axes = {axis for axis in seen.axes if axis != seen.x or axis == seen.colour}
    return rows.assign(**formats.texts(rows, axes.intersection(rows)))
