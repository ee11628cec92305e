"""Chooses what the page of a sweep shows: sections with figures, and the data that they draw.

A figure is there if its columns hold numbers. Each GPU has figures of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pandas as pd

from hpcsweep.analysis import dataset, formats
from hpcsweep.analysis.page import frames
from hpcsweep.analysis.page.figures import Painter
from hpcsweep.analysis.roofline import model as rooflines
from hpcsweep.analysis.roofline import sweep as roofline_of_sweep
from hpcsweep.errors import UsageError
from hpcsweep.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hpcsweep.analysis.dataset import Dataset
    from hpcsweep.analysis.history import RunHistory
    from hpcsweep.analysis.page.figures import Figure
    from hpcsweep.analysis.page.frames import Layout

    Each = Callable[[Callable[[Painter], Figure]], list[Figure]]  # a figure per GPU

_HOLLOW: Final = "Hollow marks are unreliable: hover them for the flags."


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


def make(data: Dataset, seen: Layout, history: RunHistory | None = None) -> Drawn:
    """Return the sections that this sweep has something for."""
    rows, note = frames.thinned(data.numbers(data.rows, "median_ms"), seen.x)
    points = frames.points(rows, seen)
    values, found = dataset.ordered(rows, seen.colour), {"points": points}
    painters = [Painter(seen, values, gpu, found) for gpu in seen.gpus or ("",)]

    def each(paint: Callable[[Painter], Figure]) -> list[Figure]:
        figures = ((one, paint(one)) for one in painters)
        return [figure for one, figure in figures if not one.says_nothing(figure)]

    base, ys = frames.baseline(rows, seen), {"median_ms": "median (ms)"}
    ys |= {"speedup": f"speed-up over {base}"} if base else {}
    ys |= {name: formats.label(name) for name in frames.RATES if name in points}
    told = "Medians with their 95 % intervals. " if "ci95_lo_ms" in points else "Medians. "
    told += f"A speed-up above 1 is faster than {seen.colour} {base}. " if base else ""
    figures = each(lambda one: one.over("time", f"Over {formats.label(seen.x)}", ys))
    sections = [Section("time", "Time", f"{told}{_HOLLOW}", figures)]
    if history:
        found["history"] = frames.history(history, seen)
        told = "; ".join((history.summary(), *history.changes))
        note_ = f"Each configuration over the first of its runs; {told}."
        figures = each(lambda one: one.history("Time over the runs"))
        sections.append(Section("history", "Over the runs", note_, figures))
    layers, shown = _of_layers(data, rows, seen, found, each)
    sections += layers
    if "algorithm_coverage_pct" in points:
        sections.append(Section(
            "coverage", "Coverage", "The share of the convolution FLOPs that ran the requested "
            "algorithm; the default of the framework did the rest. One mark per point.",
            each(lambda one: one.coverage("Coverage")),
        ))  # fmt: skip
    sections += _rooflines(data, seen, painters, found)
    sections += _more(points, seen, each, found)
    drawn = [section for section in sections if section.figures]
    return Drawn(drawn, found, ys, [note] if note else [], shown)


def _of_layers(
    data: Dataset, rows: pd.DataFrame, seen: Layout, found: dict[str, pd.DataFrame], each: Each
) -> tuple[list[Section], list[str]]:
    """Draw where the time goes; also return the values of x at which that is shown."""
    layers = frames.with_axes(data, rows, seen) if data.run.layers.exists() else pd.DataFrame()
    if layers.empty:
        return [], []
    some = frames.at_some_places(layers, seen)
    found["kinds"], found["slowest"] = frames.kinds(some, seen), frames.slowest(some, seen)
    at = "" if seen.x == seen.colour else f", at the {formats.label(seen.x)} chosen above"
    kinds = each(lambda one: one.stacked("kinds", "op", "Time by kind of layer"))
    slowest = each(lambda one: one.slowest("The slowest layers"))
    note = f"Means of the layer pass{at}."
    sections = [Section("layers", "Where the time goes", note, [*kinds, *slowest])]
    best = frames.best(data, rows, seen)
    if not best.empty:
        found["best"] = best
        note = (
            "A layer keeps the default unless another algorithm is faster beyond the noise. "
            "Calls that fell back do not count. hpcsweep best predicts what that would gain."
        )
        figures = each(lambda one: one.best(f"Fastest algorithm by {formats.label(seen.x)}"))
        sections.append(Section("best", "Fastest algorithm of each convolution", note, figures))
    return sections, dataset.ordered(some, seen.x)


def _rooflines(
    data: Dataset, seen: Layout, painters: Iterable[Painter], found: dict[str, pd.DataFrame]
) -> list[Section]:
    """Draw a roofline per GPU; where no table has its peaks, without roofs."""
    pieces, figures, unknown = [], [], []
    for one in painters:
        try:
            export = roofline_of_sweep.make(data, one.gpu or None)
        except UsageError:  # this workload has no work columns
            continue
        try:
            line = rooflines.under_roofs(export, one.gpu)
        except UsageError:
            line = None
            unknown.append(one.gpu)
        for piece in export.work:
            share = 100 * line.roofs.share(piece) if line else None
            pieces.append((piece.ident, piece.intensity, piece.rate / 1e12, share))
        roofs, units = (line.roofs, line.units) if line else (None, ())
        figures.append(one.roofline("Roofline", roofs, units))
    if not figures:
        return []
    names = ["point_id", "flop_per_byte", "tflops", "pct_of_roof"]
    found["roofline"] = found["points"][["point_id", *seen.axes]].merge(
        pd.DataFrame(pieces, columns=names)
    )
    note = "FLOPs and bytes are those of the shapes, each tensor moved once; time is the median. "
    note += f"No peaks are known for {', '.join(unknown)}." if unknown else ""
    return [Section("roofline", "Roofline", note, figures)]


def _more(
    points: pd.DataFrame, seen: Layout, each: Each, found: dict[str, pd.DataFrame]
) -> list[Section]:
    heads = {"mem_peak_bytes": "Memory", "energy_j": "Energy of a pass"}

    def section(name: str) -> Section:
        figures = each(lambda one: one.over(name, heads[name], {name: formats.label(name)}))
        return Section(name, heads[name], "", figures)

    sections = [section(name) for name in frames.MORE if name in points]
    split = frames.phases(points, seen)
    if not split.empty:
        found["phases"] = split
        figures = each(lambda one: one.stacked("phases", "phase", "Phases of a step"))
        sections.append(
            Section("phases", "Phases of a training step", "Means of the phase pass.", figures)
        )
    return sections
