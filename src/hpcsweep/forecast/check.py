"""Predicts what was measured as if it had not been: a network, sizes, an algorithm, a GPU.

The error of a prediction is what it is wrong by there. Random rows would not do: the same layer
at the next size is in the training data then. `hpcsweep predict --check` shows these errors, what
the intervals hold, and the baselines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from hpcsweep.analysis.output import COLOURS, LOOK, picture, plain_numbers
from hpcsweep.catalog import gpus
from hpcsweep.errors import UsageError
from hpcsweep.forecast import intervals, model
from hpcsweep.forecast.intervals import KINDS, OWN, LeftOut, Widths
from hpcsweep.forecast.model import Forecast
from hpcsweep.forecast.terms import Flags, Floats
from hpcsweep.forecast.training_data import WORK, Measured
from hpcsweep.text import aligned, count

WORDS: Final = {
    "network": "a whole network",
    "size": "every fourth size",
    "algorithm": "an algorithm",
    "gpu": "a GPU",
}
_SIZE_FOLDS: Final = 4  # every fourth size is left out, so that others stand on both sides
_MOST_FOLDS: Final = 12  # each takes a fit
_BEST: Final = 0.95  # the rate that a device can reach, where no table says it
_ROWS: Final = 50_000  # that boosting learns from
_COLUMNS: Final = ("totals", "layers", "convolutions")


def leave_out(
    measured: Measured, kind: str, *, compare: bool = False, like: Forecast | None = None
) -> LeftOut | None:
    """Return what a model says of each part, having seen the others; None if there is one part.

    `like` is what all parts teach, if somebody knows; it spares each fit some choices.
    """
    points = []
    calls = []
    for name, out in _folds(measured.points, kind):
        train = measured.of(measured.points[~out])
        test = measured.of(measured.points[out])
        if kind == "gpu":  # others may have measured the one that is left out
            train = replace(train, foreign=None)
        learnt = model.fit(train, like=like)
        said = learnt.times(test.calls)
        totals = {OWN: learnt.totals(test.points, said)}
        times: dict[str, Any] = {OWN: said["ms"], "ms": test.calls["ms"]}
        for rival in BASELINES if compare else ():
            times[rival], totals[rival] = baseline(rival, train, test)
        points.append(test.points.assign(fold=name, **totals))
        calls.append(said.assign(fold=name, **times))
    if not points:
        return None
    return LeftOut(kind, pd.concat(points), pd.concat(calls, ignore_index=True))


def _folds(points: pd.DataFrame, kind: str) -> Iterator[tuple[str, Flags]]:
    """Yield the name of each part and which points are of it; nothing where there is one alone."""
    column = points[KINDS[kind]]
    values = sorted(column.unique())
    number = column.map({value: place for place, value in enumerate(values)}).to_numpy(int)
    folds = min(_MOST_FOLDS, len(values))
    if kind == "size":  # every fourth size, so that sizes on both sides are there
        folds = min(_SIZE_FOLDS, len(values) // 2)
    for part in range(folds if folds > 1 else 0):
        names = ", ".join(map(str, values[part::folds]))
        yield f"sizes {part + 1}" if kind == "size" else names, number % folds == part


def baseline(name: str, train: Measured, test: Measured) -> tuple[Floats, Floats]:
    """Return what a baseline says of layers and of networks, having seen the same points.

    The sum over the layers becomes a network's time by the median of the factor between both, so
    that no baseline suffers from what happens between layers.
    """
    seen, asked = (some.calls.fillna({"flops": 0, "bytes_min": 0}) for some in (train, test))
    times = BASELINES[name](seen, asked)
    again, ms = (pd.Series(np.asarray(column, float)) for column in times)
    sums = again.groupby(seen["point_id"].to_numpy()).sum()
    factor = (train.points["total_ms"] / sums[sums > 0].reindex(train.points.index)).median()
    totals = ms.groupby(asked["point_id"].to_numpy()).sum().reindex(test.points.index)
    return ms.to_numpy(), factor * totals.to_numpy(float)


def _flops(seen: pd.DataFrame, asked: pd.DataFrame) -> tuple[Any, Any]:
    """Return times as operations times a constant per GPU and algorithm."""
    works = seen["flops"] > 0
    rate = (seen["ms"] / seen["flops"])[works].groupby(_kind(seen)[works]).median()
    again = seen["flops"] * _kind(seen).map(rate)
    return again, asked["flops"] * _kind(asked).map(rate).fillna(rate.median())


def _roofline(seen: pd.DataFrame, asked: pd.DataFrame) -> tuple[Any, Any]:
    """Return times at the device's peaks, scaled by the median share that it reaches of them."""
    bare = _roof(seen, seen)
    share = (seen["ms"] / bare).groupby(_kind(seen)).median()
    again = bare * _kind(seen).map(share)
    return again, _roof(asked, seen) * _kind(asked).map(share).fillna(share.median())


def _boosting(seen: pd.DataFrame, asked: pd.DataFrame) -> tuple[Any, Any]:
    """Return times by gradient boosting on log times, with the raw columns of the table."""
    sample = seen.sample(min(len(seen), _ROWS), random_state=0)
    learner = HistGradientBoostingRegressor(random_state=0)
    with threadpool_limits(limits=1):
        learner.fit(_raw(sample, sample), np.log(sample["ms"]))
        again, ms = (np.exp(learner.predict(_raw(rows, sample))) for rows in (seen, asked))
    return again, ms


# What a prediction has to beat: each returns the times of calls that it has seen, and of others.
BASELINES: Final[dict[str, Callable[[pd.DataFrame, pd.DataFrame], tuple[Any, Any]]]] = {
    "FLOPs times a constant": _flops,
    "roofline": _roofline,
    "gradient boosting": _boosting,
}


def _kind(calls: pd.DataFrame) -> pd.Series[str]:
    return calls["gpu"].astype(str) + " " + calls["algorithm"].astype(str)


def _roof(calls: pd.DataFrame, seen: pd.DataFrame) -> pd.Series[float]:
    """Return the roofline's milliseconds; where no table has peaks, the best rates seen."""
    gpu = gpus.sheet(str(seen["gpu"].iloc[0]))
    peak = float((seen["flops"] / seen["ms"]).quantile(_BEST)) or 1.0
    width = float((seen["bytes_min"] / seen["ms"]).quantile(_BEST)) or 1.0
    if gpu:
        peak = 1e9 * gpu.fp32_tflops
        width = 1e6 * gpu.bandwidth_gbs
    moving = calls["bytes_min"].clip(lower=1.0) / width
    working = calls["flops"] / peak
    return moving.where(moving > working, working)


def _raw(calls: pd.DataFrame, seen: pd.DataFrame) -> pd.DataFrame:
    codes: dict[str, Any] = {}
    for name in ("gpu", "algorithm", "op"):
        values = sorted(seen[name].astype(str).unique())
        places = {value: place for place, value in enumerate(values)}
        codes[name] = calls[name].astype(str).map(places).astype(float)
    numbers = [name for name in WORK if seen[name].notna().any()]
    return calls[numbers].assign(**codes)


@dataclass(frozen=True)
class Check:
    """What leaving out found: records as `--json` prints them."""

    measured: Measured
    parts: Sequence[Mapping[str, Any]]
    left: Sequence[LeftOut]

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        points = self.measured.points
        return {
            "points": len(points),
            "networks": sorted(points["model"].unique()),
            "algorithms": sorted(points["algorithm"].unique()),
            "gpus": sorted(points["gpu"].unique()),
            "layer_rows": len(self.measured.layers),
            "doubtful_left_out": self.measured.doubtful,
            "checks": list(self.parts),
        }

    def text(self) -> str:
        """Return one table per kind of what was left out."""
        record = self.to_json()
        head = (
            f"{count(record['points'], 'point')} of {count(len(record['networks']), 'network')}, "
            f"{count(len(record['algorithms']), 'algorithm')}, {', '.join(record['gpus'])}"
        )
        doubt = self.measured.doubtful
        lines = [head + (f"; {count(doubt, 'doubtful point')} not used" if doubt else "")]
        if not self.parts:
            lines.append("nothing to leave out: one network, algorithm and GPU, and too few sizes")
        for part in self.parts:
            lines += ["", *_table(part)]
        return "\n".join(lines)


def check(measured: Measured) -> Check:
    """Leave out whatever there is more than one of, and compare with what was measured."""
    every = [leave_out(measured, kind, compare=True) for kind in WORDS]
    left = [kind for kind in every if kind is not None]
    return Check(measured, [_record(kind) for kind in left], left)


def _record(left: LeftOut) -> dict[str, Any]:
    parts = list(left.parts())
    held = [_held(part, intervals.calibrate(others)) for _, part, others in parts]
    totals, layers = (float(np.concatenate(of).mean()) for of in zip(*held, strict=True))
    errors = {name: _errors(left, name) for name in (OWN, *BASELINES)}
    of_parts = {name: _errors(part, OWN) for name, part, _ in parts}
    return {
        "left_out": left.kind,
        "fits": len(parts),
        "errors": errors,
        "interval_holds": {"totals": totals, "layers": layers},
        "parts": [
            {"name": name, "totals": of["totals"], "layers": of["layers"]}
            for name, of in of_parts.items()
        ],
    }


def _held(left: LeftOut, widths: Widths) -> tuple[Floats, Floats]:
    """Say which times of networks, and of layers, lie in their interval."""
    totals, layers, _ = _times(left, OWN)
    of_layers = intervals.held(*layers, widths.of_layers(left.calls))
    return intervals.held(*totals, widths.total), of_layers


def _times(left: LeftOut, name: str) -> list[tuple[Floats, Floats]]:
    """Return measured and predicted times of networks, layers and convolutions."""
    calls = left.calls
    convolutions = calls[calls["op"].astype(str).str.startswith("conv")]
    tables = ((left.points, "total_ms"), (calls, "ms"), (convolutions, "ms"))
    return [(rows[ms].to_numpy(float), rows[name].to_numpy(float)) for rows, ms in tables]


def _errors(left: LeftOut, name: str) -> dict[str, dict[str, float]]:
    """Return the median and mean absolute error, and the bias, each a share of the true time."""
    errors = {}
    for column, (true, said) in zip(_COLUMNS, _times(left, name), strict=True):
        ratio = said / true if len(true) else np.array([np.nan])
        wrong = np.abs(ratio - 1.0)
        median = np.median(wrong)
        mean = np.mean(wrong)
        bias = np.median(ratio) - 1.0
        errors[column] = {"median": float(median), "mean": float(mean), "bias": float(bias)}
    return errors


def _table(part: Mapping[str, Any]) -> list[str]:
    cells = [(column, how) for column in _COLUMNS for how in ("median", "mean")]
    heads = ["", *(f"{column} {how}" for column, how in cells)]
    body = [
        [name, *(_percent(errors[column][how]) for column, how in cells)]
        for name, errors in part["errors"].items()
    ]
    holds = part["interval_holds"]
    return [
        f"left out: {WORDS[part['left_out']]} ({count(part['fits'], 'fit')}); absolute errors",
        *aligned([heads, *body], left=1),
        (
            f"the 90 % interval holds {_percent(holds['totals'])} of the totals and "
            f"{_percent(holds['layers'])} of the layers"
        ),
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 10 else f"{share:,.0f} x"


def draw(parts: Sequence[LeftOut], path: Path) -> None:
    """Draw predicted over measured times of networks, log by log; the suffix says of which kind.

    A panel is a kind of part (networks, sizes, algorithms, GPUs), a colour one part that was left
    out, a bar the 90 % interval by the other parts.

    Raises:
        UsageError: nothing was left out, or the file cannot be written.
    """
    if not parts:
        raise UsageError(f"{path}: nothing to draw, since nothing could be left out")
    rows = (len(parts) + 1) // 2
    with picture(path, LOOK, 3.4 * rows) as figure:
        panels = figure.subplots(rows, min(len(parts), 2), squeeze=False).ravel()
        for axes, left in zip(panels, parts, strict=False):
            _panel(axes, left)
        for axes in panels[len(parts) :]:
            axes.remove()


def _panel(axes: Any, left: LeftOut) -> None:  # noqa: ANN401 - Axes
    for number, (fold, part, others) in enumerate(left.parts()):
        true = part.points["total_ms"]
        said = part.points[OWN]
        width = intervals.calibrate(others).total
        error = 100 * float((said / true - 1).abs().median())
        colour = COLOURS[number % len(COLOURS)]
        label = f"{fold}: {error:.0f} %"
        axes.plot(true, said, "o", markersize=2, color=colour, label=label, zorder=2)
        ends = said / width, said * width
        axes.vlines(true, *ends, color=colour, linewidth=0.5, alpha=0.15, zorder=1)
    equal = [left.points["total_ms"].min(), left.points["total_ms"].max()]
    axes.plot(equal, equal, color="0.2", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="measured (ms)", ylabel="predicted (ms)")
    title = f"{WORDS[left.kind]} left out: median error, 90 % interval"
    axes.set_title(title, fontsize="small")
    for axis in (axes.xaxis, axes.yaxis):
        plain_numbers(axis)
    axes.legend(fontsize="x-small")
