"""The law of layer calls: physics where rows are few, what learns from rows where they are many."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hpcsweep.forecast import layer_law, learner, physics
from hpcsweep.forecast.devices import Devices
from hpcsweep.forecast.layer_law import Law
from knowncalls import convolutions, off


@pytest.fixture(autouse=True)
def _few_trees(monkeypatch):
    """Grow so many as these small tables need."""
    monkeypatch.setattr(learner, "_SIZES", ((0, 60, 0.1, 12, 6),))
    monkeypatch.setattr(learner, "_FOR_KERNEL", 100)


def timed(calls, factor=1.0):
    """Return calls with times: a roofline, and steps that no sum of terms has."""
    steps = np.where(calls["in_channels"] % 4 == 0, 1.0, 2.5) * np.where(calls["in_h"] > 40, 1.6, 1)
    plain = 0.02 + calls["flops"] / 6e9 + calls["bytes_min"] / 5e8
    return calls.assign(ms=factor * steps * plain)


def plain(calls):
    """Return what physics alone knows."""
    return physics.fit(calls, Devices.of(calls))


@pytest.mark.parametrize("many", [300, 1_500])
def test_steps_are_learnt_from_rows(monkeypatch, many):
    """Physics cannot have them; trees find them in many rows, a process in fewer."""
    monkeypatch.setattr(layer_law, "_MANY", many)
    train, test = timed(convolutions(400, 1)), timed(convolutions(200, 2))
    law = Law(train)
    assert off(law, test) < 0.7 * off(plain(train), test)


def test_a_gpu_with_few_rows_learns_from_others():
    """Forty own shapes say how much faster it is, the rest say where the steps are."""
    others = timed(convolutions(300, 3), factor=2.0)
    own = timed(convolutions(45, 4, gpu="a100"))
    test = timed(convolutions(200, 5, gpu="a100"))
    law = Law(pd.concat([others, own], ignore_index=True))
    alone = Law(own)
    assert off(law, test) < 0.7 * off(alone, test)


def peaks(calls, efficiency=1.0):
    """Return calls that take what the sheet of their GPU says, and the steps of all."""
    devices = Devices.of(timed(calls))
    return timed(calls).assign(ms=lambda rows: timed(calls)["ms"] / (
        0.02 + calls["flops"] / 6e9 + calls["bytes_min"] / 5e8) * np.exp(devices.roofline(rows))
        / efficiency)  # fmt: skip


def test_what_sheets_do_not_explain_is_not_taken_from_them():
    """Times of copies are half as long on a GPU whose sheet is six times as good."""
    others = timed(convolutions(400, 21))
    own = timed(convolutions(45, 22, gpu="l40s"), 0.5)
    law = Law(pd.concat([others, own[own["kernel_h"] == 3.0]], ignore_index=True))
    test = timed(convolutions(200, 23, gpu="l40s"), 0.5)
    assert off(law, test[test["kernel_h"] == 1.0]) < 0.25


@pytest.mark.slow
def test_a_gpu_that_nobody_measured_takes_the_times_of_its_relatives():
    """The nearest sheets count most; the steps are theirs."""
    known = [peaks(convolutions(310, 11, "v100")), peaks(convolutions(310, 12, "p100-pcie")),
             peaks(convolutions(310, 13, "t4"), efficiency=0.2)]  # fmt: skip
    law = Law(pd.concat(known, ignore_index=True))
    test = peaks(convolutions(200, 14, "v100-pcie"))
    assert off(law, test) < 0.15
    assert off(law, test) < 0.5 * off(plain(pd.concat(known, ignore_index=True)), test)


def test_a_gpu_without_a_sheet_takes_what_the_others_say():
    """Physics has no units there and no weight; no time is nothing."""
    known = [timed(convolutions(310, 15, "v100")), timed(convolutions(310, 16, "t4"), 2.0)]
    law = Law(pd.concat(known, ignore_index=True))
    said = law.times(convolutions(50, 17, "nobody-s-9000"))
    assert said.min() > 0.005
    assert Law(timed(convolutions(60, 18))).times(convolutions(9, 19, "x")).min() > 1e-5


def test_an_algorithm_that_no_table_names_is_the_one_that_was_asked_for():
    """Tables of another program say what was requested alone."""
    calls = convolutions(20, 8).drop(columns="ran").assign(algorithm_used=np.nan)
    assert set(physics.prepared(calls)["ran"]) == {"gemm"}
    other = calls.assign(kernel_h=np.nan, op="relu", flops=0.0)
    assert set(physics.prepared(other)["ran"]) == {"-"}
