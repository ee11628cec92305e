"""Puts what the maps of `best` gain, measured in turns with the default, beside the prediction."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pandas as pd

from hpcsweep.analysis import dataset
from hpcsweep.analysis.formats import View
from hpcsweep.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hpcsweep.analysis.best import Best
    from hpcsweep.point import Point

    Interval = tuple[float, float, float]


def check_device(best: Best, device: str) -> None:
    """Raise `Refused` where the maps are for another device than that of this machine."""
    wanted = sorted(set(best.table["gpu"]))
    if wanted != [device]:
        raise Refused(
            f"the maps are for {', '.join(wanted)}, and this machine has {device}: choose with "
            f"--where gpu={device}, or confirm on that machine, for example inside `srun`"
        )


def pairs(best: Best, points: Iterable[Point]) -> list[tuple[Point, Point]]:
    """Return the default and the mixed point of each configuration, of those of the sweep file."""
    found: list[list[Point]] = []
    for point in points:
        if point.axes["algorithm"] == best.default:
            found.append([point])
        else:
            found[-1].append(point)
    return [(of[0], of[-1]) for of in found]


def view(
    best: Best, default_ms: Sequence[float], measured: Sequence[Mapping[str, Interval]]
) -> View:
    """Return the predicted and the measured gain of each configuration."""
    table = best.table.assign(measured_default_ms=default_ms)
    names = list(measured[0])
    for name in names:
        for place, end in enumerate(("ratio", "lo", "hi")):
            table[f"{name}_{end}"] = [of[name][place] for of in measured]
    gains = (table["gain_pct"], table["gain_hi_pct"], table["gain_lo_pct"])
    predicted = (1 - gain / 100 for gain in gains)
    texts: dict[str, Any] = {
        key: [dataset.format_value(key, value) for value in table[key]] for key in best.keys
    }
    texts[best.default] = [f"{ms:.3f}" for ms in default_ms]
    texts["predicted"] = [*map(_gain, *predicted)]
    texts |= {_heading(name): [_gain(*of[name]) for of in measured] for name in names}
    texts["verdict"] = [_verdict(of["mixed"], of["itself"]) for of in measured]
    return View(
        title=f"{best.run.name}: maps of {best.default}, measured in turns; gains in percent",
        frame=table.assign(verdict=texts["verdict"]),
        texts=pd.DataFrame(texts),
        left=len(best.keys),
        notes=[
            f"gain: how much less time than {best.default} takes, with 95 % intervals",
            f"itself: {best.default} against itself, so what a difference has to exceed",
        ],
        record={"sweep": best.run.name, "default": best.default, "maps": best.maps},
    )


def _heading(name: str) -> str:
    return "measured" if name == "mixed" else name


def _gain(ratio: float, low: float, high: float) -> str:
    middle, least, most = (100 * (1 - value) for value in (ratio, high, low))
    if math.isnan(least):
        return f"{middle:.1f}"
    return f"{middle:.1f} ({least:.1f} to {most:.1f})"


def _verdict(mixed: Interval, itself: Interval) -> str:
    """Tell whether the mixed network is faster or slower than the default, beyond its noise."""
    if any(map(math.isnan, (*mixed, *itself))):
        return "UNDECIDED"
    if mixed[2] < min(1.0, itself[1]):
        return "faster"
    return "SLOWER" if mixed[1] > max(1.0, itself[2]) else "not slower"
