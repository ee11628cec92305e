"""Estimates how long points will take: from valid rows of the device, else from a table of peaks.

A point takes its passes, and something beside them: evidence, numerics, shapes. Of both there is a
planning figure (`passes.Peaks`), and rows teach by what factor it is wrong: rows of the same kind
of point (network, algorithm and settings) at the nearest work, else rows of the network, or any.
The first point of a job also waits for a worker that imports torch, the first of another network
for a worker with that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.catalog import AUTOTUNE, AXES, COMMAND, VISIT, WORKLOADS, Role, axes_of, network_of
from hpcsweep.catalog.columns import cell
from hpcsweep.catalog.limits import is_impossible, number
from hpcsweep.errors import ResultsError
from hpcsweep.point import Point
from hpcsweep.store import folders
from hpcsweep.store.folders import ShardPath, SweepDir
from hpcsweep.store.row_reader import read_rows
from hpcsweep.store.state import PointStatus
from hpcsweep.submit import passes
from hpcsweep.submit.passes import Operations, Peaks
from hpcsweep.text import Word, duration

if TYPE_CHECKING:
    from hpcsweep.submit.request import Request

Row = Mapping[str, Any]
Kind = tuple[str, ...]

# Roles of axes whose values do not make another kind of point; the device is known otherwise.
_WITHIN_A_KIND: Final = Role.AMOUNT | Role.NUMBERS | Role.REPETITION | Role.PLACE
_MOST_ROWS: Final = 5_000  # rows that are read, which takes about a second
WORKER: Final = "worker"  # what had to be made for a row first: a process that imports torch
NETWORK: Final = "network"  # or another worker of the same job, with its network
# Of a command that did not run yet. Nobody can know; a chunk of an hour gets 60 points by it.
_RUN_S: Final = 60.0
# Seconds until a worker has torch, the device and the network; and each other one, which is forked.
# Those of two cores with a torch for CPUs; rows tell what they are elsewhere.
_START_S: Final = {WORKER: 6.0, NETWORK: 1.5}


class EstimateBasis(Word):
    """What the time of a point rests on, the firmest first; `rests_on` of an estimate."""

    GIVEN = "given", "the length that the sweep gives"
    MEASURED = "measured", "measured points of the same network and algorithm"
    RUNS = "runs", "earlier runs of the command"
    OTHERS = "others", "measured points of other networks or algorithms"
    PEAKS = "peaks", "the table of peaks: nothing valid was measured on this device yet"
    OWN = (
        "own",
        f"a guess of {passes.UNKNOWN.gflops:g} GFLOPs an image: no table has them, no row is valid",
    )
    GUESS = "guess", "a guess of a minute each: the command has no valid run yet"
    UNKNOWN = (
        "unknown",
        "nothing: the catalogue lacks this device, and no row of it is valid yet",
    )


_ABOUT: Final = {
    EstimateBasis.GIVEN: "about {}",
    EstimateBasis.MEASURED: "about {} by rows here",
    EstimateBasis.RUNS: "about {} by earlier runs",
    EstimateBasis.OTHERS: "about {} by rows of other networks or algorithms",
    EstimateBasis.PEAKS: "about {} by the table of peaks",
    EstimateBasis.OWN: "about {}, a guess: no table has these networks",
    EstimateBasis.GUESS: "about {}, a guess of a minute each",
    EstimateBasis.UNKNOWN: "nobody knows how long: the catalogue lacks it, "
    "and no row of it is valid",
}
Expected = tuple[EstimateBasis, float]  # seconds of a point, and what they rest on


def _given(point: Point) -> Expected:
    return EstimateBasis.GIVEN, 0.001 + float(point.measure.get("sleep_ms") or 0) / 1000


@dataclass
class Estimates:
    """Estimates seconds per point, and counts what they rest on."""

    expected: Callable[[Point], Expected] = _given
    start: float = 0.0  # seconds until a job has its first worker, with the network
    worker: float = 0.0  # seconds until it has each other worker
    rows: Mapping[str, int] = field(default_factory=dict)  # that teach, by sweep
    counts: Counter[EstimateBasis] = field(default_factory=Counter)

    def __call__(self, point: Point) -> float:
        """Return the expected seconds of a point whose worker has its network."""
        basis, seconds = self.expected(point)
        self.counts[basis] += 1
        return seconds

    def of_counted(self, point: Point) -> float:
        """Return the expected seconds of a point that was counted before."""
        _, seconds = self.expected(point)
        return seconds

    @property
    def is_known(self) -> bool:
        return not self.counts[EstimateBasis.UNKNOWN]

    def about(self, seconds: float) -> str:
        """Return the time of all points in a few words, with what that of most rests on."""
        ((basis, _), *_) = self.counts.most_common(1)
        return _ABOUT[basis].format(duration(seconds))

    def basis(self) -> str:
        """Return what the times rest on, as a person reads it."""
        rows = ", ".join(f"{number:,} of {name}" for name, number in self.rows.items())
        parts = []
        for basis in EstimateBasis:
            if not self.counts[basis]:
                continue
            part = f"{self.counts[basis]:,} from {basis.says}"
            if basis in {EstimateBasis.MEASURED, EstimateBasis.OTHERS}:
                part += f" ({rows})"
            parts.append(part)
        return "; ".join(parts)


def estimator(
    sweep_dir: SweepDir, request: Request, operations: Mapping[str, Operations] | None = None
) -> Estimates:
    """Return an estimator of the points of a request, which learns from the rows so far.

    `operations` are those of own networks that were tried.
    """
    workload = request.sweep.workload
    if workload == COMMAND.name:
        return Estimates(_of_runs(walls(sweep_dir)))
    if not WORKLOADS[workload].runs_network:
        return Estimates()
    peaks = Peaks(workload, request.device, operations or {})
    rows = past_times(sweep_dir, peaks)
    networks = _Networks(peaks, request.sweep.measure, rows)
    return Estimates(
        networks.expected,
        networks.start_s(WORKER),
        networks.start_s(NETWORK),
        Counter(row.sweep for row in rows),
    )


def _of_runs(walls: Mapping[str, float]) -> Callable[[Point], Expected]:
    """Estimate by the seconds of earlier runs of a command, which are by the id of the point."""
    if not walls:
        return lambda _: (EstimateBasis.GUESS, _RUN_S)
    usual = sum(walls.values()) / len(walls)  # not the median: a sum is to be told
    return lambda point: (EstimateBasis.RUNS, walls.get(point.point_id, usual))


class _Networks:
    """What rows of one device and workload teach."""

    def __init__(self, peaks: Peaks, measure: Mapping[str, Any], rows: Sequence[PastTime]) -> None:
        self._peaks = peaks
        self._measure = measure
        self._rows = rows
        self._names = names_of_kind(peaks.workload)
        self._usual_n = _median([row.n for row in rows], 0.0)
        self._usual = _taught(rows, (1.0, 1.0))
        of_network: dict[str, list[PastTime]] = defaultdict(list)
        alike: dict[Kind, dict[float, list[PastTime]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            of_network[row.kind[0]].append(row)
            alike[row.kind][row.work].append(row)
        self._of_network = {name: _taught(some, self._usual) for name, some in of_network.items()}
        self._of_kind: dict[Kind, dict[float, tuple[float, float]]] = {}
        for kind, by_work in alike.items():
            taught = {work: _taught(some, self._usual) for work, some in by_work.items()}
            self._of_kind[kind] = taught

    def expected(self, point: Point) -> Expected:
        """Return the seconds of a point, and what they rest on."""
        axes = point.axes
        kind = kind_of(self._names, axes)
        work = passes.work(axes)
        by_work = self._of_kind.get(kind)
        if by_work:
            basis = EstimateBasis.MEASURED
            nearest = min(by_work, key=lambda each: max(each / work, work / each))
            slower, beside = by_work[nearest]
        else:
            basis = EstimateBasis.PEAKS
            if self._rows:
                basis = EstimateBasis.OTHERS
            elif not self._peaks.is_known:
                basis = EstimateBasis.UNKNOWN
            elif not self._peaks.operations(axes["model"]):
                basis = EstimateBasis.OWN
            slower, beside = self._of_network.get(kind[0], self._usual)
        pass_s = slower * self._peaks.pass_s(axes)
        number = passes.planned(self._peaks.workload, axes, self._measure, self._usual_n)
        return basis, number * pass_s + beside * self._peaks.beside_s(axes, pass_s)

    def start_s(self, what: str) -> float:
        """Return the seconds until a job has a worker, as its first points waited for it."""
        _, beside = self._usual
        waited = [
            row.beside_s - beside * row.planned_s
            for row in self._rows
            if row.made_first == what and row.beside_s is not None
        ]
        return max(_median(waited, _START_S[what]), 0.0)


def _taught(rows: Iterable[PastTime], usual: tuple[float, float]) -> tuple[float, float]:
    """Return by what factors passes, and what comes beside them, take longer than planned."""
    rows = list(rows)
    slower = [row.slower for row in rows]
    # where a point waited for its worker, nobody knows its own time
    beside = [
        row.beside_s / row.planned_s
        for row in rows
        if row.beside_s is not None and not row.made_first
    ]
    return _median(slower, usual[0]), _median(beside, usual[1])


def _median(values: Sequence[float], missing: float) -> float:
    from statistics import median  # noqa: PLC0415 - decimal and fractions come with it

    return median(values) if values else missing


@dataclass(frozen=True, kw_only=True)
class PastTime:
    """A valid row: how long its passes took, and what came beside them."""

    sweep: str
    kind: Kind
    work: float
    slower: float  # its passes than planned, as a factor
    beside_s: float | None  # None: the row has no wall time, as of an imported table
    planned_s: float  # beside its passes
    made_first: str  # `WORKER`, `NETWORK`, or nothing
    n: float


def names_of_kind(workload: str) -> tuple[str, ...]:
    """Return the axes that make the kind of a point; the model comes first."""
    axes = axes_of(workload)
    kinds = {name for name, axis in axes.items() if not axis.role & _WITHIN_A_KIND}
    return ("model", *sorted(kinds - {"model"}))


def kind_of(names: Iterable[str], axes: Mapping[str, Any]) -> Kind:
    """Return the kind of a point, or of a row; one that is older than an axis has its default."""
    return tuple([cell(axes.get(name, AXES[name].default)) for name in names])


def past_times(sweep_dir: SweepDir, peaks: Peaks) -> list[PastTime]:
    """Return what was measured on a device, in this sweep and those beside it; the newest rows."""
    others = folders.all_sweeps(sweep_dir.path.parent)
    times = list[PastTime]()
    for each in (sweep_dir, *(other for other in others if other.path != sweep_dir.path)):
        if len(times) < _MOST_ROWS:
            with suppress(ResultsError):  # who needs its rows says that they cannot be read
                times += _of_sweep(each, peaks, _MOST_ROWS - len(times))
    return times


def walls(sweep_dir: SweepDir) -> dict[str, float]:
    """Return the seconds that the points of a sweep took when they were last measured, by id."""
    rows = read_rows(sweep_dir.shards(), ("valid", "wall_s"))
    return {row["point_id"]: number(row, "wall_s") for row in rows if _is_valid(row)}


def _is_valid(row: Row) -> bool:
    return row["status"] == PointStatus.OK and row.get("valid") != "false"


def _of_sweep(sweep_dir: SweepDir, peaks: Peaks, most: int) -> Iterator[PastTime]:
    names = names_of_kind(peaks.workload)
    before = last_network = None
    for shard, row in islice(_rows(sweep_dir, peaks), most):
        visit = shard, row.get(VISIT)
        network = network_of(row), row.get("algorithm") == AUTOTUNE
        made_first = ""
        if visit != before:
            made_first = WORKER
        elif network != last_network:
            made_first = NETWORK
        before = visit
        last_network = network
        is_alike = row.get("gpu") == peaks.device and row.get("workload") == peaks.workload
        pass_s = (number(row, "mean_ms") or number(row, "median_ms")) / 1000
        if not is_alike or not _is_valid(row) or is_impossible(row) or not pass_s:
            continue
        wall_s = number(row, "wall_s")
        beside_s = max(wall_s - passes.made(peaks.workload, row) * pass_s, 0.0)
        yield PastTime(
            sweep=sweep_dir.name,
            kind=kind_of(names, row),
            work=passes.work(row),
            slower=pass_s / peaks.pass_s(row),
            beside_s=beside_s if wall_s else None,
            planned_s=peaks.beside_s(row, pass_s),
            made_first=made_first,
            n=number(row, "n"),
        )


def _rows(sweep_dir: SweepDir, peaks: Peaks) -> Iterator[tuple[ShardPath, Row]]:
    """Yield the rows of submissions to a device, the newest first; no other shard is read."""
    asked = peaks.workload, peaks.device
    for manifest in reversed(sweep_dir.manifests()):
        if (manifest.workload or peaks.workload, manifest.gpu or peaks.device) == asked:
            for shard in sweep_dir.shards_of(manifest.id):
                for row in read_rows([shard], columns=None):
                    yield shard, row
