"""Fits on devices whose physics is known: the terms are found, and keep to physics' laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import knownphysics
from hpcsweep.forecast import physics
from hpcsweep.forecast.devices import Devices

COSTS = st.floats(0.001, 100.0)


def distinct(measured):
    """Return the distinct calls of a measurement, ready for a fit."""
    return physics.distinct(physics.prepared(measured.layers))


def fitted(calls):
    """Return the physics of some calls."""
    return physics.fit(calls, Devices.of(calls))


@settings(max_examples=5)
@given(call=COSTS, gigabyte=COSTS, gigaflop=COSTS)
def test_every_device_of_such_physics_is_found(call, gigabyte, gigaflop):
    """Whatever a call, a byte and an operation cost, unseen networks are predicted from others."""
    device = knownphysics.Device(call, gigabyte, {"auto": gigaflop})
    names = list(knownphysics.NETWORKS)
    seen, unseen = ({name: knownphysics.NETWORKS[name] for name in part}
                    for part in (names[:-1], names[-1:]))  # fmt: skip
    law = fitted(distinct(knownphysics.measured(device, seen, sizes=(32, 64))))
    asked = distinct(knownphysics.measured(device, unseen, sizes=(48,)))
    assert np.abs(law.times(asked) / asked["ms"] - 1).max() < 0.05
    kinds = asked[list(physics.KIND)].itertuples(index=False, name=None)
    assert all((0, *kind) in law.costs for kind in kinds)  # no wider one had to serve


def test_more_work_never_takes_less_time():
    """No cost is negative, so a call with more of everything is not faster, noise or not."""
    law = fitted(distinct(knownphysics.measured(knownphysics.Device(noise=0.5))))
    assert all((costs >= 0).all() for costs in law.costs.values())
    calls = distinct(knownphysics.measured(networks={"new": (500, 700)}, sizes=(40,)))
    more = calls.assign(
        in_channels=calls["in_channels"] * 2, out_channels=calls["out_channels"] * 2,
        params=calls["params"] * 4, flops=calls["flops"] * 4, bytes_min=calls["bytes_min"] * 4,
    )  # fmt: skip
    assert (law.times(more) >= law.times(calls)).all()


def test_nothing_is_faster_than_the_roofline():
    """Even if every time that was measured says so."""
    fast = knownphysics.Device(0.0001, 0.0001, {"auto": 0.0001}, name="v100")
    law = fitted(distinct(knownphysics.measured(fast)))
    calls = distinct(knownphysics.measured(fast, {"huge": (4096, 4096)}, sizes=(256,)))
    floor = physics.roofline(calls)
    assert (floor > 0).any()
    assert (law.times(calls) >= floor).all()


def test_an_operator_that_was_not_seen_takes_the_time_of_others():
    """Those of its own device."""
    law = fitted(distinct(knownphysics.measured()))
    calls = distinct(knownphysics.measured())
    strange = calls[calls["op"] == "relu"].assign(op="gelu")
    assert not any("gelu" in kind for kind in law.costs)
    assert np.abs(law.times(strange) / strange["ms"] - 1).max() < 0.05


def test_one_wild_time_does_not_move_the_others():
    """A neighbour's load makes single times ten times longer."""
    calls = distinct(knownphysics.measured())
    wild = calls.assign(ms=calls["ms"].where(calls.index != calls.index[7], calls["ms"] * 10))
    times = fitted(wild).times(calls)
    assert np.median(np.abs(times / calls["ms"] - 1)) < 0.02


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_the_unit_of_time_does_not_matter(factor):
    """A device that takes so many times longer for everything is predicted to."""
    calls = distinct(knownphysics.measured(knownphysics.Device(noise=0.1)))
    times = fitted(calls).times(calls)
    scaled = fitted(calls.assign(ms=calls["ms"] * factor)).times(calls)
    assert scaled == pytest.approx(times * factor, rel=1e-6)
