"""Estimates how long points will take: from rows where there are some, else from a table of peaks.

A point takes what its passes take, and something beside them: evidence, numerics, shapes. The first
point of a job waits for a worker, too, and the first of a network until that is built. All of this
is learnt from rows. The time of a pass comes from measured points of the same network, algorithm
and settings; else from what `hpcsweep predict` wrote for the sweep; else from the operations of the
network and the peak of the device, corrected by what other networks and algorithms took there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.catalog import axis_defaults
from hpcsweep.submit import learnt, passes, took
from hpcsweep.text import Word

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpcsweep.point import Point
    from hpcsweep.store.rundir import RunDir
    from hpcsweep.submit.learnt import Learnt
    from hpcsweep.submit.request import Request

_CACHED: Final = 100_000


class Basis(Word):
    """What the estimate of a point rests on, the firmest first."""

    GIVEN = "given", "the length that the sweep gives"
    MEASURED = "measured", "measured points of the same network and algorithm"
    PREDICTED = "predicted", "what `hpcsweep predict` wrote"
    OTHERS = "others", "measured points of other networks or algorithms"
    PEAKS = "peaks", "the table of peaks: nothing was measured on this device yet"


FIRM: Final = frozenset({Basis.MEASURED, Basis.PREDICTED})
# how far a time may be too low, nine times in ten, where that cannot be found out
_GUESSED: Final = {
    Basis.GIVEN: 1.0, Basis.MEASURED: 1.5, Basis.PREDICTED: 2.0, Basis.OTHERS: 3.0,
    Basis.PEAKS: 5.0,
}  # fmt: skip


@dataclass
class Estimates:
    """Estimates seconds per point, asked in the order of the sweep; counts what they rest on."""

    workload: str
    measure: Mapping[str, Any]
    learnt: Learnt
    counts: Counter[Basis] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        names = took.names_of_kind(self.workload)
        amounts = [name for name in took.AMOUNTS if name in axis_defaults(self.workload)]
        self._names, self._key = names, _key_of(*names, *amounts)
        self._given, self._kinds = _key_of(*names), dict[object, took.Kind]()
        self._known: dict[object, tuple[float, Basis]] = {}
        self._correction = cache(self.learnt.correction)
        self._model: object = None

    def __call__(self, point: Point) -> float:
        """Return the expected seconds of a point that follows the one before."""
        axes = point.axes
        key = self._key(axes)
        found = self._known.get(key)
        if found is None or key is None:
            found = self._seconds(point)
            if len(self._known) < _CACHED:
                self._known[key] = found
        seconds, basis = found
        self.counts[basis] += 1
        before, self._model = self._model, axes["model"]
        anew = before is not None and before != self._model and basis is not Basis.GIVEN
        return seconds + self.learnt.beside.network if anew else seconds

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
            typical = self._passes(axis_defaults(self.workload))
            return self.learnt.width_of_measured(typical)
        if basis is Basis.PREDICTED:
            return self.learnt.width_of_predicted
        if basis is Basis.OTHERS:
            return self.learnt.width_of_others()
        return 1.0 if basis is Basis.GIVEN else None

    def _seconds(self, point: Point) -> tuple[float, Basis]:
        if point.workload == "noop":
            return 0.001 + float(point.measure.get("sleep_ms") or 0) / 1000, Basis.GIVEN
        axes, known = point.axes, self.learnt
        kind, work = self._kind(axes), passes.work(axes)
        number = self._passes(axes)
        if kind in known.pass_s:
            one = known.pass_s[kind].at(work)
            extra = known.extra_s.get(kind)
            beside = extra.at(work) if extra else known.beside.at(one)
            return beside + number * one, Basis.MEASURED
        basis = Basis.PREDICTED
        if kind in known.predicted:
            one = known.predicted[kind].at(work)
        else:
            correction = self._correction(kind[0], kind[1])
            basis = Basis.OTHERS if correction else Basis.PEAKS
            one = passes.by_table(axes) * (correction or 1.0)
        return known.beside.at(one) + number * one, basis

    def _kind(self, axes: Mapping[str, Any]) -> took.Kind:
        """Return the kind of a point; points of many sizes have one, and to write it is slow."""
        given = self._given(axes)
        if given is None or given not in self._kinds:
            self._kinds[given] = took.kind_of(self._names, axes)
        return self._kinds[given]

    def _passes(self, axes: Mapping[str, Any]) -> float:
        beside = self.learnt.beside
        return passes.of_point(
            self.workload,
            axes,
            self.measure,
            layer_factor=beside.layer_factor,
            adaptive=beside.n,
        )


def _key_of(*names: str) -> Callable[[Mapping[str, Any]], object]:
    """Return what makes a key of these axes of a point; None where it has a map of algorithms."""
    taken = itemgetter(*names)
    return lambda axes: None if isinstance(axes["algorithm"], dict) else taken(axes)


def estimator(run: RunDir, asked: Request) -> Estimates:
    """Return an estimator of a request's points, which learns from the rows so far."""
    workload, device = asked.sweep.workload, asked.device
    rows = took.measured(run, workload, device) if workload != "noop" else []
    predicted = took.predicted(run, workload, device)
    return Estimates(workload, asked.sweep.measure, learnt.learn(rows, predicted))
