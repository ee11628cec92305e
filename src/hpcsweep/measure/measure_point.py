"""What happens to a point, in order: build, choose, warm up, time, check, record.

The verbs come first, then the bench that runs them for the points of a workload on one device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

from hpcsweep import catalog, sources
from hpcsweep.catalog import INFERENCE, TRAINING, WORKLOADS
from hpcsweep.catalog.checks import CHECKS
from hpcsweep.catalog.columns import CHECK_MISSING, IMPOSSIBLE, UNDECIDED, Row, is_valid
from hpcsweep.catalog.record import Cells, row_of
from hpcsweep.catalog.row_records import ChoiceCells, LoadCells, OutcomeCells, TimeCells
from hpcsweep.conv import backend
from hpcsweep.conv.backend import LibraryUnusable
from hpcsweep.errors import Refused, first_line
from hpcsweep.measure import compilations, profilers, switches, work
from hpcsweep.measure.bench_api import (
    CannotMeasure,
    Measurement,
    OutOfMemory,
    Progress,
    is_missing_operator,
    is_out_of_memory,
)
from hpcsweep.measure.checks import Finding, PointCheck
from hpcsweep.measure.machine import fit
from hpcsweep.measure.machine.drivers import Driver, NoDriver
from hpcsweep.measure.machine.rig import Rig
from hpcsweep.measure.network import (
    Choices,
    Network,
    Passes,
    Times,
    Workload,
    choose_algorithms,
    refuse_algorithm,
)
from hpcsweep.measure.operations import CannotCapture
from hpcsweep.measure.timing import stats
from hpcsweep.measure.workloads.inference import Inference
from hpcsweep.measure.workloads.training import Training
from hpcsweep.point import Point

_MODULES: Final = {name: import_module(f"hpcsweep.measure.checks.{name}") for name in CHECKS}
_WORKLOADS: Final[Mapping[str, type[Workload]]] = {
    INFERENCE.name: Inference,
    TRAINING.name: Training,
}
# Pause for a throttled GPU before the second try. It trades little time for a clock that may have
# recovered; how long clocks take for that was not measured.
COOLING_S: Final = 2.0
# the sweep's own profilers, which run as a check does
PROFILE: Final = "profile"
_SKIPPED: Final = "an earlier point's process ended in it"


def measure_point(point: Point, bench: PointBench, progress: Progress | None = None) -> Measurement:
    """Measure one point: this is the order of things."""
    network = build(point, bench)
    choices = choose(network, bench)
    if profilers.replaces_timing(point.measure["profile"]):  # ncu or nsys times it
        return Measurement(row_of(OutcomeCells(artifacts=profilers.profile(network))))
    checks = bench.checks_of(point)
    passes = network.passes(choices)
    for check in checks.values():
        check.begin(network)
    passes.warm_up()
    time_passes(passes, checks.values(), network)
    for check in checks.values():
        check.end()
    return checked(network, choices, passes.times(), checks, progress)


def build(point: Point, bench: PointBench) -> Network:
    """Set the point's switches and build its network, unless this device cannot do the point."""
    device_type = bench.rig.device.type
    # before the network is built, which may take minutes
    profilers.refuse_early(point.measure["profile"], device_type)
    refuse_algorithm(point.axes, device_type)
    bench.workload.refuse_early(point)
    # before the factory runs, which sees the switches, and may compile
    switches.apply(point.axes)
    compilations.forget()
    return bench.workload.build(point)


def choose(network: Network, bench: PointBench) -> Choices:
    """Give each convolution its algorithm; the network runs it from now on."""
    settings = network.point.measure
    began = time.perf_counter()
    choices = choose_algorithms(
        network.model, network.shapes, network.point.axes["algorithm"], settings, bench.backend
    )
    return replace(choices, setup_ms=1e3 * (time.perf_counter() - began))


def time_passes(passes: Passes, checks: Collection[PointCheck], network: Network) -> None:
    """Time the passes; once more, after a pause, if a check says that they were disturbed.

    A second try that is disturbed, too, stands, and is flagged.

    Raises:
        RuntimeError: a time is not finite and positive, so it is none.
    """

    def look() -> None:
        for check in checks:
            check.look()

    # Two tries: a second one helps after a clock that was throttled once. A machine that disturbs
    # both would disturb a third, and a point must end.
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
    amount = work.amount_cells(network.model, network.shapes)
    times = replace(times, cells=[amount, *times.cells])  # of which each record has the same
    skipped = dict[str, str]()
    found = list[Finding]()
    for name, check in checks.items():
        if progress and name in progress.skipped:
            skipped[name] = _SKIPPED
            found.append(check.without(network, choices, times))
    todo = [name for name in checks if name not in skipped]
    for at, name in enumerate(todo):
        if progress and checks[name].runs:
            unmade = [checks[left].without(network, choices, times) for left in todo[at:]]
            missing = {**skipped, **dict.fromkeys(todo[at:], "")}
            so_far = record(network, choices, times, [*found, *unmade], missing)
            progress.begins(name, so_far, todo[at + 1 :])
        found.append(checks[name].after(network, choices, times))
    network.held.check()
    return record(network, choices, times, found, skipped)


def record(
    network: Network,
    choices: Choices,
    times: Times,
    findings: Sequence[Finding],
    missing: Mapping[str, str],
) -> Measurement:
    """Return the rows of a point; `missing` are checks and why; without a why they are to come."""
    point = network.point
    median = times.summary.median
    flags = [*times.summary.flags(), *times.flags]
    cells: list[Cells] = [
        times.summary.cells(),
        TimeCells(throughput_ips=1000 * point.axes["batch_size"] / median),
        ChoiceCells(algorithm_setup_ms=choices.setup_ms),
        LoadCells(load_avg_1min=network.load),
        *times.cells,
    ]
    if times.table:
        flags += times.table.flags()
        cells.append(times.table.overall_cells())

    of_calls: list[list[Cells]] = [[] for _ in choices.all]
    of_others: list[Cells] = []
    artifacts = [times.artifacts]
    proof = None
    unknown: Row = {}  # what a check did not find is told as empty
    for finding in findings:
        flags += finding.raised()
        if finding.cells:
            unknown |= dict.fromkeys(finding.cells.declared)
            cells.append(finding.cells)
        for of_call, found in zip(of_calls, finding.layers, strict=False):
            of_call.append(found)
        of_others += finding.others
        artifacts.append(finding.artifacts)
        proof = proof or finding.proof
    layers = times.table.rows(point, of_calls, of_others) if times.table else []

    if missing:
        flags.append(CHECK_MISSING)
    if any(map(_decides, missing)):
        flags.append(UNDECIDED)
    if work.is_impossible(median, layers, network.shapes, point.axes, network.rig.device):
        flags.append(IMPOSSIBLE)
    whys = [f"{name}: {why}" for name, why in missing.items() if why]
    outcome = OutcomeCells(
        flags=";".join(flags),
        valid=is_valid("ok", flags),
        artifacts=";".join(filter(None, artifacts)),
        checks_missing="; ".join(whys) or None,
    )
    row = {**unknown, **row_of(*cells, outcome)}
    return Measurement(row, layers, times.samples, proof, times.seconds)


def _decides(name: str) -> bool:
    """Say whether a check may find that the times are not valid."""
    return name in CHECKS and any(flag.doubt for flag in CHECKS[name].flags)


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
            checks[PROFILE] = profilers.ProfilerCheck(self.rig)
        for name, described in CHECKS.items():
            if point.workload not in (described.workloads or WORKLOADS):
                continue  # it has not even the setting
            if described.setting is None or point.measure[described.setting]:
                checks[name] = self.checks[name]
        # what only reads is safe from what ends the process
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


def torch_bench(workload: str, run: Mapping[str, Any]) -> PointBench:
    """Return the bench of a workload, after checking the machine against the profile's promises.

    Raises:
        Refused: the device is not what the profile promised, or this torch cannot use it.
    """
    sources.look_in(run.get("search_path", ()))
    device = fit.device_for(run)
    if device.type != "cuda":
        return on_device(workload, device.type)
    try:
        driver = fit.driver_of(device)
    except NoDriver:  # what only a driver tells stays empty
        return on_device(workload, device.type)
    fit.check_neighbours(driver)
    return on_device(workload, device.type, driver)


def on_device(workload: str, device: str = "cpu", driver: Driver | None = None) -> PointBench:
    """Return the bench of a workload on the current device of a type: cpu, cuda or mps."""
    if workload not in _WORKLOADS:
        raise Refused(f"workload '{workload}' cannot be measured; there is {', '.join(_WORKLOADS)}")
    return PointBench(_WORKLOADS[workload], device, driver)


@contextmanager
def _translated_errors(rig: Rig, workload: Workload) -> Iterator[None]:
    """Turn torch's errors about memory and operators into `OutOfMemory` and `CannotMeasure`."""
    try:
        yield
    except LibraryUnusable as error:
        raise CannotMeasure(str(error)) from error
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            # figures first: what is given back counts no longer
            peak = rig.memory.peak()
            limit = rig.memory.limit()
            workload.forget()
            raise OutOfMemory(peak, limit, first_line(error)) from error
        if isinstance(error, CannotCapture):
            workload.forget()
            raise CannotMeasure(str(error), spoiled=True) from error
        lines = str(error).splitlines()  # of which the first may be a mere heading
        telling = [line for line in lines if any(words in line for words in workload.cannot)]
        if telling or is_missing_operator(error):
            raise CannotMeasure([*telling, *lines][0]) from error
        raise
