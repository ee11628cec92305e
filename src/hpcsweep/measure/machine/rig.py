"""One device with the instruments that look at it."""

from __future__ import annotations

from hpcsweep.measure.machine import memory, provenance
from hpcsweep.measure.machine.provenance import Device
from hpcsweep.measure.machine.telemetry import Telemetry
from hpcsweep.measure.timing import lanes


class Rig:
    """A device, its telemetry, its memory, and a function that waits until it is idle."""

    def __init__(self, device: str = "cpu", telemetry: Telemetry | None = None) -> None:
        """Use the current device of a type: cpu, cuda or mps."""
        self.device: Device = provenance.device(device)
        self.telemetry = telemetry or Telemetry()
        self.memory = memory.watch(self.device.torch_device)
        self.wait = lanes.synchronizer(self.device.torch_device)
