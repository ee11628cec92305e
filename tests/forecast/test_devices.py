"""What devices can do, and how much of it their times show."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hpcsweep.forecast.devices import Devices
from hpcsweep.forecast.layer_law import Law
from knowncalls import convolutions, off

GPUS = ("v100", "l40s", "t4")


def equal_calls(power, scatter=0.02, number=400, gpus=GPUS):
    """Return the same calls on several GPUs, whose times differ by a power of their rooflines."""
    chance = np.random.default_rng(7)
    calls = pd.concat([convolutions(number, 1, gpu=gpu) for gpu in gpus], ignore_index=True)
    devices = Devices({})
    usual = devices.roofline(calls.assign(gpu="v100"))
    logs = usual + power * (devices.roofline(calls) - usual)
    return calls.assign(ms=np.exp(logs + chance.normal(0, scatter, len(calls))))


@pytest.mark.parametrize("power", [0.0, 0.4, 1.0])
def test_equal_calls_tell_how_much_of_the_rates_shows(power):
    """Nothing does where copies take the time; all does where the sheets explain it."""
    assert Devices.of(equal_calls(power)).shown == pytest.approx(power, abs=0.1)


def test_without_equal_calls_times_differ_as_sheets_say():
    """On one device, on few equal calls, and where times scatter more than rates differ."""
    assert Devices.of(equal_calls(0.0, gpus=["v100"])).shown == 1.0
    assert Devices.of(equal_calls(0.0, number=30)).shown == 1.0
    assert Devices.of(equal_calls(0.0, scatter=3.0)).shown > 0.8


def test_a_gpu_without_rows_is_not_told_by_its_sheet_where_no_sheet_shows():
    """Of times that are all those of copies, its own are, too."""
    calls = equal_calls(0.0)
    asked = calls["gpu"] == "t4"
    assert off(Law(calls[~asked]), calls[asked]) < 0.15


def test_a_device_without_a_sheet_is_at_its_peak_in_its_best_calls():
    """One call in a hundred that cannot be true does not count."""
    calls = convolutions(400, 3, gpu="nobody-s-9000")
    ms = calls["flops"] / 5e9
    devices = Devices.of(calls.assign(ms=ms.where(ms.index % 100 != 0, ms / 1e6)))
    operation, _ = devices.slower(calls).T
    assert operation == pytest.approx(2.0, rel=0.05)
