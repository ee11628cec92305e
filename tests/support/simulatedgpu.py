"""A GPU without hardware: its queue and its time line, for what times by events."""

from __future__ import annotations

from collections import deque

from hpcsweep.measure.timing.clocks import DeviceClock


class SimulatedGpu:
    """A device with a queue: the host issues work and goes on, the device does it in order.

    `queue_limit` is how many pieces may wait; a host that is further ahead than that blocks.
    `event_ms` is what the device needs for an event, `mhz` its clock.
    """

    def __init__(self, queue_limit=10**9, event_ms=0.0, mhz=2000):
        """Begin idle."""
        self.host = self.device = 0.0
        self.limit, self.event_ms, self.mhz = queue_limit, event_ms, mhz
        self.ends = deque()

    def issue(self, host_ms, device_ms):
        """Queue a piece of work."""
        self.host += host_ms
        while self.ends and (self.ends[0] <= self.host or len(self.ends) >= self.limit):
            self.host = max(self.host, self.ends.popleft())
        self.device = max(self.device, self.host) + device_ms
        self.ends.append(self.device)

    def event(self):
        """Return an event."""
        return _SimulatedEvent(self)

    def synchronize(self):
        """Wait for the device."""
        self.host = max(self.host, self.device)

    def delay(self, ms):
        """Queue work that does nothing, in cycles of 2 GHz at the clock that there is."""
        self.issue(0.005, 2000 / self.mhz * ms)
        return int(2e6 * ms)

    def host_now(self):
        """Return the host's time."""
        return self.host


class _SimulatedEvent:
    """A point on its time line."""

    def __init__(self, gpu):
        """Belong to a device."""
        self.gpu, self.at = gpu, None

    def record(self):
        """Queue the event."""
        self.gpu.issue(0.001, self.gpu.event_ms)
        self.at = self.gpu.device

    def elapsed_time(self, end):
        """Return the milliseconds to a later event."""
        return end.at - self.at


class SimulatedMachine:
    """What the GPU proof asks of a device, on the simulated queue."""

    kind = "cuda"

    def __init__(self, gpu):
        """Be a device."""
        self.runtime = gpu

    def batch(self, call, count):
        """Return what queues so many calls at once."""
        return lambda: [call() for _ in range(count)]

    def clock(self, run, prepare=lambda: None):
        """Return the product's clock."""
        clock = DeviceClock(self.runtime, prepare)
        clock.calibrate(run)
        return clock
