"""`hpcsweep predict SPEC --from SWEEP`: the points of a sweep, and what each time rests on."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from hpcsweep import files
from hpcsweep.catalog import WORKLOADS, columns, gpus
from hpcsweep.errors import HpcsweepError, UsageError, first_line
from hpcsweep.forecast import Basis, check, energy_model, intervals, model, training_data
from hpcsweep.forecast.intervals import LeftOut, Widths
from hpcsweep.forecast.model import Forecast
from hpcsweep.forecast.training_data import Measured
from hpcsweep.point import Point
from hpcsweep.text import aligned, count

PREDICTED: Final = "predicted"
_ADDED: Final = ("predicted_lo_ms", "predicted_hi_ms", "interval_from", "basis", "source")
_OF_ENERGY: Final = ("predicted_lo_j", "predicted_hi_j")
_SHOWN: Final = 10
_TOLD: Final = 0.02  # a shift of the machine
_SHAPED_BY: Final = ("model", "input_size", "batch_size", "dtype")  # and the setting
_OF_SHAPE: Final = ("layer", "call_index", "op", "unique_key", "direction", *training_data.WORK)
_FIRMNESS: Final = [*Basis]
_KIND: Final = ["gpu", "setting", "dtype", "algorithm"]
# so many of these a measured point shares with a predicted one
_SHARES: Final = {Basis.NETWORKS: 4, Basis.ALGORITHMS: 3, Basis.SETTINGS: 1}
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
        shift = max((width.shift for width in self.widths.values()), default=0.0)
        return {
            "sweep": self.name,
            "interval_factors": {basis: width.total for basis, width in self.widths.items()},
            "interval_from": {basis: width.parts for basis, width in self.widths.items()},
            "machine_shift_pct": 100 * math.expm1(shift),
            "rows": list(self.rows),
        }

    def text(self) -> str:
        """Return how many points rest on what, and the first points."""
        counts = Counter(str(row["basis"]) for row in self.rows)
        lines = [f"{self.name}: {count(len(self.rows), 'point')}, {PREDICTED}"]
        lines += [f"  {counts[basis]:,} {self._says(basis)}" for basis in Basis if counts[basis]]
        if joules := sum("predicted_lo_j" in row for row in self.rows):
            lines.append(f"  the energy of a pass, too, for {count(joules, 'point')}")
        heads = ["model", "input_size", "batch_size", "algorithm", "ms", "90 % interval", "from"]
        body = [[*(str(row[name]) for name in heads[:4]), f"{row['median_ms']:.3f}",
                 f"{row['predicted_lo_ms']:.3f} to {row['predicted_hi_ms']:.3f}",
                 str(row["basis"])] for row in self.rows[:_SHOWN]]  # fmt: skip
        lines += ["", *aligned([heads, *body])]
        if rest := len(self.rows) - len(body):
            lines.append(f"... and {rest:,} more")
        return "\n".join(lines)

    def _says(self, basis: Basis) -> str:
        """Return what points rest on, and how wide their interval is."""
        if basis is Basis.MEASURED:
            return "measured"
        text = f"from {basis}: {basis.says}"
        width = self.widths.get(basis)
        if width is None:
            return text
        parts = count(width.parts, _TRIED[basis]) if width.parts else "nothing"
        guess = "a guess: " if width.is_guess else ""
        factor = statistics.median(
            row["predicted_hi_ms"] / row["median_ms"] for row in self.rows if row["basis"] == basis
        )
        shift = (
            f"; wider by {100 * math.expm1(width.shift):.0f} %, since the controls show another "
            "state of the machine"
        )
        more = shift if width.shift >= _TOLD else ""
        return f"{text} (interval: a factor of {factor:.2f}, {guess}from {parts}{more})"


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
    table = _as_timed(_table(points), measured)
    calls = _calls(points, table, measured)
    learnt = model.fit(measured)
    asked = learnt.times(training_data.with_times(calls))
    table, said = intervals.with_distance(table, asked, measured.every_call)
    table = table.assign(
        total_ms=learnt.totals(table, said),
        basis=_bases(table, measured),
        source=", ".join(measured.sources) or PREDICTED,
        energy_j=np.nan,
    )
    if fill:
        known = _measured(table, measured)
        table.loc[known.index, list(known.columns)] = known
    left = _left_out(set(table["basis"]), measured, learnt)
    shift = intervals.shift(measured.controls_of({*table["gpu"]}), controls)
    widths = {basis: intervals.calibrate(kind).shifted(shift) for basis, kind in left.items()}
    layers = _layers(said, table, widths)
    if Basis.MEASURED in set(table["basis"]):
        widths[Basis.MEASURED] = intervals.Widths(1.0)
    work = calls.groupby("point_id")[["flops", "bytes_min", "params"]].sum()
    joules = energy_model.cells(table, energy_model.fit(measured.points), left, shift)
    rows = [_row(p, table, widths, work) | joules.get(p.point_id, {}) for p in points]
    return Predicted(name, rows, layers, widths)


def _refuse(points: Sequence[Point], measured: Measured) -> None:
    """Raise `UsageError` for points that no model here speaks of."""
    known = measured.gpus
    for point in points:
        gpu = str(point.axes.get("gpu"))
        if not WORKLOADS[point.workload].infers:
            raise UsageError(f"only inference is predicted, not {point.workload}")
        if not isinstance(point.axes.get("algorithm"), str):
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
    return axes.assign(**numbers, setting=training_data.setting(axes))[list(training_data.POINT)]


def _as_timed(table: pd.DataFrame, measured: Measured) -> pd.DataFrame:
    """Return points with that way of timing layers in their setting that makes them firmest."""
    ways = training_data.ways(measured.points)
    settings = np.array([table["setting"] + way for way in ways], object)
    every = [_bases(table.assign(setting=setting), measured) for setting in settings]
    firmest = np.argmin([[_FIRMNESS.index(basis) for basis in bases] for bases in every], axis=0)
    return table.assign(setting=settings[firmest, np.arange(len(table))])


def _calls(points: Sequence[Point], table: pd.DataFrame, measured: Measured) -> pd.DataFrame:
    """Return the calls of all points, with the cells of their point.

    They come from rows of the same network, size and batch. Where there is none, a shape pass tells
    them, which needs torch, but neither a GPU nor arithmetic.
    """
    rows = measured.points.reset_index()
    first = rows.groupby([*_SHAPED_BY, "setting"], observed=True)["point_id"].first().to_dict()
    by_point = measured.calls.groupby("point_id", observed=True)
    network = lru_cache(maxsize=1)(_network)  # points of one network follow each other
    by_shape = dict[tuple[Any, ...], pd.DataFrame]()
    parts = []
    for point, setting in zip(points, table["setting"], strict=True):
        key = (*(point.axes[name] for name in _SHAPED_BY), setting)
        if key not in by_shape and key in first:
            by_shape[key] = by_point.get_group(first[key])[list(_OF_SHAPE)]
        elif key not in by_shape:
            by_shape[key] = _shape_pass(point, network)
        parts.append(by_shape[key].assign(point_id=point.point_id))
    calls = pd.concat(parts, ignore_index=True)
    return calls.join(table.drop(columns="batch_size"), on="point_id")


def _network(model: str, dtype: str, memory_format: str, channels: int) -> Any:  # noqa: ANN401
    import torch  # noqa: PLC0415 - most predictions need no shape pass

    from hpcsweep.measure import model_builder  # noqa: PLC0415 - it needs torch

    network = model_builder.build_float32(model, enliven=False, channels=channels)
    network = network.to(dtype=getattr(torch, dtype))
    return network.to(memory_format=model_builder.LAYOUTS[memory_format])


def _shape_pass(point: Point, network: Callable[[str, str, str, int], Any]) -> pd.DataFrame:
    """Return the calls that a shape pass finds, as the columns of layer rows.

    `UsageError` where the network does not take the image, or is not to be had.
    """
    import torch  # noqa: PLC0415 - most predictions need no shape pass

    from hpcsweep.measure import model_builder, shape_pass, work  # noqa: PLC0415 - they need torch

    axes = point.axes
    shape = model_builder.image_shape(point.axes)
    image = torch.empty(axes["batch_size"], *shape, dtype=getattr(torch, axes["dtype"]))
    image = image.to(memory_format=model_builder.LAYOUTS[axes["memory_format"]])
    try:
        model = network(axes["model"], axes["dtype"], axes["memory_format"], shape[0])
        calls = shape_pass.shape_pass(model, image).calls
    except HpcsweepError:
        raise
    except Exception as error:  # whatever the network's author wrote
        why = f"{type(error).__name__}: {first_line(error)}"
        size = f"input_size {axes['input_size']}, batch_size {axes['batch_size']}"
        raise UsageError(
            f"{axes['model']} at {size} cannot be predicted, since it does not run here: {why}; "
            "exclude it from the sweep"
        ) from error
    rows = [
        {**work.call_cells(call).filled(), "call_index": index, "direction": "forward",
         "batch_size": axes["batch_size"]}
        for index, call in enumerate(calls)
    ]  # fmt: skip
    return pd.DataFrame(rows).reindex(columns=list(_OF_SHAPE))


def _bases(table: pd.DataFrame, measured: Measured) -> list[Basis]:
    """Return what each point's prediction rests on."""
    networks = measured.points.groupby([*_KIND, "model"], observed=True)
    ranges = networks[["input_size", "batch_size"]].agg(["min", "max"])
    limits = dict(zip(ranges.index, ranges.to_numpy(), strict=True))
    seen = {key[:number] for key in limits for number in _SHARES.values()}
    every_gpu = measured.gpus
    bases = []
    for row in table.itertuples():
        key = (row.gpu, row.setting, row.dtype, row.algorithm, row.model)
        small, large, fewest, most = limits.get(key, [math.inf] * 4)
        is_inside = small <= row.input_size <= large and fewest <= row.batch_size <= most
        shared = (basis for basis, number in _SHARES.items() if key[:number] in seen)
        other = Basis.FOREIGN if row.gpu in every_gpu else Basis.GPUS
        bases.append(Basis.SIZES if is_inside else next(shared, other))
    return bases


def _measured(table: pd.DataFrame, measured: Measured) -> pd.DataFrame:
    """Return the figures of the points that were measured, by the id that they have here."""
    keys = list(training_data.POINT)
    figures = ["total_ms", "energy_j", "source"]
    points = measured.points.rename(columns={"sweep": "source"}).reindex(columns=[*keys, *figures])
    points = points.astype({"model": str, "algorithm": str}).sort_values("setting")
    # however their layers were timed, passes are the same
    points, asked = (
        rows.assign(setting=training_data.of_passes(rows["setting"])) for rows in (points, table)
    )
    points = points.drop_duplicates(keys)
    joined = asked[keys].reset_index().merge(points, on=keys).set_index("point_id")
    return joined[figures].assign(basis=Basis.MEASURED)


def _left_out(
    bases: set[Basis], measured: Measured, learnt: Forecast
) -> dict[Basis, LeftOut | None]:
    """Return, for each basis of a prediction, the points that lacked the same when left out."""
    return {
        basis: check.leave_out(measured, _TRIED[basis], like=learnt) if basis in _TRIED else None
        for basis in Basis
        if basis in bases - {Basis.MEASURED}
    }


def _layers(
    calls: pd.DataFrame, table: pd.DataFrame, widths: Mapping[Basis, Widths]
) -> pd.DataFrame:
    """Return the rows of predicted calls, but of points that were measured."""
    bases = calls["point_id"].map(table["basis"])
    factor = pd.Series(np.nan, calls.index)
    for basis, width in widths.items():
        factor[bases == basis] = width.of_layers(calls[bases == basis])
    return calls.assign(
        median_ms=calls["ms"], device=calls["gpu"], status=PREDICTED,
        algorithm_used=calls["ran"].where(calls["ran"] != "-"),
        source=calls["point_id"].map(table["source"]),
        predicted_lo_ms=calls["ms"] / factor, predicted_hi_ms=calls["ms"] * factor,
    )[factor.notna()]  # fmt: skip


def _row(
    point: Point, table: pd.DataFrame, widths: Mapping[Basis, Widths], work: pd.DataFrame
) -> dict[str, Any]:
    of = table.loc[point.point_id]
    amounts = work.loc[point.point_id]
    width = widths[of["basis"]]
    width = replace(width, total=float(width.of_points(table.loc[[point.point_id]])[0]))
    cells = row(point, of["basis"], float(of["total_ms"]), width, of["source"])
    if of["energy_j"] > 0:
        cells["energy_j"] = of["energy_j"]
    return cells | {str(name): int(amount) for name, amount in amounts.items()}


def row(point: Point, basis: Basis, ms: float, width: Widths, source: str) -> dict[str, Any]:
    """Return the row of a point, in the columns of measured ones."""
    images = point.axes.get("batch_size")  # of a pass; a command need not tell
    return {
        **columns.axis_cells(point.axes),
        "point_id": point.point_id,
        "workload": point.workload,
        "status": "ok" if basis == Basis.MEASURED else PREDICTED,
        "median_ms": ms,
        "throughput_ips": None if images is None else 1000 * images / ms,
        "predicted_lo_ms": ms / width.total,
        "predicted_hi_ms": ms * width.total,
        "interval_from": None if basis == Basis.MEASURED else width.parts,
        "basis": str(basis),
        "source": source,
    }
