"""Estimates how long points will take: from valid rows of the device, else from a table of peaks.

A point takes its passes, and something beside them: evidence, numerics, shapes. Of both there is a
planning figure, and rows teach by what factor it is wrong: rows of the same kind of point (network,
algorithm and settings) at the nearest work, else rows of the network, of the algorithm, or any. The
first point of a job also waits for a worker that imports torch, the first of another network for
a worker with that.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from typing import Any, Final

from hpcsweep.catalog import COMMAND, WORKLOADS, Role, axes_of, axes_with
from hpcsweep.point import Point
from hpcsweep.spec.space import Sweep
from hpcsweep.store.folders import SweepDir
from hpcsweep.submit import passes, past_times
from hpcsweep.submit.past_times import NETWORK, WORKER, Kind, PastTime
from hpcsweep.text import Word, duration

_RUN_S: Final = 60.0  # of a command that did not run yet: nobody can know
# Seconds beside the passes: of every point, and as many passes more. By ResNet-18 at three sizes
# with four algorithms on two cores, where points took 0.2 to 0.8 s.
_FIXED_S: Final = 0.25
_MORE_PASSES: Final = 4.0
_MORE_STEPS: Final = 12.0  # of a training, whose gradients are compared, too
# Seconds until a worker has torch, the device and the network; and each other one, which is forked.
_START_S: Final = {WORKER: 6.0, NETWORK: 1.5}


class Basis(Word):
    """What the time of a point rests on, the firmest first; `rests_on` of an estimate."""

    GIVEN = "given", "the length that the sweep gives"
    MEASURED = "measured", "measured points of the same network and algorithm"
    RUNS = "runs", "earlier runs of the command"
    OTHERS = "others", "measured points of other networks or algorithms"
    PEAKS = "peaks", "the table of peaks: nothing valid was measured on this device yet"
    OWN = (
        "own",
        f"a guess of {passes.UNKNOWN_GFLOPS:g} GFLOPs an image: no table has them, no row is valid",
    )
    GUESS = "guess", "a guess of a minute each: the command has no valid run yet"
    UNKNOWN = (
        "unknown",
        "nothing: the catalogue lacks this device, and no row of it is valid yet",
    )


_ABOUT: Final = {
    Basis.GIVEN: "about {}",
    Basis.MEASURED: "about {} by rows here",
    Basis.RUNS: "about {} by earlier runs",
    Basis.OTHERS: "about {} by rows of other networks or algorithms",
    Basis.PEAKS: "about {} by the table of peaks",
    Basis.OWN: "about {}, a guess: no table has these networks",
    Basis.GUESS: "about {}, a guess of a minute each",
    Basis.UNKNOWN: "nobody knows how long: the catalogue lacks it, and no row of it is valid",
}
Expected = tuple[Basis, float]  # seconds of a point, and what they rest on


@dataclass
class Estimates:
    """Estimates seconds per point, and counts what they rest on."""

    expected: Callable[[Point], Expected]
    start: float = 0.0  # seconds until a job has its first worker, with the network
    worker: float = 0.0  # seconds until it has each other worker
    rows: Mapping[str, int] = field(default_factory=dict)  # that teach, by sweep
    counts: Counter[Basis] = field(default_factory=Counter)

    def __call__(self, point: Point) -> float:
        """Return the expected seconds of a point whose worker has its network."""
        basis, seconds = self.expected(point)
        self.counts[basis] += 1
        return seconds

    @property
    def is_known(self) -> bool:
        return not self.counts[Basis.UNKNOWN]

    def about(self, seconds: float) -> str:
        """Return the time of all points in a few words, with what that of most rests on."""
        ((basis, _), *_) = self.counts.most_common(1)
        return _ABOUT[basis].format(duration(seconds))

    def basis(self) -> str:
        """Return what the times rest on, as a person reads it."""
        rows = ", ".join(f"{number:,} of {name}" for name, number in self.rows.items())
        parts = []
        for basis in Basis:
            if self.counts[basis]:
                more = f" ({rows})" if basis in {Basis.MEASURED, Basis.OTHERS} else ""
                parts.append(f"{self.counts[basis]:,} from {basis.says}{more}")
        return "; ".join(parts)


def estimator(sweep_dir: SweepDir, sweep: Sweep, device: str) -> Estimates:
    """Return an estimator of a sweep's points on a device, which learns from the rows so far."""
    if sweep.workload == COMMAND.name:
        return Estimates(_Runs(past_times.walls(sweep_dir)).expected)
    if not WORKLOADS[sweep.workload].runs_network:
        return Estimates(_given)
    rows = past_times.measured(sweep_dir, sweep.workload, device)
    networks = _Networks(sweep.workload, sweep.measure, device, rows)
    return Estimates(
        networks.expected,
        networks.start_s(WORKER),
        networks.start_s(NETWORK),
        Counter(row.sweep for row in rows),
    )


def _given(point: Point) -> Expected:
    return Basis.GIVEN, 0.001 + float(point.measure.get("sleep_ms") or 0) / 1000


@dataclass
class _Runs:
    """The seconds of earlier runs of a command, by the id of the point."""

    walls: Mapping[str, float]

    def __post_init__(self) -> None:
        # the mean, not the median: a sum is to be told
        self._usual = statistics.fmean(self.walls.values()) if self.walls else _RUN_S

    def expected(self, point: Point) -> Expected:
        basis = Basis.RUNS if self.walls else Basis.GUESS
        return basis, self.walls.get(point.point_id, self._usual)


@dataclass
class _Networks:
    """What rows of one device and workload teach."""

    workload: str
    measure: Mapping[str, Any]
    device: str
    rows: Sequence[PastTime]

    def __post_init__(self) -> None:
        self._names = past_times.names_of_kind(self.workload)
        axes = axes_of(self.workload)
        amounts = [name for name in axes_with(Role.AMOUNT) if name in axes]
        self._values_of = itemgetter(*self._names, *amounts)
        self._known = dict[object, Expected]()
        self._works: dict[Kind, set[float]] = defaultdict(set)
        self._alike: dict[tuple[Kind, float], list[PastTime]] = defaultdict(list)
        for row in self.rows:
            self._works[row.kind].add(row.work)
            self._alike[row.kind, row.work].append(row)
        self._taught = cache(self._learn)
        self._usual_beside = _median(self._beside_factors(self.rows), 1.0)
        self._usual_n = _median([row.n for row in self.rows], 0.0)

    def expected(self, point: Point) -> Expected:
        """Return the seconds of a point; those of equal kind and amount are looked up once."""
        key = self._values_of(point.axes)
        try:
            if key not in self._known:
                self._known[key] = self._expected(point.axes)
            return self._known[key]
        except TypeError:  # a map of algorithms has no hash
            return self._expected(point.axes)

    def _expected(self, axes: Mapping[str, Any]) -> Expected:
        kind = past_times.kind_of(self._names, axes)
        work = passes.work(axes)
        works = self._works.get(kind, ())
        nearest = min(works, key=lambda each: abs(math.log(each / work)), default=0.0)
        basis, slower, beside = self._taught(kind, nearest)
        pass_s = slower * passes.by_peaks(self.workload, axes)
        number = passes.planned(self.workload, axes, self.measure, self._usual_n)
        return basis, number * pass_s + beside * self._usual_beside_s(pass_s)

    def _learn(self, kind: Kind, work: float) -> tuple[Basis, float, float]:
        """Return by what factors passes, and what comes beside them, are longer than planned."""
        basis = Basis.MEASURED
        rows: Sequence[PastTime] = self._alike.get((kind, work), ())
        # The table is more wrong of a network, which comes first, than of an algorithm.
        for place in (0, 1):
            if not rows:
                basis = Basis.OTHERS
                rows = [row for row in self.rows if row.kind[place] == kind[place]]
        rows = rows or self.rows
        if not rows:
            basis = Basis.PEAKS if passes.has_operations(kind[0]) else Basis.OWN
            if not passes.has_peak(self.device):
                basis = Basis.UNKNOWN
        slower = _median([row.slower for row in rows], 1.0)
        return basis, slower, _median(self._beside_factors(rows), self._usual_beside)

    def _usual_beside_s(self, pass_s: float) -> float:
        """Return the planned seconds beside the passes of a point."""
        more = _MORE_STEPS if WORKLOADS[self.workload].learns else _MORE_PASSES
        return _FIXED_S + more * pass_s

    def _beside_factors(self, rows: Iterable[PastTime]) -> list[float]:
        """Return how many times longer points took beside their passes; not where they waited."""
        return [
            row.beside_s / self._usual_beside_s(row.pass_s)
            for row in rows
            if row.beside_s is not None and not row.made_first
        ]

    def start_s(self, what: str) -> float:
        """Return the seconds until a job has a worker, as its first points waited for it."""
        waited = [
            row.beside_s - self._usual_beside * self._usual_beside_s(row.pass_s)
            for row in self.rows
            if row.made_first == what and row.beside_s is not None
        ]
        return max(_median(waited, _START_S[what]), 0.0)


def _median(values: Sequence[float], missing: float) -> float:
    return statistics.median(values) if values else missing
