"""The compiling check: what torch's own counters say of the timed passes."""

from __future__ import annotations

from hpcsweep.catalog.checks import compiling as told
from hpcsweep.measure.convolutions import Choices
from hpcsweep.measure.network import Finding, Network, PointCheck, Times


class Check(PointCheck):
    """Tells what the passes saw: they are timed when nothing compiles any more."""

    runs = False

    def after(self, network: Network, choices: Choices, times: Times) -> Finding:  # noqa: ARG002
        """Tell it."""
        return Finding(
            flags={
                told.COMPILING: times.compiled,
                told.RECOMPILED: times.recompiled,
                told.LAYERS_COMPILED: times.layers_compiled,
            }
        )
