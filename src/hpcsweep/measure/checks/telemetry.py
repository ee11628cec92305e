"""The telemetry check: the state of the GPU at the ends of blocks of timed passes."""

from __future__ import annotations

from typing import Final

from hpcsweep.catalog.checks.telemetry import RECORD, THROTTLED, TelemetryCells
from hpcsweep.measure.checks import Finding, PointCheck
from hpcsweep.measure.convolutions import Choices
from hpcsweep.measure.network import Network, Times


class TelemetryCheck(PointCheck):
    """Reads the state by the GPU's driver; wants the passes once more if the GPU was throttled.

    Where there is no GPU it does nothing.
    """

    runs = False
    _first_ms: float | None = None  # the median of passes that were throttled

    @property
    def history(self) -> float:
        """The highest clock of a point that nothing limited, in MHz."""
        telemetry = self.rig.telemetry
        return telemetry.unlimited_mhz if telemetry else 0.0

    @history.setter
    def history(self, found: float) -> None:
        if self.rig.telemetry:
            self.rig.telemetry.unlimited_mhz = found

    def begin(self, network: Network) -> None:
        """Forget the point before."""
        self._first_ms = None

    def settled(self, network: Network) -> None:
        """Begin anew."""
        if self.rig.telemetry:
            self.rig.telemetry.begin()

    def look(self) -> None:
        """Read the state."""
        if self.rig.telemetry:
            self.rig.telemetry.sample()

    def disturbed(self, median_ms: float) -> bool:
        """Say whether the GPU was throttled."""
        telemetry = self.rig.telemetry
        is_throttled = telemetry is not None and THROTTLED.name in telemetry.flags()
        if is_throttled:
            self._first_ms = median_ms
        return is_throttled

    def after(self, network: Network, choices: Choices, times: Times) -> Finding:
        """Tell it."""
        telemetry = self.rig.telemetry
        if telemetry is None:
            return Finding(cells=TelemetryCells())
        raised = telemetry.flags()
        return Finding(
            cells=telemetry.cells() | TelemetryCells(throttled_median_ms=self._first_ms),
            flags={flag: flag.name in raised for flag in RECORD.flags},
        )


CHECK: Final = TelemetryCheck
