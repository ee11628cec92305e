"""What happens to a point, in order: build, choose, warm up, time, check, record."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

from hpcsweep import catalog
from hpcsweep.catalog import WORKLOADS
from hpcsweep.catalog.checks import CHECKS
from hpcsweep.catalog.columns import CHECK_MISSING, UNDECIDED, Row, is_valid
from hpcsweep.catalog.limits import IMPOSSIBLE
from hpcsweep.catalog.record import Cells, row_of
from hpcsweep.catalog.row_records import ChoiceCells, LoadCells, OutcomeCells, TimeCells
from hpcsweep.conv import backend
from hpcsweep.conv.backend import LibraryUnusable
from hpcsweep.errors import first_line
from hpcsweep.measure import compilations, convolutions, profilers, switches, work
from hpcsweep.measure.bench_api import (
    CannotMeasure,
    Measurement,
    OutOfMemory,
    Progress,
    is_missing_operator,
    is_out_of_memory,
)
from hpcsweep.measure.checks import Finding, PointCheck
from hpcsweep.measure.convolutions import Choices
from hpcsweep.measure.machine.drivers import Driver
from hpcsweep.measure.machine.rig import Rig
from hpcsweep.measure.network import Network, Passes, Times, Workload
from hpcsweep.measure.operations import CannotCapture
from hpcsweep.measure.timing import stats
from hpcsweep.point import Point

_MODULES: Final = {name: import_module(f"hpcsweep.measure.checks.{name}") for name in CHECKS}
COOLING_S: Final = 2.0  # pause for a throttled GPU before the second try
PROFILE: Final = "profile"  # the sweep's own profilers, which run as a check does
_SKIPPED: Final = "an earlier point's process ended in it"


class PointBench:
    """Measures the points of one workload on one device."""

    def __init__(
        self, workload: type[Workload], device: str = "cpu", driver: Driver | None = None
    ) -> None:
        """Use the current device of a type: cpu, cuda or mps."""
        self.rig = Rig(device, driver)
        self.workload = workload(self.rig)
        self.backend = backend.choose(self.rig.device.type)
        if self.rig.device.type == "cuda":
            switches.detach_profiler()
        self.checks: Mapping[str, PointCheck] = {
            name: module.CHECK(self.rig) for name, module in _MODULES.items()
        }
        switches.apply(catalog.axis_defaults(catalog.INFERENCE.name))

    def environment(self) -> dict[str, Any]:
        """Return provenance for env.json; its `row` holds the cells repeated in each row."""
        return self.rig.environment()

    @property
    def history(self) -> dict[str, Any]:
        """What points showed of the machine, those of earlier workers included."""
        return {name: check.history for name, check in self.checks.items() if check.history}

    @history.setter
    def history(self, found: Mapping[str, Any]) -> None:
        for name, check in self.checks.items():
            if name in found:
                check.history = found[name]

    def checks_of(self, point: Point) -> dict[str, PointCheck]:
        """Return the checks that apply to a point: first those that read, then those that run.

        Otherwise they have the order of the catalogue.
        """
        checks = dict[str, PointCheck]()
        if point.measure["profile"]:
            checks[PROFILE] = Profilers(self.rig)
        for name, described in CHECKS.items():
            if point.workload not in (described.workloads or WORKLOADS):
                continue  # it has not even the setting
            if described.setting is None or point.measure[described.setting]:
                checks[name] = self.checks[name]
        return dict(sorted(checks.items(), key=lambda item: item[1].runs))

    def measure(
        self,
        point: Point,
        tries: int = 0,  # noqa: ARG002 - the no-op's
        progress: Progress | None = None,
    ) -> Measurement:
        """Measure one point; say to `progress` when it has its times.

        Raises:
            CannotMeasure: the device, the network, the compiler or the algorithm cannot do it.
            OutOfMemory: it did not fit.
        """
        with _translated_errors(self.rig, self.workload), self.workload.scope():
            return measure_point(point, self, progress)


def measure_point(point: Point, bench: PointBench, progress: Progress | None = None) -> Measurement:
    """Measure one point: this is the order of things."""
    network = build(point, bench)
    choices = choose(network, bench)
    if profilers.replaces_timing(point.measure["profile"]):  # ncu or nsys times it
        return Measurement(row_of(OutcomeCells(artifacts=profile(network))))
    checks = bench.checks_of(point)
    passes = network.passes(choices)
    with watched([*checks.values()], network):
        passes.warm_up()
        time_passes(passes, [*checks.values()], network)
    return checked(network, choices, passes.times(), checks, progress)


def build(point: Point, bench: PointBench) -> Network:
    """Set the point's switches and build its network, unless this device cannot do the point."""
    device_type = bench.rig.device.type
    profilers.refuse_early(point.measure["profile"], device_type)
    convolutions.refuse_early(point.axes, device_type)
    bench.workload.refuse_early(point)
    switches.apply(point.axes)
    compilations.forget()
    return bench.workload.build(point)


def choose(network: Network, bench: PointBench) -> Choices:
    """Give each convolution its algorithm; the network runs it from now on."""
    settings = network.point.measure
    began = time.perf_counter()
    choices = convolutions.choose(
        network.model, network.shapes, network.point.axes["algorithm"], settings, bench.backend
    )
    return replace(choices, setup_ms=1e3 * (time.perf_counter() - began))


@contextmanager
def watched(checks: Sequence[PointCheck], network: Network) -> Iterator[None]:
    """Let the checks look at the warm-up and the timed passes."""
    for check in checks:
        check.begin(network)
    yield
    for check in checks:
        check.end()


def time_passes(passes: Passes, checks: Sequence[PointCheck], network: Network) -> None:
    """Time the passes; once more, after a pause, if a check says that they were disturbed.

    A second try that is disturbed, too, stands, and is flagged.

    Raises:
        RuntimeError: a time is not finite and positive, so it is none.
    """

    def look() -> None:
        for check in checks:
            check.look()

    for tries_left in (1, 0):
        for check in checks:
            check.settled(network)
        passes.time(look)
        samples = passes.samples()
        if not all(math.isfinite(ms) and ms > 0 for ms in samples):
            raise RuntimeError(f"no times: {samples[:3]} ms in {len(samples)} passes")
        if not tries_left or not passes.repeatable:
            break
        median = stats.median(samples)
        if not any([check.disturbed(median) for check in checks]):  # noqa: C419 - each is asked
            break
        time.sleep(COOLING_S)


def checked(
    network: Network,
    choices: Choices,
    times: Times,
    checks: Mapping[str, PointCheck],
    progress: Progress | None,
) -> Measurement:
    """Run the checks; before each that runs something, say what the point is without the rest.

    The process may end in it: in a driver, or a profiler. The times are there already.
    """
    skipped = {name: _SKIPPED for name in checks if progress and name in progress.skipped}
    todo = [name for name in checks if name not in skipped]
    found = [checks[name].without(network, choices, times) for name in skipped]
    while todo:
        check = checks[todo[0]]
        if progress and check.runs:
            unmade = [checks[name].without(network, choices, times) for name in todo]
            missing = {**skipped, **dict.fromkeys(todo, "")}
            so_far = record(network, choices, times, [*found, *unmade], missing)
            progress.begins(todo[0], so_far, todo[1:])
        found.append(check.after(network, choices, times))
        del todo[0]
    network.held.check()
    return record(network, choices, times, found, skipped)


class Profilers(PointCheck):
    """Runs the sweep's profilers, on as many passes as were timed."""

    def after(self, network: Network, choices: Choices, times: Times) -> Finding:  # noqa: ARG002
        """Run them."""
        return Finding(artifacts=profile(network, len(times.samples)))


def profile(network: Network, timed: int = 1) -> str:
    """Run the sweep's profilers on further passes or steps; return the names of their files."""
    point = network.point
    rig = network.rig
    settings = dict(point.measure)
    step = profilers.ProfiledStep(
        network.step, rig.wait, rig.device.type, settings["warmup"], timed
    )
    return profilers.run(settings["profile"], step, point.point_id, settings)


def record(
    network: Network,
    choices: Choices,
    times: Times,
    findings: Sequence[Finding],
    missing: Mapping[str, str],
) -> Measurement:
    """Return the rows of a point; `missing` are checks and why; without a why they are to come."""
    point = network.point
    table = times.table
    flags = [*times.summary.flags(), *times.flags, *(table.flags() if table else ())]
    flags += [name for finding in findings for name in finding.raised()]
    flags += [CHECK_MISSING] if missing else []
    flags += [UNDECIDED] if any(map(_decides, missing)) else []
    cells: list[Cells] = [
        times.summary.cells(),
        TimeCells(throughput_ips=1000 * point.axes["batch_size"] / times.summary.median),
        work.amount_cells(network.model, network.shapes),
        ChoiceCells(algorithm_setup_ms=choices.setup_ms),
        LoadCells(load_avg_1min=network.load),
        *times.cells,
    ]
    if table:
        cells.append(table.overall_cells())
    about: list[list[Cells]] = [[] for _ in choices.all]
    others: list[Cells] = []
    artifacts = [times.artifacts]
    unknown: Row = {}  # what a check did not find is told as empty
    for finding in findings:
        if finding.cells:
            unknown |= dict.fromkeys(finding.cells.declared)
            cells.append(finding.cells)
        others += finding.others
        artifacts.append(finding.artifacts)
        for of_call, found in zip(about, finding.layers, strict=False):
            of_call.append(found)
    layers = table.rows(point, about, others) if table else []
    if work.is_impossible(
        times.summary.median, layers, network.shapes, point.axes, network.rig.device
    ):
        flags.append(IMPOSSIBLE)
    whys = [f"{name}: {why}" for name, why in missing.items() if why]
    outcome = OutcomeCells(
        flags=";".join(flags),
        valid=is_valid("ok", flags),
        artifacts=";".join(filter(None, artifacts)),
        checks_missing="; ".join(whys) or None,
    )
    row = {**unknown, **row_of(*cells, outcome)}
    proof = next((finding.proof for finding in findings if finding.proof), None)
    return Measurement(row, layers, times.samples, proof, times.seconds)


def _decides(name: str) -> bool:
    """Say whether a check may find that the times are not valid."""
    return name in CHECKS and any(flag.doubt for flag in CHECKS[name].flags)


@contextmanager
def _translated_errors(rig: Rig, workload: Workload) -> Iterator[None]:
    """Turn torch's errors about memory and operators into `OutOfMemory` and `CannotMeasure`."""
    try:
        yield
    except LibraryUnusable as error:
        raise CannotMeasure(str(error)) from error
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            peak = rig.memory.peak()
            limit = rig.memory.limit()
            workload.forget()
            raise OutOfMemory(peak, limit, first_line(error)) from error
        if isinstance(error, CannotCapture):
            workload.forget()
            raise CannotMeasure(str(error), spoiled=True) from error
        cannot = workload.cannot
        if is_missing_operator(error) or any(text in str(error) for text in cannot):
            lines = str(error).splitlines()  # of which the first may be a mere heading
            telling = (line for line in lines if any(words in line for words in cannot))
            raise CannotMeasure(next(telling, lines[0])) from error
        raise
