"""Draws the lines of a plot, and below them how they compare with the baseline.

Quantities on x become lines, names become groups of bars. An unreliable value is hollow. A bar is
hatched, and a mark half filled, if the algorithm did not run in all convolutions. Bars of errors
are the stored 95 % intervals.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hpcsweep.analysis import dataset, formats, output
from hpcsweep.analysis.output import LOOK, MARKERS, WIDE, Look, caption, picture, plain_numbers
from hpcsweep.analysis.plot import Dot, Line, Plot
from hpcsweep.errors import UsageError

Height = Callable[[Dot], tuple[float | None, bool]]  # where a dot stands; if it is hollow

_INSIDE: Final = 4  # so many lines have their legend inside the picture
_TICKS: Final = 12  # so many places have a tick each
_HEIGHT: Final = 4.8
_HATCH: Final = "////"
_DASHES: Final = ("-", "--", ":", "-.")


class Picture(Figure):
    """A figure that a notebook shows by itself."""

    def _repr_png_(self) -> bytes:
        drawn = io.BytesIO()
        self.savefig(drawn, dpi=LOOK.dpi, format="png")
        return drawn.getvalue()


def picture_of(plot: Plot, look: Look = LOOK) -> Picture:
    """Return a picture; `UsageError` where there are more lines than it holds."""
    plot.check_lines()
    height = look.height or _HEIGHT * (1.5 if plot.against else 1)
    figure = Picture(figsize=(look.width, height), layout="constrained")
    _fill(figure, plot, look, log_x=False, log_y=False)
    return figure


class _Style(NamedTuple):
    colour: str
    marker: str
    dash: str


def draw(
    plot: Plot, path: Path, *, log_x: bool = False, log_y: bool = False, look: Look = LOOK
) -> None:
    """Write a picture; the suffix says which kind.

    `UsageError` where there are more lines than a picture holds or has room for, a logarithmic axis
    has values that are not positive, or the file cannot be written.
    """
    plot.check_lines()
    _check_logs(plot, log_x=log_x, log_y=log_y)
    with picture(path, look, _HEIGHT * (1.5 if plot.against else 1)) as figure:
        _fill(figure, plot, look, log_x=log_x, log_y=log_y)


def _styles(plot: Plot) -> list[_Style]:
    """Return the style of each line: of an algorithm its own; another axis turns the mark."""
    names = [str(line.by.get("algorithm", line.label)) for line in plot.lines]
    known = output.styles(dict.fromkeys(names))
    others: dict[Any, int] = {}
    found = []
    for name, line in zip(names, plot.lines, strict=True):
        rest = tuple(value for axis, value in line.by.items() if axis != "algorithm")
        at = others.setdefault(rest, len(others)) if "algorithm" in line.by else 0
        colour, marker = known[name]
        turned = MARKERS[(MARKERS.index(marker) + at) % len(MARKERS)]
        found.append(_Style(colour, turned, _DASHES[at % len(_DASHES)]))
    return found


def _fill(figure: Figure, plot: Plot, look: Look = LOOK, *, log_x: bool, log_y: bool) -> None:
    rows: Any = figure.subplots(2 if plot.against else 1, squeeze=False, sharex=True)
    panels = rows[:, 0]
    top, bottom = panels[0], panels[-1]
    styles = _styles(plot)
    _panel(top, plot, styles, lambda dot: (dot.y, dot.doubtful))
    if look.titled:
        top.set_title(f"{plot.data.run.name}: {formats.label(plot.y)}", wrap=True)
        caption(figure, dataset.hardware(plot.rows))
    top.set_ylabel(formats.label(plot.y))
    if plot.against:
        _panel(bottom, plot, styles, lambda dot: (dot.speedup, dot.unsure))
        bottom.axhline(1, color="0.3", linewidth=0.8, linestyle="--")
        bottom.set(ylabel=plot.compared.replace(" ", "\n", 1).replace(",", ",\n"))
    bottom.set(xlabel=formats.label(plot.x))
    _scales(panels, plot, log_x=log_x, log_y=log_y)
    _legend(figure, top, plot, styles, look)
    _without_overlap(figure, bottom.xaxis)


def _check_logs(plot: Plot, *, log_x: bool, log_y: bool) -> None:
    if log_x and not plot.numeric:
        raise UsageError(f"{plot.x} holds names: no logarithmic axis for them")
    values = [dot.y for line in plot.lines for dot in line.dots]
    for wanted, name, found in ((log_x, plot.x, plot.places), (log_y, plot.y, values)):
        if wanted and min(found) <= 0:
            raise UsageError(f"{name} has values that are not positive: no logarithmic axis")


def _panel(axes: Any, plot: Plot, styles: Sequence[_Style], height: Height) -> None:  # noqa: ANN401 - Axes
    for index, (line, style) in enumerate(zip(plot.lines, styles, strict=True)):
        if plot.numeric:
            _line(axes, line, style, height)
        else:
            _bars(axes, plot, index, style.colour, height)
    axes.grid(which="major", axis="both" if plot.numeric else "y", alpha=0.3)
    axes.set_axisbelow(True)


def _line(axes: Any, line: Line, style: _Style, height: Height) -> None:  # noqa: ANN401 - Axes
    colour = style.colour
    dots = [(dot, *height(dot)) for dot in line.dots]
    known = [(dot, y, doubt) for dot, y, doubt in dots if y is not None]
    xs, ys = [dot.x for dot, _, _ in known], [y for _, y, _ in known]
    axes.plot(xs, ys, color=colour, ls=style.dash, linewidth=1.2)
    for dot, y, doubt in known:
        fill = "none" if doubt else "left" if dot.partial else "full"
        axes.plot(dot.x, y, style.marker, color=colour, fillstyle=fill, markersize=5)
        _interval(axes, dot, y, dot.x, colour)


def _interval(axes: Any, dot: Dot, y: float, x: float, colour: str) -> None:  # noqa: ANN401 - Axes
    """Draw the interval of a value, but not of its speed-up."""
    if dot.low is not None and dot.high is not None and y == dot.y:
        axes.vlines(x, dot.low, dot.high, color=colour, linewidth=1.2)


def _bars(axes: Any, plot: Plot, index: int, colour: str, height: Height) -> None:  # noqa: ANN401 - Axes
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


def _scales(panels: Any, plot: Plot, *, log_x: bool, log_y: bool) -> None:  # noqa: ANN401 - Axes
    top = panels[0]
    dots = [dot for line in plot.lines for dot in line.dots]
    sure = [dot.high for dot in dots if not dot.doubtful and dot.high is not None]
    low = [dot.low for dot in dots if not dot.doubtful and dot.low is not None]
    if plot.numeric:  # intervals of unreliable values do not set the scale
        highest, lowest = max(dot.y for dot in dots), min(dot.y for dot in dots)
        highest, lowest = max([highest, *sure]), min([lowest, *low])
        top.set_ylim(top=highest * (1.1 if highest > 0 else 0.9))
        if log_y and lowest > 0:
            top.set_ylim(bottom=lowest / 1.1)
    if log_y:
        top.set_yscale("log")
        plain_numbers(top.yaxis)
    else:
        for axes in panels:
            axes.set_ylim(bottom=0)
    if not plot.numeric:
        return
    if log_x:
        top.set_xscale("log")
        plain_numbers(top.xaxis)
    if len(plot.places) <= _TICKS:
        panels[-1].set_xticks(plot.places, [f"{place:g}" for place in plot.places])
        panels[-1].set_xticks([], minor=True)


def _legend(
    figure: Figure,
    axes: Any,  # noqa: ANN401 - Axes
    plot: Plot,
    styles: Sequence[_Style],
    look: Look,
) -> None:
    """Say what the lines are: inside where they are few, else beside the picture."""
    handles: list[Any] = []
    if len(plot.lines) > 1 or plot.by:
        handles = [_handle(plot, *pair) for pair in zip(plot.lines, styles, strict=True)]
    if doubts := dataset.doubts(plot.rows):
        why = ":\n" + ",\n".join(doubts) if look.width >= WIDE else ""
        handles.append(_hollow(plot, f"unreliable{why}"))
    if any(dot.partial for line in plot.lines for dot in line.dots):
        handles.append(_partial(plot))
    if not handles:
        return
    title = plot.by[0].replace("_", " ") if len(plot.by) == 1 else None
    few = len(handles) <= _INSIDE and plot.numeric
    auto = "inside" if few or look.width < WIDE else "right"
    output.legend(figure, axes, handles, look, title=title, ncols=2, auto=auto)


def _handle(plot: Plot, line: Line, style: _Style) -> Line2D | Patch:
    if not plot.numeric:
        return Patch(color=style.colour, label=line.label)
    marker: Any = {"marker": style.marker, "markersize": 5}
    return Line2D([], [], color=style.colour, ls=style.dash, label=line.label, **marker)


def _hollow(plot: Plot, label: str) -> Line2D | Patch:
    if not plot.numeric:
        return Patch(facecolor="white", edgecolor="0.4", label=label)
    style: Any = {"marker": "o", "color": "0.4", "fillstyle": "none", "linestyle": "none"}
    return Line2D([], [], label=label, **style)


def _partial(plot: Plot) -> Line2D | Patch:
    label = "in a part of\nthe convolutions"
    if not plot.numeric:
        return Patch(facecolor="white", edgecolor="0.25", hatch=_HATCH, label=label)
    style: Any = {"marker": "o", "color": "0.4", "fillstyle": "left", "linestyle": "none"}
    return Line2D([], [], label=label, **style)


def _without_overlap(figure: Figure, axis: Any) -> None:  # noqa: ANN401 - matplotlib's Axis
    """Turn labels that overlap, and then leave out those that still do."""
    for degrees in (0, 30):
        if degrees:
            axis.set_tick_params(labelrotation=degrees)
            for label in axis.get_ticklabels():  # it ends below its place
                label.set(ha="right", rotation_mode="anchor")
        figure.draw_without_rendering()
        labels = [label for label in axis.get_ticklabels() if label.get_text()]
        if not _overlapping(labels):
            return
        if all(label.get_text().replace(".", "").isdigit() for label in labels):
            break
    for label in _overlapping(labels):
        label.set_visible(False)


def _overlapping(labels: Sequence[Any]) -> list[Any]:
    """Return the labels that overlap with one before them that stays; turned ones are flat."""
    end, found = float("-inf"), []
    for label in labels:
        box = label.get_window_extent()
        width = label.get_fontsize() * 2 if label.get_rotation() else box.width + 4
        if box.x1 - width < end:
            found.append(label)
        else:
            end = box.x1
    return found
