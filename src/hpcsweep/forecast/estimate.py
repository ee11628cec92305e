"""Estimates how long points will take: from rows where there are some, else from a table of peaks.

A point takes what its passes take, and something beside them: evidence, numerics, shapes. The first
point of a job waits for a worker, too, and the first of a network until that is built. All of this
is learnt from rows. The time of a pass comes from measured points of the same network, algorithm
and settings; else from what `hpcsweep predict` wrote for the sweep; else from the operations of the
network and the peak of the device, corrected by what other networks and algorithms took there.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.catalog import axis_defaults
from hpcsweep.forecast import Basis, pass_times, passes, past_rows
from hpcsweep.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpcsweep.forecast.pass_times import Learnt
    from hpcsweep.point import Point
    from hpcsweep.store.rundir import RunDir
    from hpcsweep.submit.request import Request

_CACHED: Final = 100_000


FIRM: Final = frozenset({Basis.MEASURED, Basis.PREDICTED})
# how far a time may be too low, nine times in ten, where that cannot be found out
_GUESSED: Final = {
    Basis.GIVEN: 1.0, Basis.MEASURED: 1.5, Basis.PREDICTED: 2.0, Basis.OTHERS: 3.0,
    Basis.PEAKS: 5.0,
}  # fmt: skip


@dataclass(frozen=True)
class _Kind:
    """How long a pass takes for points of one kind, and what is beside their passes."""

    basis: Basis
    pass_s: Callable[[float], float]  # from the work of a pass
    extra_s: Callable[[float], float] | None = None  # from the same


@dataclass
class Estimates:
    """Estimates seconds per point, asked in the order of the sweep; counts what they rest on.

    A hundred thousand points take half a second: what points of one kind share is looked up once.
    """

    workload: str
    measure: Mapping[str, Any]
    learnt: Learnt
    repeats: int = 1  # visits, of which each builds the networks anew
    counts: Counter[Basis] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._names = past_rows.names_of_kind(self.workload)
        self._kind_of = itemgetter("gpu", *self._names)
        self._kinds, self._correction = dict[object, _Kind](), cache(self.learnt.correction)
        axes = axis_defaults(self.workload)
        self._steps_of = itemgetter(*(name for name in passes.OF_STEPS if name in axes))
        self._passes = dict[object, float]()
        self._model: object = None

    def __call__(self, point: Point) -> float:
        """Return the expected seconds of a point that follows the one before."""
        if self.workload == "noop":
            self.counts[Basis.GIVEN] += 1
            return 0.001 + float(point.measure.get("sleep_ms") or 0) / 1000
        axes, beside = point.axes, self.learnt.beside
        kind, work = self._kind(axes), passes.work(axes)
        one = kind.pass_s(work)
        seconds = kind.extra_s(work) if kind.extra_s else beside.at(one)
        self.counts[kind.basis] += 1
        before, self._model = self._model, axes["model"]
        if before is not None and before != self._model:
            seconds += self.repeats * beside.network
        return seconds + self._number(axes) * one

    @property
    def start(self) -> float:
        """Return the seconds until a job has a worker and the first network."""
        return 0.0 if self.workload == "noop" else self.learnt.beside.worker

    @property
    def width(self) -> float:
        """Return the factor by which times may be too low, nine times in ten, or a guess."""
        return max((self._found(basis) or _GUESSED[basis] for basis in self.counts), default=1.0)

    @property
    def is_calibrated(self) -> bool:
        """Say whether `width` was found out, by points that were left out."""
        return None not in {self._found(basis) for basis in self.counts}

    @property
    def is_firm(self) -> bool:
        """Say whether every point so far rests on measured or predicted times of its own kind."""
        return bool(self.counts) and FIRM.issuperset(self.counts)

    def basis(self) -> str:
        """Return what the times rest on, as a person reads it."""
        told = [f"{self.counts[basis]:,} from {self._says(basis)}"
                for basis in Basis if self.counts[basis]]  # fmt: skip
        return "; ".join(told)

    def _says(self, basis: Basis) -> str:
        """Return the words for a basis, and which sweeps its measured points are of."""
        if basis not in {Basis.MEASURED, Basis.OTHERS}:
            return basis.says
        sources = self.learnt.sources
        have = ", ".join(f"{number:,} of {name}" for name, number in sources.most_common())
        return f"{basis.says} ({have})"

    def _found(self, basis: Basis) -> float | None:
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
        given = self._kind_of(axes)
        try:
            return self._kinds[given]
        except KeyError:
            found = self._kinds[given] = self._new_kind(axes)
            return found
        except TypeError:  # a map of algorithms
            return self._new_kind(axes)

    def _new_kind(self, axes: Mapping[str, Any]) -> _Kind:
        known, kind = self.learnt, past_rows.kind_of(self._names, axes)
        if kind in known.pass_s:
            extra = known.extra_s.get(kind)
            return _Kind(Basis.MEASURED, known.pass_s[kind].at, extra.at if extra else None)
        if kind in known.predicted:
            return _Kind(Basis.PREDICTED, known.predicted[kind].at)
        correction = self._correction(kind[0], kind[1])
        table = passes.table(axes)
        if not correction:
            return _Kind(Basis.PEAKS, table)
        return _Kind(Basis.OTHERS, lambda work: correction * table(work))

    def _number(self, axes: Mapping[str, Any]) -> float:
        """Return how many passes a point makes."""
        steps = self._steps_of(axes)
        found = self._passes.get(steps)
        if found is None:
            beside = self.learnt.beside
            found = passes.of_point(
                self.workload,
                axes,
                self.measure,
                layer_factor=beside.layer_factor,
                adaptive=beside.n,
            )
            if len(self._passes) < _CACHED:
                self._passes[steps] = found
        return found


def estimator(run: RunDir, asked: Request) -> Estimates:
    """Return an estimator of a request's points, which learns from the rows so far."""
    workload, device = asked.sweep.workload, asked.device
    rows = past_rows.measured(run, workload, device) if workload != "noop" else []
    predicted = past_rows.predicted(run, workload, device)
    known = pass_times.learn(rows, predicted)
    return Estimates(workload, asked.sweep.measure, known, asked.sweep.repeats)
