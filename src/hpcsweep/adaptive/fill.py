"""The whole sweep at the end: what was measured, and the rest as predicted (`predicted.csv`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hpcsweep.errors import UsageError
from hpcsweep.forecast import groups, intervals, model, sweep, tables
from hpcsweep.forecast.basis import Basis
from hpcsweep.forecast.sweep import Predicted
from hpcsweep.records import dataclass, replace
from hpcsweep.store import rundir

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hpcsweep.adaptive.judge import Judged
    from hpcsweep.forecast.intervals import Widths
    from hpcsweep.forecast.past_rows import Known
    from hpcsweep.forecast.tables import Measured
    from hpcsweep.point import Point
    from hpcsweep.store.rundir import RunDir


@dataclass(frozen=True)
class Layers:
    """Predicts networks from layer rows: of some points of the same sweep, and of other sweeps."""

    measured: Measured
    beside: Measured | None = None

    def __call__(self, before: Sequence[str], test: Sequence[str]) -> Mapping[str, float]:
        """Return what a fit of the points `before` says of others."""
        points = self.measured.points
        seen, wanted = (points[points.index.isin(ids)] for ids in (before, test))
        if seen.empty or wanted.empty:
            return {}
        learnt = model.fit(self.all_of(self.measured.of(seen)), quick=True)  # one of many
        rest = self.measured.of(wanted)
        totals = learnt.totals(rest.points, learnt.times(rest.calls))
        return dict(zip(rest.points.index, totals, strict=True))

    def all_of(self, own: Measured) -> Measured:
        """Return rows of this sweep with those of others."""
        return own if self.beside is None else tables.together([own, self.beside])


def layers_of(run: RunDir, beside: Measured | None = None) -> Layers | None:
    """Return what the collected layer rows of a sweep teach; None where there are none."""
    try:
        return Layers(tables.read([run]), beside)
    except UsageError:
        return None


def beside(run: RunDir, points: Sequence[Point], gpu: str) -> Measured | None:
    """Return what other sweeps have of the networks of a sweep on a GPU; None where nothing.

    These are other algorithms, batches and settings: more networks would make each fit long.
    """
    others = [one for one in rundir.all_runs(run.path.parent) if one.path != run.path]
    try:
        known = tables.read_all(run.path.parent, others)
    except UsageError:
        return None
    networks = {point.axes.get("model") for point in points}
    near = known.points["model"].isin(networks) & known.points["gpu"].eq(gpu)
    near &= ~known.points.index.isin([point.point_id for point in points])
    chosen = replace(known.of(known.points[near]), foreign=None)
    return None if chosen.points.empty else chosen


def filled(
    name: str, judged: Sequence[Judged], known: Known, layers: Layers | None = None
) -> Predicted:
    """Return the points of all groups, measured or predicted; those that failed are left out."""
    widths = {one.basis: one.width for one in judged}
    by_layers = _by_layers(name, judged, known, layers)
    said = {row["point_id"]: row for row in by_layers.rows} if by_layers else {}
    rows = [row for one in judged for row in _rows(name, one, known, said)]
    calls = by_layers.layers if by_layers else pd.DataFrame()
    return Predicted(name, rows, calls, widths)


def _by_layers(
    name: str, judged: Sequence[Judged], known: Known, layers: Layers | None
) -> Predicted | None:
    """Return what layers say of the points without a time; None where they do not serve."""
    points = [p for one in judged for p in one.group.points if p.point_id not in known.done]
    if layers is None or not points:
        return None
    try:
        return sweep.predict(name, points, layers.all_of(layers.measured), fill=False)
    except UsageError:  # what no layer of these networks speaks of, such as a map of algorithms
        return None


def _rows(
    name: str, one: Judged, known: Known, by_layers: Mapping[str, Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a group in order, each from the basis that was the better one."""
    points = one.group.points
    left = [point for point in points if point.point_id not in known.done]
    lined = _lined(one, known, left)
    for point in points:
        if (ms := known.ms.get(point.point_id)) is not None:
            yield sweep.row(point, Basis.MEASURED, ms, intervals.Widths(1.0), name)
        elif one.basis != Basis.LINES and point.point_id in by_layers:
            row = by_layers[point.point_id]
            ms = row["median_ms"]
            yield {**row, **sweep.row(point, Basis(row["basis"]), ms, one.width, row["source"])}
        elif point.point_id in lined:
            ms, width = lined[point.point_id]
            yield sweep.row(point, Basis.LINES, ms, width, sweep.PREDICTED)


def _lined(one: Judged, known: Known, left: Sequence[Point]) -> Mapping[str, tuple[float, Widths]]:
    """Return the time of each point and its interval's width; wide beyond all measured points."""
    group = one.group
    seen = [point_id for point_id in group.ids if point_id in known.ms]
    if not seen or not left:
        return {}
    ids = [point.point_id for point in left]
    places, wanted = group.places_of(seen), group.places_of(ids)
    ms = groups.between(places, np.array([known.ms[point_id] for point_id in seen]), wanted)
    unknown = intervals.Widths().shifted(one.width.shift)
    width = one.width if one.basis == Basis.LINES else unknown
    wide = max(width, unknown, key=lambda each: each.total)
    return {
        point_id: (float(time), wide if is_outside else width)
        for point_id, time, is_outside in zip(ids, ms, groups.outside(places, wanted), strict=True)
    }
