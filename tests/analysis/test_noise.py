"""How far the noise between measurements can be known from a few of them."""

from __future__ import annotations

import numpy as np
import pytest

from hpcsweep.analysis import noise


def test_a_few_noisy_rows_stay_noisy_and_quiet_ones_stay_quiet():
    """Two of twelve rows are ten times noisier: five visits tell which."""
    source = np.random.default_rng(1)
    scale = np.where(np.arange(12) < 2, 0.1, 0.01)
    found = noise.scatter(source.normal(0, scale[:, None], (12, 5)), np.zeros(12))
    error = np.sqrt(found.own)
    assert (error[:2] > 0.03).all()
    assert (error[2:] < 0.02).all()


def test_visits_that_agree_by_chance_do_not_look_free_of_noise():
    """Times stick to one of two values: three equal ones of a row say little, all rows more."""
    source = np.random.default_rng(2)
    logs = 0.03 * (source.random((20, 3)) < 0.5)
    found = noise.scatter(logs, np.zeros(20))
    assert (np.ptp(logs, axis=1) == 0).any()
    assert np.sqrt(found.own).min() > 0.005


def test_what_a_run_did_to_all_rows_is_told_apart_from_their_own_noise():
    """Of forty rows in six runs."""
    source = np.random.default_rng(3)
    shared = source.normal(0, 0.05, 6)
    found = noise.scatter(source.normal(0, 0.005, (40, 6)) + shared, np.zeros(40))
    assert np.sqrt(found.shared) == pytest.approx(np.std(shared, ddof=1), rel=0.1)
    assert np.sqrt(found.own).max() < 0.01


def test_rows_that_were_measured_once_have_the_usual_noise():
    """They have none of their own; so they get what the others have."""
    logs = np.random.default_rng(4).normal(0, 0.01, (10, 4))
    logs[0, 1:] = np.nan
    found = noise.scatter(logs, np.zeros(10), alone=True)
    assert 0.004 < np.sqrt(found.own[0]) < 0.02


def test_noise_between_visits_is_never_less_than_inside_them():
    """Equal medians of noisy passes are luck."""
    found = noise.scatter(np.zeros((6, 3)), np.full(6, 0.02**2))
    assert found.own == pytest.approx(0.02**2)


def test_controls_tell_a_machine_from_five_on():
    """Each job by itself: another node is no noise. What no control feels is added."""
    quiet = noise.machine([np.zeros(4), np.ones(4)])
    assert quiet == noise.Machine(noise.ONCE**2, 6.0)
    assert noise.machine([np.zeros(3), np.ones(3)]) is None
    loud = noise.machine([np.array([0.0, 0.2, 0.4, 0.0, 0.2, 0.4])])
    assert loud.variance == pytest.approx(np.var([0, 0.2, 0.4, 0, 0.2, 0.4], ddof=1))
