"""Draws the pictures: lines or bars of a plot, and rooflines; `drawing` says how all of them look.

In a plot quantities on x become lines, names become groups of bars, and below them is how they
compare with the baseline. An unreliable value is hollow. A bar is hatched, and a mark half filled,
if the algorithm did not run in all convolutions. Bars of errors are the stored 95 % intervals.

A roofline is performance over arithmetic intensity, both logarithmic.

matplotlib is used without pyplot, so that it needs no display and leaves no global state.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import offset_copy

from hpcsweep.analysis import dataset, drawing, formats, reliability
from hpcsweep.analysis.drawing import COLOURS, LOOK, MARKERS, Axes, Look
from hpcsweep.analysis.plot import Plot
from hpcsweep.analysis.roofline.rooflines import Roofline
from hpcsweep.analysis.roofline.roofs import labels
from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

Style = tuple[str, str, str]  # colour, marker, dash

_MOST_LINES: Final = 12  # that a reader can tell apart in one picture: as many as there are colours
_INSIDE: Final = 4  # so many lines have their legend inside the picture; more would hide the lines
_HEIGHT: Final = 4.8  # inches, matplotlib's default
_WITH_BASELINE: Final = 1.5  # times as high is a picture with a second panel
_GROUP: Final = 0.8  # of the distance between names are bars; the rest is the gap between groups
_BAR: Final = 0.92  # of its share of the group a bar has, so that bars do not touch
_CENTRE: Final = 0.46  # half of that: bars stand by their centre
_DARK: Final = 0.35  # of white: black hatching is not seen on what is darker
_HATCH: Final = "////"
_DASHES: Final = ("-", "--", ":", "-.")


class Picture(Figure):
    """A figure that a notebook shows by itself."""

    def _repr_png_(self) -> bytes:
        drawn = io.BytesIO()
        self.savefig(drawn, dpi=LOOK.dpi, format="png")
        return drawn.getvalue()


def picture_of(plot: Plot, look: Look = LOOK) -> Picture:
    """Return a picture, without logarithmic axes; `UsageError` as for `draw_plot`."""
    height = _height(plot)
    figure = Picture(figsize=(look.width, look.height or height), layout="constrained")
    _fill(figure, plot, look, log_x=False, log_y=False)
    return figure


def draw_plot(
    plot: Plot, path: Path, *, log_x: bool = False, log_y: bool = False, look: Look = LOOK
) -> None:
    """Write a picture; the suffix says which kind.

    `UsageError` where there are more lines than a picture holds or has room for, a logarithmic axis
    has values that are not positive, or the file cannot be written.
    """
    height = _height(plot)
    if log_x and not plot.numeric:
        raise UsageError(f"{plot.x} holds names: no logarithmic axis for them")
    values = plot.cells["value"]
    for wanted, name, places in ((log_x, plot.x, plot.places), (log_y, plot.y, values)):
        if wanted and min(places) <= 0:
            raise UsageError(f"{name} has values that are not positive: no logarithmic axis")
    with drawing.picture(path, look, height) as figure:
        _fill(figure, plot, look, log_x=log_x, log_y=log_y)


def _height(plot: Plot) -> float:
    """Return inches; `UsageError` where there are more lines than a picture can hold."""
    if len(plot.lines) > _MOST_LINES:
        raise UsageError(
            f"{len(plot.lines)} lines ({' x '.join(plot.by)}) are too many for a picture, "
            f"which holds {_MOST_LINES}: choose what tells lines apart with --by, or what to "
            f"show with --where {plot.by[0]}=..."
        )
    return _HEIGHT * _WITH_BASELINE if plot.against else _HEIGHT


def _styles(plot: Plot) -> list[Style]:
    """Return the style of each line: of an algorithm its own; another axis turns the mark."""
    firsts = plot.keys.loc[~plot.cells["line"].duplicated(), [*plot.by]].astype(str)
    if "algorithm" not in firsts:
        own = drawing.styles(plot.lines)
        return [(*own[line], "-") for line in plot.lines]
    own = drawing.styles(firsts["algorithm"].unique())
    others = [*firsts.drop(columns="algorithm").itertuples(index=False, name=None)]
    places = [*dict.fromkeys(others)]
    styles = []
    for name, values in zip(firsts["algorithm"], others, strict=True):
        colour, marker = own[name]
        place = places.index(values)
        turned = MARKERS[(MARKERS.index(marker) + place) % len(MARKERS)]
        styles.append((colour, turned, _DASHES[place % len(_DASHES)]))
    return styles


def _fill(figure: Figure, plot: Plot, look: Look = LOOK, *, log_x: bool, log_y: bool) -> None:
    rows: Any = figure.subplots(2 if plot.against else 1, squeeze=False, sharex=True)
    panels = rows[:, 0]
    top = panels[0]
    bottom = panels[-1]
    styles = _styles(plot)
    _panel(top, plot, styles, "value", "doubtful")
    title = f"{plot.data.sweep_dir.name}: {formats.label(plot.y)}"
    drawing.add_title(figure, top, look, title, dataset.hardware(plot.rows))
    top.set_ylabel(formats.label(plot.y))
    if plot.against:
        _panel(bottom, plot, styles, "speedup", "unsure")
        bottom.axhline(1, color="0.3", linewidth=0.8, linestyle="--")
        bottom.set(ylabel=plot.compared.replace(" ", "\n", 1).replace(",", ",\n"))
    bottom.set(xlabel=formats.label(plot.x))
    _scales(panels, plot, log_x=log_x, log_y=log_y)
    _legend(figure, top, plot, styles, look)


def _panel(axes: Axes, plot: Plot, styles: Sequence[Style], column: str, doubt: str) -> None:
    """Draw a column; where `doubt` is true a mark or a bar is hollow."""
    width = _GROUP / len(plot.lines)
    for index, (line, style) in enumerate(zip(plot.lines, styles, strict=True)):
        colour, marker, dash = style
        dots = plot.cells[plot.cells["line"] == line].dropna(subset=column)
        x = dots["place"]
        if plot.numeric:
            axes.plot(x, dots[column], color=colour, ls=dash, lw=1.2)
        else:
            x = x.map(plot.places.index) - _GROUP / 2 + width * (index + _CENTRE)
        for place, dot in zip(x, dots.to_dict("records"), strict=True):
            fill = "full"
            if dot[doubt]:
                fill = "none"
            elif dot["partial"]:
                fill = "left"
            if plot.numeric:
                axes.plot(place, dot[column], marker, color=colour, fillstyle=fill, markersize=5)
            else:
                _bar(axes, place, dot[column], width, colour, fill, partial=dot["partial"])
            if column == "value" and dot["low"] <= dot["high"]:
                ink = colour if plot.numeric else "0.2"
                axes.vlines(place, dot["low"], dot["high"], color=ink, linewidth=1.2)
    if not plot.numeric:
        turned: Any = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(range(len(plot.places)), [*map(str, plot.places)], **turned)
    axes.grid(which="major", axis="both" if plot.numeric else "y", alpha=0.3)
    axes.set_axisbelow(True)


def _bar(  # noqa: PLR0913, PLR0917 - where it stands, and how it looks
    axes: Axes, place: float, height: float, width: float, colour: str, fill: str, *, partial: bool
) -> None:
    axes.bar(
        place, height, width * _BAR, linewidth=1.2, hatch=_HATCH if partial else None,
        facecolor="white" if fill == "none" else colour,
        edgecolor=_ink(colour) if fill == "left" else colour,
    )  # fmt: skip


def _ink(colour: str) -> str:
    """Return black or white, whichever is seen on a colour."""
    red, green, blue = to_rgb(colour)
    # about as bright as eyes see them (ITU-R BT.709: 0.21, 0.72, 0.07)
    return "white" if 0.2 * red + 0.7 * green + 0.1 * blue < _DARK else "black"


def _scales(panels: Axes, plot: Plot, *, log_x: bool, log_y: bool) -> None:
    top = panels[0]
    if plot.numeric:  # intervals of unreliable values do not set the scale
        sure = plot.cells.loc[~plot.cells["doubtful"], ["low", "high"]].astype(float)
        drawn = np.append(plot.cells["value"], sure)
        highest = np.nanmax(drawn)
        lowest = np.nanmin(drawn)
        # a tenth of room at the ends
        top.set_ylim(top=highest * (1.1 if highest > 0 else 0.9))
        if log_y and lowest > 0:
            top.set_ylim(bottom=lowest / 1.1)
    if log_y:
        top.set_yscale("log")
        drawing.plain_numbers(top.yaxis)
    else:
        for axes in panels:
            axes.set_ylim(bottom=0)
    if log_x:
        top.set_xscale("log")
        drawing.plain_numbers(top.xaxis)


def _legend(figure: Figure, axes: Axes, plot: Plot, styles: Sequence[Style], look: Look) -> None:
    """Say what the lines are: inside where they are few, else beside the picture."""
    handles = []
    bar = not plot.numeric
    if len(plot.lines) > 1 or plot.by:
        for line, (colour, marker, dash) in zip(plot.lines, styles, strict=True):
            handles.append(_entry(line, colour, "full", bar=bar, marker=marker, linestyle=dash))
    doubts = reliability.doubts(plot.rows)
    if doubts:
        why = ":\n" + ",\n".join(doubts) if look.titled else ""
        handles.append(_entry(f"unreliable{why}", "0.4", "none", bar=bar))
    if plot.cells["partial"].any():
        handles.append(_entry("in a part of\nthe convolutions", "0.4", "left", bar=bar))
    if not handles:
        return
    style: Any = {"handles": handles, "fontsize": "small", "title_fontsize": "small"}
    if len(plot.by) == 1:
        style["title"] = plot.by[0].replace("_", " ")
    if (len(handles) <= _INSIDE and plot.numeric) or not look.titled:
        # closer than matplotlib's own, and see-through: lines lie below
        style |= {"handlelength": 1.2, "labelspacing": 0.25, "borderpad": 0.25, "framealpha": 0.7}
        axes.legend(**style)
    else:
        figure.legend(**style, loc="outside right upper", frameon=False)


def _entry(label: str, colour: str, fill: str, *, bar: bool, **style: str) -> Line2D | Patch:
    """Return what explains a mark, or a bar: one that is not full is white, or hatched."""
    if bar:
        face = colour if fill == "full" else "white"
        hatch = _HATCH if fill == "left" else None
        return Patch(facecolor=face, edgecolor=colour, hatch=hatch, label=label)
    mark: Any = {"marker": "o", "linestyle": "none", "markersize": 5, **style}
    return Line2D([], [], color=colour, fillstyle=fill, label=label, **mark)


# groups with a colour of their own, in the order of their time; more would not be told apart
_NAMED: Final = 8
_GAP: Final = 1.08  # between a roof and its label, as a factor
_REST: Final = MARKERS[-1]
_SQUARE: Final = 6.4  # inches high: rather square, since both axes are logarithmic
_LABEL: Final = 46  # characters: two columns of the legend fill the width
# marker areas, points squared: a small one is still seen, a large one hides no neighbour
_SMALLEST = 20.0
_LARGEST = 220.0


def draw_roofline(
    roofline: Roofline, path: Path, *, grouped: bool = False, look: Look = LOOK
) -> None:
    """Write a picture of every piece, or of the sums by name; the suffix says which format."""
    pieces = roofline.groups if grouped else roofline.pieces
    with drawing.picture(path, look, _SQUARE) as figure:
        fill_roofline(figure, roofline, pieces, look)


def fill_roofline(
    figure: Figure, roofline: Roofline, pieces: pd.DataFrame, look: Look = LOOK
) -> None:
    """Draw pieces of work below their roofs."""
    drawn = pieces[(pieces["flops"] > 0) & (pieces["bytes"] > 0)]
    axes: Axes = figure.add_subplot()
    _points(axes, roofline, drawn)
    _roofs(axes, roofline, drawn)
    axes.set(xscale="log", yscale="log")
    drawing.add_title(figure, axes, look, roofline.label, roofline.export.hardware)
    axes.set(xlabel="arithmetic intensity (FLOP/byte)", ylabel="performance (TFLOP/s)")
    for axis in (axes.xaxis, axes.yaxis):
        drawing.plain_numbers(axis)
    axes.grid(which="major", alpha=0.3)
    if len(drawn):
        place: Any = {"loc": "outside upper center", "ncols": 2}
        legend: Any = figure.legend(**place, fontsize="small", frameon=False)
        for handle in legend.legend_handles:
            # matplotlib's own area: the first piece of a name may have a mark that is hardly seen
            handle.set_sizes([36])
        _areas(axes, drawn)


def _points(axes: Axes, roofline: Roofline, drawn: pd.DataFrame) -> None:
    longest = drawn["time_us"].max()
    wrong = drawn["above_roof"]
    sane = drawn[~wrong]
    there = set(sane["name"])
    names = [name for name in roofline.groups["name"] if name in there]
    # two colours are left for the others and for mistakes
    named = len(names) if len(names) <= len(COLOURS) - 2 else _NAMED
    for index, (name, label) in enumerate(labels(names[:named], _LABEL).items()):
        style = {"label": label, "color": COLOURS[index], "marker": MARKERS[index]}
        _scatter(axes, sane[sane["name"] == name], longest, **style)
    if names[named:]:
        others = sane[sane["name"].isin(names[named:])]
        label = f"{len(names) - named} others"
        _scatter(axes, others, longest, label=label, color="0.6", marker=_REST)
    if wrong.any():
        label = f"above the roof: a mistake ({wrong.sum()})"
        _scatter(axes, drawn[wrong], longest, label=label, color="red", marker="x")


def _areas(axes: Axes, drawn: pd.DataFrame) -> None:
    """Explain the areas of marks: that of the longest piece, and those of smaller ones."""
    longest = drawn["time_us"].max() / 1e6
    smallest = _SMALLEST / _LARGEST
    handles = []
    for share in (1, 0.3, smallest):
        label = _time(share * longest)
        if share == smallest:
            label += " or less"
        handles.append(axes.scatter([], [], s=_LARGEST * share, color="0.6", label=label))
    axes.legend(handles=handles, title="area: time", fontsize="small", title_fontsize="small")


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    if seconds * 1e3 >= 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} us"


def _scatter(axes: Axes, pieces: pd.DataFrame, longest: float, **style: Any) -> None:  # noqa: ANN401
    areas = (_LARGEST * pieces["time_us"] / longest).clip(lower=_SMALLEST)
    edge = {} if style.get("marker") == "x" else {"edgecolors": "white", "linewidths": 0.5}
    places = pieces["flop_per_byte"], pieces["tflops"]
    # a mark above the grid, which shows others below it
    axes.scatter(*places, s=areas, alpha=0.85, zorder=3, **edge, **style)


def _roofs(axes: Axes, roofline: Roofline, drawn: pd.DataFrame) -> None:
    """Draw the memory roof, and a compute roof per peak; x is FLOP/byte, y is TFLOP/s."""
    slope = roofline.roofs.bandwidth / 1e12
    peaks = _peaks(roofline)
    intensities = [*drawn["flop_per_byte"], *(peak / slope for peak in peaks)]
    # about half a decade of room around all marks and ridges, where labels stand
    left = min(intensities, default=1) / 3
    right = max(intensities, default=1) * 4
    highest = max(peaks, default=slope)
    bottom = min([*drawn["tflops"], min(peaks, default=highest)]) / 3
    axes.set(xlim=(left, right), ylim=(bottom, highest * 3))
    axes.plot([left, highest / slope], [left * slope, highest], color="0.2")
    for peak, units in peaks.items():
        axes.plot([peak / slope, right], [peak, peak], color="0.2")
        text = f"{', '.join(units)} {peak:g} TFLOP/s "
        axes.text(right, peak * _GAP, text, ha="right", va="bottom", fontsize="small")
    middle = math.sqrt(max(left, bottom / slope) * highest / slope)
    along: Any = {"rotation": math.degrees(math.atan(slope)), "transform_rotates_text": True}
    above = offset_copy(axes.transData, fig=axes.figure, x=-2, y=3, units="points")
    axes.text(
        middle, middle * slope, f"{1000 * slope:g} GB/s", transform=above,
        ha="center", va="bottom", fontsize="small", rotation_mode="anchor", **along,
    )  # fmt: skip


def _peaks(roofline: Roofline) -> dict[float, list[str]]:
    """Return the units that did any operation, by their peak; several may have the same."""
    if roofline.roofs.single:
        return {roofline.roofs.single / 1e12: ["peak"]}
    found: dict[float, list[str]] = {}
    for unit, peak in roofline.peaks.items():
        found.setdefault(peak, []).append(unit)
    return found
