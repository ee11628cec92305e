"""Draws the lines of a plot, and below them how they compare with the baseline; or slow layers.

Quantities on x become lines, names become groups of bars. An unreliable value is hollow. A bar is
hatched, and a mark half filled, if the algorithm did not run in all convolutions. Bars of errors
are the stored 95 % intervals. Of the slowest layers each has a row, and in it a mark per algorithm.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib import rcParams
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hpcsweep.analysis import dataset, formats, layers, output
from hpcsweep.analysis.formats import View
from hpcsweep.analysis.output import COLOURS, LOOK, MARKERS, WIDE, Axes, Look, picture
from hpcsweep.analysis.plot import Dot, Line, Plot
from hpcsweep.analysis.roofline.work import labels
from hpcsweep.errors import UsageError

Height = Callable[[Dot], tuple[float | None, bool]]  # where a dot stands; if it is hollow
Style = tuple[str, str, str]  # colour, marker, dash

_MOST_LINES: Final = 12  # that a reader can tell apart in one picture
_INSIDE: Final = 4  # so many lines have their legend inside the picture
_TICKS: Final = 12  # so many places have a tick each
_HEIGHT: Final = 4.8
_HATCH: Final = "////"
_DASHES: Final = ("-", "--", ":", "-.")
_LETTERS: Final = 60  # of a layer's name, per inch of width, in text of one point
_ABOVE: Final = 1.7  # inches for all but the rows of layers


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
    values = [dot.y for dot in plot.dots]
    for wanted, name, places in ((log_x, plot.x, plot.places), (log_y, plot.y, values)):
        if wanted and min(places) <= 0:
            raise UsageError(f"{name} has values that are not positive: no logarithmic axis")
    with picture(path, look, height) as figure:
        _fill(figure, plot, look, log_x=log_x, log_y=log_y)


def _height(plot: Plot) -> float:
    """Return inches; `UsageError` where there are more lines than a picture can hold."""
    if len(plot.lines) > _MOST_LINES:
        raise UsageError(
            f"{len(plot.lines)} lines ({' x '.join(plot.by)}) are too many for a picture, "
            f"which holds {_MOST_LINES}: choose what tells lines apart with --by, or what to "
            f"show with --where {plot.by[0]}=..."
        )
    return _HEIGHT * (1.5 if plot.against else 1)


def _styles(plot: Plot) -> list[Style]:
    """Return the style of each line: of an algorithm its own; another axis turns the mark."""
    names = [str(line.by.get("algorithm", line.label)) for line in plot.lines]
    own = output.styles(dict.fromkeys(names))
    others: dict[Any, int] = {}
    styles = []
    for name, line in zip(names, plot.lines, strict=True):
        rest = tuple(value for axis, value in line.by.items() if axis != "algorithm")
        at = others.setdefault(rest, len(others)) if "algorithm" in line.by else 0
        turned = MARKERS[(MARKERS.index(own[name][1]) + at) % len(MARKERS)]
        styles.append((own[name][0], turned, _DASHES[at % len(_DASHES)]))
    return styles


def _fill(figure: Figure, plot: Plot, look: Look = LOOK, *, log_x: bool, log_y: bool) -> None:
    rows: Any = figure.subplots(2 if plot.against else 1, squeeze=False, sharex=True)
    panels = rows[:, 0]
    top = panels[0]
    bottom = panels[-1]
    styles = _styles(plot)
    _panel(top, plot, styles, lambda dot: (dot.y, dot.doubtful))
    title = f"{plot.data.sweep_dir.name}: {formats.label(plot.y)}"
    output.head(figure, top, look, title, dataset.hardware(plot.rows))
    top.set_ylabel(formats.label(plot.y))
    if plot.against:
        _panel(bottom, plot, styles, lambda dot: (dot.speedup, dot.unsure))
        bottom.axhline(1, color="0.3", linewidth=0.8, linestyle="--")
        bottom.set(ylabel=plot.compared.replace(" ", "\n", 1).replace(",", ",\n"))
    bottom.set(xlabel=formats.label(plot.x))
    _scales(panels, plot, log_x=log_x, log_y=log_y)
    _legend(figure, top, plot, styles, look)
    _without_overlap(figure, bottom.xaxis)


def _panel(axes: Axes, plot: Plot, styles: Sequence[Style], height: Height) -> None:
    for index, (line, style) in enumerate(zip(plot.lines, styles, strict=True)):
        if plot.numeric:
            _line(axes, line, style, height)
        else:
            _bars(axes, plot, index, style[0], height)
    _grid(axes, "both" if plot.numeric else "y")


def _grid(axes: Axes, along: str) -> None:
    axes.grid(which="major", axis=along, alpha=0.3)
    axes.set_axisbelow(True)


def _line(axes: Axes, line: Line, style: Style, height: Height) -> None:
    colour, marker, dash = style
    dots = [(dot, y, doubt) for dot in line.dots for y, doubt in [height(dot)] if y is not None]
    xs = [dot.x for dot, _, _ in dots]
    ys = [y for _, y, _ in dots]
    axes.plot(xs, ys, color=colour, ls=dash, linewidth=1.2)
    for dot, y, doubt in dots:
        fill = "none" if doubt else "left" if dot.partial else "full"
        axes.plot(dot.x, y, marker, color=colour, fillstyle=fill, markersize=5)
        _interval(axes, dot, y, dot.x, colour)


def _interval(axes: Axes, dot: Dot, y: float, x: float, colour: str) -> None:
    if dot.low is not None and dot.high is not None and y == dot.y:
        axes.vlines(x, dot.low, dot.high, color=colour, linewidth=1.2)


def _bars(axes: Axes, plot: Plot, index: int, colour: str, height: Height) -> None:
    places = plot.places
    width = 0.8 if plot.stacked else 0.8 / len(plot.lines)
    below = [dot for line in plot.lines[:index] for dot in line.dots] if plot.stacked else []
    for dot in plot.lines[index].dots:
        left = places.index(dot.x) - 0.4 + (0 if plot.stacked else width * index)
        top, doubtful = height(dot)
        face = "white" if doubtful else colour
        style = {"align": "edge", "facecolor": face, "edgecolor": colour, "linewidth": 1.2}
        style["bottom"] = sum(part.y for part in below if part.x == dot.x)
        if dot.partial:
            style |= {"hatch": _HATCH, "edgecolor": _ink(colour) if face == colour else colour}
        axes.bar(left, top or 0.0, width * 0.92, **style)
        _interval(axes, dot, top or 0.0, left + width * 0.46, "0.2")
    axes.set_xticks(range(len(places)), [str(place) for place in places])


def _ink(colour: str) -> str:
    """Return black or white, whichever is seen on a colour."""
    red, green, blue = to_rgb(colour)
    return "white" if 0.2 * red + 0.7 * green + 0.1 * blue < 0.35 else "black"


def _scales(panels: Axes, plot: Plot, *, log_x: bool, log_y: bool) -> None:
    top = panels[0]
    if plot.numeric:  # intervals of unreliable values do not set the scale
        sure = [end for dot in plot.dots if not dot.doubtful for end in (dot.low, dot.high)]
        ends = [*(dot.y for dot in plot.dots), *(end for end in sure if end is not None)]
        highest = max(ends)
        lowest = min(ends)
        top.set_ylim(top=highest * (1.1 if highest > 0 else 0.9))
        if log_y and lowest > 0:
            top.set_ylim(bottom=lowest / 1.1)
    if log_y:
        top.set_yscale("log")
        output.plain_numbers(top.yaxis)
    else:
        for axes in panels:
            axes.set_ylim(bottom=0)
    if not plot.numeric:
        return
    if log_x:
        top.set_xscale("log")
        output.plain_numbers(top.xaxis)
    if len(plot.places) <= _TICKS:
        panels[-1].set_xticks(plot.places, [f"{place:g}" for place in plot.places])
        panels[-1].set_xticks([], minor=True)


def _legend(figure: Figure, axes: Axes, plot: Plot, styles: Sequence[Style], look: Look) -> None:
    """Say what the lines are: inside where they are few, else beside the picture."""
    handles = []
    bar = not plot.numeric
    if len(plot.lines) > 1 or plot.by:
        handles = [
            _entry(line.label, colour, "full", bar=bar, marker=marker, linestyle=dash)
            for line, (colour, marker, dash) in zip(plot.lines, styles, strict=True)
        ]
    if doubts := dataset.doubts(plot.rows):
        why = ":\n" + ",\n".join(doubts) if look.width >= WIDE else ""
        handles.append(_entry(f"unreliable{why}", "0.4", "none", bar=bar))
    if any(dot.partial for dot in plot.dots):
        handles.append(_entry("in a part of\nthe convolutions", "0.4", "left", bar=bar))
    title = plot.by[0].replace("_", " ") if handles and len(plot.by) == 1 else None
    few = len(handles) <= _INSIDE and plot.numeric
    auto = "inside" if few or look.width < WIDE else "right"
    output.legend(figure, axes, handles, look, title=title, ncols=2, auto=auto)


def _entry(
    label: str, colour: str, fill: str, *, bar: bool = False, **style: str
) -> Line2D | Patch:
    """Return what explains a mark, or a bar: one that is not full is white, or hatched."""
    if bar:
        face = colour if fill == "full" else "white"
        hatch = _HATCH if fill == "left" else None
        return Patch(facecolor=face, edgecolor=colour, hatch=hatch, label=label)
    mark: Any = {"marker": "o", "linestyle": "none", "markersize": 5, **style}
    return Line2D([], [], color=colour, fillstyle=fill, label=label, **mark)


def _without_overlap(figure: Figure, axis: Axes) -> None:
    """Turn labels that overlap, and then leave out those that still do."""
    for turned in (False, True):
        if turned:
            axis.set_tick_params(labelrotation=30)
            for label in axis.get_ticklabels():  # it ends below its place
                label.set(ha="right", rotation_mode="anchor")
        figure.draw_without_rendering()
        labels = [label for label in axis.get_ticklabels() if label.get_text()]
        overlapping = _overlapping(labels)
        if all(label.get_text().replace(".", "").isdigit() for label in labels) or not overlapping:
            break
    for label in overlapping:
        label.set_visible(False)


def _overlapping(labels: Sequence[Any]) -> list[Any]:
    """Return the labels that overlap with one before them that stays; turned ones are flat."""
    end = float("-inf")
    overlapping = []
    for label in labels:
        box = label.get_window_extent()
        width = label.get_fontsize() * 2 if label.get_rotation() else box.width + 4
        if box.x1 - width < end:
            overlapping.append(label)
        else:
            end = box.x1
    return overlapping


def draw_layers(slowest: View, path: Path, *, log: bool = False, look: Look = LOOK) -> None:
    """Write a picture of the table that `layers.slowest_layers` returns.

    `UsageError` where there are more algorithms than a picture holds, or the file cannot be
    written.
    """
    names = slowest.record["algorithms"]
    if len(names) > len(COLOURS):
        raise UsageError(
            f"{len(names)} algorithms are too many for a picture, which holds {len(COLOURS)}: "
            "choose with --where algorithm=..."
        )
    row = look.font / 72 * max(1.7, 0.6 * len(names))
    with picture(path, look, _ABOVE + row * len(slowest.frame)) as figure:
        _fill_layers(figure, slowest, look, log=log)


def _fill_layers(figure: Figure, slowest: View, look: Look = LOOK, *, log: bool) -> None:
    table = slowest.frame
    record = slowest.record
    axes = figure.add_subplot()
    styles = output.styles(record["algorithms"])
    for index, (name, style) in enumerate(styles.items()):
        height = (index + 0.5) / len(styles) * 0.8 - 0.4  # above and below the middle of the row
        _marks(axes, slowest, name, height, style)
    for place in range(0, len(table), 2):
        axes.axhspan(place - 0.5, place + 0.5, color="0.5", alpha=0.1, linewidth=0)
    names = table[record["by"]]
    short = labels(names, int(_LETTERS * figure.get_figwidth() / rcParams["font.size"]))
    rows = zip(names, table["share_pct"], strict=True)
    axes.set_yticks(range(len(table)), [f"{short[name]}  {share:.1f} %" for name, share in rows])
    axes.set_ylim(len(table) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0, labelsize="small")
    if log:
        axes.set_xscale("log")
        output.plain_numbers(axes.xaxis)
    else:
        axes.set_xlim(left=0)
    output.head(figure, axes, look, slowest.title, record["hardware"])
    axes.set_xlabel(formats.label(record["metric"]))
    _grid(axes, "x")
    handles = [
        _entry(name, colour, "full", marker=marker) for name, (colour, marker) in styles.items()
    ]
    if table["fallbacks"].any():
        handles.append(_entry("some calls ran another algorithm", "0.4", "left"))
    columns = min(4 if look.width >= WIDE else 2, len(handles))
    output.legend(figure, axes, handles, look, ncols=columns)


def _marks(axes: Axes, table: View, name: str, height: float, style: tuple[str, str]) -> None:
    """Draw the times of an algorithm, so high above or below the middles of the rows."""
    rows = table.frame
    (colour, marker) = style
    if f"{name}_lo" in rows:
        ends = rows[f"{name}_lo"], rows[f"{name}_hi"]
        axes.hlines(rows.index + height, *ends, color=colour, linewidth=1.2)
    fell = layers.fell(rows, name)
    for fill, some in (("left", rows[fell]), ("full", rows[~fell])):
        looks: Any = {"color": colour, "fillstyle": fill, "markersize": 6, "linestyle": "none"}
        axes.plot(some[name], some.index + height, marker, **looks)
