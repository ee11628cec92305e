"""Rounding: what honest arithmetic stays within, and what does not, in a call and in a pass."""

from __future__ import annotations

import copy
import math
from collections import UserDict, deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit
from torch.utils.checkpoint import checkpoint

from hpcsweep.conv import choice
from hpcsweep.conv.parts import tensors_in
from hpcsweep.conv.reference import Reference
from hpcsweep.conv.shape import ConvShape
from hpcsweep.measure import model_builder, rounding
from hpcsweep.measure.measure_point import on_device
from hpcsweep.measure.rounding import is_partial, is_wrong
from hpcsweep.measure.workloads import training_network as networks
from measuring import CPU, lying, point, training

# of torch, about TorchScript
pytestmark = pytest.mark.filterwarnings("ignore:.*:FutureWarning", "ignore:.*:DeprecationWarning")


class Pair(NamedTuple):
    """Two outputs."""

    first: object
    second: object


def test_tensors_are_found_wherever_an_output_has_them():
    """Containers, records, and plain objects, also in slots; but no parameters of a module."""

    @dataclass(slots=True)
    class Record:
        scores: torch.Tensor
        more: object = None

    x = torch.ones(1)
    told = SimpleNamespace(boxes=[x], name="text", layer=nn.Linear(1, 1))
    told.itself = told
    for output in (
        x, [x], (x,), {"a": x}, UserDict(a=x), deque([x]), Pair(x, None), Record(x), told,
        Record("no", Record(x)), {"deep": [Pair({"x": Record(x)}, 3)]},
    ):  # fmt: skip
        assert list(tensors_in(output)) == [x]
    assert list(tensors_in([None, 3, "text", nn.Linear(1, 1), torch.relu])) == []


def judged(layer, x, output, *, used="auto", device="cpu", tf32=False):
    """Return the verdict of a call's output."""
    with torch.inference_mode():
        chosen = choice.LayerChoice("layer", ConvShape.of(layer, x), used, used, "reference")
        return rounding.of_call(layer, x, output, chosen, device=device, tf32=tf32)


LAYERS = {
    "deep": (nn.Conv2d(512, 8, 3, padding=1, bias=False), (1, 512, 7, 7)),
    "pointwise": (nn.Conv2d(64, 64, 1, bias=False), (2, 64, 9, 9)),
    "strided stem": (nn.Conv2d(3, 16, 7, stride=2, padding=3), (1, 3, 33, 31)),
    "depthwise": (nn.Conv2d(32, 32, 5, padding=2, groups=32), (1, 32, 8, 8)),
    "groups, dilated": (nn.Conv2d(16, 24, 3, dilation=2, groups=4), (2, 16, 13, 13)),
    "circular": (nn.Conv2d(8, 9, 3, padding=2, padding_mode="circular"), (1, 8, 9, 9)),
    "one image": (nn.Conv2d(8, 9, 3), (8, 9, 9)),
}
KINDS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def outputs(layer, x):
    """Yield what each algorithm that can gives for a layer."""
    call, reference = ConvShape.of(layer, x), Reference()
    yield "auto", layer(x)
    if layer.padding_mode == "zeros" and x.dim() == 4:
        for used in ("gemm", "implicit_gemm", "fft", "fft_tiling", "winograd", "winograd_nonfused"):
            if not reference.unsupported(used, call):
                yield used, reference.forward(used, x, layer.weight, layer.bias, call)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", LAYERS)
@torch.inference_mode()
def test_honest_convolutions_stay_within_their_bounds(name, dtype):
    """In every algorithm, on images that are large or small, with a mean, and dark in one half.

    Squares of small numbers vanish in float32, and the smallest numbers themselves.
    """
    layer = copy.deepcopy(LAYERS[name][0]).to(dtype)
    extreme = () if dtype == torch.float16 else (1e12, 1e-25, 1e-38)
    for scale in (1.0, 1e-3, 300.0, *extreme):
        x = torch.randn(LAYERS[name][1]).relu_() * scale + scale
        x[..., : x.shape[-1] // 2] = 0
        for used, output in outputs(layer, x.to(dtype)):
            assert judged(layer, x.to(dtype), output, used=used).excess < 1


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("filters", ["sorted", "laplacian", "half", "positive", "spiky"])
@torch.inference_mode()
def test_filters_whose_partial_sums_are_larger_than_the_whole_are_no_alarm(filters, dtype):
    """On a bright image, too, where what is added first is far from what remains."""
    layer = nn.Conv2d(256, 8, 3, padding=1, bias=False)
    weight = torch.randn(8, 256 * 9)
    weight = {
        "sorted": weight.sort(1)[0],
        "laplacian": torch.tensor([-1.0] * 4 + [8] + [-1] * 4).repeat(8, 256),
        "half": weight.abs() * torch.linspace(1, -1, 256 * 9).sign(),
        "positive": weight.abs(),
        "spiky": weight**5,
    }[filters]
    layer.weight.copy_(weight.view(8, 256, 3, 3))
    layer, x = layer.to(dtype), (1 + 0.01 * torch.rand(1, 256, 9, 9)).to(dtype)
    for used, output in outputs(layer, x):
        assert judged(layer, x, output, used=used).excess < 1


def dropped(layer, x, *at):
    """Return the output of a layer with some of its filters' values missing."""
    weight = layer.weight.clone()
    weight[at] = 0
    return layer._conv_forward(x, weight, layer.bias)


def rounded(layer, x, to):
    """Return the output of a layer that rounds its operands first."""
    weight = layer.weight.to(to).to(x.dtype)
    return layer._conv_forward(x.to(to).to(x.dtype), weight, layer.bias)


FAULTS = {
    "a tap": lambda layer, x: dropped(layer, x, ..., 0, 2),
    "a tap of one channel": lambda layer, x: dropped(layer, x, 3, ..., 0, 0),
    "an input channel": lambda layer, x: dropped(layer, x, slice(None), 5),
    "channels swapped": lambda layer, x: layer(x)[:, [1, 0, *range(2, 64)]],
    "a corner": lambda layer, x: layer(x).index_fill(3, torch.tensor([0]), 0.0),
    "not a number": lambda layer, x: layer(x).masked_fill(layer(x) > 0.5, math.nan),
    "zeros": lambda layer, x: layer(x) * 0,
}
FINE = {
    "a single weight": lambda layer, x: dropped(layer, x, 7, 300, 1, 1),
    "operands in bfloat16": lambda layer, x: rounded(layer, x, torch.bfloat16),
    "operands in float16": lambda layer, x: rounded(layer, x, torch.float16),  # TF32's precision
    "a channel a little too large": lambda layer, x: (
        layer(x) * (1 + 1e-3 * torch.eye(64)[9, :, None, None])
    ),
    "sums in bfloat16": lambda layer, x: (
        sum(
            (dropped(layer, x, slice(None), slice(i, None)).bfloat16() for i in (256, 512)), 0
        ).float()
        / 2
    ),
}


@pytest.mark.parametrize(
    ("fault", "dtype"),
    [
        *((FAULTS[name], dtype) for name in FAULTS for dtype in KINDS),
        *((fault, torch.float32) for fault in FINE.values()),
    ],
)
@torch.inference_mode()
def test_a_layer_that_is_slightly_wrong_is_caught(fault, dtype):
    """In a layer with sums of 4608 products are found in each value."""
    torch.manual_seed(1)
    layer = nn.Conv2d(512, 64, 3, padding=1).to(dtype)
    x = torch.randn(1, 512, 9, 9).relu_().to(dtype)
    assert is_wrong(judged(layer, x, fault(layer, x).to(dtype)))


@torch.inference_mode()
def test_complex_convolutions_are_compared_as_complex():
    """An error of the imaginary part alone is an error."""
    layer = nn.Conv2d(4, 8, 3, padding=1, dtype=torch.complex64)
    x = torch.randn(1, 4, 9, 9, dtype=torch.complex64)
    assert judged(layer, x, layer(x)).excess < 1
    assert is_wrong(judged(layer, x, layer(x) + 0.001j))
    assert is_wrong(judged(layer, x, layer(x).real))


def test_what_a_gpu_may_do_is_allowed_for():
    """Rounded operands if they are asked for, larger Winograd tiles if a library may choose."""
    torch.manual_seed(0)
    layer, x = nn.Conv2d(64, 64, 3, padding=1), torch.randn(1, 64, 14, 14)
    tf32 = rounded(layer, x, torch.float16)
    assert judged(layer, x, tf32, device="cuda", tf32=True).excess < 1
    assert is_wrong(judged(layer, x, tf32, device="cuda"))
    assert is_wrong(judged(layer, x, tf32, device="cpu", tf32=True))
    call = ConvShape.of(layer, x)
    growths = [
        rounding.growth(used, call, on_gpu=True)
        for used in ("gemm", "fft", "winograd", "auto", "heuristic")
    ]
    assert growths[0] == 1
    assert growths[1:] == 4 * [pytest.approx(46.26, abs=0.01)]


QUICK = {"layers": False, "evidence": False, "energy": False, "warmup": 0, "iterations": 1}
LEARNS = {"layers": False, "evidence": False, "numerics": True, "warmup": 0, "iterations": 1}


def seen(model, *, run=None, learns=False, **axes):
    """Return the verdicts on a network; `run` is what its pass was, if it was another."""
    (make, axes) = (training, axes) if learns else (point, {"memory_format": "nhwc", **axes})
    asked = make(batch_size=4, **axes)
    (image,) = model_builder.make_inputs(asked, CPU)
    network = SimpleNamespace(
        point=asked,
        model=model,
        learns=learns,
        rig=SimpleNamespace(device=SimpleNamespace(torch_device=CPU)),
        output=lambda _times: (run or model)(image.clone(memory_format=torch.preserve_format)),
    )
    assert rounding.is_transformed(network, tf32=False)
    return rounding.of_pass(network, None, tf32=False)


def network(depth=3, *, norm=False):
    """Return a small classifier."""
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU()]
    for _ in range(depth):
        body += [
            nn.Conv2d(16, 16, 3, padding=1),
            *([nn.BatchNorm2d(16)] if norm else []),
            nn.SiLU(),
        ]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10)).eval()


NETS = {
    "shallow": lambda: network(1),
    "deep": lambda: network(12),
    "normed": lambda: network(4, norm=True),
    "attention": lambda: nn.Sequential(
        nn.Conv2d(3, 32, 4, stride=4), nn.Flatten(2),
        nn.TransformerEncoderLayer(64, 4, 64, batch_first=True), nn.Linear(64, 10),
    ).eval(),
    "dense": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.Conv2d(16, 4, 3), nn.Linear(28, 7)
    ).eval(),
}  # fmt: skip


class Faulty:
    """Runs a network with a function of torch replaced."""

    def __init__(self, model, name, fault):
        self.model, self.name, self.fault = model, name, fault

    def __call__(self, x):
        """Run a pass."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(F, self.name, self.fault)
            return self.model(x)


linear = F.linear


def in_tf32(t):
    """Round to TF32."""
    return ((t.contiguous().view(torch.int32) + (1 << 12)) >> 13 << 13).view(torch.float32)


LINEAR_FAULTS = {
    "a dropped bias": lambda x, weight, bias=None: linear(x, weight),
    "weights of another layer": lambda x, weight, bias=None: linear(x, weight.flip(0), bias),
    "TF32": lambda x, weight, bias=None: linear(in_tf32(x), in_tf32(weight), bias),
    "sums in half": lambda x, weight, bias=None: linear(x.half(), weight.half()).float() + bias,
}


@pytest.mark.parametrize("fault", LINEAR_FAULTS)
@pytest.mark.parametrize("name", NETS)
def test_a_fault_in_a_linear_layer_of_a_changed_network_is_found(name, fault):
    """As a compiler's, whose code is not that of the network."""
    model = NETS[name]()
    with torch.inference_mode():
        assert not any(map(is_wrong, seen(model, input_size=32)))
        wrong = Faulty(model, "linear", LINEAR_FAULTS[fault])
        assert any(map(is_wrong, seen(model, run=wrong, input_size=32)))


class Functional(nn.Module):
    """Convolves by a function; wrongly in one layout, if it has a fault."""

    def __init__(self, fault=None):
        super().__init__()
        self.fault = fault
        self.one, self.two = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 8, 3)

    def forward(self, x):
        """Run a pass."""
        y = F.conv2d(x, self.one.weight, self.one.bias)
        last = y.is_contiguous(memory_format=torch.channels_last) and not y.is_contiguous()
        if self.fault and last:
            return self.fault(y.relu(), self.two.weight, self.two.bias)
        return F.conv2d(y.relu(), self.two.weight, self.two.bias)


@pytest.mark.parametrize(
    "fault",
    [
        lambda x, w, b: F.conv2d(x, w),
        lambda x, w, b: F.conv2d(x, w.flip(0), b),
        lambda x, w, b: F.conv2d(in_tf32(x), in_tf32(w), b),
        lambda x, w, b: F.pad(F.conv2d(x, w, b)[..., :-1], (0, 1, 0, 0), mode="replicate"),
    ],
)
def test_a_fault_of_a_functional_convolution_in_one_layout_is_found(fault):
    """No call of a layer shows it."""
    with torch.inference_mode():
        right = Functional().to(memory_format=torch.channels_last)
        assert not any(map(is_wrong, seen(right)))
        wrong = Functional(fault).to(memory_format=torch.channels_last)
        assert any(map(is_wrong, seen(wrong)))


class WrongGradient(torch.autograd.Function):
    """Passes numbers on, and a gradient with a part that is a hundredth too large."""

    @staticmethod
    def forward(_ctx, x):
        """Pass on."""
        return x.clone()

    @staticmethod
    def backward(_ctx, grad):
        """Spoil a part."""
        wrong = grad.clone()
        wrong[..., :1] *= 1.01
        return wrong


@pytest.mark.parametrize("name", ["shallow", "deep", "normed"])
@pytest.mark.parametrize("place", [0, 2, -4])
def test_a_wrong_gradient_is_found_behind_any_layer(name, place):
    """Its outputs are right."""
    model = NETS[name]()

    def run(x):
        for at, layer in enumerate(model):
            x = layer(x)
            if at == place % len(model):
                x = WrongGradient.apply(x)
        return x

    assert not any(map(is_wrong, seen(model, learns=True)))
    found = seen(model, run=run, learns=True)
    assert any(is_wrong(v) and v.subject.startswith("gradient of ") for v in found)
    assert not any(is_wrong(v) for v in found if v.subject.startswith("output"))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("axes", [{}, {"amp": "bf16"}, {"memory_format": "nhwc"}])
def test_honest_trainings_are_no_alarm(name, axes):
    """Also in mixed precision, whose roundings grow with the depth."""
    model = NETS[name]()

    def run(x):
        with torch.autocast("cpu", torch.bfloat16, enabled="amp" in axes):
            return model(x)

    found = seen(model, run=run, learns=True, input_size=32, **axes)
    assert not any(map(is_wrong, found)), [v.message for v in found]
    assert any(v.excess is not None for v in found)


class Between(nn.Module):
    """A convolution, code of a person's own, and a linear layer."""

    def __init__(self, body):
        super().__init__()
        self.stem, self.body, self.head = nn.Conv2d(3, 8, 3, padding=1), body, nn.Linear(8, 5)

    def forward(self, x):
        """Run a pass."""
        return self.head(self.body(self.stem(x)).mean((2, 3)))


def without_autocast(x):
    """Normalise in float32, whoever switches mixed precision on."""
    with torch.autocast("cpu", enabled=False):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(1, keepdim=True) + 1e-6)).type_as(x)


def reduced_products(x):
    """Multiply matrices in a reduced type."""
    flat = x.flatten(2).to(torch.bfloat16)
    return ((flat @ flat.mT).float().softmax(-1) @ x.flatten(2)).view_as(x)


def earlier_places(x):
    """Attend to these alone, by a mask of infinities."""
    flat = x.flatten(2).mT
    mask = torch.full((flat.shape[1],) * 2, -torch.inf).triu(1)
    return ((flat @ flat.mT + mask).softmax(-1) @ flat).mT.view_as(x)


def drops_paths(x):
    """Draw from a seed of its own."""
    drawn = torch.rand(1, 8, 1, 1, generator=torch.Generator().manual_seed(3))
    return x.div(0.8) * (drawn + 0.8).floor_()


def seeds(x):
    """Seed the noise of each pass."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return x + torch.randn_like(x)


def inverse_root(x):
    """Guess 1 / sqrt(x) by the bits of its exponent, and correct the guess."""
    x = x.abs() + 1
    guess = (0x5F3759DF - (x.view(torch.int32) >> 1)).view(torch.float32)
    return guess * (1.5 - 0.5 * x * guess * guess)


EVERYDAY = {
    "without autocast": lambda: without_autocast,
    "float16 between": lambda: lambda x: x.half().to(x.dtype),
    "a float64 sum": lambda: lambda x: x.double().cumsum(-1).to(x.dtype),
    "reduced products": lambda: reduced_products,
    "earlier places": lambda: earlier_places,
    "spectrum": lambda: lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * 0.5, s=x.shape[-2:]),
    "strongest": lambda: lambda x: x + F.one_hot(x.mean((2, 3)).argmax(1), 8)[..., None, None],
    "bits": lambda: inverse_root,
    "drops paths": lambda: drops_paths,
    "seeds": lambda: seeds,
    "random": lambda: lambda x: x + torch.randn_like(x),
    "normalised": lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 1)),
    "scripted": lambda: torch.jit.script(nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))),
}


@pytest.mark.parametrize("name", EVERYDAY)
def test_everyday_code_is_no_alarm_in_another_layout(name):
    """Casts, masks, choices, weights made of others; what draws numbers is not compared."""
    torch.manual_seed(0)
    model = Between(EVERYDAY[name]()).eval().to(memory_format=torch.channels_last)
    with torch.inference_mode():
        (verdict,) = seen(model, input_size=16)
    assert not is_wrong(verdict), verdict.message
    assert is_partial(verdict) == (name in {"seeds", "random"})


class Running(nn.Module):
    """Subtracts a mean that it keeps as a buffer."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        """Run a pass."""
        y = self.conv(x)
        self.mean.mul_(0.5).add_(y.mean() + 1)
        return y - self.mean


def test_a_state_in_buffers_is_that_of_the_pass_and_is_left_as_it_was():
    """Each pass has the buffers that the first one had."""
    model = Running()
    with torch.inference_mode():
        (verdict,) = seen(model)
        after = model.mean.clone()
        assert not is_wrong(verdict)
        assert verdict.error < 1e-6
        model(torch.zeros(1, 3, 32, 32))
        assert model.mean != after


@pytest.mark.parametrize(
    ("network", "told"),
    [
        ("Dropout", "random"),
        ("Growing", "with a state"),
        ("ChosenByNoise", "by choice"),
        ("Undefined", "not finite"),
        ("Nothing", "no numbers to compare"),
    ],
)
def test_what_cannot_be_judged_is_said_and_is_no_doubt(network, told):
    """The times are good."""
    asked = point(f"oddoutputs:{network}", memory_format="nhwc", measure=QUICK)
    row = on_device("inference", "cpu").measure(asked).row
    assert {"inaccurate", "unverified"}.isdisjoint(row["flags"].split(";"))
    assert "partly_checked" in row["flags"].split(";")
    assert told in row["numerics_reason"]
    assert row["plain_rel_error"] is None


def test_a_code_that_fails_plainly_is_told():
    """Whatever it raises."""

    def fail(_x):
        raise KeyError("in this layout alone")

    with torch.inference_mode():
        (verdict,) = seen(network(), run=fail)
    assert is_partial(verdict)
    assert "not compared: 'in this layout alone'" in verdict.message


def test_outputs_of_zeros_and_of_vanishing_numbers_are_right():
    """They have no relative error."""
    zeros = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    nn.init.constant_(zeros[0].bias, -100.0)
    faint = nn.Sequential(*(nn.Conv2d(3, 3, 3, bias=False) for _ in range(12)))
    for layer in faint:
        nn.init.normal_(layer.weight, std=3e-4)
    with torch.inference_mode():
        for model in (zeros, faint):
            assert not any(map(is_wrong, seen(model)))
            assert not any(map(is_partial, seen(model)))
        assert any(map(is_wrong, seen(zeros, run=lambda x: zeros(x) + 1)))


def test_a_compiled_training_is_compared_as_it_was_timed(monkeypatch):
    """Its code is not that of the network; the row says by how much it deviates."""
    bench = on_device("training", "cpu")
    asked = training("tinynets:Residual", compile="torchscript", measure=LEARNS)
    assert bench.measure(asked).row["plain_rel_error"] is not None
    asked = training("tinynets:Residual", compile="inductor", measure=LEARNS)
    fault = LINEAR_FAULTS["a dropped bias"]
    monkeypatch.setattr(networks, "compiled", lambda model, _: Faulty(model, "linear", fault))
    row = bench.measure(asked).row
    assert "inaccurate" in row["flags"].split(";")
    assert not row["valid"]


class Recomputing(nn.Module):
    """Runs its body again in the backward pass."""

    def __init__(self):
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 3, 1), network()

    def forward(self, x):
        """Run a pass."""
        return checkpoint(self.body, self.stem(x), use_reentrant=True)


def test_gradients_through_recomputed_activations_are_compared():
    """Reentrant checkpoints take a whole backward pass alone."""
    found = seen(Recomputing(), learns=True)
    assert len([v for v in found if v.subject.startswith("gradient of body.")]) == 10
    assert not any(v.reason or is_wrong(v) for v in found)


def test_the_gradients_of_an_explicit_algorithm_are_compared(monkeypatch):
    """Its forward pass is right."""

    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight):
            return weight.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * 0.99

    honest = lambda x, w, s: F.conv2d(x, w, None, s.stride, s.padding)  # noqa: E731
    lying(monkeypatch, "gemm", lambda x, w, s: honest(x, Halved.apply(w), s))
    row = on_device("training", "cpu").measure(training(algorithm="gemm", measure=LEARNS)).row
    assert "inaccurate" in row["flags"].split(";")
    assert "gradient of " in row["numerics_reason"]
