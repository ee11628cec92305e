"""Makes the lanes of a point: a clean one, and lanes that time the layers.

A driver queues about a thousand launches. A timed layer adds two events, so the layer pass of a
deep network may need more: the host then waits in the middle of the pass, and the device for the
host. If a trial shows that, the layers are timed in parts: each lane times every second, fourth or
eighth of them, and a layer pass is one pass of each lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import torch
from torch import nn
from torch.cuda import Event

from hpcsweep.measure import compilations
from hpcsweep.measure.compilations import CompileCount
from hpcsweep.measure.shape_pass import LayerCall
from hpcsweep.measure.timing import clocks, layer_timer, loop
from hpcsweep.measure.timing.clocks import (
    Cuda,
    DeviceClock,
    EventStamps,
    HostClock,
    HostStamps,
    Stamps,
)
from hpcsweep.measure.timing.layer_timer import LayerTimer, LayerTimes
from hpcsweep.measure.timing.loop import Lane

# Tried in turn after the whole, until the queue holds the launches of a pass and the events of one
# part.
_PARTS: Final = (2, 4, 8)
# Passes, each of which must starve: one alone may by chance.
_TRIAL: Final = 2
# To time passes while torch compiles nothing. What compiles in the last one, too, is flagged.
_TRIES: Final = 4
# Layers of the clean pass with events: few beside a thousand launches.
_WATCHED: Final = 32


@dataclass(frozen=True, kw_only=True)
class LayerLane(Lane):
    """A lane that times some layer calls; `places` are their indices in the pass."""

    clock: HostClock | DeviceClock
    timer: LayerTimer
    places: Sequence[int]

    def starves(self) -> bool:
        """Say whether the device had to wait for the host in every pass of a trial."""
        with self.around(_TRIAL):
            self.clock.block(self.run, _TRIAL)
        self.timer.forget()
        return isinstance(self.clock, DeviceClock) and self.clock.starved == self.clock.passes

    @property
    def mostly_starved(self) -> bool:
        """Whether the device had to wait for the host in many of the timed passes."""
        return isinstance(self.clock, DeviceClock) and self.clock.mostly_starved


@dataclass(frozen=True)
class Lanes:
    """The lanes of a point; `device_clock` is the clean lane's on a GPU, else None."""

    timer_name: str
    clean: Lane
    layers: Sequence[LayerLane] = ()
    device_clock: DeviceClock | None = None
    event_floor_ms: float | None = None
    watch: LayerLane | None = None
    calls: Sequence[LayerCall] = ()
    untimed: frozenset[str] = frozenset()
    uncaptured: bool = False
    compiled: CompileCount = field(default_factory=CompileCount)

    @cached_property
    def starved(self) -> bool:
        """Whether the device waited for the host, at the end of clean passes or inside them.

        It is looked at once, after the timed passes.
        """
        at_end = self.device_clock is not None and self.device_clock.mostly_starved
        return at_end or (self.watch is not None and self.watch.starves())

    def launch_bound(self, median_ms: float) -> bool:
        """Say whether the host needs longer for a pass than the device, or lets it wait."""
        clock = self.device_clock
        return clock is not None and (clock.launch_bound(median_ms) or self.starved)

    @property
    def parts(self) -> int:
        """Number of passes that make a layer pass; 0: layers are not timed."""
        return len(self.layers)

    def all(self) -> list[Lane]:
        """Return all lanes, the clean one first."""
        return [self.clean, *self.layers]

    def warm_up(self, settings: dict[str, Any]) -> int:
        """End the clean lane's warm-up; return its passes after the first call.

        A GPU's clock was calibrated by some of them. With a fixed count there are no delays.
        """
        calibrated = 0 if self.device_clock is None else clocks.CALIBRATING
        delays: AbstractContextManager[object] = nullcontext()
        if self.device_clock is not None and settings["stop"] == "fixed":
            delays = self.device_clock.undelayed()
        with self.compiled.block(), delays:
            done = loop.collect([self.clean], loop.warm_up_rule(settings, 1 + calibrated))
        return calibrated + len(done.times[0])

    def settled(self, ran: int) -> Lanes:
        """Run the lanes, after `ran` clean passes, until torch compiles nothing; return them.

        If torch compiles because of timers, they are inside compiled code: then the result has no
        lanes of layers.
        """
        self.compiled.blocks += compilations.settle(self.clean.once, ran)
        # apart from the passes that count: what timers compile is no fault of theirs
        trials = CompileCount()
        # a network that compiles nothing does not because of timers either
        if compilations.compilations():
            for lane in self.layers:
                with trials.block():
                    lane.starves()
        if not trials.blocks:
            return self
        compilations.forget()
        compilations.settle(self.clean.once, 0)
        return replace(self, layers=(), untimed=frozenset(call.layer for call in self.calls))

    def collect(
        self, settings: dict[str, Any], at_block_end: Callable[[], object] = clocks.nothing
    ) -> tuple[loop.Collected, bool]:
        """Time passes, again if torch compiled meanwhile; return if it did in the last try, too."""
        for _ in range(_TRIES):
            for lane in self.layers:
                lane.timer.forget()
            rule = loop.stopping_rule(settings)
            tally = CompileCount()
            with tally.block():
                done = loop.collect(self.all(), rule, at_block_end=at_block_end)
            if not tally.blocks:
                break
        return done, bool(tally.blocks)

    def timed(self) -> LayerTimes:
        """Return the layer calls with their times, in the order of the pass."""
        starved = any(lane.mostly_starved for lane in self.layers)
        parts = [(lane.places, lane.timer.timed()) for lane in self.layers]
        timed = layer_timer.joined(parts, starved=starved)
        if self.untimed:
            return layer_timer.completed(timed, self.calls, self.untimed)
        return timed

    def pass_times(self, times: Sequence[Sequence[float]]) -> list[float]:
        """Return the times of layer passes, given those of all lanes: means over the parts."""
        return [sum(of_parts) / self.parts for of_parts in zip(*times[1:], strict=True)]


@dataclass(frozen=True)
class LaneWork:
    """The work of a lane: network, pass, preparation, the calls to time, and the timer.

    At some of the `watched` calls a trial checks whether the device waits for the host.
    """

    model: nn.Module
    run: Callable[[], object]
    prepare: Callable[[], object]
    calls: Sequence[LayerCall] = ()
    watched: Sequence[LayerCall] = ()
    new_timer: Callable[[nn.Module, Sequence[LayerCall], Stamps], LayerTimer] = LayerTimer


def make_lanes(device: torch.device, launch: str, work: LaneWork) -> Lanes:
    """Return the lanes for a device; without layer lanes if layers cannot be timed."""
    untimed = compilations.layers_inside(work.model, [*work.calls, *work.watched])
    calls = [call for call in work.calls if call.layer not in untimed]
    watched = [call for call in work.watched if call.layer not in untimed]
    outside = replace(work, calls=calls, watched=watched)
    if device.type != "cuda":
        lanes = _on_host(device, outside)
    elif launch == "graph":
        lanes = _graph(outside)
    else:
        lanes = _eager(outside)
    return replace(lanes, calls=work.calls, untimed=untimed if work.calls else frozenset())


def _on_host(device: torch.device, work: LaneWork) -> Lanes:
    clock = HostClock(work.prepare, clocks.synchronizer(device))
    clean = Lane(work.run, clock)
    if device.type != "cpu" or not work.calls:
        return Lanes(clock.timer, clean)
    timer = work.new_timer(work.model, work.calls, HostStamps())
    places = range(len(work.calls))
    lane = LayerLane(work.run, clock=clock, around=timer.attached, timer=timer, places=places)
    return Lanes(clock.timer, clean, [lane])


def _eager(work: LaneWork) -> Lanes:
    clock = DeviceClock(Cuda(), work.prepare)
    clock.calibrate(work.run)
    clean = Lane(work.run, clock)
    watch = None
    families = layer_timer.families(work.watched)
    if families:
        step = math.ceil(len(families) / _WATCHED)
        layers = set[str]().union(*families[::step])  # evenly through the pass
        watch = _event_lane(replace(work, calls=work.watched), layers, clock.host_ms)
    if not work.calls:
        return Lanes(clock.timer, clean, device_clock=clock, watch=watch)
    floor_ms = clocks.event_floor_ms(Cuda())
    return Lanes(clock.timer, clean, _event_lanes(work, clock.host_ms), clock, floor_ms, watch)


def _event_lanes(work: LaneWork, host_ms: float) -> list[LayerLane]:
    """Return as many lanes as the queue needs; if no number of parts helps, one lane.

    `host_ms` is the host's time to issue a pass without events; of parts of them it follows.
    """
    families = layer_timer.families(work.calls)
    whole = _event_lane(work, set[str]().union(*families))
    if not whole.starves():
        return [whole]
    assert isinstance(whole.clock, DeviceClock)  # noqa: S101 - a lane of events
    of_events = whole.clock.host_ms - host_ms
    for count in _PARTS:
        lanes = []
        for part in range(count):
            layers = set[str]().union(*families[part::count])
            lanes.append(_event_lane(work, layers, host_ms + of_events / count))
        if not any(lane.starves() for lane in lanes):
            return lanes
    return [whole]


def _event_lane(work: LaneWork, layers: set[str], host_ms: float | None = None) -> LayerLane:
    """Return a lane with events around all calls of some layers.

    Its delays fit `host_ms`; by default the host's measured time to issue this lane's pass.
    """
    places = [at for at, call in enumerate(work.calls) if call.layer in layers]
    gpu = Cuda()
    stamps = EventStamps(gpu.event, host_now=gpu.host_now)
    timer = work.new_timer(work.model, [work.calls[at] for at in places], stamps)
    # timers cost host time, so the layer lane needs longer delays and its own clock
    clock = DeviceClock(gpu, work.prepare, ahead=stamps.ahead)
    if host_ms is None:
        with timer.wrapped(clocks.CALIBRATING):
            clock.calibrate(work.run)
    else:
        clock.host_ms = host_ms
    return LayerLane(work.run, clock=clock, around=timer.attached, timer=timer, places=places)


def _graph(work: LaneWork) -> Lanes:
    """Return lanes that replay; the layer lane replays a second graph with events in it.

    Each replay records the same events, so they are read after every replay.
    """
    clock = DeviceClock(Cuda(), work.prepare, timer="graph")
    replay = clocks.capture(work.run)
    clock.calibrate(replay)
    clean = Lane(replay, clock)
    layers = _graph_layers(work) if work.calls else []
    uncaptured = bool(work.calls) and not layers
    return Lanes(clock.timer, clean, layers, clock, uncaptured=uncaptured)


def _graph_layers(work: LaneWork) -> list[LayerLane]:
    """Return the layer lane; none if graphs cannot hold events.

    Older versions of torch cannot make such events; on ROCm recording them raises an error.
    """
    if clocks.external_event() is None:
        return []
    timer = work.new_timer(work.model, work.calls, EventStamps(_external, "graph"))
    try:
        replay = clocks.capture(work.run, around_capture=lambda: timer.wrapped(1))
    except RuntimeError as error:
        if "event" not in str(error).lower():
            raise
        return []
    clock = DeviceClock(Cuda(), work.prepare, timer="graph")
    clock.calibrate(replay)
    places = range(len(work.calls))
    lane = LayerLane(replay, clock=clock, around=timer.reading, most=1, timer=timer, places=places)
    return [lane]


def _external() -> Event:
    event = clocks.external_event()
    assert event is not None  # noqa: S101 - asked before
    return event
