"""Chooses the bench of a workload, and checks the machine for those that need torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpcsweep import sources
from hpcsweep.catalog import COMMAND, INFERENCE, NOOP, TRAINING
from hpcsweep.errors import Refused
from hpcsweep.measure.bench_api import Bench
from hpcsweep.measure.workloads.command import Command
from hpcsweep.measure.workloads.noop import Noop

if TYPE_CHECKING:
    from hpcsweep.measure.machine.drivers import Driver
    from hpcsweep.measure.measure_point import PointBench


def bench_of(workload: str, run: Mapping[str, Any]) -> Bench:
    """Return the bench of a workload; torch is imported only where it is needed.

    Raises:
        Refused: as `torch_bench` does.
    """
    if workload == COMMAND.name:
        return Command(run)
    return Noop() if workload == NOOP.name else torch_bench(workload, run)


def torch_bench(workload: str, run: Mapping[str, Any]) -> PointBench:
    """Return the bench of a workload, after checking the machine against the profile's promises.

    Raises:
        Refused: the device is not what the profile promised, or this torch cannot use it.
    """
    # ruff: noqa: PLC0415 - these load torch, which a worker of no-op points can do without
    from hpcsweep.measure.machine import fit
    from hpcsweep.measure.machine.drivers import NoDriver

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
    from hpcsweep.measure.measure_point import PointBench
    from hpcsweep.measure.workloads.inference import Inference
    from hpcsweep.measure.workloads.training import Training

    workloads: Mapping[str, type[Inference | Training]] = {
        INFERENCE.name: Inference,
        TRAINING.name: Training,
    }
    if workload not in workloads:
        raise Refused(f"workload '{workload}' cannot be measured; there is {', '.join(workloads)}")
    return PointBench(workloads[workload], device, driver)
