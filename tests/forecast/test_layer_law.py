"""The law of layer calls: physics where rows are few, what learns from rows where they are many."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hpcsweep.forecast import layer_law, learner, physics


@pytest.fixture(autouse=True)
def _few_trees(monkeypatch):
    """Grow so many as these small tables need."""
    monkeypatch.setattr(learner, "_SIZES", ((0, 60, 12, 6),))
    monkeypatch.setattr(learner, "_FOR_KERNEL", 100)


def convolutions(number, seed, gpu="v100", algorithm="gemm"):
    """Return calls of random shapes, without times."""
    random = np.random.default_rng(seed)
    sizes, channels, filters = (2 ** random.uniform(lo, hi, number)
                                for lo, hi in ((3, 7), (3, 9), (3, 9)))  # fmt: skip
    side, c, k = (np.ceil(one) for one in (sizes, channels, filters))
    kernel = random.choice([1.0, 3.0], number)
    params = c * k * kernel**2
    calls = pd.DataFrame({
        "batch_size": 1.0, "in_channels": c, "out_channels": k, "in_h": side, "in_w": side,
        "out_h": side, "out_w": side, "kernel_h": kernel, "kernel_w": kernel, "stride_h": 1.0,
        "dilation_h": 1.0, "groups": 1.0, "params": params, "flops": 2 * params * side**2,
        "bytes_min": 4 * (side**2 * (c + k) + params), "op": "conv2d", "direction": "forward",
        "gpu": gpu, "dtype": "float32", "setting": "", "model": "some", "algorithm": algorithm,
        "algorithm_used": algorithm, "unique_key": [f"{seed} {n}" for n in range(number)],
    })  # fmt: skip
    return physics.prepared(calls)


def timed(calls, factor=1.0):
    """Return calls with times: a roofline, and steps that no sum of terms has."""
    steps = np.where(calls["in_channels"] % 4 == 0, 1.0, 2.5) * np.where(calls["in_h"] > 40, 1.6, 1)
    plain = 0.02 + calls["flops"] / 6e9 + calls["bytes_min"] / 5e8
    return calls.assign(ms=factor * steps * plain)


def off(law, calls):
    """Return the median error of a law at calls with a time."""
    return float(np.median(np.abs(law.times(calls) / calls["ms"] - 1)))


def test_steps_are_learnt_from_rows():
    """Physics cannot have them. Few rows are left to physics."""
    train, test = timed(convolutions(400, 1)), timed(convolutions(200, 2))
    law = layer_law.fit(train)
    assert off(law, test) < 0.7 * off(physics.fit(train), test)
    assert not layer_law.fit(timed(convolutions(60, 7))).ways


def test_a_gpu_with_few_rows_learns_from_others():
    """Forty own shapes say how much faster it is, the rest say where the steps are."""
    others = timed(convolutions(300, 3), factor=2.0)
    own = timed(convolutions(45, 4, gpu="a100"))
    test = timed(convolutions(200, 5, gpu="a100"))
    law = layer_law.fit(pd.concat([others, own], ignore_index=True))
    alone = layer_law.fit(own)
    assert off(law, test) < 0.7 * off(alone, test)


def peaks(calls, efficiency=1.0):
    """Return calls that take what the sheet of their GPU says, and the steps of all."""
    shapes = learner.CallFeatures.of(timed(calls))
    return timed(calls).assign(ms=lambda rows: timed(calls)["ms"] / (
        0.02 + calls["flops"] / 6e9 + calls["bytes_min"] / 5e8) * np.exp(shapes.roofline(rows))
        / efficiency)  # fmt: skip


def test_what_sheets_do_not_explain_is_not_taken_from_them():
    """Times of copies are half as long on a GPU whose sheet is six times as good."""
    others = timed(convolutions(400, 21))
    own = timed(convolutions(45, 22, gpu="l40s"), 0.5)
    law = layer_law.fit(pd.concat([others, own[own["kernel_h"] == 3.0]], ignore_index=True))
    test = timed(convolutions(200, 23, gpu="l40s"), 0.5)
    assert off(law, test[test["kernel_h"] == 1.0]) < 0.25


@pytest.mark.slow
def test_a_gpu_that_nobody_measured_takes_the_times_of_its_relatives():
    """The nearest sheets count most; the steps are theirs."""
    known = [peaks(convolutions(310, 11, "v100")), peaks(convolutions(310, 12, "p100-pcie")),
             peaks(convolutions(310, 13, "t4"), efficiency=0.2)]  # fmt: skip
    law = layer_law.fit(pd.concat(known, ignore_index=True))
    test = peaks(convolutions(200, 14, "v100-pcie"))
    assert off(law, test) < 0.15
    plain = physics.fit(pd.concat(known, ignore_index=True))
    assert off(law, test) < 0.5 * off(plain, test)


def test_a_gpu_without_a_sheet_takes_what_the_others_say():
    """Physics has no units there and no weight; no time is nothing."""
    known = [timed(convolutions(310, 15, "v100")), timed(convolutions(310, 16, "t4"), 2.0)]
    law = layer_law.fit(pd.concat(known, ignore_index=True))
    said = law.times(convolutions(50, 17, "nobody-s-9000"))
    assert said.min() > 0.005
    assert layer_law.fit(timed(convolutions(60, 18))).times(convolutions(9, 19, "x")).min() > 1e-5


def test_an_algorithm_that_no_table_names_is_the_one_that_was_asked_for():
    """Tables of another program say what was requested alone."""
    calls = convolutions(20, 8).drop(columns="ran").assign(algorithm_used=np.nan)
    assert set(physics.prepared(calls)["ran"]) == {"gemm"}
    other = calls.assign(kernel_h=np.nan, op="relu", flops=0.0)
    assert set(physics.prepared(other)["ran"]) == {"-"}
