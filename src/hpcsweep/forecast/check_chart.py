"""Draws what `predict --check` left out: predicted over measured times of networks, log by log.

A panel is a kind of part (networks, sizes, algorithms, GPUs), a colour one part that was left out,
a bar the 90 % interval by the other parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcsweep.analysis.output import COLOURS, LOOK, picture, plain_numbers
from hpcsweep.errors import UsageError
from hpcsweep.forecast import intervals
from hpcsweep.forecast.check import WORDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpcsweep.forecast.leaving_out import Left


def draw(parts: Sequence[Left], path: Path) -> None:
    """Write the picture; its suffix says of which kind.

    Raises:
        UsageError: nothing was left out, or the file cannot be written.
    """
    if not parts:
        raise UsageError(f"{path}: nothing to draw, since nothing could be left out")
    with picture(path, LOOK, 3.4 * ((len(parts) + 1) // 2)) as figure:
        panels = figure.subplots((len(parts) + 1) // 2, min(len(parts), 2), squeeze=False)
        for axes, left in zip(panels.ravel(), parts, strict=False):
            _panel(axes, left)
        for axes in panels.ravel()[len(parts) :]:
            axes.remove()


def _panel(axes: Any, left: Left) -> None:  # noqa: ANN401 - Axes
    for number, fold in enumerate(left.folds):
        points = left.points[left.points["fold"] == fold]
        true, said = points["total_ms"], points[intervals.OWN]
        width = intervals.calibrate(left, without=fold).total
        error = 100 * float((said / true - 1).abs().median())
        colour = COLOURS[number % len(COLOURS)]
        label = f"{fold}: {error:.0f} %"
        axes.plot(true, said, "o", markersize=2, color=colour, label=label, zorder=2)
        ends = said / width, said * width
        axes.vlines(true, *ends, color=colour, linewidth=0.5, alpha=0.15, zorder=1)
    equal = [left.points["total_ms"].min(), left.points["total_ms"].max()]
    axes.plot(equal, equal, color="0.2", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="measured (ms)", ylabel="predicted (ms)")
    told = "median error, 90 % interval"
    axes.set_title(f"{WORDS[left.kind]} left out: {told}", fontsize="small")
    for axis in (axes.xaxis, axes.yaxis):
        plain_numbers(axis)
    axes.legend(fontsize="x-small")
