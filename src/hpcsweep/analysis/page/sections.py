"""Chooses what the page of a sweep shows: sections with figures, and the data that they draw.

A figure is there if its columns hold numbers, and each GPU has figures of its own. Here is said
what a figure is: kind, data and columns; `figures.js` draws it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from hpcsweep.analysis import dataset, formats
from hpcsweep.analysis.page import frames
from hpcsweep.analysis.page.frames import Layout
from hpcsweep.analysis.roofline import rooflines, sweep_work
from hpcsweep.analysis.roofline.roofs import Roofs
from hpcsweep.errors import UsageError

_HOLLOW: Final = "Hollow marks are unreliable: hover them for the flags."
_FEW: Final = 2  # marks that say nothing if they have one value
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
        return "-".join(filter(None, ("figure", self.name, self.gpu))).replace(" ", "_")


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
        every = (self.figure(kind, name, title, gpu, **more) for gpu in self.seen.gpus or ("",))
        return [figure for figure in every if not self._says_nothing(figure)]

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
        return Figure(name, title, {**spec, "xTitle": formats.label(str(spec["x"]))}, gpu)

    def over(self, name: str, title: str, ys: dict[str, str]) -> list[Figure]:
        """Draw one of several columns over x, each with its label, a line per colour."""
        ends = {"median_ms": _INTERVAL}
        labelled = {y: {"label": label, **ends.get(y, {})} for y, label in ys.items()}
        return self.figures("lines", name, title, data="points", ys=labelled)

    def _says_nothing(self, figure: Figure) -> bool:
        """Tell whether a figure has one value alone, or one of everything."""
        spec = figure.spec
        rows = self.data[figure.spec["data"]]
        if figure.gpu and "gpu" in rows:
            rows = rows[rows["gpu"] == figure.gpu]
        if spec["kind"] == "lines":
            columns = [rows[y].dropna() for y in spec["ys"] if y in rows]
            return all(len(of) <= (_FEW if len({*of}) == 1 else 1) for of in columns)
        varying = {"bars": spec.get("part"), "map": "algorithm"}
        if spec["kind"] in varying:
            return bool(rows[varying[spec["kind"]]].nunique() < _FEW)
        return spec["kind"] == "dots" and len(rows) <= _FEW


def make(data: dataset.Dataset, seen: Layout) -> Drawn:
    """Return the sections that this sweep has something for."""
    rows, note = frames.thinned(data.numbers(data.rows, "median_ms"), seen.x)
    points = frames.points(rows, seen)
    painter = Painter(seen, dataset.ordered(rows, seen.colour), {"points": points})
    base = frames.baseline(rows, seen)
    own = [name for name in dataset.own_results(rows) if name in points]
    ys = {**{name: formats.label(name) for name in own}, "median_ms": "median (ms)"}
    ys |= {"speedup": f"speed-up over {base}"} if base else {}
    ys |= {name: formats.label(name) for name in frames.RATES if name in points}
    about = "Medians with their 95 % intervals. " if "ci95_lo_ms" in points else "Medians. "
    about += f"A speed-up above 1 is faster than {seen.colour} {base}. " if base else ""
    figures = painter.over("time", f"Over {formats.label(seen.x)}", ys)
    about = "What the command said, and its time." if own else f"{about}{_HOLLOW}"
    sections = [Section("time", "Results" if own else "Time", about, figures)]
    layers, shown = _of_layers(data, rows, painter)
    sections += layers
    sections += [*_rooflines(data, painter), *_more(points, painter)]
    drawn = [section for section in sections if section.figures]
    return Drawn(drawn, painter.data, ys, [note] if note else [], shown)


def _of_layers(
    data: dataset.Dataset, rows: pd.DataFrame, painter: Painter
) -> tuple[list[Section], list[str]]:
    """Draw where the time goes; also return the values of x at which that is shown."""
    seen = painter.seen
    tables = painter.data
    layers = (
        frames.with_axes(data, rows, seen) if data.sweep_dir.layers.exists() else pd.DataFrame()
    )
    if layers.empty:
        return [], []
    some = frames.at_some_places(layers, seen)
    tables["kinds"] = frames.kinds(some, seen)
    tables["slowest"] = frames.slowest(some, seen)
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
    return sections, dataset.ordered(some, seen.x)


def _rooflines(data: dataset.Dataset, painter: Painter) -> Iterable[Section]:
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
    painter.data["roofline"] = painter.data["points"][["point_id", *painter.seen.axes]].merge(
        pd.concat(pieces).rename(columns={"id": "point_id"})
    )
    note = "FLOPs and bytes are those of the shapes, each tensor moved once; time is the median."
    yield Section("roofline", "Roofline", note, figures)


def _roof(roofs: Roofs, unit: str) -> dict[str, Any]:
    """Return three places of a roof: below its ridge, the ridge, above it."""
    peak = roofs.peak(unit) / 1e12
    slope = roofs.bandwidth / 1e12
    name = f"{unit} {peak:.4g} TFLOP/s, {1000 * slope:.4g} GB/s"
    places = (peak / slope * factor for factor in (0.003, 1, 30))
    return {"name": name, "points": [(place, min(peak, place * slope)) for place in places]}


def _more(points: pd.DataFrame, painter: Painter) -> Iterable[Section]:
    for name, head in (("mem_peak_gib", "Memory"), ("energy_j", "Energy of a pass")):
        if name in points:
            yield Section(name, head, "", painter.over(name, head, {name: formats.label(name)}))
    split = frames.phases(points, painter.seen)
    if not split.empty:
        painter.data["phases"] = split
        figures = painter.figures("bars", "phases", "Phases of a step", part="phase", at=True)
        about = "Means of the phase pass."
        yield Section("phases", "Phases of a training step", about, figures)
