"""The telemetry check: the state of the GPU at the ends of blocks of timed passes."""

from __future__ import annotations

from typing import Final

from hpcsweep.catalog.checks.telemetry import RECORD, THROTTLED, TelemetryCells
from hpcsweep.measure.checks import Finding, PointCheck
from hpcsweep.measure.convolutions import Choices
from hpcsweep.measure.network import Network, Times


class TelemetryCheck(PointCheck):
    """Reads NVML; wants the passes once more if the GPU was throttled."""

    runs = False
    _first_ms: float | None = None  # the median of passes that were throttled

    @property
    def history(self) -> float:
        """The highest clock of a point that nothing limited, in MHz."""
        return self.rig.telemetry.unlimited_mhz

    @history.setter
    def history(self, found: float) -> None:
        self.rig.telemetry.unlimited_mhz = found

    def begin(self, network: Network) -> None:
        """Forget the point before."""
        self._first_ms = None

    def settled(self, network: Network) -> None:
        """Begin anew."""
        self.rig.telemetry.begin()

    def look(self) -> None:
        """Read the state."""
        self.rig.telemetry.sample()

    def disturbed(self, median_ms: float) -> bool:
        """Say whether the GPU was throttled."""
        if THROTTLED.name not in self.rig.telemetry.flags():
            return False
        self._first_ms = median_ms
        return True

    def after(self, network: Network, choices: Choices, times: Times) -> Finding:
        """Tell it."""
        telemetry = self.rig.telemetry
        raised = telemetry.flags()
        return Finding(
            cells=TelemetryCells(**telemetry.cells(), throttled_median_ms=self._first_ms),
            flags={flag: flag.name in raised for flag in RECORD.flags},
        )


CHECK: Final = TelemetryCheck
