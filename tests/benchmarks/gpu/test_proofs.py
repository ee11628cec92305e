"""What could prove the product wrong, rehearsed: real kernels' names, real convolutions."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu import convolutions, machine, proofs
from benchmarks.gpu.lab import Lab, Options
from benchmarks.gpu.record import Record
from hpcsweep.conv import backend as backends
from hpcsweep.conv.shape import ConvShape

KERNELS = {  # as in published traces
    "implicit_gemm": ["void implicit_convolve_sgemm<float, float, 1024, 5, 5>(int)"],
    "implicit_precomp_gemm": ["computeOffsetsKernel()", "volta_scudnn_128x64_relu_interior_nn_v1"],
    "gemm": ["im2col4d_kernel<float, int>", "void explicit_convolve_sgemm<float, int>(int)"],
    "winograd": ["volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"],
}
SHAPE = ConvShape(1, 4, 9, 9, 8, 3, 3, 1, 1, 1, 1)


@pytest.fixture
def lab():
    """Return a rehearsal on the host."""
    options = Options(model="tinynets:Residual", size=16, iterations=2, gpu="cpu")
    return Lab(machine.Host(), Record("test", {"kind": "cpu"}), options)


def test_no_claim_of_another_algorithms_kernels_is_accepted():
    """All pairs; each is its own."""
    found = proofs.refuted(KERNELS)
    assert found == {"claims": 28, "accepted": [], "equal": [], "own_refused": []}


def test_equal_kernels_and_unknown_ones_are_told_apart_from_refuted_claims():
    """One algorithm under two names refutes nothing; what nobody knows accepts everything."""
    same = {"gemm": KERNELS["gemm"], "direct": KERNELS["gemm"]}
    found = proofs.refuted(same)
    assert found["equal"] == [["gemm", "direct"], ["direct", "gemm"]]
    assert found["own_refused"] == [["direct", "gemm"]]
    assert len(proofs.refuted({"gemm": ["kernel_of_tomorrow"]})["accepted"]) == 7


@pytest.mark.parametrize("name", ["gemm", "winograd", "fft", "eng12"])
def test_a_plan_is_tried_compared_and_told(name):
    """What the back-end refuses says why."""
    found = proofs.tried(backends.choose("cpu"), name, SHAPE, "cpu")
    if name == "eng12":
        assert "no plans of cuDNN" in found["refused"]
        return
    assert (found["plan"], found["kernels"]) == (name, "unknown")
    assert 0 < found["error"] < 1e-4
    assert found["excess"] <= 1


def test_a_wrong_plan_is_seen(monkeypatch):
    """One value of its output is off."""
    backend = backends.choose("cpu")
    plain = type(backend).forward

    def wrong(self, *told):
        output = plain(self, *told)
        output[0, 0, 0, 0] += 0.01
        return output

    monkeypatch.setattr(type(backend), "forward", wrong)
    assert proofs.tried(backend, "gemm", SHAPE, "cpu")["excess"] > 1


def test_the_steps_of_a_host_are_complete(lab):
    """Errors in every type, replays on new inputs, a cold read, plans."""
    for step in (
        proofs.plans,
        proofs.precision,
        proofs.replayed,
        proofs.bandwidth,
        proofs.controls,
    ):
        lab.record = Record(step.__name__, {"kind": "cpu"})
        step(lab)
        assert lab.record.found
        assert not lab.record.failed
        assert not lab.record.missing
        if step is proofs.replayed:
            assert all(all(facts.values()) for facts in lab.record.found.values())
        if step is proofs.precision:
            ran = [facts for facts in lab.record.found.values() if facts["ran"]]
            assert all(facts["excess"] <= 1 for facts in ran)


def test_a_graph_that_replays_old_inputs_is_seen(lab):
    """Its output is that of the inputs that it was captured with."""
    runs = dict(convolutions.calls(SHAPE, "cpu"))
    with torch.inference_mode():
        assert proofs.same_replayed(lab, runs["gemm"])
        lab.machine.batch = lambda call, _count: (call(), lambda: None)[1]
        assert not proofs.same_replayed(lab, runs["gemm"])


def test_power_is_integrated_between_looks():
    """Watts over seconds."""
    assert proofs.area([(0.0, 100.0), (1.0, 200.0), (3.0, 200.0)]) == 550.0
