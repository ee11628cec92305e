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

from hpcsweep import files
from hpcsweep.analysis.drawing import COLOURS, LOOK, picture, plain_numbers
from hpcsweep.errors import UsageError
from hpcsweep.forecast import intervals, model
from hpcsweep.forecast.intervals import KINDS, OWN, LeftOut, Widths
from hpcsweep.forecast.model import Forecast
from hpcsweep.forecast.terms import Floats
from hpcsweep.forecast.training_data import OTHERS, POINT, WORK, Measured, convolve
from hpcsweep.text import aligned, count, in_sheet

WORDS: Final = {
    "network": "a whole network",
    "size": "every fourth size",
    "algorithm": "an algorithm",
    "gpu": "a GPU",
}
# what may be left out by name: as a kind of part, or each value in turn
COLUMNS: Final = {name: name for name in POINT} | {
    column: kind for kind, column in KINDS.items() if kind != "size"
}
_SIZE_FOLDS: Final = 4  # every fourth size is left out, so that others stand on both sides
_MOST_FOLDS: Final = 12  # each takes a fit
_ROWS: Final = 50_000  # that boosting learns from
_COLUMNS: Final = ("totals", "layers", "convolutions")


def leave_out(
    measured: Measured,
    kind: str,
    *,
    compare: bool = False,
    like: Forecast | None = None,
    values: Sequence[str] = (),
) -> LeftOut | None:
    """Return what a model says of each part, having seen the others; None if there is one part.

    `like` is what all parts teach, if somebody knows; it spares each fit some choices. With
    `values`, these of the column are left out together. What others measured is a part only where
    GPUs are left out, or where there is nothing else.
    """
    points = []
    calls = []
    for name, out in _folds(measured, kind, values):
        train, test = _parted(measured, KINDS.get(kind, kind), out)
        if train.every_call.empty:
            raise UsageError(f"nothing is left to learn from without {kind} {name}")
        learnt = model.fit(train, like)
        asked = test.every_call
        said = learnt.times(asked)
        totals = {OWN: learnt.totals(test.points, said)}
        times: dict[str, Any] = {OWN: said["ms"], "ms": asked["ms"]}
        for rival in BASELINES if compare else ():
            times[rival], totals[rival] = baseline(rival, train, test)
        tables = intervals.with_distance(test.points, said, train.every_call)
        points.append(tables[0].assign(fold=name, **totals))
        calls.append(tables[1].assign(fold=name, **times))
    if not points:
        return None
    return LeftOut(kind, pd.concat(points), pd.concat(calls, ignore_index=True))


def _folds(
    measured: Measured, kind: str, wanted: Sequence[str]
) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the name of each part and its values; nothing where there is one alone."""
    column = KINDS.get(kind, kind)
    own = measured.points[column]
    of_others = [] if measured.foreign is None else [*measured.foreign[column].map(_plain)]
    every = [*own, *of_others] if column == "gpu" or own.empty else [*own]
    values = sorted({*every})
    if wanted:
        known = ", ".join(map(str, values))
        if unknown := [text for text in wanted if text not in map(str, values)]:
            raise UsageError(f"--leave {kind}={unknown[0]}: not among what was measured: {known}")
        yield ", ".join(wanted), frozenset(wanted)
        return
    folds = min(_MOST_FOLDS, len(values))
    if kind == "size":  # every fourth size, so that sizes on both sides are there
        folds = min(_SIZE_FOLDS, len(values) // 2)
    for part in range(folds if folds > 1 else 0):
        names = [str(value) for value in values[part::folds]]
        yield f"sizes {part + 1}" if kind == "size" else ", ".join(names), frozenset(names)


def _parted(measured: Measured, column: str, out: frozenset[str]) -> tuple[Measured, Measured]:
    """Return what is learnt from, and what is left out: of others, too, if they measured that."""
    parts = [measured.points[column].astype(str).isin(out)]
    train, test = (measured.of(measured.points[flags]) for flags in (~parts[0], parts[0]))
    if measured.foreign is None:
        return train, test
    theirs = measured.foreign[column].map(_plain).isin(out)
    # of a GPU that was measured here, own points are asked for alone
    asked = measured.foreign[theirs] if test.points.empty else None
    return replace(train, foreign=measured.foreign[~theirs]), replace(test, foreign=asked)


def _plain(value: object) -> str:
    """Return a value as text; a GPU that others measured, too, has the name of this one."""
    return str(value).removesuffix(OTHERS)


def baseline(name: str, train: Measured, test: Measured) -> tuple[Floats, Floats]:
    """Return what a baseline says of layers and of networks, having seen the same points.

    The sum over the layers becomes a network's time by the median of the factor between both, so
    that no baseline suffers from what happens between layers.
    """
    seen, asked = (some.every_call.fillna({"flops": 0, "bytes_min": 0}) for some in (train, test))
    times = BASELINES[name](seen, asked)
    again, ms = (pd.Series(np.asarray(column, float)) for column in times)
    sums = again.groupby(seen["point_id"].to_numpy()).sum()
    factor = (train.points["total_ms"] / sums[sums > 0].reindex(train.points.index)).median()
    totals = ms.groupby(asked["point_id"].to_numpy()).sum().reindex(test.points.index)
    return ms.to_numpy(), factor * totals.to_numpy(float)


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
    "gradient boosting": _boosting,
}


def _raw(calls: pd.DataFrame, seen: pd.DataFrame) -> pd.DataFrame:
    codes: dict[str, Any] = {}
    for name in ("gpu", "algorithm", "op"):
        values = sorted(seen[name].astype(str).unique())
        places = {value: place for place, value in enumerate(values)}
        codes[name] = calls[name].astype(str).map(places).astype(float)
    numbers = [name for name in WORK if seen[name].notna().any()]
    return calls[numbers].assign(**codes)


@dataclass(frozen=True)
class ForecastCheck:
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
            "gpus": sorted(self.measured.gpus),
            "layer_rows": len(self.measured.layers),
            "doubtful_left_out": self.measured.doubtful,
            "foreign_convolutions": self.measured.foreign_number,
            "checks": list(self.parts),
        }

    def text(self) -> str:
        """Return one table per kind of what was left out."""
        record = self.to_json()
        head = (
            f"{count(record['points'], 'point')} of {count(len(record['networks']), 'network')}, "
            f"{count(len(record['algorithms']), 'algorithm')}, {', '.join(record['gpus'])}"
        )
        if others := record["foreign_convolutions"]:
            head += f"; {count(others, 'convolution')} of other programs"
        doubt = self.measured.doubtful
        lines = [head + (f"; {count(doubt, 'doubtful point')} not used" if doubt else "")]
        if not self.parts:
            lines.append("nothing to leave out: one network, algorithm and GPU, and too few sizes")
        for part in self.parts:
            lines += ["", *_table(part)]
        return "\n".join(lines)


def check(measured: Measured, leave: str = "") -> ForecastCheck:
    """Leave out whatever there is more than one of, and compare with what was measured.

    `leave` is a column with values that are left out together, or with `all`: each in turn.
    `UsageError` where there is no such column or value.
    """
    column, _, text = leave.partition("=")
    if leave and (column not in COLUMNS or not text):
        raise UsageError(f"--leave takes COLUMN=VALUE,... or COLUMN=all, of {', '.join(COLUMNS)}")
    kinds = [COLUMNS[column]] if leave else [*WORDS]
    values = () if text == "all" else tuple(filter(None, text.split(",")))
    every = [leave_out(measured, kind, compare=True, values=values) for kind in kinds]
    left = [kind for kind in every if kind is not None]
    return ForecastCheck(measured, [_record(kind) for kind in left], left)


def _record(left: LeftOut) -> dict[str, Any]:
    parts = list(left.parts())
    held = [_held(part, intervals.calibrate(others)) for _, part, others in parts]
    every = (np.concatenate(of) for of in zip(*held, strict=True))
    totals, layers = (float(of.mean()) if len(of) else None for of in every)
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
    return intervals.held(*totals, widths.of_points(left.points)), of_layers


def _times(left: LeftOut, name: str) -> list[tuple[Floats, Floats]]:
    """Return measured and predicted times of networks, layers and convolutions."""
    calls = left.calls
    convolutions = calls[convolve(calls)]
    tables = ((left.points, "total_ms"), (calls, "ms"), (convolutions, "ms"))
    return [(rows[ms].to_numpy(float), rows[name].to_numpy(float)) for rows, ms in tables]


def _errors(left: LeftOut, name: str) -> dict[str, dict[str, float | None]]:
    """Return the median and mean absolute error, and the bias, each a share of the true time."""
    errors: dict[str, dict[str, float | None]] = {}
    for column, (true, said) in zip(_COLUMNS, _times(left, name), strict=True):
        if not len(true):
            errors[column] = dict.fromkeys(("median", "mean", "bias"))
            continue
        ratio = said / true
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
    kind = part["left_out"]
    return [
        f"left out: {WORDS.get(kind, kind)} ({count(part['fits'], 'fit')}); absolute errors",
        *aligned([heads, *body], left=1),
        (
            f"the 90 % interval holds {_percent(holds['totals'])} of the totals and "
            f"{_percent(holds['layers'])} of the layers"
        ),
    ]


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{100 * share:.1f} %" if share < 10 else f"{share:,.0f} x"


def write(parts: Sequence[LeftOut], path: Path) -> None:
    """Write a row for each point that was left out, or each convolution that others measured."""
    tables = []
    for left in parts:
        rows = left.points if len(left.points) else left.calls
        names = [*POINT, *(name for name in (*WORK, "ran", "ms", "total_ms") if name in rows)]
        shown = [*dict.fromkeys(names), OWN, *(name for name in BASELINES if name in rows)]
        tables.append(rows[shown].assign(left_out=left.kind, part=rows["fold"]))
    if not tables:
        raise UsageError(f"{path}: nothing to write, since nothing could be left out")
    with files.replacing(path) as file:
        told = pd.concat(tables).map(lambda cell: in_sheet(cell) if type(cell) is str else cell)
        file.write(told.to_csv(index=False, float_format="%.7g").encode())


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
        width = intervals.calibrate(others).of_points(part.points)
        error = 100 * float((said / true - 1).abs().median())
        colour = COLOURS[number % len(COLOURS)]
        label = f"{fold}: {error:.0f} %"
        axes.plot(true, said, "o", markersize=2, color=colour, label=label, zorder=2)
        ends = said / width, said * width
        axes.vlines(true, *ends, color=colour, linewidth=0.5, alpha=0.15, zorder=1)
    equal = [left.points["total_ms"].min(), left.points["total_ms"].max()]
    axes.plot(equal, equal, color="0.2", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="measured (ms)", ylabel="predicted (ms)")
    title = f"{WORDS.get(left.kind, left.kind)} left out: median error, 90 % interval"
    axes.set_title(title, fontsize="small")
    for axis in (axes.xaxis, axes.yaxis):
        plain_numbers(axis)
    axes.legend(fontsize="x-small")
