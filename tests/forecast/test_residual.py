"""The correction of physics: right near what was seen, nothing far from it."""

from __future__ import annotations

import numpy as np
import pytest

import knownphysics
from hpcsweep.forecast import physics, residual


@pytest.fixture(scope="module")
def calls():
    """Return distinct calls of a device."""
    return physics.distinct(physics.prepared(knownphysics.measured().layers))


def test_what_was_seen_is_corrected(calls):
    """Where physics is wrong by half everywhere, the correction says so."""
    said = residual.fit(calls, calls["ms"].to_numpy() / 1.5).of(calls)
    assert np.exp(np.median(said)) == pytest.approx(1.5, rel=0.15)


def test_far_from_everything_the_correction_vanishes(calls):
    """Physics alone extrapolates."""
    learnt = residual.fit(calls, calls["ms"].to_numpy() / 1.5)
    far = calls.assign(in_channels=10**6, out_channels=10**6, flops=10**15, bytes_min=10**12)
    assert np.abs(learnt.of(far)).max() < 1e-6


def test_another_kind_of_call_is_not_corrected(calls):
    """An algorithm that was not seen says nothing of itself."""
    learnt = residual.fit(calls, calls["ms"].to_numpy() / 1.5)
    assert (learnt.of(calls.assign(ran="winograd")) == 0).all()


def test_a_correction_lies_between_nothing_and_the_worst_error(calls):
    """It is a mean of errors and of zero."""
    wrong = np.random.default_rng(1).normal(0, 0.3, len(calls))
    said = residual.fit(calls, calls["ms"].to_numpy() / np.exp(wrong)).of(calls)
    assert np.abs(said).max() <= np.abs(wrong).max()
