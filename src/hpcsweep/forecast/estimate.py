"""Estimates how long points will take: from rows where there are some, else from a table of peaks.

A point takes what its passes take, and something beside them: evidence, numerics, shapes. The first
point of a network waits for its worker, which starts the device and builds the network; the first
of a job waits for torch, too. All of this is learnt from rows. The time of a pass comes from
measured points of the same network, algorithm and settings; else from what `hpcsweep predict` wrote
for the sweep; else from the operations of the network and the peak of the device, corrected by what
other networks and algorithms took there.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from operator import itemgetter
from typing import Any, Final

from hpcsweep.catalog import COMMAND, WORKLOADS, axis_defaults
from hpcsweep.forecast import Basis, curves, passes, past_rows
from hpcsweep.forecast.curves import Curve
from hpcsweep.forecast.past_rows import Kind, PointTime
from hpcsweep.point import Point
from hpcsweep.spec.space import Sweep
from hpcsweep.store.folders import SweepDir

_LEVEL: Final = 0.9  # share of the errors that the width covers
_FEWEST: Final = 5  # errors from which a quantile is taken; rows from which a line is
_RUN_S: Final = 60.0  # of a command that did not run yet
# how far a time may be too low, nine times in ten, where that cannot be found out
_GUESSED: Final = {
    Basis.GIVEN: 1.0, Basis.MEASURED: 1.5, Basis.PREDICTED: 2.0, Basis.OTHERS: 3.0,
    Basis.PEAKS: 5.0, Basis.RUNS: 3.0,
}  # fmt: skip


@dataclass(frozen=True)
class Overhead:
    """Seconds beside the passes: of every point, per second of a pass, and of what is made."""

    fixed: float = 0.5
    slope: float = 4.0
    worker: float = 8.0  # the first one, with the import of torch
    network: float = 3.0  # each other worker, with its device and network
    layer_factor: float = 1.0
    n: float = 0.0  # timed passes, as a rule

    def at(self, pass_s: float) -> float:
        """Return the seconds beside the passes of a point."""
        return self.fixed + self.slope * pass_s


@dataclass(frozen=True)
class CostModel:
    """The rows of one device and workload, and what was made of them."""

    rows: Sequence[PointTime] = ()
    beside: Overhead = field(default_factory=Overhead)
    pass_s: Mapping[Kind, Curve] = field(default_factory=dict)
    extra_s: Mapping[Kind, Curve] = field(default_factory=dict)
    predicted: Mapping[Kind, Curve] = field(default_factory=dict)  # seconds of a pass
    width_of_predicted: float = 1.0

    def correction(self, model: str, algorithm: str, *, without: str = "") -> float | None:
        """Return what the table's passes are wrong by; None where there is no row.

        An algorithm is as much slower than another as for other networks. `without` leaves a
        network out.
        """
        every = {pair: ratio for pair, ratio in self._ratios.items() if pair[0] != without}
        of_model = {name: ratio for (net, name), ratio in every.items() if net == model}
        of_algorithm = {net: ratio for (net, name), ratio in every.items() if name == algorithm}
        in_proportion = [
            here * there / every[net, name]
            for name, here in of_model.items()
            for net, there in of_algorithm.items()
            if (net, name) in every
        ]
        ratios = in_proportion or (of_algorithm or of_model or every).values()
        return statistics.median(ratios) if ratios else None

    @cached_property
    def _ratios(self) -> dict[tuple[str, str], float]:
        """Return measured over tabulated seconds of a pass, by model and algorithm."""
        ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
        for row in self.rows:
            ratios[row.kind[0], row.kind[1]].append(row.pass_s / row.by_table)
        return {pair: statistics.median(of_pair) for pair, of_pair in ratios.items()}

    def width_of_measured(self, passes: float) -> float | None:
        """Return the factor by which points of so many passes are too low, nine times in ten."""
        true_s = list[float]()
        said_s = list[float]()
        for kind, curve in self.pass_s.items():
            extra = self.extra_s.get(kind)
            if extra is None or extra.works != curve.works:
                continue
            for (true, said), (more, said_more) in zip(
                curve.left_out(), extra.left_out(), strict=True
            ):
                true_s.append(passes * true + more)
                said_s.append(passes * said + said_more)
        return _upper(true_s, said_s, range(len(true_s)))

    def width_of_others(self) -> float | None:
        """Return the factor by which passes of a network that was left out are too low."""
        said = [(pair, self.correction(*pair, without=pair[0])) for pair in self._ratios]
        known = {pair: ratio for pair, ratio in said if ratio}
        true = [self._ratios[pair] for pair in known]
        return _upper(true, list(known.values()), [model for model, _ in known])


@dataclass(frozen=True)
class _Kind:
    """How long a pass takes for points of one kind, and what is beside their passes."""

    basis: Basis
    pass_s: Callable[[float], float]  # from the work of a pass
    extra_s: Callable[[float], float] | None = None  # from the same


@dataclass
class Estimates:
    """Estimates seconds per point; counts what they rest on.

    A hundred thousand points take half a second: what points of one kind share is looked up once.
    """

    workload: str
    measure: Mapping[str, Any]
    learnt: CostModel
    counts: Counter[Basis] = field(default_factory=Counter)
    run_s: float | None = None  # of a command

    def __post_init__(self) -> None:
        self._runs_network = WORKLOADS[self.workload].runs_network
        self._names = past_rows.names_of_kind(self.workload)
        self._kind_of = itemgetter("gpu", *self._names)
        self._kinds = dict[object, _Kind]()
        self._correction = cache(self.learnt.correction)
        if not self._runs_network:
            return
        axes = axis_defaults(self.workload)
        self._steps_of = itemgetter(*(name for name in passes.OF_STEPS if name in axes))
        self._passes = dict[object, float]()

    def __call__(self, point: Point) -> float:
        """Return the expected seconds of a point whose worker has its network."""
        if self.run_s is not None:
            self.counts[Basis.RUNS] += 1
            return self.run_s
        if not self._runs_network:
            self.counts[Basis.GIVEN] += 1
            return 0.001 + float(point.measure.get("sleep_ms") or 0) / 1000
        axes = point.axes
        beside = self.learnt.beside
        kind = self._kind(axes)
        work = passes.work(axes)
        pass_s = kind.pass_s(work)
        seconds = kind.extra_s(work) if kind.extra_s else beside.at(pass_s)
        self.counts[kind.basis] += 1
        return seconds + self._number(axes) * pass_s

    @property
    def start(self) -> float:
        """Return the seconds until a job has its first worker, with the network."""
        return self.learnt.beside.worker if self._runs_network else 0.0

    @property
    def worker(self) -> float:
        """Return the seconds until it has each other worker."""
        return self.learnt.beside.network if self._runs_network else 0.0

    @property
    def width(self) -> float:
        """Return the factor by which times may be too low, nine times in ten, or a guess."""
        return max((self._width(basis) or _GUESSED[basis] for basis in self.counts), default=1.0)

    @property
    def is_calibrated(self) -> bool:
        """Say whether `width` was found out, by points that were left out."""
        return None not in {self._width(basis) for basis in self.counts}

    def basis(self) -> str:
        """Return what the times rest on, as a person reads it."""
        sources = Counter(row.sweep for row in self.learnt.rows).most_common()
        have = ", ".join(f"{number:,} of {name}" for name, number in sources)
        of = dict.fromkeys((Basis.MEASURED, Basis.OTHERS), f" ({have})")
        return "; ".join(
            f"{self.counts[basis]:,} from {basis.says}{of.get(basis, '')}"
            for basis in Basis
            if self.counts[basis]
        )

    def _width(self, basis: Basis) -> float | None:
        """Return the width that points which were left out show."""
        if basis is Basis.MEASURED:
            typical = self._number(axis_defaults(self.workload))
            return self.learnt.width_of_measured(typical)
        if basis is Basis.PREDICTED:
            return self.learnt.width_of_predicted
        if basis is Basis.OTHERS:
            return self.learnt.width_of_others()
        return 1.0 if basis is Basis.GIVEN else None

    def _kind(self, axes: Mapping[str, Any]) -> _Kind:
        """Return what is known of points like this one."""
        values = self._kind_of(axes)
        try:
            return self._kinds[values]
        except KeyError:
            return self._kinds.setdefault(values, self._new_kind(axes))
        except TypeError:  # a map of algorithms
            return self._new_kind(axes)

    def _new_kind(self, axes: Mapping[str, Any]) -> _Kind:
        learnt = self.learnt
        kind = past_rows.kind_of(self._names, axes)
        if kind in learnt.pass_s:
            extra = learnt.extra_s.get(kind)
            return _Kind(Basis.MEASURED, learnt.pass_s[kind].at, extra.at if extra else None)
        if kind in learnt.predicted:
            return _Kind(Basis.PREDICTED, learnt.predicted[kind].at)
        correction = self._correction(kind[0], kind[1])
        table = passes.table(axes)
        if not correction:
            return _Kind(Basis.PEAKS, table)
        return _Kind(Basis.OTHERS, lambda work: correction * table(work))

    def _number(self, axes: Mapping[str, Any]) -> float:
        """Return how many passes a point makes."""
        steps = self._steps_of(axes)
        if steps not in self._passes:
            self._passes[steps] = passes.of_point(
                self.workload,
                axes,
                self.measure,
                layer_factor=self.learnt.beside.layer_factor,
                adaptive=self.learnt.beside.n,
            )
        return self._passes[steps]


def learn(rows: Sequence[PointTime], predicted: Sequence[PointTime] = ()) -> CostModel:
    """Return what rows teach; `predicted` ones have times of passes alone."""
    beside = _beside(rows) if rows else Overhead()
    rows = [_settled(row, beside) for row in rows]
    widths = sorted(row.width for row in predicted)
    return CostModel(
        rows,
        beside,
        _curves(rows, lambda row: row.pass_s),
        _curves(rows, lambda row: row.extra_s, beside.fixed),
        _curves(predicted, lambda row: row.pass_s),
        widths[math.ceil(_LEVEL * len(widths)) - 1] if widths else 1.0,
    )


def _beside(rows: Sequence[PointTime]) -> Overhead:
    """Return what points take beside their passes, from rows of this sweep if it has enough."""
    timed = [(row, row.extra_s) for row in rows if row.extra_s is not None]
    own = [(row, extra_s) for row, extra_s in timed if row.sweep == rows[0].sweep]
    usual = own if len(own) >= _FEWEST else timed
    beside = Overhead(
        layer_factor=_median([row.layer_factor for row, _ in usual if row.layer_factor], 1.0),
        n=_median([row.n for row, _ in usual], 0.0),
    )
    plain = [(row.pass_s, max(extra_s, 1e-3)) for row, extra_s in usual if not row.fresh]
    if len(plain) >= _FEWEST:
        fixed, slope = curves.line(plain)
        beside = replace(beside, fixed=fixed, slope=slope)
    more: dict[str, list[float]] = defaultdict(list)  # seconds, by what was made
    for row, extra_s in timed:
        more[row.fresh].append(extra_s - beside.at(row.pass_s))
    return replace(
        beside,
        worker=max(_median(more["worker"], beside.worker), 0.0),
        network=max(_median(more["network"], beside.network), 0.0),
    )


def _settled(row: PointTime, beside: Overhead) -> PointTime:
    """Return a row without what was made for it."""
    if row.extra_s is None or not row.fresh:
        return row
    return replace(row, extra_s=min(row.extra_s, beside.at(row.pass_s)))


def _curves(
    rows: Sequence[PointTime], seconds: Callable[[PointTime], float | None], fixed: float = 0.0
) -> dict[Kind, Curve]:
    """Return the curve of rows of each kind, as far as they have such seconds."""
    points: dict[Kind, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if (y := seconds(row)) is not None:
            points[row.kind].append((row.work, y))
    return {kind: curves.fit(of_kind, fixed) for kind, of_kind in points.items()}


def _median(values: Sequence[float], missing: float) -> float:
    return statistics.median(values) if values else missing


def _upper(true: Sequence[float], said: Sequence[float], parts: Sequence[Hashable]) -> float | None:
    """Return the factor by which times are too low, nine times in ten; None from too few parts."""
    if len(true) < _FEWEST:
        return None
    from hpcsweep.forecast import intervals  # noqa: PLC0415 - scipy takes half a second

    return intervals.upper(true, said, parts)


def estimator(sweep_dir: SweepDir, sweep: Sweep, device: str) -> Estimates:
    """Return an estimator of a sweep's points on a device, which learns from the rows so far."""
    workload = sweep.workload
    if workload == COMMAND.name:
        run_s = _median(past_rows.walls(sweep_dir), _RUN_S)
        return Estimates(workload, sweep.measure, CostModel(), run_s=run_s)
    runs_network = WORKLOADS[workload].runs_network
    rows = past_rows.measured(sweep_dir, workload, device) if runs_network else []
    learnt = learn(rows, past_rows.predicted(sweep_dir, workload, device))
    return Estimates(workload, sweep.measure, learnt)
