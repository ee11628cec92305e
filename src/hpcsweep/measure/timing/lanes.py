"""The ways to run a point's pass on its device: a clean lane, and a lane that times the layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hpcsweep.measure.timing import clocks
from hpcsweep.measure.timing.clocks import Cuda, DeviceClock, HostClock
from hpcsweep.measure.timing.layer_timer import LayerTimer
from hpcsweep.measure.timing.loop import Lane
from hpcsweep.measure.timing.stamps import EventStamps, HostStamps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from hpcsweep.measure.shape_pass import Call
    from hpcsweep.measure.timing.clocks import Event
    from hpcsweep.measure.timing.stamps import Stamps


@dataclass(frozen=True)
class Lanes:
    """The lanes of a point; `device_clock` is the clean lane's where a device has its own."""

    timer_name: str
    clean: Lane
    layers: Lane | None = None
    layer_timer: LayerTimer | None = None
    device_clock: DeviceClock | None = None

    def all(self) -> list[Lane]:
        """Return the lanes that there are, the clean one first."""
        return [self.clean, self.layers] if self.layers else [self.clean]


@dataclass(frozen=True)
class Pass:
    """What a lane runs: the network, one pass, what comes before it, the calls to time, and how."""

    model: nn.Module
    run: Callable[[], object]
    prepare: Callable[[], object]
    calls: Sequence[Call] = ()
    new_timer: Callable[[nn.Module, Sequence[Call], Stamps], LayerTimer] = LayerTimer


def lanes(device: torch.device, launch: str, work: Pass) -> Lanes:
    """Return the lanes for a device; where layers cannot be timed there is no layer lane."""
    if device.type != "cuda":
        return _on_host(device, work)
    return _graph(work) if launch == "graph" else _eager(work)


def synchronizer(device: torch.device) -> Callable[[], object]:
    """Return what waits until the device is idle."""
    waits = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}
    return waits.get(device.type, clocks.nothing)


def _on_host(device: torch.device, work: Pass) -> Lanes:
    clock = HostClock(work.prepare, synchronizer(device))
    clean = Lane(work.run, clock)
    if device.type != "cpu" or not work.calls:
        return Lanes(clock.timer, clean)
    timer = work.new_timer(work.model, work.calls, HostStamps())
    return Lanes(clock.timer, clean, Lane(work.run, clock, timer.attached), timer)


def _eager(work: Pass) -> Lanes:
    clock = DeviceClock(Cuda(), work.prepare)
    clock.calibrate(work.run)
    clean = Lane(work.run, clock)
    if not work.calls:
        return Lanes(clock.timer, clean, device_clock=clock)
    timer = work.new_timer(work.model, work.calls, EventStamps(Cuda().event))
    # the timers cost host time, so the layer lane needs longer delays and a clock of its own
    layer_clock = DeviceClock(Cuda(), work.prepare)
    with timer.wrapped(3):
        layer_clock.calibrate(work.run, 3)
    return Lanes(clock.timer, clean, Lane(work.run, layer_clock, timer.attached), timer, clock)


def _graph(work: Pass) -> Lanes:
    """Return lanes that replay; the layer lane replays a second graph with events in it.

    Each replay records these events again, so they are read after every replay.
    """
    clock = DeviceClock(Cuda(), work.prepare, timer="graph")
    replay = clocks.capture(work.run)
    clock.calibrate(replay)
    clean = Lane(replay, clock)
    if not work.calls or clocks.external_event() is None:
        return Lanes(clock.timer, clean, device_clock=clock)
    timer = work.new_timer(work.model, work.calls, EventStamps(_external, "graph"))
    layer_replay = clocks.capture(work.run, around_capture=lambda: timer.wrapped(1))
    layer_clock = DeviceClock(Cuda(), work.prepare, timer="graph")
    layer_clock.calibrate(layer_replay)
    layers = Lane(layer_replay, layer_clock, timer.reading, most=1)
    return Lanes(clock.timer, clean, layers, timer, clock)


def _external() -> Event:
    event = clocks.external_event()
    assert event is not None  # noqa: S101 - asked before
    return event
