"""Predicts what was measured as if it had not been: a network, sizes, an algorithm, a GPU.

The error of a prediction is what it is wrong by there. Random rows would not do: the same layer
at the next size is in the training data then. `hpcsweep predict --check` shows these errors, and
what the intervals hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from hpcsweep import files
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
_COLUMNS: Final = ("totals", "layers", "convolutions")


def leave_out(
    measured: Measured,
    kind: str,
    *,
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
    for name, train, test in folds(measured, kind, values):
        learnt = model.fit(train, like)
        said = learnt.times(test.every_call)
        totals = learnt.totals(test.points, said)
        of_points, of_calls = intervals.with_distance(test.points, said, train.every_call)
        points.append(of_points.assign(fold=name, **{OWN: totals}))
        times = {OWN: said["ms"], "ms": test.every_call["ms"]}
        calls.append(of_calls.assign(fold=name, **times))
    if not points:
        return None
    return LeftOut(kind, pd.concat(points), pd.concat(calls, ignore_index=True))


def folds(
    measured: Measured, kind: str, values: Sequence[str] = ()
) -> Iterator[tuple[str, Measured, Measured]]:
    """Yield the name of each part, what is learnt from without it, and what is left out.

    `UsageError` where nothing is left to learn from.
    """
    for name, out in _folds(measured, kind, values):
        train, test = _parted(measured, KINDS.get(kind, kind), out)
        if train.every_call.empty:
            raise UsageError(f"nothing is left to learn from without {kind} {name}")
        yield name, train, test


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
    every = [leave_out(measured, kind, values=values) for kind in kinds]
    left = [kind for kind in every if kind is not None]
    return ForecastCheck(measured, [_record(kind) for kind in left], left)


def _record(left: LeftOut) -> dict[str, Any]:
    parts = list(left.parts())
    held = [_held(part, intervals.calibrate(others)) for _, part, others in parts]
    every = (np.concatenate(of) for of in zip(*held, strict=True))
    totals, layers = (float(of.mean()) if len(of) else None for of in every)
    of_parts = {name: _errors(part) for name, part, _ in parts}
    return {
        "left_out": left.kind,
        "fits": len(parts),
        "errors": {OWN: _errors(left)},
        "interval_holds": {"totals": totals, "layers": layers},
        "parts": [
            {"name": name, "totals": of["totals"], "layers": of["layers"]}
            for name, of in of_parts.items()
        ],
    }


def _held(left: LeftOut, widths: Widths) -> tuple[Floats, Floats]:
    """Say which times of networks, and of layers, lie in their interval."""
    totals, layers, _ = _times(left)
    of_layers = intervals.held(*layers, widths.of_layers(left.calls))
    return intervals.held(*totals, widths.of_points(left.points)), of_layers


def _times(left: LeftOut) -> list[tuple[Floats, Floats]]:
    """Return measured and predicted times of networks, layers and convolutions."""
    calls = left.calls
    convolutions = calls[convolve(calls)]
    tables = ((left.points, "total_ms"), (calls, "ms"), (convolutions, "ms"))
    return [(rows[ms].to_numpy(float), rows[OWN].to_numpy(float)) for rows, ms in tables]


def _errors(left: LeftOut) -> dict[str, dict[str, float | None]]:
    """Return the median and mean absolute error, and the bias, each a share of the true time."""
    errors: dict[str, dict[str, float | None]] = {}
    for column, (true, said) in zip(_COLUMNS, _times(left), strict=True):
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


def refuse_picture(path: Path) -> None:
    """Raise `UsageError` for a file that is no table: earlier versions drew a picture there."""
    if path.suffix != ".csv":
        raise UsageError(f"{path}: what is left out is written as a table, *.csv")


def write(parts: Sequence[LeftOut], path: Path) -> None:
    """Write a row for each point that was left out, or each convolution that others measured."""
    refuse_picture(path)
    tables = []
    for left in parts:
        rows = left.points if len(left.points) else left.calls
        names = [*POINT, *(name for name in (*WORK, "ran", "ms", "total_ms") if name in rows)]
        shown = [*dict.fromkeys(names), OWN]
        tables.append(rows[shown].assign(left_out=left.kind, part=rows["fold"]))
    if not tables:
        raise UsageError(f"{path}: nothing to write, since nothing could be left out")
    with files.replacing(path) as file:
        told = pd.concat(tables).map(lambda cell: in_sheet(cell) if type(cell) is str else cell)
        file.write(told.to_csv(index=False, float_format="%.7g").encode())
