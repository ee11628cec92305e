"""The energy check: the GPU's energy counter over passes of its own.

The driver's watts are averages over up to a second, and some GPUs sample only a quarter of that
time. So energy is always the difference of the counter over a window of a second or more, which
begins and ends with an update of the counter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from hpcsweep.catalog.checks.energy import (
    APART_PCT,
    ENERGY_APART,
    ENERGY_PACE,
    PACE_PCT,
    SPAN_S,
    WINDOW_S,
    EnergyCells,
)
from hpcsweep.measure.checks import Finding, PointCheck
from hpcsweep.measure.machine.drivers import Driver
from hpcsweep.measure.machine.rig import Rig
from hpcsweep.measure.network import Choices, Network, Times
from hpcsweep.measure.timing import clocks

# Of passes between two waits. In a wait the GPU idles for some microseconds, which costs nothing
# in so long a block; of long passes a few make one.
_BLOCK_MS: Final = 100.0
_BLOCK_LEAST: Final = 5
# A counter that was not updated until then tells nothing.
LONGEST_S: Final = 5.0
# So late is an update seen: a thousandth of the span.
_POLL_S: Final = 0.001


class Update(NamedTuple):
    """One update of an energy counter."""

    at_s: float
    joules: float
    watts: float | None


class Window(NamedTuple):
    """The updates of the counter while passes ran, when these began, and the seconds of a pass."""

    updates: Sequence[Update]
    began_s: float
    pass_s: float


class EnergyCheck(PointCheck):
    """Runs passes for a second and a half, as a graph where the GPU would wait for the host.

    `history` says that the counter stood still: it is not asked again, since that takes five
    seconds a point.
    """

    history = False

    def __init__(self, rig: Rig) -> None:
        """Run nothing where no driver tells of energy."""
        super().__init__(rig)
        self.runs = rig.driver is not None

    def after(self, network: Network, choices: Choices, times: Times) -> Finding:
        """Measure the energy of a pass; of a graph's replay if the host is slow."""
        driver = self.rig.driver
        if driver is None or self.history or driver.energy_j() is None:
            return Finding()
        median_ms = times.summary.median
        # then the energy would be that of waiting
        idles = times.lanes is not None and times.lanes.launch_bound(median_ms)
        run = replay(network) if idles else times.run
        if run is None:
            return Finding(cells=EnergyCells(energy_method="launch_bound"))
        block = max(_BLOCK_LEAST, round(_BLOCK_MS / median_ms))
        window = passes_with_counter(driver, run, self.rig.wait, block)
        self.history = not window.updates
        cells = energy_cells(window)
        if cells is None:
            return Finding()
        if idles:
            cells |= EnergyCells(energy_method="graph")
        counted = cells.energy_j or 0.0
        sampled = cells.energy_sampled_j or counted
        pass_ms = 1e3 * window.pass_s
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


def passes_with_counter(
    driver: Driver, run: Callable[[], object], wait: Callable[[], object], block: int
) -> Window:
    """Run passes, `block` between two waits, until the counter's updates span a second."""
    wait()
    passes = 0
    began = time.monotonic()
    with _updates_of(driver) as updates:
        seconds = 0.0
        while seconds < LONGEST_S and (seconds < WINDOW_S or _span_s(updates) < SPAN_S):
            for _ in range(block):
                run()
            wait()
            passes += block
            seconds = time.monotonic() - began
    return Window(updates, began, seconds / passes)


@contextmanager
def _updates_of(driver: Driver) -> Iterator[list[Update]]:
    """Note the updates of the energy counter meanwhile, in a thread."""
    updates: list[Update] = []
    is_over = threading.Event()

    def watch() -> None:
        counted = driver.energy_j()
        while not is_over.wait(_POLL_S):
            joules = driver.energy_j()
            if joules is not None and joules != counted:
                updates.append(Update(time.monotonic(), joules, driver.read().power_w))
                counted = joules

    # a driver that does not answer does not keep the process from its end
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield updates
    finally:
        is_over.set()
        thread.join()


def _span_s(updates: Sequence[Update]) -> float:
    return updates[-1].at_s - updates[0].at_s if updates else 0.0


def energy_cells(window: Window) -> EnergyCells | None:
    """Return the energy of a pass; None where the counter's updates were too few.

    It is the power between the first and the last update, times the time of a pass.
    """
    updates = window.updates
    span_s = _span_s(updates)
    if span_s < SPAN_S:
        return None
    joules = updates[-1].joules - updates[0].joules
    # the driver's watts are averages over up to a second: those of the first one are old
    recent = [update.watts for update in updates if update.at_s >= window.began_s + SPAN_S]
    watts = [value for value in recent if value is not None]
    return EnergyCells(
        energy_j=joules / span_s * window.pass_s,
        energy_sampled_j=sum(watts) / len(watts) * window.pass_s if watts else None,
        energy_update_ms=1000 * span_s / (len(updates) - 1),
        energy_method="counter",
    )


CHECK: Final = EnergyCheck
