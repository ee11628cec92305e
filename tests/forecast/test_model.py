"""Whole networks: the sum of layers, what lies between them, and what their other sizes say."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import knownphysics
from hpcsweep.forecast import model


def parts(measured, out):
    """Return a measurement without some points, and those points."""
    return measured.of(measured.points[~out]), measured.of(measured.points[out])


def said(train, test):
    """Return the predicted times of points that the training part lacks."""
    learnt = model.fit(train)
    return learnt.totals(test.points, learnt.times(test.layers))


@pytest.mark.parametrize("name", ["flat", "steep"])
def test_a_network_that_was_not_measured(name):
    """Its layers are predicted from those of others, and its time from its layers."""
    everything = knownphysics.measured()
    train, test = parts(everything, everything.points["model"] == name)
    errors = np.abs(said(train, test) / test.points["total_ms"] - 1)
    assert errors.median() < 0.05


def test_batches_and_sizes_between_those_that_were_measured():
    """All shapes are new, the network is not."""
    everything = knownphysics.measured(batches=(1, 2, 4))
    new = (everything.points["input_size"] == 64) | (everything.points["batch_size"] == 2)
    train, test = parts(everything, new)
    assert np.abs(said(train, test) / test.points["total_ms"] - 1).max() < 0.05


def test_what_a_network_is_wrong_by_at_other_sizes_is_taken_off():
    """A network may do things between its layers that no column tells."""
    everything = knownphysics.measured(sizes=(48, 64, 96))
    points = everything.points
    slow = points["model"] == "flat"
    points = points.assign(total_ms=points["total_ms"].where(~slow, points["total_ms"] * 1.6))
    train, test = parts(everything.of(points), slow & (points["input_size"] == 64))
    assert np.abs(said(train, test) / test.points["total_ms"] - 1).max() < 0.15


def test_a_fallback_is_foreseen():
    """A request that ends in another algorithm for a kind of filter does so for new networks."""
    everything = knownphysics.measured()
    layers, points = everything.layers, everything.points
    falls = (layers["kernel_h"] == 1) & (layers["algorithm"] == "gemm")
    layers = layers.assign(algorithm_used=layers["algorithm_used"].where(~falls, "auto"))
    train, test = parts(type(everything)(points, layers), points["model"] == "wide")
    found = model.fit(train).times(test.layers)
    assert set(found.loc[falls[test.layers.index], "ran"]) == {"auto"}
    assert set(found.loc[found["op"] == "relu", "ran"]) == {"-"}


def test_a_gpu_with_one_network_takes_the_costs_between_layers_of_all():
    """They are in proportion; how fast it is, its own network says."""
    known = knownphysics.measured(knownphysics.Device(a_pass=0.4, between=0.02))
    slow = knownphysics.Device(a_pass=1.2, between=0.06, name="v100")
    every = knownphysics.measured(slow)
    layers = every.layers.assign(point_id="v100 " + every.layers["point_id"])
    every = type(every)(every.points.rename(index="v100 {}".format), layers)
    own, asked = parts(every, np.arange(36) >= 6)
    both = type(known)(pd.concat([known.points, own.points]), pd.concat([known.layers, own.layers]))
    learnt = model.fit(both)
    errors = learnt.totals(asked.points, asked.layers) / asked.points["total_ms"] - 1
    assert np.abs(errors).max() < 0.02
