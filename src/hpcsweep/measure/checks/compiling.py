"""The compiling check: what torch's own counters say of the timed passes."""

from __future__ import annotations

from typing import Final

from hpcsweep.catalog.checks.compiling import COMPILING, LAYERS_COMPILED, RECOMPILED
from hpcsweep.measure.checks import Finding, PointCheck
from hpcsweep.measure.network import Choices, Network, Times


class CompilingCheck(PointCheck):
    """Tells what the passes saw: they are timed when nothing compiles any more."""

    runs = False

    def after(self, network: Network, choices: Choices, times: Times) -> Finding:
        """Tell it."""
        return Finding(
            flags={
                COMPILING: times.compiled,
                RECOMPILED: times.recompiled,
                LAYERS_COMPILED: times.layers_compiled,
            }
        )


CHECK: Final = CompilingCheck
