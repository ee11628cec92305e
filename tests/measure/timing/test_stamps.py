"""Moments by the host's clock and by events."""

from __future__ import annotations

import itertools

import pytest

from hpcsweep.measure.timing.stamps import EventStamps, HostStamps
from simulatedgpu import SimulatedGpu


def test_the_hosts_moments_are_nanoseconds_apart():
    """Told in milliseconds."""
    stamps = HostStamps(itertools.count(0, 2_500_000).__next__)
    first, second = stamps.now(), stamps.now()
    assert stamps.ms(first, second) == 2.5
    stamps.reuse(10)
    assert stamps.timer == "host"


def test_events_are_made_once_and_recorded_again():
    """The second block takes the first one's events; what is announced is made beforehand."""
    gpu, made = SimulatedGpu(), []

    def new():
        made.append(gpu.event())
        return made[-1]

    stamps = EventStamps(new)
    for _ in range(2):
        stamps.reuse(2)
        assert len(made) == 2
        begin = stamps.now()
        gpu.issue(0.01, 2.0)
        assert stamps.ms(begin, stamps.now()) == pytest.approx(2.0, rel=0.01)
    assert len(made) == 2


def test_more_events_than_announced_are_made_as_they_come():
    """A network that changes its path is told by the count, not by an IndexError."""
    stamps = EventStamps(SimulatedGpu().event)
    stamps.reuse(1)
    assert len({id(stamps.now()) for _ in range(5)}) == 5
