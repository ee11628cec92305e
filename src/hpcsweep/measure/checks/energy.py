"""The energy check: the GPU's energy counter over passes of its own."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

from hpcsweep.catalog.checks.energy import (
    APART_PCT,
    ENERGY_APART,
    ENERGY_PACE,
    PACE_PCT,
    EnergyCells,
)
from hpcsweep.measure.checks import Finding, PointCheck
from hpcsweep.measure.convolutions import Choices
from hpcsweep.measure.network import Network, Times
from hpcsweep.measure.timing import clocks

_BLOCK_MS: Final = 100.0  # of passes between two waits, in which the GPU idles


class EnergyCheck(PointCheck):
    """Runs passes for a second and a half, as a graph where the GPU would wait for the host."""

    @property
    def history(self) -> bool:
        """Whether the energy counter stood still."""
        return self.rig.telemetry is not None and self.rig.telemetry.energy_stands

    @history.setter
    def history(self, stands: bool) -> None:
        if self.rig.telemetry:
            self.rig.telemetry.energy_stands = stands

    def after(self, network: Network, choices: Choices, times: Times) -> Finding:
        """Measure the energy of a pass; of a graph's replay if the host is slow."""
        telemetry = self.rig.telemetry
        if telemetry is None or not telemetry.counts_energy:
            return Finding()
        median_ms = times.summary.median
        idles = times.lanes is not None and times.lanes.launch_bound(median_ms)
        run = replay(network) if idles else times.run
        if run is None:
            return Finding(cells=EnergyCells(energy_method="launch_bound"))
        ran = 0

        def one_pass() -> None:
            nonlocal ran
            ran += 1
            run()

        began = monotonic()
        cells = telemetry.energy_of(one_pass, self.rig.wait, max(5, round(_BLOCK_MS / median_ms)))
        pass_ms = 1e3 * (monotonic() - began) / max(ran, 1)
        if cells is None:
            return Finding()
        if idles:
            cells |= EnergyCells(energy_method="graph")
        counted = cells.energy_j or 0.0
        sampled = cells.energy_sampled_j or counted
        flags = {
            ENERGY_APART: abs(sampled - counted) > APART_PCT / 100 * counted,
            ENERGY_PACE: abs(pass_ms - median_ms) > PACE_PCT / 100 * median_ms,
        }
        return Finding(cells=cells, flags=flags)


def replay(network: Network) -> Callable[[], object] | None:
    """Return a replay of the pass as a graph; None if it has none.

    One's own network is not tried: what a capture forbids may leave CUDA in an error that the rest
    of the point would meet. A graph has one input, so that `rotated` would be another pass.
    """
    axes = network.point.axes
    replays = axes["launch"] == "graph"  # already, and the host is slow even so
    if replays or ":" in axes["model"] or axes["cache_state"] == "rotated":
        return None
    try:
        return clocks.capture(network.step)
    except RuntimeError:  # such as too little memory: the times are measured already
        return None


CHECK: Final = EnergyCheck
