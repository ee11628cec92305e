"""Draws the slowest layers of a sweep: a row per layer, and in it a mark per algorithm.

Bars of errors are the 95 % intervals of the layers' passes. A mark is half filled if a call ran
another algorithm than requested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from matplotlib import rcParams
from matplotlib.lines import Line2D

from hpcsweep.analysis import formats, layers, output
from hpcsweep.analysis.formats import View
from hpcsweep.analysis.output import COLOURS, LOOK, WIDE, Look, caption, picture, plain_numbers
from hpcsweep.analysis.roofline.work import labels
from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_LETTERS: Final = 60  # of a name, per inch of width, in text of one point
_ABOVE: Final = 1.7  # inches for all but the rows


def draw(layers: View, path: Path, *, log: bool = False, look: Look = LOOK) -> None:
    """Write a picture of the table that `layers.read` returns.

    Raises:
        UsageError: there are more algorithms than a picture holds, or the file cannot be written.
    """
    names = layers.record["algorithms"]
    if len(names) > len(COLOURS):
        raise UsageError(
            f"{len(names)} algorithms are too many for a picture, which holds {len(COLOURS)}: "
            "choose with --where algorithm=..."
        )
    row = look.font / 72 * max(1.7, 0.6 * len(names))
    with picture(path, look, _ABOVE + row * len(layers.frame)) as figure:
        _fill(figure, layers, names, look, log=log)


def _fill(
    figure: Figure, layers: View, names: Sequence[str], look: Look = LOOK, *, log: bool
) -> None:
    table, record = layers.frame, layers.record
    axes = figure.add_subplot()
    styles = output.styles(names)
    for index, name in enumerate(names):
        height = (index + 0.5) / len(names) * 0.8 - 0.4  # above and below the middle of the row
        _marks(axes, table, name, height, *styles[name])
    for place in range(0, len(table), 2):
        axes.axhspan(place - 0.5, place + 0.5, color="0.5", alpha=0.1, linewidth=0)
    longest = int(_LETTERS * figure.get_figwidth() / rcParams["font.size"])
    short = labels(table[record["by"]], longest)
    told = zip(table[record["by"]], table["share_pct"], strict=True)
    axes.set_yticks(range(len(table)), [f"{short[name]}  {share:.1f} %" for name, share in told])
    axes.set_ylim(len(table) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0, labelsize="small")
    if log:
        axes.set_xscale("log")
        plain_numbers(axes.xaxis)
    else:
        axes.set_xlim(left=0)
    if look.titled:
        axes.set_title(layers.title, wrap=True)
        caption(figure, record["hardware"])
    axes.set_xlabel(formats.label(record["metric"]))
    axes.grid(which="major", axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    _legend(figure, axes, table, look, styles)


def _marks(  # noqa: PLR0913, PLR0917 - where and how
    axes: Any,  # noqa: ANN401 - Axes
    table: pd.DataFrame,
    name: str,
    height: float,
    colour: str,
    marker: str,
) -> None:
    if f"{name}_lo" in table:
        ends = table[f"{name}_lo"], table[f"{name}_hi"]
        axes.hlines(table.index + height, *ends, color=colour, linewidth=1.2)
    fell = layers.fell(table, name)
    for kind, rows in (("left", table[fell]), ("full", table[~fell])):
        style = {"color": colour, "fillstyle": kind, "markersize": 6, "linestyle": "none"}
        axes.plot(rows[name], rows.index + height, marker, **style)


def _legend(
    figure: Figure,
    axes: Any,  # noqa: ANN401 - Axes
    table: pd.DataFrame,
    look: Look,
    styles: Mapping[str, tuple[str, str]],
) -> None:
    style: Any = {"linestyle": "none", "markersize": 5}
    handles = [
        Line2D([], [], marker=marker, color=colour, label=name, **style)
        for name, (colour, marker) in styles.items()
    ]
    if table["fallbacks"].any():
        label = "some calls ran another algorithm"
        half: Any = {"fillstyle": "left", "color": "0.4", **style}
        handles.append(Line2D([], [], marker="o", label=label, **half))
    columns = min(4 if look.width >= WIDE else 2, len(handles))
    output.legend(figure, axes, handles, look, ncols=columns)
