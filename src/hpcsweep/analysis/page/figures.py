"""Makes the figures of a page: which there are, how they look, and the tables that they draw.

A figure is there if its columns hold numbers, and each GPU has figures of its own. Here is said
what a figure is: kind, data and columns; `figures.js` draws it. A table is small enough for one
page. Axes that vary, other than x, colour and GPU, are filters of the page. Their values are text,
as the page's controls show them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import pandas as pd

from hpcsweep.analysis import best_layers, dataset, formats, plot, reliability
from hpcsweep.analysis.dataset import Dataset
from hpcsweep.analysis.report import PHASES
from hpcsweep.analysis.roofline import rooflines
from hpcsweep.analysis.roofline.roofs import Roofs
from hpcsweep.errors import UsageError
from hpcsweep.text import count

# Each keeps the page small: a browser draws so many marks, places and cells at once.
MOST_POINTS: Final = 2000  # in figures; more are thinned
_MOST_PLACES: Final = 12  # values of x for which layers are shown
_MOST_CELLS: Final = 20_000  # of the map of the best algorithm
_TOP: Final = 15  # layers in the figure of the slowest ones: as many as have a readable name each
_TIMES: Final = ("median_ms", "ci95_lo_ms", "ci95_hi_ms", "q1_ms", "q3_ms", "n")
_PHASES: Final = tuple(f"phase_{part}_ms" for part in PHASES)
# columns of figures of their own, where they were measured, with their headings
_MORE: Final = {"mem_peak_gib": "Memory", "energy_j": "Energy of a pass"}
_RATES: Final = ("throughput_ips", "throughput_sps")  # of time, of which they are another form
_TOLD: Final = ("algorithm_coverage_pct", "flags", "point_id")  # of a mark under the pointer
READ: Final = {"mem_peak_bytes", *_TIMES, *_MORE, *_RATES, *_PHASES, *_TOLD, *rooflines.READ}
_HOLLOW: Final = "Hollow marks are unreliable: hover them for the flags."
# so few marks say nothing if they have one value: more that agree say that nothing depends on x
_FEW: Final = 2
# a roof is drawn from far below its ridge to far above: beyond, no kernel has its intensity
_ROOF: Final = (0.003, 1, 30)
_INTERVAL: Final = {"low": "ci95_lo_ms", "high": "ci95_hi_ms"}  # of the median


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
    # so many of them as have about `most` rows, and at least both ends
    number = max(2, most * len(places) // len(rows))
    kept = rows[rows[x].isin(_spread(places, number))]
    # rounded up, so that at most `most` are left
    step = -(-len(kept) // most)
    kept = kept.iloc[::step]
    return kept, f"{count(len(kept), 'point')} of {len(rows):,} are shown, evenly spread over {x}"


def point_table(rows: pd.DataFrame, seen: Layout) -> pd.DataFrame:
    """Return the points, with the speed-up over the baseline if there is one."""
    own = [name for name in dataset.own_results(rows) if dataset.is_quantity(name, rows)]
    wanted = {*seen.axes, *_TIMES, *_MORE, *_RATES, *_PHASES, *own, *_TOLD}
    table = rows.loc[:, rows.columns.isin(wanted)].dropna(axis=1, how="all")
    table["doubtful"] = reliability.doubtful(rows)
    base = baseline(rows, seen)
    if base:
        needed = {*dataset.axes_in(rows), "own_axes", "median_ms"}
        times = rows.loc[:, rows.columns.isin(needed)].assign(_doubtful=table["doubtful"])
        compared, _ = plot.speedups(times, "median_ms", {seen.colour: base}, dataset.REPEATS)
        table["speedup"] = compared["_speedup"].to_numpy()
    return _texts(table, seen)


def baseline(rows: pd.DataFrame, seen: Layout) -> str:
    """Return the value of the colour axis that others are compared with; empty if there is one."""
    values = dataset.ordered(rows, seen.colour)
    if len(values) < 2:
        return ""
    return "auto" if "auto" in values else values[0]


def layer_times(layers: pd.DataFrame, seen: Layout, *by: str) -> pd.DataFrame:
    """Return the time in each point of the layers that agree in some columns."""
    keys = ["point_id", *seen.axes, *by]
    sums = layers.groupby(keys, dropna=False, sort=False)["mean_ms"].sum()
    return _texts(sums.rename("ms").reset_index(), seen)


def slowest_table(layers: pd.DataFrame, seen: Layout) -> pd.DataFrame:
    """Return the rows of the layers that take longest, some for each model."""
    named = layers[layers["layer"] != "__other__"]
    means = named.groupby(["model", "layer"])["mean_ms"].mean().sort_values(ascending=False)
    top = means.groupby("model").head(_TOP).index
    slow = named[pd.MultiIndex.from_frame(named[["model", "layer"]]).isin(top)]
    return layer_times(slow, seen, "layer", "op")


def best_table(data: Dataset, rows: pd.DataFrame, seen: Layout) -> pd.DataFrame:
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


def phase_table(points: pd.DataFrame, seen: Layout) -> pd.DataFrame:
    """Return the phases of training steps, one row each."""
    keys = [*points.filter(("point_id", *seen.axes))]
    rows = points.melt(keys, [*points.filter(_PHASES)], "phase", "ms").dropna()
    return rows.assign(phase=rows["phase"].str.removeprefix("phase_").str.removesuffix("_ms"))


def layer_rows(data: Dataset, rows: pd.DataFrame, seen: Layout) -> pd.DataFrame:
    """Return the layer rows of these points, with the axes of their points."""
    layers = data.of_layers(rows).drop(columns=[*seen.axes], errors="ignore")
    return layers.merge(rows[["point_id", *seen.axes]], on="point_id")


def _spread(places: Sequence[Any], most: int) -> list[Any]:
    """Return at most so many of the values, evenly spread, with the first and the last."""
    if len(places) <= most:
        return [*places]
    return [places[round(i * (len(places) - 1) / (most - 1))] for i in range(most)]


def _texts(rows: pd.DataFrame, seen: Layout) -> pd.DataFrame:
    """Return the rows with text on every axis but x."""
    axes = {axis for axis in seen.axes if axis != seen.x or axis == seen.colour}
    return rows.assign(**formats.texts(rows, axes.intersection(rows)))


@dataclass(frozen=True)
class Figure:
    """One figure: what it is called, what it shows, on which GPU, and how it is drawn."""

    name: str
    title: str
    spec: dict[str, Any]
    gpu: str = ""

    @property
    def ident(self) -> str:
        gpu = f"-{self.gpu}" if self.gpu else ""
        return f"figure-{self.name}{gpu}".replace(" ", "_")


@dataclass(frozen=True)
class Section:
    """A part of the page: its heading, what to know about it, its figures."""

    name: str
    heading: str
    note: str
    figures: list[Figure]


@dataclass(frozen=True)
class Drawn:
    """The sections of a page, the data of their figures by name, and what was left out."""

    sections: list[Section]
    data: dict[str, pd.DataFrame]
    ys: dict[str, str]  # what the first figure can show
    notes: list[str]
    places: list[str]  # values of x at which layers are shown


@dataclass(frozen=True)
class Painter:
    """Describes figures; `values` are those of colour, `data` the tables that figures draw."""

    seen: Layout
    values: list[str]
    data: dict[str, pd.DataFrame]

    def figures(self, kind: str, name: str, title: str, **more: Any) -> list[Figure]:  # noqa: ANN401
        """Return a figure for each GPU that has something to tell (see `figure`)."""
        figures = []
        for gpu in self.seen.gpus or ("",):
            figure = self.figure(kind, name, title, gpu, **more)
            if not self._says_nothing(figure):
                figures.append(figure)
        return figures

    def figure(self, kind: str, name: str, title: str, gpu: str, **more: Any) -> Figure:  # noqa: ANN401
        """Return the figure of one GPU; `more` is for its kind.

        Its data is the table `name`, or that of `data`.
        """
        where = f" on {gpu}" if gpu else ""
        spec = {
            "kind": kind, "data": name, "gpu": gpu, "colour": self.seen.colour,
            "values": self.values, "filters": [*self.seen.filters],
            "about": f"{title}{where}; the table of all points has the values",
            "x": self.seen.x, **more,
        }  # fmt: skip
        spec["xTitle"] = formats.label(str(spec["x"]))
        return Figure(name, title, spec, gpu)

    def over(self, name: str, title: str, ys: dict[str, str]) -> list[Figure]:
        """Draw one of several columns over x, each with its label, a line per colour."""
        labelled = {y: {"label": label} for y, label in ys.items()}
        if "median_ms" in labelled:
            labelled["median_ms"] |= _INTERVAL
        return self.figures("lines", name, title, data="points", ys=labelled)

    def _says_nothing(self, figure: Figure) -> bool:
        """Tell whether a figure has one value alone, or one of everything."""
        spec = figure.spec
        kind = spec["kind"]
        rows = self.data[spec["data"]]
        if figure.gpu and "gpu" in rows:
            rows = rows[rows["gpu"] == figure.gpu]
        if kind == "lines":
            return not any(_tells(rows[y].dropna()) for y in spec["ys"] if y in rows)
        if kind == "bars":
            return bool(rows[spec["part"]].nunique() < _FEW)
        if kind == "map":
            return bool(rows["algorithm"].nunique() < _FEW)
        return kind == "dots" and len(rows) <= _FEW


def _tells(values: pd.Series[Any]) -> bool:
    """Tell whether values of a line are more than one, or one and the same in two places."""
    few = _FEW if len(values.unique()) == 1 else 1
    return len(values) > few


def make(data: Dataset, seen: Layout) -> Drawn:
    """Return the sections that this sweep has something for."""
    rows, note = thinned(data.numbers("median_ms"), seen.x, MOST_POINTS)
    drawn_rows: Any = rows
    data = replace(data, rows=drawn_rows)  # nothing else is drawn
    points = point_table(rows, seen)
    painter = Painter(seen, dataset.ordered(rows, seen.colour), {"points": points})
    own = [name for name in dataset.own_results(rows) if name in points]
    ys = {name: formats.label(name) for name in own}
    ys["median_ms"] = "median (ms)"
    about = "Medians with their 95 % intervals. " if "ci95_lo_ms" in points else "Medians. "
    base = baseline(rows, seen)
    if base:
        ys["speedup"] = f"speed-up over {base}"
        about += f"A speed-up above 1 is faster than {seen.colour} {base}. "
    for name in _RATES:
        if name in points:
            ys[name] = formats.label(name)
    figures = painter.over("time", f"Over {formats.label(seen.x)}", ys)
    time = Section("time", "Time", f"{about}{_HOLLOW}", figures)
    if own:
        time = Section("time", "Results", "What the command said, and its time.", figures)
    layers, places = _of_layers(data, rows, painter)
    sections = [time, *layers, *_rooflines(data, painter), *_more(points, painter)]
    drawn = [section for section in sections if section.figures]
    return Drawn(drawn, painter.data, ys, [note] if note else [], places)


def _of_layers(
    data: Dataset, rows: pd.DataFrame, painter: Painter
) -> tuple[list[Section], list[str]]:
    """Draw where the time goes; also return the values of x at which that is shown."""
    seen = painter.seen
    tables = painter.data
    if not data.sweep_dir.layers.exists():
        return [], []
    layers = layer_rows(data, rows, seen)
    if layers.empty:
        return [], []
    places = dataset.values(layers.dropna(subset=seen.x), seen.x)
    spread = layers[layers[seen.x].isin(_spread(places, _MOST_PLACES))]
    tables["kinds"] = layer_times(spread, seen, "op")
    tables["slowest"] = slowest_table(spread, seen)
    at = "" if seen.x == seen.colour else f", at the {formats.label(seen.x)} chosen above"
    kinds = painter.figures("bars", "kinds", "Time by kind of layer", part="op", at=True)
    slowest = painter.figures("dots", "slowest", "The slowest layers", row="layer", at=True)
    note = f"Means of the layer pass{at}."
    sections = [Section("layers", "Where the time goes", note, [*kinds, *slowest])]
    best = best_table(data, rows, seen)
    if not best.empty:
        tables["best"] = best
        note = (
            "A layer keeps the default unless another algorithm is faster beyond the noise. "
            "Calls that fell back do not count. hpcsweep best predicts what that would gain."
        )
        figures = painter.figures("map", "best", f"Fastest algorithm by {formats.label(seen.x)}")
        sections.append(Section("best", "Fastest algorithm of each convolution", note, figures))
    return sections, dataset.ordered(spread, seen.x)


def _rooflines(data: Dataset, painter: Painter) -> Iterator[Section]:
    """Draw a roofline per GPU of which the peaks are known."""
    pieces = []
    figures = []
    for gpu in painter.seen.gpus or ("",):
        with suppress(UsageError):  # no work columns, or no peaks
            line = rooflines.under_roofs(rooflines.work_of(data, gpu or None), gpu)
            pieces.append(line.pieces[["id", "flop_per_byte", "tflops", "pct_of_roof"]])
            more = {"x": "flop_per_byte", "roofs": [_roof(line.roofs, unit) for unit in line.peaks]}
            figures.append(painter.figure("roofline", "roofline", "Roofline", gpu, **more))
    if not figures:
        return
    points = painter.data["points"][["point_id", *painter.seen.axes]]
    by_point = pd.concat(pieces).rename(columns={"id": "point_id"})
    painter.data["roofline"] = points.merge(by_point)
    note = "FLOPs and bytes are those of the shapes, each tensor moved once; time is the median."
    yield Section("roofline", "Roofline", note, figures)


def _roof(roofs: Roofs, unit: str) -> dict[str, Any]:
    """Return three places of a roof: below its ridge, the ridge, above it."""
    peak = roofs.peak(unit) / 1e12
    slope = roofs.bandwidth / 1e12
    name = f"{unit} {peak:.4g} TFLOP/s, {1000 * slope:.4g} GB/s"
    points = []
    for factor in _ROOF:
        place = peak / slope * factor
        points.append((place, min(peak, place * slope)))
    return {"name": name, "points": points}


def _more(points: pd.DataFrame, painter: Painter) -> Iterator[Section]:
    for name, head in _MORE.items():
        if name in points:
            yield Section(name, head, "", painter.over(name, head, {name: formats.label(name)}))
    split = phase_table(points, painter.seen)
    if not split.empty:
        painter.data["phases"] = split
        figures = painter.figures("bars", "phases", "Phases of a step", part="phase", at=True)
        about = "Means of the phase pass."
        yield Section("phases", "Phases of a training step", about, figures)
