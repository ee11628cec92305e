"""Predicts the points of a sweep: what each rests on, its time and layers, and their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pandas as pd

from hpcsweep.catalog import WORKLOADS, columns, gpus
from hpcsweep.errors import UsageError
from hpcsweep.forecast import (
    Basis,
    check,
    energy_model,
    intervals,
    layer_calls,
    model,
    training_data,
)
from hpcsweep.forecast.intervals import Widths
from hpcsweep.forecast.training_data import Measured
from hpcsweep.forecast.unmeasured import PREDICTED, TRIED, Predicted, row
from hpcsweep.point import Point

_NETWORK: Final = ["gpu", "setting", "dtype", "algorithm", "model"]
# what a point shares with a measured one, whatever their sizes
_SHARED: Final = {
    Basis.SETTINGS: _NETWORK[:1], Basis.ALGORITHMS: _NETWORK[:3], Basis.NETWORKS: _NETWORK[:4],
}  # fmt: skip
_SIZES: Final = ["input_size", "batch_size"]
# of a measured point; of several visits or seeds the median
_FIGURES: Final = {"total_ms": "median", "energy_j": "median", "source": "first"}
_WORK: Final = ["flops", "bytes_min", "params"]  # of a pass


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
    table = with_bases(as_table(points), measured)
    calls = layer_calls.of_points(points, table, measured)
    learnt = model.fit(measured)
    said = learnt.times(training_data.with_times(calls))
    table, said = intervals.with_distance(table, said, measured.every_call)
    table["total_ms"] = learnt.totals(table, said)
    power = energy_model.fit(measured.points)
    table["energy_j"], of_watts = energy_model.joules(power, table)
    table["source"] = ", ".join(measured.sources) or PREDICTED
    if fill:
        _keep_measured(table, measured)
    is_measured = table["basis"] == Basis.MEASURED
    said = said[~said["point_id"].isin(table.index[is_measured])].assign(factor=1.0)
    table["factor"] = 1.0  # of points that were measured
    shift = intervals.shift(measured.controls_of({*table["gpu"]}), controls)
    widths: dict[Basis, Widths] = {}
    for basis in table["basis"].unique():
        if basis is Basis.MEASURED:
            widths[basis] = Widths(1.0)
            continue
        points_of = table["basis"] == basis
        left = None
        if basis in TRIED:
            left = check.leave_out(measured, TRIED[basis], gpus={*table["gpu"][points_of]})
        width = intervals.calibrate(left).shifted(shift)
        widths[basis] = width
        table.loc[points_of, "factor"] = width.of_points(table[points_of])
        calls_of = said["point_id"].isin(table.index[points_of])
        said.loc[calls_of, "factor"] = width.of_layers(said[calls_of])
    table["energy_factor"] = (table["factor"] * of_watts).mask(is_measured)
    work = calls.groupby("point_id")[_WORK].sum().astype(int)
    cells = table.join(work).to_dict("index")
    rows = [_row(point, cells[point.point_id], widths) for point in points]
    return Predicted(name, rows, _layer_rows(said, table), widths)


def _refuse(points: Sequence[Point], measured: Measured) -> None:
    """Raise `UsageError` for points that no model here speaks of."""
    known = measured.gpus
    has_sheet = any(map(gpus.sheet, known))
    for point in points:
        gpu = str(point.axes.get("gpu"))
        if not WORKLOADS[point.workload].infers:
            raise UsageError(f"only inference is predicted, not {point.workload}")
        if not isinstance(point.axes.get("algorithm"), str):
            raise UsageError("a map of algorithms is not predicted: name one algorithm per point")
        if gpu not in known and not (has_sheet and gpus.sheet(gpu)):
            raise UsageError(
                f"nothing was measured on {gpu}, and no table has the peaks of both {gpu} and "
                f"what was measured ({', '.join(sorted(known))})"
            )
    if not points:
        raise UsageError("the sweep has no point for this profile")


def as_table(points: Sequence[Point]) -> pd.DataFrame:
    """Return points as rows of measured ones, by id; none says how its layers are timed."""
    cells = {}
    for point in points:
        cells[point.point_id] = {name: columns.cell(value) for name, value in point.axes.items()}
    axes = pd.DataFrame.from_dict(cells, "index").rename_axis("point_id")
    axes["setting"] = training_data.setting(axes)
    return axes[[*training_data.POINT]].astype(dict.fromkeys(_SIZES, int))


def with_bases(table: pd.DataFrame, measured: Measured) -> pd.DataFrame:
    """Return points with their `basis`, and that way of timing layers that makes it firmest."""
    tried = []
    for way in training_data.ways(measured.points):
        timed = table.assign(setting=table["setting"] + way)
        tried.append(timed.assign(basis=_bases(timed, measured)))
    every = pd.concat(tried)
    order = [*Basis].index
    firmest = every.sort_values("basis", kind="stable", key=lambda bases: bases.map(order))
    return firmest[~firmest.index.duplicated()].loc[table.index]  # the first of equals


def _bases(table: pd.DataFrame, measured: Measured) -> pd.Series[Any]:
    """Return what each point's prediction rests on."""
    bases = pd.Series(Basis.GPUS, table.index, dtype=object)
    bases[table["gpu"].isin(measured.gpus)] = Basis.FOREIGN
    seen = measured.points
    for basis, names in _SHARED.items():  # the firmest last: it counts
        kinds = pd.MultiIndex.from_frame(seen[names])
        bases[pd.MultiIndex.from_frame(table[names]).isin(kinds)] = basis
    sizes = seen.groupby(_NETWORK, observed=True)[_SIZES]
    sized = table.join(sizes.min().add_suffix("_least"), on=_NETWORK)
    sized = sized.join(sizes.max().add_suffix("_most"), on=_NETWORK)
    is_inside = pd.Series(data=True, index=table.index)
    for name in _SIZES:
        is_inside &= sized[name].between(sized[f"{name}_least"], sized[f"{name}_most"])
    bases[is_inside] = Basis.SIZES
    return bases


def _keep_measured(table: pd.DataFrame, measured: Measured) -> None:
    """Give points that were measured their own figures, and the sweep that these are from."""
    keys = [*training_data.POINT]
    # however their layers were timed, passes are the same
    points = measured.points.assign(setting=training_data.of_passes(measured.points["setting"]))
    asked = table.assign(setting=training_data.of_passes(table["setting"]))
    figures = points.groupby(keys).agg(_FIGURES)
    known = asked[keys].join(figures, on=keys, how="inner")
    table.loc[known.index, [*_FIGURES]] = known[[*_FIGURES]]
    table.loc[known.index, "basis"] = Basis.MEASURED


def _layer_rows(calls: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of calls."""
    return calls.assign(
        median_ms=calls["ms"],
        device=calls["gpu"],
        status=PREDICTED,
        algorithm_used=calls["ran"].where(calls["ran"] != "-"),
        source=calls["point_id"].map(table["source"]),
        predicted_lo_ms=calls["ms"] / calls["factor"],
        predicted_hi_ms=calls["ms"] * calls["factor"],
    )


def _row(point: Point, cells: Mapping[str, Any], widths: Mapping[Basis, Widths]) -> dict[str, Any]:
    """Return the row of a point."""
    width = replace(widths[cells["basis"]], total=cells["factor"])
    found = row(point, cells["basis"], cells["total_ms"], width, cells["source"])
    found |= {name: cells[name] for name in _WORK}
    joules = cells["energy_j"]
    factor = cells["energy_factor"]
    if joules > 0:
        found["energy_j"] = joules
    if joules * factor > 0:
        found["energy_method"] = PREDICTED
        found["predicted_lo_j"] = joules / factor
        found["predicted_hi_j"] = joules * factor
    return found
