"""The whole sweep at the end: what was measured, and the rest as predicted (`predicted.csv`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hpcsweep.errors import UsageError
from hpcsweep.forecast import Basis, groups, intervals, model, sweep, training_data
from hpcsweep.forecast.intervals import Widths
from hpcsweep.forecast.past_rows import Known
from hpcsweep.forecast.sweep import Predicted
from hpcsweep.forecast.training_data import Measured
from hpcsweep.point import Point
from hpcsweep.store.folders import SweepDir
from hpcsweep.submit.adaptive.judge import Judged


@dataclass(frozen=True)
class Layers:
    """Predicts networks from layer rows of some points of the same sweep."""

    measured: Measured

    def __call__(self, before: Sequence[str], test: Sequence[str]) -> Mapping[str, float]:
        """Return what a fit of the points `before` says of others."""
        points = self.measured.points
        seen, rest = (self.measured.of(points[points.index.isin(ids)]) for ids in (before, test))
        if seen.points.empty or rest.points.empty:
            return {}
        learnt = model.fit(seen, quick=True)  # one of many
        totals = learnt.totals(rest.points, learnt.times(rest.calls))
        return dict(zip(rest.points.index, totals, strict=True))


def layers_of(sweep_dir: SweepDir) -> Layers | None:
    """Return what the collected layer rows of a sweep teach; None where there are none."""
    try:
        return Layers(training_data.read_sweeps([sweep_dir]))
    except UsageError:
        return None


def filled(
    name: str, judged: Sequence[Judged], known: Known, layers: Layers | None = None
) -> Predicted:
    """Return the points of all groups, measured or predicted; those that failed are left out."""
    widths = {each.basis: each.width for each in judged}
    points = [p for each in judged for p in each.group.points if p.point_id not in known.done]
    predicted = _by_layers(name, points, layers)
    by_layers = {row["point_id"]: row for row in predicted.rows}
    rows = [row for each in judged for row in _rows(name, each, known, by_layers)]
    return Predicted(name, rows, predicted.layers, widths)


def _by_layers(name: str, points: Sequence[Point], layers: Layers | None) -> Predicted:
    """Return what layers say of the points without a time; no rows where they do not serve."""
    if layers is not None and points:
        with suppress(UsageError):  # no layer speaks of it, such as of a map of algorithms
            return sweep.predict(name, points, layers.measured, fill=False)
    return Predicted(name, (), pd.DataFrame(), {})


def _rows(
    name: str, judged: Judged, known: Known, by_layers: Mapping[str, Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a group in order, each from the basis that was the better one."""
    lined = _lined(judged, known)
    for point in judged.group.points:
        if (ms := known.ms.get(point.point_id)) is not None:
            yield sweep.row(point, Basis.MEASURED, ms, intervals.Widths(1.0), name)
        elif judged.basis != Basis.LINES and point.point_id in by_layers:
            row = by_layers[point.point_id]
            cells = Basis(row["basis"]), row["median_ms"], judged.width, row["source"]
            yield {**row, **sweep.row(point, *cells)}
        elif point.point_id in lined:
            ms, width = lined[point.point_id]
            yield sweep.row(point, Basis.LINES, ms, width, sweep.PREDICTED)


def _lined(judged: Judged, known: Known) -> Mapping[str, tuple[float, Widths]]:
    """Return the time of each point and its interval's width; wide beyond all measured points."""
    group = judged.group
    seen = [point_id for point_id in group.ids if point_id in known.ms]
    ids = [point_id for point_id in group.ids if point_id not in known.done]
    if not seen or not ids:
        return {}
    places = group.places_of(seen)
    wanted = group.places_of(ids)
    ms = groups.between(places, np.array([known.ms[point_id] for point_id in seen]), wanted)
    unknown = intervals.Widths().shifted(judged.width.shift)
    width = judged.width if judged.basis == Basis.LINES else unknown
    wide = max(width, unknown, key=lambda each: each.total)
    return {
        point_id: (float(time), wide if is_outside else width)
        for point_id, time, is_outside in zip(ids, ms, groups.outside(places, wanted), strict=True)
    }
