"""The memory check: the peak of the warm-up and the timed passes."""

from __future__ import annotations

from typing import Final

from hpcsweep.catalog.checks.memory import MemoryCells
from hpcsweep.measure.checks import Finding, PointCheck
from hpcsweep.measure.network import Choices, Network, Times


class MemoryCheck(PointCheck):
    """Reads the high-water mark when the last pass was timed."""

    runs = False
    _found = MemoryCells()

    def begin(self, network: Network) -> None:
        """Forget what earlier points, and the choice of algorithms, needed."""
        self.rig.memory.drop_reserve()
        self.rig.memory.reset()

    def settled(self, network: Network) -> None:
        """Leave out, in a training, what tuning and compiling needed."""
        if network.learns:
            self.rig.memory.reset()

    def end(self) -> None:
        """Read the peak, before other checks take memory of their own."""
        self._found = self.rig.memory.cells()

    def after(self, network: Network, choices: Choices, times: Times) -> Finding:
        """Tell it."""
        return Finding(cells=self._found)


CHECK: Final = MemoryCheck
