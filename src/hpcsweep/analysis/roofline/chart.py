"""Draws a roofline: performance over arithmetic intensity, both logarithmic.

It uses matplotlib without pyplot, so that it needs no display and leaves no global state.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from matplotlib.transforms import offset_copy

from hpcsweep.analysis.drawing import (
    COLOURS,
    LOOK,
    MARKERS,
    Look,
    add_title,
    picture,
    plain_numbers,
)
from hpcsweep.analysis.roofline.rooflines import Roofline
from hpcsweep.analysis.roofline.roofs import labels

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# groups with a colour of their own, in the order of their time; more would not be told apart
_NAMED: Final = 8
_GAP: Final = 1.08  # between a roof and its label, as a factor
_REST: Final = MARKERS[-1]
_HEIGHT: Final = 6.4  # inches: rather square, since both axes are logarithmic
_LABEL: Final = 46  # characters: two columns of the legend fill the width
# marker areas, points squared: a small one is still seen, a large one hides no neighbour
_SMALLEST = 20.0
_LARGEST = 220.0


def draw(roofline: Roofline, path: Path, *, grouped: bool = False, look: Look = LOOK) -> None:
    """Write a picture of every piece, or of the sums by name; the suffix says which format."""
    pieces = roofline.groups if grouped else roofline.pieces
    with picture(path, look, _HEIGHT) as figure:
        fill(figure, roofline, pieces, look)


def fill(figure: Figure, roofline: Roofline, pieces: pd.DataFrame, look: Look = LOOK) -> None:
    """Draw pieces of work below their roofs."""
    drawn = pieces[(pieces["flops"] > 0) & (pieces["bytes"] > 0)]
    axes: Any = figure.add_subplot()
    _points(axes, roofline, drawn)
    _roofs(axes, roofline, drawn)
    axes.set(xscale="log", yscale="log")
    add_title(figure, axes, look, roofline.label, roofline.export.hardware)
    axes.set(xlabel="arithmetic intensity (FLOP/byte)", ylabel="performance (TFLOP/s)")
    for axis in (axes.xaxis, axes.yaxis):
        plain_numbers(axis)
    axes.grid(which="major", alpha=0.3)
    if len(drawn):
        place: Any = {"loc": "outside upper center", "ncols": 2}
        legend: Any = figure.legend(**place, fontsize="small", frameon=False)
        for handle in legend.legend_handles:
            handle.set_sizes([36])
        _areas(axes, drawn)


def _points(axes: Any, roofline: Roofline, drawn: pd.DataFrame) -> None:  # noqa: ANN401 - Axes
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


def _areas(axes: Any, drawn: pd.DataFrame) -> None:  # noqa: ANN401 - Axes
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


def _scatter(axes: Any, pieces: pd.DataFrame, longest: float, **style: Any) -> None:  # noqa: ANN401
    areas = (_LARGEST * pieces["time_us"] / longest).clip(lower=_SMALLEST)
    edge = {} if style.get("marker") == "x" else {"edgecolors": "white", "linewidths": 0.5}
    places = pieces["flop_per_byte"], pieces["tflops"]
    axes.scatter(*places, s=areas, alpha=0.85, zorder=3, **edge, **style)


def _roofs(axes: Any, roofline: Roofline, drawn: pd.DataFrame) -> None:  # noqa: ANN401 - Axes
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
