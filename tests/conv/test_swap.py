"""The swap: the same model, computing the same thing by another algorithm, and back."""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.profiler import ProfilerActivity, profile
from torchvision.models import get_model

from hpcsweep.conv import swap
from hpcsweep.conv.backend import Backend, choose
from hpcsweep.conv.choice import AlgorithmError, Unsupported
from hpcsweep.conv.proof import profiled_passes
from hpcsweep.conv.reference import FAMILIES, Reference
from hpcsweep.conv.shape import ConvShape
from hpcsweep.conv.swap import ExplicitConv2d
from hpcsweep.measure.shape_pass import shape_pass

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcsweep.conv.choice import LayerChoice

BACKEND: Backend = choose("cpu")
Calls = list[tuple[str, ConvShape]]
ODD_LAYERS: dict[str, Callable[[], nn.Conv2d]] = {
    "same_odd": lambda: nn.Conv2d(4, 6, 3, padding="same", dilation=2),
    "same_even": lambda: nn.Conv2d(4, 6, (4, 2), padding="same"),
    "valid": lambda: nn.Conv2d(4, 6, 3, padding="valid"),
    "reflect": lambda: nn.Conv2d(4, 6, 3, padding=(2, 1), padding_mode="reflect"),
    "replicate": lambda: nn.Conv2d(4, 6, 3, padding=2, padding_mode="replicate", bias=False),
    "circular": lambda: nn.Conv2d(4, 6, 3, padding="same", padding_mode="circular"),
    "strided": lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2),
}


class Twice(nn.Module):
    """One convolution under two names, called on two sizes."""

    def __init__(self) -> None:
        """Share the layer."""
        super().__init__()
        self.first = nn.Conv2d(4, 4, 3, padding=1)
        self.again = self.first
        self.aside = [self.first]  # a reference that no registry knows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call it on the image, then on half of it, then once more."""
        half = self.again(self.first(x))[:, :, ::2, ::2]
        return self.aside[0](half)


def recorded(model: nn.Module, x: torch.Tensor) -> Calls:
    """Return the convolution calls of a pass."""
    return shape_pass(model, x).convolutions


def assign(
    model: nn.Module, x: torch.Tensor, algorithm: object, policy: str = "fallback"
) -> list[LayerChoice]:
    """Swap, look at the shapes, assign."""
    swap.swap(model)
    return swap.assign(model, recorded(model, x), algorithm, policy, BACKEND)  # type: ignore[arg-type]


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Say whether two outputs agree but for rounding."""
    return bool((found - wanted).abs().max() < 1e-5 * wanted.abs().max().clamp(min=1))


@pytest.fixture(scope="module")
def _drawn() -> nn.Module:
    torch.manual_seed(0)
    return get_model("resnet18", weights=None).eval()


@pytest.fixture
def resnet(_drawn: nn.Module) -> nn.Module:
    """Return a small but whole network."""
    return copy.deepcopy(_drawn)


@pytest.fixture
def image() -> torch.Tensor:
    """Return one image that the network takes."""
    return torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("algorithm", [*FAMILIES, "auto", "autotune"])
@torch.inference_mode()
def test_a_network_computes_the_same_by_every_algorithm(
    resnet: nn.Module, image: torch.Tensor, algorithm: str
) -> None:
    """Whatever mixture of the algorithm and `auto` it takes."""
    wanted = resnet(image)
    choices = assign(resnet, image, algorithm)
    assert len(choices) == 20
    assert {c.used for c in choices} <= {algorithm, "auto"}
    assert close(resnet(image), wanted)


def test_parameters_stay_the_very_same_and_so_does_the_state_dict(
    resnet: nn.Module, image: torch.Tensor
) -> None:
    """An optimiser or a checkpoint notices nothing; before an assignment, neither does a pass."""
    parameters = dict(resnet.named_parameters())
    state = resnet.state_dict()
    wanted = resnet(image)
    names = swap.swap(resnet)
    assert len(names) == 20
    assert torch.equal(resnet(image), wanted)
    assert all(p is parameters[name] for name, p in resnet.named_parameters())
    assert list(resnet.state_dict()) == list(state)
    resnet.load_state_dict(state)


def test_restore_leaves_no_trace(resnet: nn.Module, image: torch.Tensor) -> None:
    """The very same modules, of their own class, with the attributes that they had."""
    before = [(module, type(module), set(vars(module))) for module in resnet.modules()]
    assign(resnet, image, "gemm")
    swap.restore(resnet)
    assert before == [(module, type(module), set(vars(module))) for module in resnet.modules()]


def assigned(model: nn.Module) -> list[object]:
    """Return what each explicit layer was assigned."""
    return [module.assigned for module in model.modules() if isinstance(module, ExplicitConv2d)]


def test_swapping_twice_and_restoring_twice_is_harmless(
    resnet: nn.Module, image: torch.Tensor
) -> None:
    """A second swap keeps what was assigned."""
    assign(resnet, image, "gemm")
    kept = assigned(resnet)
    assert len(swap.swap(resnet)) == 20
    assert assigned(resnet) == kept
    swap.restore(resnet)
    swap.restore(resnet)


def test_layers_of_which_a_map_asks_nothing_stay_the_frameworks_own(
    resnet: nn.Module, image: torch.Tensor
) -> None:
    """Else a map of `auto` would be slower than `auto`, by a decision for each call."""
    assign(resnet, image, {"default": "auto", "conv1": "gemm"})
    explicit = [name for name, m in resnet.named_modules() if isinstance(m, ExplicitConv2d)]
    assert explicit == ["conv1"]
    assign(resnet, image, {"default": "auto"})
    assert not any(isinstance(module, ExplicitConv2d) for module in resnet.modules())


@torch.inference_mode()
def test_a_shared_layer_stays_shared_and_each_of_its_calls_is_decided() -> None:
    """Also where somebody else holds the module."""
    model, x = Twice(), torch.randn(1, 4, 12, 12)
    wanted = model(x)
    choices = assign(model, x, "winograd")
    assert model.first is model.again is model.aside[0]
    assert [(c.layer, c.shape.in_h, c.used) for c in choices] == [
        ("first", 12, "winograd"),
        ("first", 12, "winograd"),
        ("first", 6, "winograd"),
    ]
    assert close(model(x), wanted)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("algorithm", ["gemm", "implicit_gemm", "implicit_precomp_gemm", "direct"])
@pytest.mark.parametrize("make", ODD_LAYERS.values(), ids=ODD_LAYERS)
@torch.inference_mode()
def test_padding_of_every_kind_is_kept(make: Callable[[], nn.Conv2d], algorithm: str) -> None:
    """`same` with even filters, `valid`, and the modes that are not zeros."""
    model, x = make(), torch.randn(2, 4, 13, 15)
    wanted = model(x)
    (choice,) = assign(model, x, algorithm)
    assert not choice.fallback
    assert close(model(x), wanted)


@torch.inference_mode()
def test_an_image_without_a_batch_is_convolved() -> None:
    """And comes out without one; the network is one layer, whose name is empty."""
    model, x = nn.Conv2d(3, 4, 3), torch.randn(3, 8, 8)
    wanted = model(x)
    (choice,) = assign(model, x, "winograd")
    assert (choice.layer, choice.used) == ("", "winograd")
    assert model(x).shape == wanted.shape
    assert close(model(x), wanted)


@torch.inference_mode()
def test_the_next_point_only_assigns_anew() -> None:
    """Nothing of the first algorithm is left behind."""
    model, x = Twice(), torch.randn(1, 4, 12, 12)
    calls = recorded(model, x)
    swap.swap(model)
    for algorithm in ("gemm", "winograd", "auto"):
        choices = swap.assign(model, calls, algorithm, "fallback", BACKEND)
        assert {c.requested for c in choices} == {algorithm}
        proof = profiled_passes.prove_forward(model, lambda: model(x), choices, BACKEND)
        assert [call.problem for call in proof.calls] == [None] * 3


@pytest.mark.parametrize(("policy", "kind"), [("skip", Unsupported), ("error", AlgorithmError)])
def test_other_policies_refuse_before_anything_runs(
    resnet: nn.Module, image: torch.Tensor, policy: str, kind: type[Exception]
) -> None:
    """The layers keep what they had; a map may leave the difficult ones to the framework."""
    assign(resnet, image, "gemm", policy)
    kept = assigned(resnet)
    with pytest.raises(kind, match="7 of 20 convolutions cannot run as asked: conv1: winograd: "):
        assign(resnet, image, "winograd", policy)
    assert assigned(resnet) == kept
    assign(resnet, image, {"*_3x3_s1x1_*": "winograd"}, policy)


@torch.inference_mode()
def test_a_shape_that_nobody_announced_is_decided_on_the_spot() -> None:
    """It never fails, whatever the policy was, and the back-end is asked once for each shape."""
    asked: list[ConvShape] = []

    class Counting(Reference):
        """Notes what it is asked."""

        def unsupported(self, algorithm: str, shape: ConvShape) -> str | None:
            """Note the shape and answer."""
            asked.append(shape)
            return super().unsupported(algorithm, shape)

    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, stride=2))
    swap.swap(model)
    first = recorded(model, torch.randn(1, 3, 9, 9))[:1]
    swap.assign(model, first, "winograd", "error", Counting())
    x = torch.randn(2, 3, 20, 20)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        found = [model(x), model(x)][1]
    names = {event.name for event in seen.events()}
    assert {"aten::bmm", "aten::conv2d"} <= names  # Winograd, and the framework for stride 2
    assert [shape.in_h for shape in asked] == [9, 20, 18]
    swap.restore(model)
    assert close(found, model(x))


@pytest.mark.parametrize("algorithm", ["gemm", "fft", "direct"])
@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1, 3, 4, 4), "Kernel size can't be greater"),
        ((1, 4, 9, 9), "to have 3 channels"),
        ((1, 6, 9, 9), "to have 3 channels"),
    ],
)
@torch.inference_mode()
def test_an_impossible_input_gets_the_framework_s_own_error(
    algorithm: str, shape: tuple[int, ...], words: str
) -> None:
    """A filter larger than the image, and the wrong number of channels."""
    model = nn.Conv2d(3, 4, 5)
    assign(model, torch.randn(1, 3, 9, 9), algorithm)
    with pytest.raises(RuntimeError, match=words):
        model(torch.randn(shape))


class Standardised(nn.Conv2d):
    """A convolution whose class computes something of its own."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Standardise the filters first."""
        return self._conv_forward(input, self.weight - self.weight.mean(), self.bias)


@torch.inference_mode()
def test_a_class_of_its_own_is_left_alone_and_recorded() -> None:
    """So is a plain one on which the network put code; and `auto` is no fallback for them."""
    model = nn.Sequential(Standardised(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3))
    model[1].forward = model[1].forward
    x = torch.randn(1, 3, 12, 12)
    wanted = model(x)
    choices = assign(model, x, "gemm")
    assert [c.used for c in choices] == ["auto", "auto", "gemm"]
    assert choices[0].reason == "Standardised with code of its own is not a plain nn.Conv2d"
    assert choices[1].reason == "Conv2d with code of its own is not a plain nn.Conv2d"
    assert close(model(x), wanted)
    assert not any(c.fallback for c in assign(model, x, "auto"))


class Derived(nn.Conv2d):
    """A class that leaves the computation to `nn.Conv2d`."""


class Doubled(nn.Module):
    """A parametrization that adds a product, as LoRA does."""

    def forward(self, filters: torch.Tensor) -> torch.Tensor:
        """Multiply by 2."""
        return (2 * torch.eye(len(filters)) @ filters.flatten(1)).view_as(filters)


def parametrised(name: str = "weight") -> nn.Conv2d:
    """Return a layer of which a parametrization computes a tensor."""
    layer = nn.Conv2d(4, 4, 3, padding=1)
    parametrize.register_parametrization(layer, name, Doubled() if name == "weight" else nn.ReLU())
    return layer


COMPUTED: dict[str, Callable[[], nn.Conv2d]] = {
    "derived": lambda: Derived(4, 4, 3, padding=1, padding_mode="circular"),
    "weight_norm": lambda: parametrizations.weight_norm(Derived(4, 4, 3)),
    "spectral_norm": lambda: parametrizations.spectral_norm(nn.Conv2d(4, 4, 3, padding="same")),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Conv2d(4, 4, 3)),
    "product": parametrised,
    "bias": lambda: parametrised("bias"),
    "pruned": lambda: prune.l1_unstructured(nn.Conv2d(4, 4, 3), "weight", 0.5),
}


@pytest.mark.parametrize("make", COMPUTED.values(), ids=COMPUTED)
@pytest.mark.parametrize("algorithm", ["gemm", "direct"])
def test_a_class_that_leaves_the_computation_alone_runs_and_trains_by_the_algorithm(
    make: Callable[[], nn.Conv2d], algorithm: str
) -> None:
    """Filters may be computed: gradients go on to what they are computed from."""

    def drawn() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(make(), nn.ReLU(), make())

    plain, model = drawn(), drawn()
    kinds = [type(layer) for layer in model]
    x = torch.randn(2, 4, 9, 9)
    choices = assign(model.eval(), x, algorithm)
    assert [c.used for c in choices] == [algorithm] * 2
    for _ in range(2):  # the second step shows what the first one left: spectral norms iterate
        results = [network.train()(x) for network in (plain, model)]
        for result in results:
            result.square().sum().backward()
        assert close(*results)
    wanted = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        assert close(parameter.grad, wanted[name].grad), name
    proof = profiled_passes.prove_forward(model, lambda: model(x), choices, BACKEND)
    learned = profiled_passes.prove_backward(
        model, lambda: model(x).sum().backward(), choices, BACKEND
    )
    assert [call.problem for call in (*proof.calls, *learned)] == [None] * 4
    assert all(call.seen for call in (*proof.calls, *learned))
    swap.restore(model)
    assert [type(layer) for layer in model] == kinds
    assert model.state_dict().keys() == plain.state_dict().keys()


def test_a_layer_that_is_parametrised_after_the_swap_keeps_its_parametrization() -> None:
    """`restore` then takes the algorithm away alone."""
    model = nn.Sequential(nn.Conv2d(4, 4, 3))
    x = torch.randn(1, 4, 9, 9)
    assign(model, x, "gemm")
    parametrizations.weight_norm(model[0])
    wanted = model(x)
    swap.restore(model)
    assert parametrize.is_parametrized(model[0])
    assert close(model(x), wanted)


@torch.inference_mode()
def test_a_lazy_layer_is_plain_when_it_has_its_filters() -> None:
    """Before, its first call changes its class."""
    model = nn.Sequential(nn.LazyConv2d(4, 3))
    assert swap.swap(model) == []
    model(torch.randn(1, 3, 9, 9))
    assert swap.swap(model) == ["0"]


def saved(model: nn.Module) -> nn.Module:
    """Return a model that was written and read."""
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded: nn.Module = torch.load(buffer, weights_only=False)
    return loaded


@pytest.mark.parametrize("copied_by", [copy.deepcopy, saved])  # to save is to pickle
@torch.inference_mode()
def test_a_swapped_model_is_copied_with_its_algorithm(
    resnet: nn.Module, image: torch.Tensor, copied_by: Callable[[nn.Module], nn.Module]
) -> None:
    """The copy runs by itself, and is restored without touching the original."""
    resnet.conv1.__class__ = Derived
    assign(resnet, image, "gemm")
    wanted = resnet(image)
    copied = copied_by(resnet)
    assert torch.equal(copied(image), wanted)
    swap.restore(copied)
    assert isinstance(resnet.get_submodule("conv1"), ExplicitConv2d)
    assert type(copied.get_submodule("conv1")) is Derived
    assert type(copied.get_submodule("layer1.0.conv1")) is nn.Conv2d


@pytest.mark.parametrize("algorithm", ["gemm", "implicit_gemm", "winograd", "fft"])
def test_autocast_casts_once_as_it_does_for_the_framework(algorithm: str) -> None:
    """The operators inside are not cast a second time, and gradients reach the float32 weights."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, bias=False))
    x = torch.randn(1, 3, 12, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = model(x)
        choices = assign(model, x, algorithm)
        found = model(x)
    assert {c.shape.dtype for c in choices} == {"bfloat16"}
    assert {c.used for c in choices} == {algorithm}
    assert found.dtype == wanted.dtype == torch.bfloat16
    assert (found - wanted).abs().max() < 0.03 * wanted.abs().max()
    found.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


@torch.inference_mode()
def test_autotune_switches_the_framework_s_benchmark_on_for_its_call_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever was set before is set again; pretends that this is a device with an autotuner."""
    model, x = nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 8)
    (choice,) = assign(model, x, "autotune")
    assert choice.used == "auto"
    seen = []
    monkeypatch.setattr(
        nn.Conv2d, "_conv_forward", lambda *_: seen.append(torch.backends.cudnn.benchmark)
    )
    for used in ("autotune", "auto"):
        tuned = replace(choice, used=used, fallback=False)
        monkeypatch.setattr("hpcsweep.conv.choice.decide", lambda *_, tuned=tuned, **__: tuned)
        swap.assign(model, [("", choice.shape)], used, "fallback", BACKEND)
        model(x)
    assert seen == [True, False]
    assert torch.backends.cudnn.benchmark is False
