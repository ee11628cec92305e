"""What happens to a point, in order: build, choose, warm up, time, check, record."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib import import_module
from typing import Any, Final

from hpcsweep import catalog
from hpcsweep.catalog.checks import CHECKS
from hpcsweep.catalog.columns import Row, is_valid
from hpcsweep.conv import backend as backends
from hpcsweep.conv.errors import LibraryUnusable
from hpcsweep.errors import first_line
from hpcsweep.measure import convolutions, profilers, work
from hpcsweep.measure.bench_api import CannotMeasure, Measurement, OutOfMemory
from hpcsweep.measure.convolutions import Choices
from hpcsweep.measure.machine import framework, provenance
from hpcsweep.measure.machine.provenance import Rig
from hpcsweep.measure.machine.telemetry import Telemetry
from hpcsweep.measure.network import Finding, Network, Passes, PointCheck, Times, Workload
from hpcsweep.measure.timing import compiling, stats
from hpcsweep.point import Point

_MODULES: Final = {name: import_module(f"hpcsweep.measure.checks.{name}") for name in CHECKS}
COOLING_S: Final = 2.0  # pause for a throttled GPU before the second try


class PointBench:
    """Measures the points of one workload on one device."""

    def __init__(
        self, workload: type[Workload], device: str = "cpu", telemetry: Telemetry | None = None
    ) -> None:
        """Use the current device of a type: cpu, cuda or mps."""
        self.rig = Rig(device, telemetry)
        self.workload = workload(self.rig)
        self.backend = backends.choose(self.rig.device.type)
        if self.rig.device.type == "cuda":
            framework.detach_profiler()
        self.checks: Mapping[str, PointCheck] = {
            name: module.Check(self.rig) for name, module in _MODULES.items()
        }
        framework.apply(catalog.axis_defaults(catalog.INFERENCE.name))

    def environment(self) -> dict[str, Any]:
        """Return provenance for env.json; its `row` holds the cells repeated in each row."""
        return provenance.environment(self.rig.device, self.rig.telemetry)

    @property
    def history(self) -> dict[str, Any]:
        """What points showed of the machine, those of earlier workers included."""
        return {name: check.history for name, check in self.checks.items() if check.history}

    @history.setter
    def history(self, found: Mapping[str, Any]) -> None:
        for name, check in self.checks.items():
            if name in found:
                check.history = found[name]

    def checks_of(self, point: Point) -> list[PointCheck]:
        """Return the checks that apply to a point, in the order of the catalogue."""
        applying = (n for n, c in CHECKS.items() if c.applies(point.workload, point.measure))
        return [self.checks[name] for name in applying]

    def measure(self, point: Point, tries: int = 0) -> Measurement:  # noqa: ARG002 - the no-op's
        """Measure one point.

        Raises:
            CannotMeasure: the device, the network, the compiler or the algorithm cannot do it.
            OutOfMemory: it did not fit.
        """
        with _translated_errors(self.rig, self.workload), self.workload.scope(point):
            return measure_point(point, self)


def measure_point(point: Point, bench: PointBench) -> Measurement:
    """Measure one point: this is the order of things."""
    network = build(point, bench)
    choices = choose(network, bench)
    if profilers.replaces_timing(point.measure["profile"]):  # ncu or nsys times it
        return Measurement(profile(network))
    checks = bench.checks_of(point)
    passes = network.passes(choices)
    with watched(checks, network):
        passes.warm_up()
        time_passes(passes, checks, network)
    times = passes.times()
    artifacts = profile(network, len(passes.samples()))
    findings = [check.after(network, choices, times) for check in checks]
    return record(network, choices, times, findings, artifacts)


def build(point: Point, bench: PointBench) -> Network:
    """Set the point's switches and build its network, unless this device cannot do the point."""
    device_type = bench.rig.device.type
    profilers.refuse_early(point.measure["profile"], device_type)
    framework.refuse_early(point.axes, device_type)
    bench.workload.refuse_early(point)
    framework.apply(point.axes)
    compiling.forget()
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


def profile(network: Network, timed: int = 1) -> Row:
    """Run the sweep's profilers on further passes or steps, after all that is timed."""
    point = network.point
    rig = network.rig
    settings = dict(point.measure)
    step = profilers.ProfiledStep(
        network.step, rig.wait, rig.device.type, settings["warmup"], timed
    )
    return profilers.run(settings["profile"], step, point.point_id, settings)


def record(
    network: Network, choices: Choices, times: Times, findings: Sequence[Finding], artifacts: Row
) -> Measurement:
    """Return the rows of a point, unless its network lost its tensors meanwhile."""
    network.held.check()
    point = network.point
    table = times.table
    flags = [*times.summary.flags(), *times.flags, *(table.flags() if table else ())]
    flags += [name for finding in findings for name in finding.raised()]
    row: Row = {
        **times.summary.row(),
        "throughput_ips": 1000 * point.axes["batch_size"] / times.summary.median,
        **work.amount_cells(network.model, network.shapes),
        **(table.overall_cells() if table else {}),
        "algorithm_setup_ms": choices.setup_ms,
        "load_avg_1min": network.load,
        **times.cells,
    }
    about = [Row() for _ in choices.all]
    others = list[Row]()
    for finding in findings:
        row |= asdict(finding.cells) if finding.cells else {}
        others = [*others, *finding.others]
        for cells, found in zip(about, finding.layers, strict=False):
            cells.update(asdict(found))
    row["artifacts"] = ";".join(filter(None, (row.get("artifacts"), artifacts.get("artifacts"))))
    row["flags"] = ";".join(flags)
    row["valid"] = is_valid("ok", flags)
    proof = next((finding.proof for finding in findings if finding.proof), None)
    layers = table.rows(point, about, others) if table else []
    return Measurement(row, layers, times.samples, proof, times.seconds)


@contextmanager
def _translated_errors(rig: Rig, workload: Workload) -> Iterator[None]:
    """Turn torch's errors about memory and operators into `OutOfMemory` and `CannotMeasure`."""
    try:
        yield
    except LibraryUnusable as error:
        raise CannotMeasure(str(error)) from error
    except (RuntimeError, MemoryError) as error:
        if framework.is_out_of_memory(error):
            peak = rig.memory.peak()
            limit = rig.memory.limit()
            workload.forget()
            raise OutOfMemory(peak, limit, first_line(error)) from error
        cannot = workload.cannot
        if framework.is_missing_operator(error) or any(text in str(error) for text in cannot):
            lines = str(error).splitlines()  # of which the first may be a mere heading
            telling = (line for line in lines if any(words in line for words in cannot))
            raise CannotMeasure(next(telling, lines[0])) from error
        raise
