"""`hpcsweep predict SPEC --from SWEEP`: the points of a sweep, and what each time rests on."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from hpcsweep import files
from hpcsweep.catalog import columns, gpus
from hpcsweep.errors import UsageError
from hpcsweep.forecast import Basis, energy, intervals, leaving_out, model, shapes, tables
from hpcsweep.records import dataclass
from hpcsweep.text import aligned, count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hpcsweep.forecast.intervals import Widths
    from hpcsweep.forecast.leaving_out import Left
    from hpcsweep.forecast.model import Forecast
    from hpcsweep.forecast.tables import Measured
    from hpcsweep.point import Point

PREDICTED: Final = "predicted"
_ADDED: Final = ("predicted_lo_ms", "predicted_hi_ms", "interval_from", "basis", "source")
_OF_ENERGY: Final = ("predicted_lo_j", "predicted_hi_j")
_SHOWN: Final = 10
_WIDE: Final = 1.5  # a factor: what is farther off decides little
_TOLD: Final = 0.02  # a shift of the machine


# what is left out to find out how wide an interval must be; the others cannot be tried
_TRIED: Final = {
    Basis.SIZES: "size", Basis.NETWORKS: "network", Basis.ALGORITHMS: "algorithm",
    Basis.GPUS: "gpu",
}  # fmt: skip


@dataclass(frozen=True)
class Predicted:
    """The points of a sweep and their layer calls, as rows of tables."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    layers: pd.DataFrame
    widths: Mapping[Basis, Widths]
    advice: str = ""  # what would narrow intervals that are too wide

    def write(self, folder: Path) -> list[Path]:
        """Write both tables beside those of measured points, and return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        overall = pd.DataFrame(self.rows, columns=[*columns.OVERALL_COLUMNS, *_ADDED, *_OF_ENERGY])
        layers = self.layers.reindex(columns=[*columns.LAYER_COLUMNS, "status", *_ADDED])
        paths = [folder / "predicted.csv", folder / "predicted_layers.csv"]
        for path, table in zip(paths, (overall, layers), strict=True):
            with files.replacing(path) as file:
                file.write(table.to_csv(index=False, float_format="%.7g").encode())
        return paths

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        widths = self.widths.items()
        return {
            "sweep": self.name,
            "interval_factors": {basis: width.total for basis, width in widths},
            "interval_from": {basis: width.parts for basis, width in widths},
            "advice": self.advice or None,
            "machine_shift_pct": 100 * math.expm1(max((w.shift for _, w in widths), default=0.0)),
            "rows": list(self.rows),
        }

    def text(self) -> str:
        """Return how many points rest on what, and the first points."""
        counts = Counter(str(row["basis"]) for row in self.rows)
        lines = [f"{self.name}: {count(len(self.rows), 'point')}, {PREDICTED}"]
        lines += [f"  {counts[basis]:,} {self._from(basis)}" for basis in Basis if counts[basis]]
        if joules := sum("predicted_lo_j" in row for row in self.rows):
            lines.append(f"  the energy of a pass, too, for {count(joules, 'point')}")
        lines += [f"  {self.advice}"] if self.advice else []
        heads = ["model", "input_size", "batch_size", "algorithm", "ms", "90 % interval", "from"]
        body = [[*(str(row[name]) for name in heads[:4]), f"{row['median_ms']:.3f}",
                 f"{row['predicted_lo_ms']:.3f} to {row['predicted_hi_ms']:.3f}",
                 str(row["basis"])] for row in self.rows[:_SHOWN]]  # fmt: skip
        rest = len(self.rows) - len(body)
        return "\n".join(
            [*lines, "", *aligned([heads, *body]), *([f"... and {rest:,} more"] if rest else [])]
        )

    def _from(self, basis: Basis) -> str:
        """Return what points rest on, and how wide their interval is."""
        if basis is Basis.MEASURED:
            return "measured"
        return f"from {basis}: {basis.says}{self._width(basis)}"

    def _width(self, basis: Basis) -> str:
        width = self.widths.get(basis)
        if width is None:
            return ""
        parts = count(width.parts, _TRIED[basis]) if width.parts else "nothing"
        guess = f"a guess: from {parts}" if width.is_guess else f"from {parts}"
        told = f" (interval: a factor of {width.total:.2f}, {guess})"
        if width.shift < _TOLD:
            return told
        by = f"{100 * math.expm1(width.shift):.0f} %"
        return f"{told[:-1]}; wider by {by}, since the controls show another state of the machine)"


def predict(
    name: str,
    points: Sequence[Point],
    measured: Measured,
    *,
    fill: bool,
    controls: Sequence[float] = (),
) -> Predicted:
    """Predict the points of a sweep; with `fill`, keep the times of points that were measured.

    `controls` are those of what there is of this sweep.

    Raises:
        UsageError: a point cannot be predicted from these measurements.
    """
    _refuse(points, measured)
    table = _table(points)
    calls = _calls(points, table, measured)
    learnt = model.fit(measured)
    said = learnt.times(calls)
    table = table.assign(
        total_ms=learnt.totals(table, said),
        basis=_bases(table, measured),
        source=", ".join(measured.sources) or PREDICTED,
        energy_j=np.nan,
    )
    known = _measured(table, measured) if fill else pd.DataFrame()
    table.loc[known.index, list(known.columns)] = known
    left = _left_out(set(table["basis"]), measured, learnt)
    shift = intervals.shift(measured.controls_of({*table["gpu"]}), controls)
    widths = {basis: intervals.calibrate(one).shifted(shift) for basis, one in left.items()}
    if Basis.MEASURED in set(table["basis"]):
        widths[Basis.MEASURED] = intervals.Widths(1.0)
    of_layers = table["basis"].reindex(said["point_id"]).to_numpy()
    factor = np.ones(len(said))
    for basis, width in widths.items():
        chosen = of_layers == basis
        factor[chosen] = width.of_layers(said[chosen])
    said = said.assign(source=table["source"].reindex(said["point_id"]).to_numpy())
    layers = _layers(said[of_layers != Basis.MEASURED], factor[of_layers != Basis.MEASURED])
    flops = calls.groupby("point_id")[["flops", "bytes_min", "params"]].sum()
    joules = energy.cells(table, calls, energy.fit(measured.points, measured.calls), left, shift)
    rows = [_row(p, table, widths, flops) | joules.get(p.point_id, {}) for p in points]
    return Predicted(name, rows, layers, widths, _advice(table, widths, measured, left, learnt))


def _advice(
    table: pd.DataFrame,
    widths: Mapping[Basis, Widths],
    measured: Measured,
    left: Mapping[Basis, Left | None],
    learnt: Forecast,
) -> str:
    """Say how many more points would narrow intervals that are too wide, and to what."""
    wide = {basis for basis, width in widths.items() if width.total > _WIDE}
    far = table[table["basis"].isin(wide - {Basis.SIZES})]
    if far.empty:
        return ""
    kinds = far.groupby(["gpu", "setting", "dtype", "algorithm", "model"], observed=True)
    needed = int(kinds[["input_size", "batch_size"]].apply(_corners).sum())
    between = left.get(Basis.SIZES) or _left_out({Basis.SIZES}, measured, learnt)[Basis.SIZES]
    then = intervals.calibrate(between) if between else None
    known = "" if then is None or then.is_guess else f", within a factor of {then.total:.2f}"
    what = "the smallest and the largest of each network and algorithm"
    points = count(needed, "measured point")
    return f"{points} more, {what}, would let the others lie between measured ones{known}"


def _corners(sizes: pd.DataFrame) -> int:
    """Return how many points have the smallest and the largest sizes of all."""
    return len({tuple(sizes.min()), tuple(sizes.max())})


def _refuse(points: Sequence[Point], measured: Measured) -> None:
    """Raise `UsageError` for points that no model here speaks of."""
    known = measured.gpus
    for point in points:
        gpu, algorithm = str(point.axes.get("gpu")), point.axes.get("algorithm")
        if point.workload != "inference":
            raise UsageError(f"only inference is predicted, not {point.workload}")
        if not isinstance(algorithm, str):
            raise UsageError("a map of algorithms is not predicted: name one algorithm per point")
        if gpu not in known and not (gpus.sheet(gpu) and any(map(gpus.sheet, known))):
            raise UsageError(
                f"nothing was measured on {gpu}, and no table has the peaks of both {gpu} and "
                f"what was measured ({', '.join(sorted(known))})"
            )
    if not points:
        raise UsageError("the sweep has no point for this profile")


def _table(points: Sequence[Point]) -> pd.DataFrame:
    axes = pd.DataFrame(
        [{name: columns.cell(value) for name, value in point.axes.items()} for point in points],
        index=pd.Index([point.point_id for point in points], name="point_id"),
    )
    numbers = {name: axes[name].astype(int) for name in ("input_size", "batch_size")}
    return axes.assign(**numbers, setting=tables.setting(axes))[list(tables.POINT)]


def _calls(points: Sequence[Point], table: pd.DataFrame, measured: Measured) -> pd.DataFrame:
    """Return the calls of all points, with the cells of their point."""
    found = shapes.calls_of(points, measured)
    parts = [found[shapes.key_of(p)].assign(point_id=p.point_id) for p in points]
    calls = pd.concat(parts, ignore_index=True)
    cells = [name for name in tables.POINT if name != "batch_size"]
    return calls.join(table[cells], on="point_id")


def _bases(table: pd.DataFrame, measured: Measured) -> list[Basis]:
    """Return what each point's prediction rests on."""
    seen = measured.points
    ranges = seen.groupby(["gpu", "setting", "dtype", "algorithm", "model"], observed=True)[
        ["input_size", "batch_size"]
    ].agg(["min", "max"])
    limits = dict(zip(ranges.index, ranges.to_numpy(), strict=True))
    kinds = {(r.gpu, r.setting, r.dtype, r.algorithm) for r in seen.itertuples()}
    settings, known = {kind[:3] for kind in kinds}, set(seen["gpu"])
    found = []
    for row in table.itertuples():
        kind = (row.gpu, row.setting, row.dtype, row.algorithm)
        near = limits.get((*kind, row.model))
        if near is not None and (
            near[0] <= row.input_size <= near[1] and near[2] <= row.batch_size <= near[3]
        ):
            found.append(Basis.SIZES)
        elif kind in kinds:
            found.append(Basis.NETWORKS)
        elif kind[:3] in settings:
            found.append(Basis.ALGORITHMS)
        else:
            other = Basis.FOREIGN if row.gpu in measured.gpus else Basis.GPUS
            found.append(Basis.SETTINGS if row.gpu in known else other)
    return found


def _measured(table: pd.DataFrame, measured: Measured) -> pd.DataFrame:
    """Return the figures of the points that were measured, by the id that they have here."""
    keys, figures = list(tables.POINT), ["total_ms", "energy_j"]
    points = measured.points.reindex(columns=[*keys, *figures, "sweep"])
    seen = points.astype({"model": str, "algorithm": str})
    joined = table[keys].reset_index().merge(seen, on=keys).set_index("point_id")
    found = joined.rename(columns={"sweep": "source"}).assign(basis=Basis.MEASURED)
    return found[[*figures, "basis", "source"]]


def _left_out(bases: set[Basis], measured: Measured, learnt: Forecast) -> dict[Basis, Left | None]:
    """Return, for each basis of a prediction, the points that lacked the same when left out."""
    kinds = {basis: _TRIED.get(basis) for basis in Basis if basis in bases - {Basis.MEASURED}}
    return {
        basis: leaving_out.leave_out(measured, kind, like=learnt) if kind else None
        for basis, kind in kinds.items()
    }


def _layers(said: pd.DataFrame, factor: Any) -> pd.DataFrame:  # noqa: ANN401 - a column
    return said.assign(
        median_ms=said["ms"], device=said["gpu"], algorithm_used=said["ran"].where(
            said["ran"] != "-"), status=PREDICTED,
        predicted_lo_ms=said["ms"] / factor, predicted_hi_ms=said["ms"] * factor,
    )  # fmt: skip


def _row(
    point: Point, table: pd.DataFrame, widths: Mapping[Basis, Widths], work: pd.DataFrame
) -> dict[str, Any]:
    found, amount = table.loc[point.point_id], work.loc[point.point_id]
    basis = found["basis"]
    cells = row(point, basis, float(found["total_ms"]), widths[basis], found["source"])
    if found["energy_j"] > 0:
        cells["energy_j"] = found["energy_j"]
    return cells | {name: int(amount[name]) for name in ("flops", "bytes_min", "params")}


def row(point: Point, basis: Basis, ms: float, width: Widths, source: str) -> dict[str, Any]:
    """Return the row of a point, in the columns of measured ones."""
    return {
        **columns.axis_cells(point.axes),
        "point_id": point.point_id,
        "workload": point.workload,
        "status": "ok" if basis == Basis.MEASURED else PREDICTED,
        "median_ms": ms,
        "throughput_ips": 1000 * point.axes["batch_size"] / ms,
        "predicted_lo_ms": ms / width.total,
        "predicted_hi_ms": ms * width.total,
        "interval_from": None if basis == Basis.MEASURED else width.parts,
        "basis": str(basis),
        "source": source,
    }
