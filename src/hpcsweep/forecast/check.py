"""Predicts what was measured as if it had not been: a network, sizes, an algorithm, a GPU.

The error of a prediction is what it is wrong by there. Random rows would not do: the same layer
at the next size is in the training data then. `hpcsweep predict --check` shows these errors, and
what the intervals hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from hpcsweep import files
from hpcsweep.errors import UsageError
from hpcsweep.forecast import intervals, model
from hpcsweep.forecast.intervals import KINDS, OWN, LeftOut
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
COLUMNS: Final = {**dict(zip(POINT, POINT, strict=True)), "model": "network"}
_WRITTEN: Final = pd.Index([*POINT, *WORK[1:], "ran", "ms", "total_ms", OWN])  # where it is there
_SIZE_FOLDS: Final = 4  # every fourth size is left out, so that others stand on both sides
_MOST_FOLDS: Final = 12  # each takes a fit


def leave_out(
    measured: Measured,
    kind: str,
    *,
    values: Sequence[str] = (),
    gpus: Collection[str] = (),
) -> LeftOut | None:
    """Return what a model says of each part, having seen the others; None if there is one part.

    With `values`, these of the column are left out together. What others measured is a part only
    where GPUs are left out, or where there is nothing else.

    Only these `gpus` are asked for, if every part was measured there: it spares fits of others.
    """
    points = []
    calls = []
    column = KINDS.get(kind, kind)
    there = measured.points["gpu"].isin(gpus)
    has_every_part = {*measured.points[column]} == {*measured.points[column][there]}
    for name, train, out in folds(measured, kind, values):
        test = out.of(out.points[out.points["gpu"].isin(gpus)]) if has_every_part else out
        learnt = model.fit(train)
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
    column = KINDS.get(kind, kind)
    own = measured.points[column]
    foreign = measured.foreign
    # a GPU that others measured, too, has the name of this one
    theirs = foreign[column].astype(str).str.removesuffix(OTHERS)
    known = [*own, *theirs] if column == "gpu" or own.empty else [*own]
    for name, out in _parts(kind, [str(value) for value in sorted({*known})], values):
        is_own = own.astype(str).isin(out)
        is_theirs = theirs.isin(out)
        train = replace(measured.of(measured.points[~is_own]), foreign=foreign[~is_theirs])
        # of a GPU that was measured here, own points are asked for alone
        asked = foreign[is_theirs & (not is_own.any())]
        test = replace(measured.of(measured.points[is_own]), foreign=asked)
        if train.every_call.empty:
            raise UsageError(f"nothing is left to learn from without {kind} {name}")
        yield name, train, test


def _parts(
    kind: str, known: Sequence[str], wanted: Sequence[str]
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the name of each part and its values; nothing where there is one alone."""
    for value in wanted:
        if value not in known:
            among = ", ".join(known)
            raise UsageError(f"--leave {kind}={value}: not among what was measured: {among}")
    if wanted:
        yield ", ".join(wanted), wanted
        return
    parts = min(_MOST_FOLDS, len(known))
    if kind == "size":
        parts = min(_SIZE_FOLDS, len(known) // 2)
    if parts < 2:
        return
    for part in range(parts):
        values = known[part::parts]
        yield f"sizes {part + 1}" if kind == "size" else ", ".join(values), values


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
            "foreign_convolutions": len(self.measured.foreign),
            "checks": list(self.parts),
        }

    def text(self) -> str:
        """Return one table per kind of what was left out."""
        record = self.to_json()
        networks = count(len(record["networks"]), "network")
        algorithms = count(len(record["algorithms"]), "algorithm")
        head = f"{count(record['points'], 'point')} of {networks}, {algorithms}, "
        head += ", ".join(record["gpus"])
        if record["foreign_convolutions"]:
            head += f"; {count(record['foreign_convolutions'], 'convolution')} of other programs"
        if record["doubtful_left_out"]:
            head += f"; {count(record['doubtful_left_out'], 'doubtful point')} not used"
        lines = [head]
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
    values = [value for value in text.split(",") if value and text != "all"]
    parts = []
    for kind in [COLUMNS[column]] if leave else WORDS:
        left = leave_out(measured, kind, values=values)
        if left is not None:
            parts.append(left)
    return ForecastCheck(measured, [_record(left) for left in parts], parts)


def _record(left: LeftOut) -> dict[str, Any]:
    """Return the errors of what was left out, and how many times the intervals of others hold."""
    held: dict[str, list[Floats]] = {"totals": [], "layers": []}
    parts = []
    for name, part, others in left.parts():
        widths = intervals.calibrate(others)
        points = part.points
        calls = part.calls
        held["totals"].append(
            intervals.held(points["total_ms"], points[OWN], widths.of_points(points))
        )
        held["layers"].append(intervals.held(calls["ms"], calls[OWN], widths.of_layers(calls)))
        errors = _errors(part)
        parts.append({"name": name, "totals": errors["totals"], "layers": errors["layers"]})
    shares = {}
    for column, flags in held.items():
        every = np.concatenate(flags)
        shares[column] = float(every.mean()) if len(every) else None
    return {
        "left_out": left.kind,
        "fits": len(parts),
        "errors": {OWN: _errors(left)},
        "interval_holds": shares,
        "parts": parts,
    }


def _errors(left: LeftOut) -> dict[str, dict[str, float | None]]:
    """Return the median and mean absolute error, and the bias, each a share of the true time."""
    layers = left.calls[OWN] / left.calls["ms"]
    ratios = {
        "totals": left.points[OWN] / left.points["total_ms"],
        "layers": layers,
        "convolutions": layers[convolve(left.calls)],
    }
    errors: dict[str, dict[str, float | None]] = {}
    for column, ratio in ratios.items():
        errors[column] = dict.fromkeys(("median", "mean", "bias"))
        if len(ratio):
            wrong = (ratio - 1.0).abs()
            bias = ratio.median() - 1.0
            errors[column] = {"median": wrong.median(), "mean": wrong.mean(), "bias": bias}
    return errors


def _table(part: Mapping[str, Any]) -> list[str]:
    heads = [""]
    cells = [OWN]
    for column, errors in part["errors"][OWN].items():
        for how in ("median", "mean"):
            heads.append(f"{column} {how}")
            cells.append(_percent(errors[how]))
    kind = part["left_out"]
    what = f"{WORDS.get(kind, kind)} ({count(part['fits'], 'fit')})"
    holds = {name: _percent(share) for name, share in part["interval_holds"].items()}
    return [
        f"left out: {what}; absolute errors",
        *aligned([heads, cells], left=1),
        "the 90 % interval holds {totals} of the totals and {layers} of the layers".format(**holds),
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
    if not parts:
        raise UsageError(f"{path}: nothing to write, since nothing could be left out")
    tables = []
    for left in parts:
        rows = left.points if len(left.points) else left.calls
        shown = _WRITTEN.intersection(rows.columns)
        tables.append(rows[shown].assign(left_out=left.kind, part=rows["fold"]))
    table = pd.concat(tables).map(lambda cell: in_sheet(cell) if type(cell) is str else cell)
    with files.replacing(path) as file:
        file.write(table.to_csv(index=False, float_format="%.7g").encode())
