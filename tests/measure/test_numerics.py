"""Errors against float64."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hpcsweep.conv import choice
from hpcsweep.conv.proof.autograd_graph import tensors_in
from hpcsweep.measure import models, numerics, rounding
from hpcsweep.measure.checks import numerics as check
from hpcsweep.measure.numerics import Float64Reference
from hpcsweep.measure.rounding import is_open, is_wrong, unit
from hpcsweep.measure.shape_pass import shape_pass
from measuring import CPU, point
from tinynets import OfItsOwn

OWN = "tinynets:Residual"


def _run(wanted, change=lambda y: y):
    model = models.build(models.ModelKey.of(wanted), CPU)
    (image,) = models.make_inputs(wanted, CPU)
    with torch.inference_mode():
        return model, change(model(image))


def _error(reference, wanted, model, output):
    """Return the largest relative error of the outputs."""
    return max(v.error for v in reference.verdicts(wanted, model, output, 1.0))


def _calls(net, image, names=None, *, whole=True, run=None):
    """Compare the convolution calls of a pass; return their verdicts."""
    shapes = shape_pass(net, image)
    chosen = [choice.decide("auto", *call, None, "cpu") for call in shapes.convolutions]
    if names is not None:
        chosen = [next(c for c in chosen if c.layer == name) for name in names]
        chosen = [replace(c) for c in chosen]
    calls = numerics.Convolutions(chosen, tf32=False, whole=whole)
    with calls.compared(net):
        (run or net)(image)
    return calls.verdicts("missing")


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("float64", 0, 1e-12), ("float32", 1e-9, 1e-5), ("bfloat16", 1e-4, 0.1)],
)
def test_the_error_is_of_the_dtypes_size(dtype, low, high):
    """float64 agrees with itself; float32 and bfloat16 lose what they should lose."""
    wanted = point(dtype=dtype)
    limit = 20 * unit(getattr(torch, dtype))
    (verdict,) = Float64Reference(CPU).verdicts(wanted, *_run(wanted), limit)
    assert low <= verdict.error <= high
    assert not is_wrong(verdict)


def test_a_wrong_output_is_found():
    """An output that is off by one percent of the largest value has an error of one percent."""
    wanted = point()
    model, output = _run(wanted, lambda y: y + 0.01 * y.abs().max())
    (verdict,) = Float64Reference(CPU).verdicts(wanted, model, output, 0.001)
    assert verdict.error == pytest.approx(0.01, rel=0.01)
    assert verdict.excess == pytest.approx(10, rel=0.01)
    assert is_wrong(verdict)


@pytest.mark.parametrize(("network", "size", "runs"), [("squeezenet1_1", 64, 1), (OWN, 32, 3)])
def test_the_reference_is_computed_once_for_points_that_share_it(monkeypatch, network, size, runs):
    """Other algorithms and layouts share it, and types, unless a user's code may depend on these.

    Another batch, size or seed does not.
    """
    reference, computed, draw = Float64Reference(CPU), [], models.make_inputs

    def counting(wanted, *rest):
        computed.extend([1] if wanted.axes["dtype"] == "float64" else [])
        return draw(wanted, *rest)

    monkeypatch.setattr(models, "make_inputs", counting)
    for axes in ({}, {"algorithm": "gemm"}, {"dtype": "bfloat16"}, {"memory_format": "nhwc"}):
        wanted = point(network, input_size=size, **axes)
        assert _error(reference, wanted, *_run(wanted)) < 0.1
    assert len(computed) == runs
    for axes in ({"batch_size": 2}, {"input_size": size - 16}, {"seed": 1}):
        wanted = point(network, **{"input_size": size, **axes})
        assert _error(reference, wanted, *_run(wanted)) < 1e-5
    assert len(computed) == runs + 3


def test_both_ways_to_float64_agree():
    """From the live float32 network, or built anew where half precision has lost the weights."""
    live, half = (
        point("squeezenet1_1", input_size=64),
        point("squeezenet1_1", input_size=64, dtype="bfloat16"),
    )
    model, output = _run(live)
    errors = [_error(Float64Reference(CPU), wanted, model, output) for wanted in (live, half)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-3)


def test_outputs_in_dicts_are_compared_tensor_by_tensor():
    """A network with auxiliary heads returns a dict; each of its tensors is judged by itself."""
    wanted = point("tinynets:Dicts")
    model, output = _run(wanted)
    output["aux"][0] = output["aux"][0] + 1
    verdicts = Float64Reference(CPU).verdicts(wanted, model, output, 0.01)
    assert [(v.subject, is_wrong(v)) for v in verdicts] == [
        ("output 1 of 2", False),
        ("output 2 of 2", True),
    ]


@pytest.mark.parametrize("problem", [RuntimeError, TypeError, KeyError, ValueError])
def test_a_network_without_float64_is_told_with_the_reason(caplog, monkeypatch, problem):
    """Whatever its own code raises: nothing was compared, and the row says so."""
    wanted = point("tinynets:Residual")
    model, output = _run(wanted)

    def fail(*_):
        raise problem("float alone")

    monkeypatch.setattr(model, "forward", fail)
    (verdict,) = Float64Reference(CPU).verdicts(wanted, model, output, 1.0)
    assert is_open(verdict)
    assert "float alone" in verdict.message
    assert "no float64 reference" in caplog.text


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


def test_a_convolution_of_its_own_class_is_judged_by_the_outputs():
    """It need not compute what its filters say."""
    net = OfItsOwn().eval()
    plain, own = _calls(net, torch.randn(1, 3, 12, 12))
    assert [plain.subject, own.subject] == ["plain", "own"]
    assert 0 < plain.error < 1e-6
    assert (own.error, own.excess, own.reason) == (None, None, None)
    assert is_open(numerics.left_to_calls([plain, own], "nothing"))
    assert not is_open(numerics.left_to_calls([plain], "nothing"))


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
    assert "no float64 reference: float alone" in other.message
    assert is_open(missing)
    assert is_open(other)


def test_an_output_by_whole_numbers_is_not_compared_with_itself():
    """They have no float64 beside them, so the network runs in float64 as a whole."""
    model = models.build(models.ModelKey.of(point("tinynets:FixedPoint")), CPU)
    image = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    with torch.inference_mode():
        (output,), _ = numerics._shadowed(model, model, torch.float32, image)
        wanted = copy.deepcopy(model).double()(image)
    assert output.dtype == torch.float64
    assert torch.equal(output, wanted)


@pytest.mark.parametrize(
    "network", ["Residual", "Attention", "Borrowing", "Dicts", "FusedAttention"]
)
def test_float64_beside_each_operator_is_float64_at_once(network):
    """Also for whoever uses a layer's weights without calling it; the network stays as it was."""
    model = models.build(models.ModelKey.of(point(f"tinynets:{network}")), CPU)
    image = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    with torch.inference_mode():
        output, coarsest = numerics._shadowed(model, model, torch.float32, image)
        found = [*tensors_in(output)]
        wanted = [*tensors_in(copy.deepcopy(model).double()(image))]
    assert {tensor.dtype for tensor in found} == {torch.float64}
    assert all(
        torch.allclose(a, b, rtol=1e-13, atol=1e-14) for a, b in zip(found, wanted, strict=True)
    )
    assert coarsest == unit(torch.float32)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all("forward" not in module.__dict__ for module in model.modules())


@pytest.mark.parametrize(("keeps", "built"), [(True, 1), (False, 2)])
def test_the_weights_of_a_reduced_type_are_drawn_once_beside_a_gpu(monkeypatch, keeps, built):
    """On a CPU they would count as memory of the next point."""
    reference, keys, build = Float64Reference(CPU), [], models.build
    monkeypatch.setattr(models, "build", lambda key, *rest: keys.append(key) or build(key, *rest))
    reference._keeps = keeps
    for size in (16, 24):
        wanted = point(dtype="bfloat16", input_size=size)
        network = build(models.ModelKey.of(wanted), CPU)
        (image,) = models.make_inputs(wanted, CPU)
        with torch.inference_mode():
            assert _error(reference, wanted, network, network(image)) < 0.1
    assert len(keys) == built


class _Small(TorchDispatchMode):
    """A device on which no float64 tensor has more than `most` numbers."""

    def __init__(self, most):
        super().__init__()
        self.most, self.refused = most, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            if tensor.dtype == torch.float64 and tensor.numel() > self.most:
                self.refused += 1
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return result


class _Mixing(nn.Module):
    """A network whose outputs depend on all images of a batch."""

    def forward(self, x):
        large = torch.cat([x] * 3, 1)
        return x / large.sum(0)[:3]


@pytest.mark.parametrize("whole", [True, False])
def test_where_memory_runs_out_a_convolution_is_compared_in_parts_of_the_batch(whole):
    """Every image is compared all the same: an error in the last one alone is found."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1))
    images = torch.randn(7, 3, 12, 12)
    with torch.inference_mode():
        (at_once,) = _calls(net, images, whole=whole)
        with _Small(3 * 8 * 12 * 12) as small:
            (in_parts,) = _calls(net, images, whole=whole)
            assert small.refused
    assert in_parts.excess == pytest.approx(at_once.excess, rel=1e-3)
    assert not is_wrong(in_parts)
    assert in_parts.skipped is None
    honest = nn.Conv2d.forward

    def wrong(layer, x):
        output = honest(layer, x)
        output[-1, 3] *= 1.01
        return output

    with torch.inference_mode(), pytest.MonkeyPatch.context() as patch, _Small(3 * 8 * 12 * 12):
        patch.setattr(nn.Conv2d, "forward", wrong)
        assert is_wrong(*_calls(net, images, whole=whole))


@pytest.mark.parametrize("network", [nn.Sequential(nn.Conv2d(3, 4, 3, padding=1)), OfItsOwn()])
def test_what_fits_in_no_memory_is_told_and_is_no_doubt(network):
    """A convolution of which not one image fits was neither wrong nor without a reference."""
    with torch.inference_mode(), _Small(10):
        verdict = _calls(network.eval(), torch.randn(2, 3, 12, 12))[0]
    assert not is_open(verdict)
    assert not is_wrong(verdict)
    assert verdict.message.endswith("no memory to compare 2 of 2 images with float64")
    assert check.cells([verdict], []).numerics_reason == verdict.message


def test_where_memory_runs_out_the_network_is_run_in_parts_of_the_batch():
    """Its outputs are compared as a whole, and are kept for the next point as before."""
    wanted = point(batch_size=8)
    model, output = _run(wanted)
    at_once, reference = Float64Reference(CPU), Float64Reference(CPU)
    (before,) = at_once.verdicts(wanted, model, output, 1e-5)
    with _Small(3 * 3 * 32 * 32 * 8):
        (verdict,) = reference.verdicts(wanted, model, output, 1e-5)
    assert verdict.error == pytest.approx(before.error, rel=1e-3)
    assert not is_wrong(verdict)
    with _Small(1000):
        assert not is_open(*reference.verdicts(wanted, model, output, 1e-5))
        (verdict,) = Float64Reference(CPU).verdicts(wanted, model, output, 1e-5)
    assert verdict.skipped == "no memory to compare 8 of 8 images with float64"
    assert not is_open(verdict)


def test_a_network_that_mixes_its_images_is_not_called_wrong_in_parts():
    """Nobody knows then: with all images at once it is right."""
    wanted, model = point(batch_size=4), _Mixing()
    (image,) = models.make_inputs(wanted, CPU)
    output = model(image)
    assert not is_wrong(*Float64Reference(CPU).verdicts(wanted, model, output, 1e-3))
    reference = Float64Reference(CPU)
    with _Small(image.numel()):
        (verdict,) = reference.settled(reference.verdicts(wanted, model, output, 1e-3))
    assert is_open(verdict)
    assert "memory for parts of the batch alone" in verdict.message


class _Whole(nn.Module):
    """A network that takes a batch of four, or whose output has no images or not first."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, x):
        large = torch.cat([x] * 3, 1)[:, ::3]
        assert self.kind != "four" or len(x) == 4
        return {"four": large, "sum": large.mean(), "turned": large[:, 0].permute(1, 0, 2)}[
            self.kind
        ]


@pytest.mark.parametrize("kind", ["four", "sum", "turned"])
def test_a_network_that_has_no_parts_is_told_and_is_no_doubt(kind):
    """Its times are good: what lacked was memory."""
    wanted, model = point(batch_size=4), _Whole(kind)
    (image,) = models.make_inputs(wanted, CPU)
    output = model(image)
    assert not is_wrong(*Float64Reference(CPU).verdicts(wanted, model, output, 1e-3))
    reference = Float64Reference(CPU)
    with _Small(image.numel()) as small:
        (verdict,) = reference.settled(reference.verdicts(wanted, model, output, 1e-3))
    assert small.refused
    assert verdict.skipped == "no memory to compare 4 of 4 images with float64"
    assert not is_open(verdict)


def test_outputs_that_fit_on_the_host_alone_are_compared_there(monkeypatch):
    """Where images are segmented, the outputs are the largest tensors of all."""
    compare, tried = rounding.of_outputs, []

    def refusing(outputs, wanted, limit):
        tried.append(wanted)
        if len(tried) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return compare(outputs, wanted, limit)

    monkeypatch.setattr(rounding, "of_outputs", refusing)
    (verdict,) = Float64Reference(CPU).verdicts(point(), *_run(point()), 1e-5)
    assert len(tried) == 2
    assert not is_open(verdict)
    assert not is_wrong(verdict)


class _Tuned(TorchDispatchMode):
    """Notes the types in which convolutions ran while the autotuner was on."""

    def __init__(self):
        super().__init__()
        self.types = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "conv" in str(func):
            self.types[args[0].dtype, torch.backends.cudnn.benchmark] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("model", ["tinynets:OfItsOwn", "tinynets:Residual", "squeezenet1_1"])
def test_nothing_is_tuned_for_float64(model):
    """On a GPU with slow float64, trials of its convolutions were the longest part of a point."""
    wanted = point(model)
    with torch.inference_mode(), torch.backends.cudnn.flags(benchmark=True), _Tuned() as tuned:
        network, output = _run(wanted)
        assert not is_open(*Float64Reference(CPU).verdicts(wanted, network, output, 1.0))
        (image,) = models.make_inputs(wanted, CPU)
        _calls(network, image)
        assert torch.backends.cudnn.benchmark
    assert tuned.types[torch.float64, False]
    assert tuned.types[torch.float32, True]
    assert not tuned.types[torch.float64, True]
