"""Chooses the bench of a workload that needs torch, and checks the machine; for the worker."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from hpcsweep import search_path
from hpcsweep.errors import Refused
from hpcsweep.measure.bench_api import Bench
from hpcsweep.measure.machine import fit, provenance, telemetry
from hpcsweep.measure.workloads.inference import Inference
from hpcsweep.measure.workloads.training.workload import Training

_BENCHES: Final[Mapping[str, type[Inference | Training]]] = {
    "inference": Inference,
    "training": Training,
}


def torch_bench(workload: str, run: Mapping[str, Any]) -> Bench:
    """Return the bench of a workload, after checking the machine against the profile's promises.

    Raises:
        Refused: the device is not what the profile promised, or this torch cannot use it.
    """
    if workload not in _BENCHES:
        raise Refused(f"workload '{workload}' cannot be measured; there is {', '.join(_BENCHES)}")
    search_path.use(run.get("search_path", ()))
    bench = _BENCHES[workload]
    device = fit.device_for(run)
    if device.type != "cuda":
        return bench(device.type)
    index = provenance.driver_index(device.torch_device.index)
    watched = telemetry.watch(device.uuid, index, frozenset({os.getpid()}))
    fit.check_neighbours(watched)
    return bench(device.type, watched)
