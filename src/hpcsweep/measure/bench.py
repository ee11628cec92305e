"""Chooses what measures a workload that needs torch; the worker's only door into this package."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hpcsweep.errors import Refused
from hpcsweep.measure import fit, telemetry
from hpcsweep.measure.inference import Inference

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcsweep.worker import Bench


def torch_bench(workload: str, run: Mapping[str, Any]) -> Bench:
    """Return the bench of a workload, after checking the machine against the profile's promises.

    Raises:
        Refused: the device is not what the profile promised, or this torch cannot use it.

    """
    if workload != "inference":
        raise Refused(f"workload '{workload}' cannot be measured by this version; try inference")
    device = fit.device_for(run)
    if device.type != "cuda":
        return Inference(device.type)
    watched = telemetry.watch(device.uuid, device.torch_device.index, frozenset({os.getpid()}))
    fit.check_neighbours(watched)
    return Inference(device.type, watched)
