"""Convolution calls against the framework's own and against float64: honest ones, and faults."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit
from torch.utils._python_dispatch import TorchDispatchMode

from hpcsweep.conv import choice, reference
from hpcsweep.conv.parts import tensors_in
from hpcsweep.conv.reference import FAMILIES, Reference
from hpcsweep.conv.reference.gemm import Gemm
from hpcsweep.measure import rounding
from hpcsweep.measure.checks import numerics as check
from hpcsweep.measure.network import choose_algorithms
from hpcsweep.measure.rounding import is_partial, is_wrong
from hpcsweep.measure.shape_pass import shape_pass
from measuring import policy
from tinynets import OfItsOwn


def _calls(net, image, names=None, *, whole=True, run=None):
    """Compare the convolution calls of a pass; return their verdicts."""
    shapes = shape_pass(net, image)
    chosen = [choice.decide("auto", *call, None, "cpu") for call in shapes.convolutions]
    if names is not None:
        chosen = [next(c for c in chosen if c.layer == name) for name in names]
        chosen = [replace(c) for c in chosen]
    calls = check.Convolutions(chosen, tf32=False, whole=whole)
    with calls.compared(net):
        (run or net)(image)
    return calls.verdicts("missing")


@pytest.mark.parametrize("mode", ["zeros", "reflect"])
def test_each_convolution_is_held_against_float64_on_its_own_input(mode, monkeypatch):
    """An error is the layer's own: a bad first layer does not spoil the second."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, padding_mode=mode), nn.Conv2d(4, 4, 3, stride=2, groups=2)
    )
    image = torch.randn(1, 3, 12, 12)
    assert max(v.error for v in _calls(net, image)) < 1e-6
    honest = nn.Conv2d.forward
    wrong = {net[0]: 1.01}
    monkeypatch.setattr(nn.Conv2d, "forward", lambda m, x: honest(m, x) * wrong.get(m, 1))
    spoilt = _calls(net, image)
    assert spoilt[0].error == pytest.approx(0.01, rel=0.1)
    assert spoilt[1].error < 1e-6
    assert [is_wrong(v) for v in spoilt] == [True, False]
    assert [is_wrong(v) for v in _calls(net, image, whole=False)] == [True, False]


def test_a_convolution_of_its_own_class_is_left_out():
    """It need not compute what its filters say."""
    net = OfItsOwn().eval()
    plain, own = _calls(net, torch.randn(1, 3, 12, 12))
    assert [plain.subject, own.subject] == ["plain", "own"]
    assert 0 < plain.error < 1e-6
    assert (own.error, own.excess, own.reason) == (None, None, None)


def test_calls_of_one_shape_share_what_the_first_one_showed(monkeypatch):
    """With `numerics: layers` each is compared; one that runs another algorithm always is."""
    net = nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)))
    honest = rounding.of_call
    compared = []

    def noting(layer, *rest, **how):
        compared.append(layer)
        return honest(layer, *rest, **how)

    monkeypatch.setattr(rounding, "of_call", noting)
    image = torch.randn(1, 8, 12, 12)
    verdicts = _calls(net, image, whole=False)
    assert compared == [net[0]]
    assert [v.subject for v in verdicts] == ["0", "1", "2"]
    assert len({v.excess for v in verdicts}) == 1
    assert len({v.excess for v in _calls(net, image)}) == 3
    assert compared == [net[0], *net]


def test_errors_are_told_for_the_calls_that_are_asked_for(monkeypatch):
    """By layer and order; a call that did not come, or cannot run in float64, has none."""
    net = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))
    image = torch.randn(1, 3, 4, 4)
    honest = rounding.of_call

    def failing(layer, *rest, **how):
        if layer is net[1]:
            raise RuntimeError("float alone")
        return honest(layer, *rest, **how)

    monkeypatch.setattr(rounding, "of_call", failing)
    first, missing, other = _calls(net, image, ["0", "0", "1"])
    assert first.error < 1e-6
    assert missing.message == "0: missing"
    assert other.message == "1: not compared: float alone"
    assert is_partial(missing)
    assert is_partial(other)


class _Small(TorchDispatchMode):
    """A device on which no float64 tensor has more than `most` numbers."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            if tensor.dtype == torch.float64 and tensor.numel() > self.most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return result


@pytest.mark.parametrize("network", [nn.Sequential(nn.Conv2d(3, 4, 3, padding=1)), OfItsOwn()])
def test_what_fits_in_no_memory_is_told_and_is_no_doubt(network):
    """A convolution of which not one image fits was neither wrong nor without a reference."""
    with torch.inference_mode(), _Small(10):
        verdict = _calls(network.eval(), torch.randn(2, 3, 12, 12))[0]
    assert not is_wrong(verdict)
    assert verdict.message.endswith("no memory to compare it")
    assert check.cells([verdict], []).numerics_reason == verdict.message


class _Tuned(TorchDispatchMode):
    """Notes the types in which convolutions ran while the autotuner was on."""

    def __init__(self):
        super().__init__()
        self.types = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "conv" in str(func):
            self.types[args[0].dtype, torch.backends.cudnn.benchmark] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.gpu
def test_nothing_is_tuned_for_float64():
    """On a GPU with slow float64, trials of its convolutions were the longest part of a point."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)).cuda()
    with torch.inference_mode(), torch.backends.cudnn.flags(benchmark=True), _Tuned() as tuned:
        _calls(net, torch.randn(1, 3, 12, 12).cuda(), whole=False)
        assert torch.backends.cudnn.benchmark
    assert tuned.types[torch.float64, False]
    assert tuned.types[torch.float32, True]
    assert not tuned.types[torch.float64, True]


def _own(x, weight, bias, shape):
    return F.conv2d(x, weight, bias, shape.stride, shape.padding, shape.dilation, shape.groups)


def _of_another_stride(x, weight, bias, shape):
    further = [step + 1 for step in shape.stride]
    y = F.conv2d(x, weight, bias, further, shape.padding, shape.dilation, shape.groups)
    return F.interpolate(y, size=(shape.out_h, shape.out_w))


def _in_tf32(x, weight, bias, shape):
    """Round operands to 10 bits of mantissa."""
    bits = [(t.contiguous().view(torch.int32) + (1 << 12)) >> 13 << 13 for t in (x, weight)]
    return _own(*(t.view(torch.float32) for t in bits), bias, shape)


def _summed_in_half(x, weight, bias, shape):
    """Round after the products of each tap."""
    total = torch.zeros((), dtype=torch.float16)
    for tap in range(shape.taps):
        one = torch.zeros_like(weight)
        one.flatten(2)[..., tap] = weight.flatten(2)[..., tap]
        total = total + _own(x, one, None, shape).half()
    return total.to(x.dtype) if bias is None else total.to(x.dtype) + bias.view(-1, 1, 1)


def _wrong_at_the_border(x, weight, bias, shape):
    """Take the last tile's columns from the tile before."""
    y = _own(x, weight, bias, shape).clone()
    y[..., -2:] = y[..., -4:-2]
    return y


FAULTS = {
    "a dropped bias": lambda x, weight, bias, shape: _own(x, weight, None, shape),
    "a wrong stride": _of_another_stride,
    "weights of another layer": lambda x, w, bias, shape: _own(x, w.flip(0), bias, shape),
    "TF32": _in_tf32,
    "sums in half": _summed_in_half,
    "a border": _wrong_at_the_border,
}
# of each the first, a middle repeated and the last layer get a fault
NETWORKS = {
    "plain": [(3, 16, {}), *[(16, 16, {})] * 4, (16, 32, {})],
    "strided": [(3, 8, {"stride": 2}), *[(8, 8, {})] * 3, (8, 64, {"stride": 2})],
    "depthwise": [(3, 24, {}), *[(24, 24, {"groups": 24})] * 3, (24, 8, {"dilation": 2})],
    "grouped": [(3, 32, {"stride": 2}), *[(32, 32, {"groups": 4})] * 3, (32, 16, {"groups": 2})],
    "deep": [(3, 64, {}), *[(64, 64, {})] * 3, (64, 128, {})],
}


def _network(name):
    torch.manual_seed(0)
    layers = [nn.Conv2d(i, o, 3, padding=1, **more) for i, o, more in NETWORKS[name]]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))


def _with_a_fault(monkeypatch, net, number, fault, dtype):
    """Run `gemm`, with a fault in the calls of one layer; return the verdicts of all calls."""
    convolutions_of = [layer for layer in net if isinstance(layer, nn.Conv2d)]
    target = convolutions_of[number].weight

    class Lying(Gemm):
        def forward(self, x, weight, bias, shape):
            run = fault if weight is target else super().forward
            return run(x, weight, bias, shape)

    monkeypatch.setattr(reference, "FAMILIES", {**FAMILIES, "gemm": Lying()})
    image = torch.rand(2, 3, 24, 24).to(dtype)
    with torch.inference_mode():
        shapes = shape_pass(net, image)
        picked = choose_algorithms(net, shapes, "gemm", policy(), Reference())
        calls = check.Convolutions(picked.calls, tf32=False, whole=False)
        with calls.compared(net):
            net(image)
    return calls.verdicts("missing")


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_fault_of_an_explicit_call_is_found_in_any_layer(monkeypatch, name, fault, place):
    """Also where another call of its shape was right; no other call is accused."""
    number = {"first": 0, "middle": 2, "last": len(NETWORKS[name]) - 1}[place]
    net = _network(name)
    found = _with_a_fault(monkeypatch, net, number, FAULTS[fault], torch.float32)
    assert [i for i, verdict in enumerate(found) if is_wrong(verdict)] == [number]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NETWORKS)
def test_faults_are_found_in_reduced_types(monkeypatch, name, dtype):
    """Their own rounding hides none of them."""
    for fault in ("a dropped bias", "a wrong stride", "weights of another layer", "a border"):
        net = _network(name).to(dtype)
        found = _with_a_fault(monkeypatch, net, 2, FAULTS[fault], dtype)
        assert [i for i, verdict in enumerate(found) if is_wrong(verdict)] == [2]


def test_an_output_of_another_size_is_wrong(monkeypatch):
    """What follows may take it all the same."""
    net = _network("plain")
    found = _with_a_fault(
        monkeypatch, net, 5, lambda x, w, b, shape: F.conv2d(x, w, b), torch.float32
    )
    assert is_wrong(found[5])
    assert "the output is (2, 32, 22, 22), not (2, 32, 24, 24)" in found[5].message
