"""The host check: whether the GPU had to wait for the host in the timed passes."""

from __future__ import annotations

from typing import Final

from hpcsweep.catalog.checks.host import LAUNCH_BOUND, HostCells
from hpcsweep.measure.checks import Finding, PointCheck
from hpcsweep.measure.network import Choices, Network, Times


class HostCheck(PointCheck):
    """Reads the clock of the overall pass, and watches some layers in two more passes."""

    runs = False

    def after(self, network: Network, choices: Choices, times: Times) -> Finding:
        """Compare the host's time to issue a pass with the device's to run it."""
        lanes = times.lanes
        clock = lanes.device_clock if lanes else None
        if lanes is None or clock is None:
            return Finding()
        cells = HostCells(
            host_ms=clock.host_ms,
            launch_bound=lanes.launch_bound(times.summary.median),
            sm_clock_pass_mhz=clock.sm_clock_mhz,
        )
        return Finding(cells=cells, flags={LAUNCH_BOUND: lanes.starved})


CHECK: Final = HostCheck
