"""Draws a roofline: arithmetic intensity against performance, both logarithmic.

matplotlib's own canvas, without pyplot: no display, no state of the process.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from matplotlib.figure import Figure

from hpcsweep.analysis.output import COLOURS, plain_numbers, save
from hpcsweep.analysis.roofline.labels import labels

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpcsweep.analysis.roofline.model import Roofline
    from hpcsweep.analysis.roofline.work import Work

_NAMED: Final = 8  # groups with a colour of their own; the rest of the time is grey
_SMALLEST, _LARGEST = 14.0, 220.0  # marker areas, points squared


def draw(roofline: Roofline, path: Path, *, grouped: bool = False) -> None:
    """Write a picture (the suffix says which kind) of every piece, or of the sums by name.

    Raises:
        UsageError: the kind of picture is not known, or the file cannot be written.

    """
    figure = Figure(figsize=(8.5, 6.4), layout="constrained")
    axes = figure.add_subplot()
    pieces = roofline.groups if grouped else roofline.export.work
    drawn = [piece for piece in pieces if piece.total and piece.bytes]
    _points(axes, roofline, drawn)
    slope = _roofs(axes, roofline, drawn)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="arithmetic intensity (FLOP/byte)",
        ylabel="performance (TFLOP/s)",
        title=roofline.label,
    )
    for axis in (axes.xaxis, axes.yaxis):
        plain_numbers(axis)
    axes.grid(which="major", alpha=0.3)
    if drawn:
        place: Any = {"loc": "outside lower center", "ncols": 2}
        handles: Any = figure.legend(**place, fontsize="small", frameon=False).legend_handles
        for handle in handles:
            handle.set_sizes([36])
    figure.draw_without_rendering()  # settles the layout, so that the slope is known
    _tilt(axes, slope)
    save(figure, path)


def _points(axes: Any, roofline: Roofline, drawn: Sequence[Work]) -> None:  # noqa: ANN401 - Axes
    """Draw the pieces, by name the longest first; their area is their share of the time."""
    longest = max((piece.seconds for piece in drawn), default=1.0)
    sane = [piece for piece in drawn if not roofline.is_above(piece)]
    names = [group.name for group in roofline.groups if any(p.name == group.name for p in sane)]
    named = len(names) if len(names) <= len(COLOURS) - 2 else _NAMED
    for index, (name, label) in enumerate(labels(names[:named], 46).items()):
        _scatter(
            axes,
            [piece for piece in sane if piece.name == name],
            longest,
            label=label,
            color=COLOURS[index],
        )
    others = [piece for piece in sane if piece.name in names[named:]]
    if others:
        label = f"{len(names) - named} others"
        _scatter(axes, others, longest, label=label, color="0.6")
    wrong = [piece for piece in drawn if roofline.is_above(piece)]
    if wrong:
        label = f"above the roof: a mistake ({len(wrong)})"
        _scatter(axes, wrong, longest, label=label, color="red", marker="x")


def _scatter(axes: Any, pieces: Sequence[Work], longest: float, **style: Any) -> None:  # noqa: ANN401
    areas = [max(_SMALLEST, _LARGEST * piece.seconds / longest) for piece in pieces]
    edge = {} if style.get("marker") == "x" else {"edgecolors": "white", "linewidths": 0.5}
    axes.scatter(
        [piece.intensity for piece in pieces],
        [piece.rate / 1e12 for piece in pieces],
        s=areas,
        alpha=0.85,
        zorder=3,
        **edge,
        **style,
    )


def _roofs(axes: Any, roofline: Roofline, drawn: Sequence[Work]) -> Any:  # noqa: ANN401 - Axes
    """Draw the memory roof and one compute roof per peak; return the memory roof's label."""
    bandwidth = roofline.roofs.bandwidth
    peaks = _peaks(roofline)
    ridges = [peak / bandwidth for peak in peaks]
    intensities = [piece.intensity for piece in drawn] + ridges
    left, right = min(intensities, default=1) / 3, max(intensities, default=1) * 4
    highest = max(peaks, default=bandwidth)
    axes.plot([left, highest / bandwidth], [left * bandwidth / 1e12, highest / 1e12], color="0.2")
    axes.set_xlim(left, right)
    lowest = min([piece.rate for piece in drawn] + [min(peaks, default=highest)])
    axes.set_ylim(lowest / 3e12, highest / 1e12 * 3)
    for peak, units in peaks.items():
        axes.plot([peak / bandwidth, right], [peak / 1e12] * 2, color="0.2")
        text = f"{', '.join(units)} {peak / 1e12:g} TFLOP/s"
        _write(axes, text, (right, peak / 1e12), ha="right")
    middle = math.sqrt(max(left, lowest / 3 / bandwidth) * highest / bandwidth)
    where = (middle, middle * bandwidth / 1e12)
    return _write(axes, f"{bandwidth / 1e9:g} GB/s", where, ha="center", rotation_mode="anchor")


def _tilt(axes: Any, label: Any) -> None:  # noqa: ANN401 - Axes, Annotation
    """Lay a label along a line through it on which both quantities grow alike."""
    x, y = label.xy
    (left, low), (right, high) = axes.transData.transform([(x, y), (2 * x, 2 * y)])
    label.set_rotation(math.degrees(math.atan2(high - low, right - left)))


def _write(axes: Any, text: str, where: tuple[float, float], **style: Any) -> Any:  # noqa: ANN401
    """Write a few points above a line."""
    return axes.annotate(
        text, where, (0, 4), textcoords="offset points", va="bottom", fontsize="small", **style
    )


def _peaks(roofline: Roofline) -> dict[float, list[str]]:
    """Return the units that did anything, by their peak; several may share one."""
    if roofline.roofs.single:
        return {roofline.roofs.single: ["peak"]}
    found: dict[float, list[str]] = {}
    for unit in roofline.units:
        found.setdefault(roofline.roofs.peak(unit), []).append(unit)
    return found
