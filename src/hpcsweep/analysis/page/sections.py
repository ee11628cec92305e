"""Chooses what the page of a sweep shows: sections with figures, and the data that they draw.

A figure is there if its columns hold numbers, and each GPU has figures of its own. Here is said
what a figure is: kind, data and columns; `figures.js` draws it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from hpcsweep.analysis import dataset, formats
from hpcsweep.analysis.dataset import Dataset
from hpcsweep.analysis.page import frames
from hpcsweep.analysis.page.frames import Layout
from hpcsweep.analysis.roofline import rooflines, sweep_work
from hpcsweep.analysis.roofline.roofs import Roofs
from hpcsweep.errors import UsageError

_HOLLOW: Final = "Hollow marks are unreliable: hover them for the flags."
_FEW: Final = 2  # marks that say nothing if they have one value
# a roof is drawn from far below its ridge to far above: beyond, no kernel has its intensity
_ROOF: Final = (0.003, 1, 30)
_INTERVAL: Final = {"low": "ci95_lo_ms", "high": "ci95_hi_ms"}  # of the median


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
    rows, note = frames.thinned(data.numbers(data.rows, "median_ms"), seen.x, frames.MOST_POINTS)
    points = frames.points(rows, seen)
    painter = Painter(seen, dataset.ordered(rows, seen.colour), {"points": points})
    own = [name for name in dataset.own_results(rows) if name in points]
    ys = {name: formats.label(name) for name in own}
    ys["median_ms"] = "median (ms)"
    about = "Medians with their 95 % intervals. " if "ci95_lo_ms" in points else "Medians. "
    base = frames.baseline(rows, seen)
    if base:
        ys["speedup"] = f"speed-up over {base}"
        about += f"A speed-up above 1 is faster than {seen.colour} {base}. "
    for name in frames.RATES:
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
    layers = frames.with_axes(data, rows, seen)
    if layers.empty:
        return [], []
    spread = frames.at_some_places(layers, seen)
    tables["kinds"] = frames.kinds(spread, seen)
    tables["slowest"] = frames.slowest(spread, seen)
    at = "" if seen.x == seen.colour else f", at the {formats.label(seen.x)} chosen above"
    kinds = painter.figures("bars", "kinds", "Time by kind of layer", part="op", at=True)
    slowest = painter.figures("dots", "slowest", "The slowest layers", row="layer", at=True)
    note = f"Means of the layer pass{at}."
    sections = [Section("layers", "Where the time goes", note, [*kinds, *slowest])]
    best = frames.best(data, rows, seen)
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
            line = rooflines.under_roofs(sweep_work.work_of(data, gpu or None), gpu)
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
    for name, head in (("mem_peak_gib", "Memory"), ("energy_j", "Energy of a pass")):
        if name in points:
            yield Section(name, head, "", painter.over(name, head, {name: formats.label(name)}))
    split = frames.phases(points, painter.seen)
    if not split.empty:
        painter.data["phases"] = split
        figures = painter.figures("bars", "phases", "Phases of a step", part="phase", at=True)
        about = "Means of the phase pass."
        yield Section("phases", "Phases of a training step", about, figures)
