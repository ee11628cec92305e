"""The roofs of this machine's processor."""

from __future__ import annotations

import json

import pytest
import torch

import quickstart
from hpcsweep.measure.machine import peaks


@pytest.mark.slow
def test_no_product_and_no_copy_is_faster_than_the_roofs():
    """Up to what a busy machine does meanwhile; each thread has some GFLOP/s and GB/s."""
    compute, bandwidth = peaks.measured()
    assert 1e-4 * torch.get_num_threads() < compute < 50
    assert 0.1 < bandwidth < 5000


def test_the_roofline_of_a_processor_takes_measured_roofs(desk, monkeypatch):
    """And says so; without them it tells how to get them."""
    quickstart.collected(desk.folder)
    monkeypatch.setattr(peaks, "_SECONDS", 0.01)
    refused = desk.run("roofline", "quickstart")
    assert refused.returncode == 2
    assert "--measure-cpu" in refused.stderr
    done = desk.run("roofline", "quickstart", "--measure-cpu", "--json")
    record = json.loads(done.stdout)
    assert record["bandwidth_gbs"] > 0.1
    assert record["peaks"].startswith("this machine's processor, measured")
    twice = desk.run("roofline", "quickstart", "--measure-cpu", "--gpu", "v100")
    assert twice.returncode == 2
    assert "--measure-cpu" in twice.stderr


@pytest.fixture(autouse=True)
def _one_thread():
    """Let several test processes share the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
