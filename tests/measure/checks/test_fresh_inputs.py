"""Passes on inputs that were never seen take as long, or the network keeps what it computed."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from hpcsweep.measure.bench import on_device
from hpcsweep.measure.checks import fresh_inputs
from hpcsweep.measure.network import some_numbers
from measuring import point

QUICK = {"layers": False, "evidence": False, "numerics": False}


@pytest.fixture(scope="module")
def bench():
    """Return one bench for all."""
    return on_device("inference")


@pytest.mark.parametrize("network", ["Recalling", "Remembering"])
def test_a_network_that_keeps_what_it_computed_is_told(bench, network):
    """For the image that it saw last, or for the first one of a size.

    What else runs here may make its usual passes as slow as fresh ones, but hardly three times.
    """
    asked = point(f"tinynets:{network}", input_size=256, measure=QUICK)
    rows = (bench.measure(asked).row for _ in range(3))
    row = next(row for row in rows if "fresh_inputs" in row["flags"].split(";"))
    assert row["fresh_ms"] > 0
    assert not row["valid"]


def test_a_network_whose_activations_fade_keeps_nothing(bench):
    """Its outputs are equal for all images of usual numbers."""
    row = bench.measure(point("tinynets:Fading", measure=QUICK)).row
    assert "fresh_inputs" not in row["flags"].split(";")


def test_an_honest_network_sees_fresh_images(bench):
    """They differ from its own and from each other, and lie elsewhere; in turn, after its own."""
    seen = []

    class Noting(torch.nn.Module):
        def forward(self, x):
            seen.append(x)
            if len(seen) > 3 and x is not own:
                time.sleep(0.005)
            return x * 2

    wanted = point("tinynets:Residual")
    network = bench.workload.build(wanted)
    network.model = Noting()
    own = network.run.image
    times = SimpleNamespace(lanes=None, first_numbers=some_numbers(own * 2))
    images = fresh_inputs._Images(network, times)
    own = images._seen
    assert all(images.fresh_ms() > 0 for _ in range(3))
    assert len({x.data_ptr() for x in [own, *seen]}) == 4
    assert not any(torch.equal(x, own) for x in seen)
    assert not images.outputs_are_equal()
    known, fresh = images.in_turn()
    assert len(known) == len(fresh) == 5
    turns = [seen[at : at + 3] for at in range(3, len(seen), 3)]
    assert all(before is timed is own for before, timed, _ in turns)
    assert len({x.data_ptr() for x in seen}) == 9


def test_a_pass_that_is_no_slower_ends_the_comparison(bench, monkeypatch):
    """An honest network takes one pair, or a few by chance."""
    network = bench.workload.build(point("tinynets:Residual"))
    images = fresh_inputs._Images(network, SimpleNamespace(lanes=None, first_numbers=[]))
    times = iter([3.0, 1.0, 1.2, 2.0, 1.4, 1.3, 5.0])
    monkeypatch.setattr(images, "_ms", lambda _: next(times))
    assert images.in_turn() == ([1.0, 1.4], [1.2, 1.3])


def test_a_graph_has_no_fresh_inputs_and_a_sweep_may_leave_them_out(bench):
    """A graph replays one image; of it the kernels are told."""
    graph = point(launch="graph")
    network = type("Network", (), {"point": graph})
    assert bench.checks["fresh_inputs"].after(network, None, None).cells is None
    row = bench.measure(point(measure=QUICK | {"fresh_inputs": False})).row
    assert "fresh_ms" not in row


def test_images_that_are_all_zero_give_the_same_and_what_does_not_fit_is_left_out(
    bench, monkeypatch
):
    """Neither is said against the network; the times stand."""
    row = bench.measure(point(input_fill="zeros", measure=QUICK)).row
    assert "fresh_inputs" not in row["flags"].split(";")

    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(fresh_inputs, "_Images", fail)
    row = bench.measure(point(measure=QUICK)).row
    assert row["median_ms"] > 0
    assert "fresh_ms" not in row
