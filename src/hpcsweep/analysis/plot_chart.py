"""Draws the lines of a plot, and below them how they compare with the baseline.

Quantities on x become lines, names become groups of bars. An unreliable value is hollow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hpcsweep.analysis import columns, dataset
from hpcsweep.analysis.output import COLOURS, plain_numbers, save
from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcsweep.analysis.plot import Dot, Line, Plot

    Height = Callable[[Dot], tuple[float | None, bool]]  # where a dot stands; if it is hollow

_INSIDE: Final = 4  # so many lines have their legend inside the picture
_TICKS: Final = 12  # so many places have a tick each


def draw(plot: Plot, path: Path, *, log_x: bool = False, log_y: bool = False) -> None:
    """Write a picture; the suffix says which kind.

    Raises:
        UsageError: there are more lines than a picture holds, a logarithmic axis has values that
            are not positive, or the file cannot be written.

    """
    plot.check_lines()
    _check_logs(plot, log_x=log_x, log_y=log_y)
    figure = Figure(figsize=(8.5, 7.2 if plot.against else 4.8), layout="constrained")
    rows: Any = figure.subplots(2 if plot.against else 1, squeeze=False, sharex=True)
    panels = rows[:, 0]
    top, bottom = panels[0], panels[-1]
    _panel(top, plot, lambda dot: (dot.y, dot.doubtful))
    top.set(title=f"{plot.data.run.name}: {columns.label(plot.y)}", ylabel=columns.label(plot.y))
    if plot.against:
        _panel(bottom, plot, lambda dot: (dot.speedup, dot.unsure))
        bottom.axhline(1, color="0.3", linewidth=0.8, linestyle="--")
        bottom.set(ylabel=plot.compared.replace(" ", "\n", 1).replace(",", ",\n"))
    bottom.set(xlabel=columns.label(plot.x))
    _scales(panels, plot, log_x=log_x, log_y=log_y)
    _legend(figure, top, plot)
    save(figure, path)


def _check_logs(plot: Plot, *, log_x: bool, log_y: bool) -> None:
    if log_x and not plot.numeric:
        raise UsageError(f"{plot.x} holds names: no logarithmic axis for them")
    values = [dot.y for line in plot.lines for dot in line.dots]
    for wanted, name, found in ((log_x, plot.x, plot.places), (log_y, plot.y, values)):
        if wanted and min(found) <= 0:
            raise UsageError(f"{name} has values that are not positive: no logarithmic axis")


def _panel(axes: Any, plot: Plot, height: Height) -> None:  # noqa: ANN401 - Axes
    for index, line in enumerate(plot.lines):
        if plot.numeric:
            _line(axes, line, index, height)
        else:
            _bars(axes, plot, index, height)
    axes.grid(which="major", axis="both" if plot.numeric else "y", alpha=0.3)
    axes.set_axisbelow(True)


def _line(axes: Any, line: Line, index: int, height: Height) -> None:  # noqa: ANN401 - Axes
    colour = COLOURS[index]
    dots = [(dot.x, *height(dot)) for dot in line.dots]
    dots = [(x, y, doubt) for x, y, doubt in dots if y is not None]
    axes.plot([x for x, _, _ in dots], [y for _, y, _ in dots], color=colour, ls=_dash(index))
    for doubtful, face in ((False, colour), (True, "white")):
        some = [(x, y) for x, y, doubt in dots if doubt is doubtful]
        xs, ys = [x for x, _ in some], [y for _, y in some]
        axes.plot(xs, ys, "o", color=colour, markerfacecolor=face, markersize=5)


def _dash(index: int) -> str:
    """Return a second style for the lines past the eight colours that everybody tells apart."""
    return "-" if index < 8 else "--"


def _bars(axes: Any, plot: Plot, index: int, height: Height) -> None:  # noqa: ANN401 - Axes
    places = plot.places
    width = 0.8 / len(plot.lines)
    for dot in plot.lines[index].dots:
        left = places.index(dot.x) - 0.4 + width * index
        colour, (top, doubtful) = COLOURS[index], height(dot)
        face = "white" if doubtful else colour
        style = {"align": "edge", "facecolor": face, "edgecolor": colour, "linewidth": 1.2}
        axes.bar(left, top or 0.0, width * 0.92, **style)
    axes.set_xticks(range(len(places)), [str(place) for place in places])


def _scales(panels: Any, plot: Plot, *, log_x: bool, log_y: bool) -> None:  # noqa: ANN401 - Axes
    top = panels[0]
    if log_y:
        top.set_yscale("log")
        plain_numbers(top.yaxis)
    else:
        for axes in panels:
            axes.set_ylim(bottom=0)
    if not plot.numeric:
        if sum(len(str(place)) for place in plot.places) > 80:
            panels[-1].tick_params(axis="x", labelrotation=30)
        return
    if log_x:
        top.set_xscale("log")
        plain_numbers(top.xaxis)
    if len(plot.places) <= _TICKS:
        panels[-1].set_xticks(plot.places, [f"{place:g}" for place in plot.places])
        panels[-1].set_xticks([], minor=True)


def _legend(figure: Figure, axes: Any, plot: Plot) -> None:  # noqa: ANN401 - Axes
    """Say what the lines are: inside where they are few, else beside the picture."""
    handles: list[Any] = []
    if len(plot.lines) > 1 or plot.by:
        handles = [_handle(plot, index) for index in range(len(plot.lines))]
    if doubts := dataset.doubts(plot.rows):
        hollow = Line2D([], [], marker="o", linestyle="none", color="0.4", markerfacecolor="white")
        hollow.set_label("unreliable:\n" + ",\n".join(doubts))
        handles.append(hollow)
    if not handles:
        return
    title = plot.by[0].replace("_", " ") if len(plot.by) == 1 else None
    style = {"handles": handles, "title": title, "fontsize": "small", "title_fontsize": "small"}
    if len(handles) <= _INSIDE and plot.numeric:
        axes.legend(**style, loc="best")
    else:
        place: Any = {"loc": "outside right upper"}
        figure.legend(**style, **place, frameon=False)


def _handle(plot: Plot, index: int) -> Line2D | Patch:
    colour, label = COLOURS[index], plot.lines[index].label
    if not plot.numeric:
        return Patch(color=colour, label=label)
    return Line2D([], [], color=colour, ls=_dash(index), marker="o", markersize=5, label=label)
