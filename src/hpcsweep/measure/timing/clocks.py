"""Times one pass: by the host's clock, or by events on the GPU's own time line.

An event pair around a short pass on an empty queue measures how fast the host issues work, not how
fast the GPU does it. So a delay is queued on the device before each pass, long enough for the host
to issue the whole pass meanwhile; the pass then runs as from a full queue. As far as earlier passes
of the block keep the device busy for that time, there is no delay. One synchronisation ends a
block. A pass for which the host was still too slow counts as *starved*; if many are, the point is
flagged.

The GPU is used through `Cuda`, whose host's clock tests replace. A *stamp* is a moment: a reading
of the host's clock, or an event on the stream of the work. Recording it does not wait; the time
between two moments is computed afterwards.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.cuda import Event

from hpcsweep.measure.operations import not_captured
from hpcsweep.measure.timing import loop, stats

if TYPE_CHECKING:
    from typing_extensions import Self

# The delay over the host's time to issue a pass: more of it waits longer, less starves a pass that
# is issued more slowly than those before.
_MARGIN: Final = 1.25
# A margin of its own for short passes, which one interruption delays.
_LEAST_DELAY_MS: Final = 0.05
# The host then falls behind, and the pass counts as starved.
_MOST_DELAY_MS: Final = 100.0
# Of the shortest pass before: how long the next one keeps the device busy.
_SURE: Final = 0.9
# Ten milliseconds at 2 GHz.
_CALIBRATION_CYCLES: Final = 20_000_000
# Idle GPUs run at a twentieth of their highest clock or more.
_MOST_OVER_MEASURED: Final = 20.0
# Of the pass: starved if less work is left when the host is done.
_STARVED: Final = 0.05
# A shorter delay does not show the clock: its launch is a part of it.
_TELLING_MS: Final = 0.5
# On an empty queue an event completes within microseconds.
_AHEAD_MS: Final = 0.02
# Passes, whose median counts: one that waits for memory is none of theirs.
CALIBRATING: Final = 3
# As in torch's notes on CUDA graphs.
_CAPTURE_WARM_UPS: Final = 3
# Their median counts.
_FLOOR_PAIRS: Final = 50
# The host records all of them meanwhile.
_FLOOR_DELAY_MS: Final = 2.0


_C: Final[Any] = torch._C  # noqa: SLF001 - a CPU build has not these functions


@lru_cache(maxsize=64)  # torch has 32 streams of each priority
def _stream(stream_id: int, device: int, kind: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(stream_id=stream_id, device_index=device, device_type=kind)


class TimingEvent(Event):
    """An event that notes the time.

    torch's own way to find the current stream asks first whether there is a GPU: 7 us of the host,
    twice for each layer that is timed.
    """

    def __new__(cls, *, external: bool = False) -> Self:
        """Make one; a graph may hold it if it is external, which older torches cannot."""
        more = {"external": True} if external else {}
        return super().__new__(cls, enable_timing=True, **more)

    def record(self, stream: Any = None) -> None:  # noqa: ANN401 - torch has two kinds
        """Record it on the current stream, unless given one."""
        if stream is None:
            device = _C._cuda_getDevice()  # noqa: SLF001 - the public names are that way
            stream = _stream(*_C._cuda_getCurrentStream(device))  # noqa: SLF001
        super().record(stream)


def nothing() -> None:
    """Prepare nothing before a pass."""


def synchronizer(device: torch.device) -> Callable[[], object]:
    """Return a function that waits until the device is idle."""
    waits = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}
    return waits.get(device.type, nothing)


class HostClock:
    """`perf_counter_ns` around a pass; `finish` waits for a device that works asynchronously."""

    timer: Final = "host"

    def __init__(
        self, prepare: Callable[[], object] = nothing, finish: Callable[[], object] = nothing
    ) -> None:
        """Call `prepare` before each pass, outside the time."""
        self._prepare = prepare
        self._finish = finish

    def block(self, run: Callable[[], object], count: int) -> list[float]:
        """Run `count` passes and return the milliseconds of each."""
        now = time.perf_counter_ns
        prepare = self._prepare
        finish = self._finish
        times = []
        for _ in range(count):
            prepare()
            begin = now()
            run()
            finish()
            times.append((now() - begin) / 1e6)
        return times


class Cuda:
    """The operations of a device clock on torch's GPU, by CUDA or HIP."""

    def event(self) -> Event:
        """Return a new timing event."""
        return TimingEvent()

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        torch.cuda.synchronize()

    def delay(self, ms: float) -> int:
        """Queue a kernel that spins for about `ms`; return its cycles, 0 if unknown (AMD)."""
        cycles = int(ms * cycles_per_ms())
        torch.cuda._sleep(cycles)  # noqa: SLF001 - torch has no public one
        return 0 if torch.version.hip else cycles

    def host_now(self) -> float:
        """Return the host's time in milliseconds."""
        return time.perf_counter_ns() / 1e6


@lru_cache(maxsize=1)
def cycles_per_ms() -> float:
    """Return the most cycles that the delay kernel may spin in a millisecond on this device.

    An idle GPU may run at a sixth of its clock, so delays calibrated by it would be too short
    later. So the highest clock counts if torch knows it, else (AMD) the highest measured rate.
    """
    rates = []
    # more than once, since an idle GPU becomes faster meanwhile
    for _ in range(3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(_CALIBRATION_CYCLES)  # noqa: SLF001
        end.record()
        torch.cuda.synchronize()
        rates.append(_CALIBRATION_CYCLES / max(begin.elapsed_time(end), 1e-3))
    measured = max(rates)
    return max(measured, min(_highest_clock_khz(), _MOST_OVER_MEASURED * measured))


def _highest_clock_khz() -> float:
    if torch.version.hip:
        return 0.0
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return float(getattr(properties, "clock_rate", 0))  # newer torches have it


class DeviceClock:
    """An event pair around each pass, behind a delay; one synchronisation per block."""

    def __init__(
        self,
        runtime: Cuda,
        prepare: Callable[[], object] = nothing,
        *,
        timer: str = "events",
        ahead: Callable[[Event, float], Sequence[float]] = lambda _zero, _host_zero: (),
    ) -> None:
        """Call `prepare` before each pass, outside the time; it may queue work of its own.

        `ahead` returns how far the host was ahead at moments in the passes (`EventStamps.ahead`).
        """
        self.timer = timer
        self._ahead = ahead
        self.host_ms = 0.0
        self.passes = self.starved = 0
        self._runtime = runtime
        self._prepare = prepare
        self._zero = runtime.event()
        self._pairs: list[tuple[Event, Event]] = []
        self._delays: list[tuple[int, Event, Event]] = []
        self._busy_ms = 0.0  # of a pass, by the last block
        self._clocks: list[float] = []
        self._delayed = True

    def calibrate(self, run: Callable[[], object]) -> None:
        """Measure the host's time to issue a pass, from an idle device."""
        times = []
        for _ in range(CALIBRATING):
            self._runtime.synchronize()
            begin = self._runtime.host_now()
            run()
            times.append(self._runtime.host_now() - begin)
        self._runtime.synchronize()
        self.host_ms = stats.median(times)
        self.passes = self.starved = 0

    def block(self, run: Callable[[], object], count: int) -> list[float]:
        """Run `count` passes and return the device's milliseconds of each."""
        while len(self._pairs) < count:
            self._pairs.append((self._runtime.event(), self._runtime.event()))
        pairs = self._pairs[:count]
        self._delays.clear()
        self._runtime.synchronize()
        self._zero.record()
        host_zero = self._runtime.host_now()
        free = host_zero  # the device has work until then, at least
        issued = list[float]()
        for begin, end in pairs:
            self._prepare()
            free = self._delay(free, begin) + self._busy_ms
            begin.record()
            run()
            end.record()
            issued.append(self._runtime.host_now() - host_zero)
        self._runtime.synchronize()
        times = [begin.elapsed_time(end) for begin, end in pairs]
        # the shortest, so that the device is not thought to be busy when it is not
        self._busy_ms = _SURE * min(times)
        if self._delayed:
            self._count_starved(pairs, issued, self._ahead(self._zero, host_zero))
            for cycles, queued, begin in self._delays:
                self._clocks.append(cycles / queued.elapsed_time(begin) / 1000)  # in MHz
        return times

    def _delay(self, free: float, begin: Event) -> float:
        """Queue what the device needs beside its work, to be busy while a pass is issued.

        Return until when it is busy then.
        """
        now = self._runtime.host_now()
        free = max(free, now)
        wanted = 0.0
        if self._delayed:
            wanted = min(self.host_ms * _MARGIN + _LEAST_DELAY_MS, _MOST_DELAY_MS)
        delay = now + wanted - free
        if delay <= 0:
            return free
        queued = self._runtime.event()
        queued.record()
        cycles = self._runtime.delay(delay)
        if cycles and delay >= _TELLING_MS:
            self._delays.append((cycles, queued, begin))
        return free + delay

    def _count_starved(
        self, pairs: list[tuple[Event, Event]], issued: list[float], ahead: Sequence[float]
    ) -> None:
        """Count the passes that the device finished as soon as the host had issued them.

        Otherwise the device works on for a while, even if the driver made the host wait because a
        thousand launches were queued. A pass is starved, too, if the device caught up with the host
        at a moment inside it, which a long last layer would hide.
        """
        self.passes += len(pairs)
        moments = len(ahead) // len(pairs)
        for number, ((begin, end), host_done) in enumerate(zip(pairs, issued, strict=True)):
            began = self._zero.elapsed_time(begin)
            ended = self._zero.elapsed_time(end)
            inside = ahead[number * moments : (number + 1) * moments]
            at_end = ended - host_done < _STARVED * (ended - began)
            self.starved += at_end or min(inside, default=math.inf) < _AHEAD_MS

    @contextmanager
    def undelayed(self) -> Iterator[None]:
        """Run passes whose times are not used, such as a counted warm-up, without delays."""
        self._delayed = False
        try:
            yield
        finally:
            self._delayed = True
            self._clocks.clear()

    @property
    def sm_clock_mhz(self) -> float | None:
        """SM clock right before the passes: median of the delays' cycles over their times."""
        return stats.median(self._clocks) if self._clocks else None

    def launch_bound(self, median_ms: float) -> bool:
        """Say whether the host takes longer to issue a pass than the device to run it."""
        return self.host_ms > median_ms

    @property
    def mostly_starved(self) -> bool:
        """Whether more than a tenth of the passes were starved."""
        return self.starved * 10 > self.passes


def event_floor_ms(runtime: Cuda) -> float:
    """Return the milliseconds between two adjacent events, which every layer's time includes."""
    pairs = [(runtime.event(), runtime.event()) for _ in range(_FLOOR_PAIRS)]
    runtime.synchronize()
    runtime.delay(_FLOOR_DELAY_MS)
    for pair in pairs:
        for event in pair:
            event.record()
    runtime.synchronize()
    return stats.median([begin.elapsed_time(end) for begin, end in pairs])


def capture(
    run: Callable[[], object],
    around_capture: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Callable[[], object]:
    """Return one replay of a CUDA graph of the pass; it returns the graph's own output.

    The pass first runs on a side stream, as capture requires, so that libraries allocate and tune.
    The graph keeps memory and results of the captured pass, in a pool of its own: in a shared one,
    each replay would overwrite what the other graph returned. `around_capture` is entered for the
    capture alone. Garbage is not collected meanwhile, since the end of an older graph could spoil
    the capture.

    Raises:
        CannotCapture: a pass that runs is refused in the capture.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_CAPTURE_WARM_UPS):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # a pass that does not fit is out of memory; any other refusal is the capture's
    try:
        with loop.quiet_collector(), around_capture(), torch.cuda.graph(graph):
            kept = run()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise not_captured(run, error) from error

    def replay() -> object:
        graph.replay()
        return kept

    return replay


def external_event() -> Event | None:
    """Return an event that a graph may hold; None if this torch cannot make one."""
    try:
        return TimingEvent(external=True)
    except TypeError:
        return None


class HostStamps:
    """The host's clock; `wait` waits first for a device that works asynchronously."""

    timer = "host"

    def __init__(
        self,
        now: Callable[[], int] = time.perf_counter_ns,
        wait: Callable[[], object] = nothing,
    ) -> None:
        """Use a clock of nanoseconds."""

        def waited() -> int:
            wait()
            return now()

        # where nobody waits, layers are timed by the clock itself: a call costs more than a reading
        self.now = now if wait is nothing else waited

    def ms(self, begin: int, end: int) -> float:
        """Return the milliseconds between two readings."""
        return (end - begin) / 1e6

    def wait(self) -> None:
        """Do nothing: each moment has passed."""

    def reuse(self, most: int = 0) -> None:
        """Do nothing: numbers need no preparation."""


class EventStamps:
    """Events on the device's time line, made once and recorded again and again."""

    def __init__(
        self,
        new_event: Callable[[], Event],
        timer: str = "events",
        host_now: Callable[[], float] | None = None,
    ) -> None:
        """Record the host's milliseconds beside each event, if `host_now` is given."""
        self.timer = timer
        self._new = new_event
        self._host_now = host_now
        self._pool: list[Event] = []
        self._queued: list[float] = []
        self._used = 0

    def now(self) -> Event:
        """Record an event on the current stream."""
        if self._used == len(self._pool):
            self._pool.append(self._new())
        event = self._pool[self._used]
        self._used += 1
        event.record()
        if self._host_now is not None:
            self._queued.append(self._host_now())
        return event

    def ahead(self, zero: Event, host_zero: float) -> list[float]:
        """Return, for each moment, the milliseconds from queueing its event to its completion.

        `zero` completed when the host's clock read `host_zero`. The device must be idle by now.
        """
        events = zip(self._pool, self._queued, strict=False)
        return [zero.elapsed_time(event) - (queued - host_zero) for event, queued in events]

    def ms(self, begin: Event, end: Event) -> float:
        """Return the milliseconds between two events; the device must be idle."""
        return begin.elapsed_time(end)

    def wait(self) -> None:
        """Wait until the device is idle, so that moments can be read."""
        torch.cuda.synchronize()

    def reuse(self, most: int = 0) -> None:
        """Begin again with the first event; make events until there are `most`."""
        self._pool += [self._new() for _ in range(most - len(self._pool))]
        self._used = 0
        self._queued.clear()


Stamps = HostStamps | EventStamps


def stamps_of(device: torch.device) -> Stamps:
    """Return what notes moments in the work of a device."""
    if device.type == "cuda":
        return EventStamps(Cuda().event)
    return HostStamps(wait=synchronizer(device))


def intervals(stamps: Stamps, moments: Sequence[Any]) -> list[float]:
    """Return the milliseconds from each moment to the next; the moments may be used again then."""
    stamps.wait()
    times = [stamps.ms(begin, end) for begin, end in pairwise(moments)]
    stamps.reuse()
    return times
