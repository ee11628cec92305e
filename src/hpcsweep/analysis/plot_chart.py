"""Draws the lines of a plot, and below them how they compare with the baseline; `plot` makes them.

Quantities on x become lines, names become groups of bars. An unreliable value is hollow. A bar is
hatched, and a mark half filled, if the algorithm did not run in all convolutions. Bars of errors
are the stored 95 % intervals.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hpcsweep.analysis import dataset, drawing, formats, reliability
from hpcsweep.analysis.drawing import LOOK, MARKERS, Axes, Look
from hpcsweep.analysis.plot import Plot
from hpcsweep.errors import UsageError

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
    """Return a picture, without logarithmic axes; `UsageError` as for `draw`."""
    height = _height(plot)
    figure = Picture(figsize=(look.width, look.height or height), layout="constrained")
    _fill(figure, plot, look, log_x=False, log_y=False)
    return figure


def draw(
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
        highest = max(plot.cells["value"].max(), sure.max().fillna(-math.inf).max())
        lowest = min(plot.cells["value"].min(), sure.min().fillna(math.inf).min())
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
