"""Gives the convolutions of a model an explicit algorithm, and takes it away again.

`swap` turns every plain convolution into an `ExplicitConv2d`: an `nn.Conv2d`, or one of a class
that derives from it and leaves its `forward` alone, as parametrised layers do. The module object
stays the same, only its class changes: parameters, hooks, state dict, sharing, and references that
others hold are untouched, and `restore` changes the class back. Then `assign` decides what each
call runs, from the shapes that a shape pass saw. It is called again for each point.

A class with a `forward` of its own may compute anything. It is left as it is, and recorded as a
fallback. What runs in compiled code or in TorchScript is left to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, SupportsIndex

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit
from torch.nn.parameter import is_lazy

from hpcsweep import catalog
from hpcsweep.conv import choice, parts
from hpcsweep.conv.backend import Backend, Convolve
from hpcsweep.conv.choice import Algorithm, AlgorithmError, LayerChoice, Unsupported
from hpcsweep.conv.shape import (
    ConvShape,
    autocast_dtype,
    compute_dtype,
    needs_explicit_padding,
    padding_of,
    transformed,
)

# what becomes of a point whose calls cannot all run as asked; anything else is an error
FALLBACK: Final = "fallback"
SKIP: Final = "skip"
# of a class, or put on a layer
_OWN_CODE: Final = frozenset({"forward", "_conv_forward"})
# parameters of a layer that computes neither
_HELD: Final = frozenset({"weight", "bias"})

# whether autocast is on for any device: to ask for a tensor's device takes 4 us of a call's 25
_is_autocast: Final[Callable[[], bool]] = torch._C._is_any_autocast_enabled  # noqa: SLF001

Call = Callable[["ExplicitConv2d", torch.Tensor], torch.Tensor]


@dataclass
class Assignment:
    """What one layer runs: its name, the request, and the decision for each shape.

    `calls` has the same decisions as prepared calls, by what is looked up quickly: the input's size
    and type, the layer's geometry, which a network may change between calls, and autocast's type.
    Where `measured` is given, other shapes fall back. `fell_back` counts the calls that did.
    """

    layer: str
    algorithm: Algorithm
    backend: Backend
    decided: dict[ConvShape, LayerChoice] = field(default_factory=dict)
    calls: dict[Hashable, Call] = field(default_factory=dict)
    measured: Container[ConvShape] | None = None
    fell_back: Counter[LayerChoice] = field(default_factory=Counter)

    def __getstate__(self) -> dict[str, object]:
        """Leave out what a copy or another process prepares anew."""
        return {**vars(self), "calls": {}}

    def decide(self, shape: ConvShape, layer: ExplicitConv2d, device_type: str) -> LayerChoice:
        """Decide one call of the layer."""
        name = choice.requested(self.algorithm, self.layer, shape.unique_key)
        if shape.in_c != layer.in_channels:
            # the framework's own error says it best
            return choice.refused(self.layer, shape, name, f"{shape.in_c} channels")
        unmeasured = self.measured is not None and shape not in self.measured
        if unmeasured and name not in choice.FRAMEWORK_CHOICES:
            return choice.refused(self.layer, shape, name, "the map was measured on others")
        return choice.decide(self.algorithm, self.layer, shape, self.backend, device_type)


class ExplicitConv2d(nn.Conv2d):
    """An `nn.Conv2d` that runs the algorithm it was assigned; without one it runs as before.

    `replaced` is the class that the layer had. For each other than `nn.Conv2d` there is a class
    that derives from both.
    """

    assigned: Assignment | None = None
    replaced: type[nn.Conv2d] = nn.Conv2d

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Let a copy, which may be in another process, make the class from the one it had."""
        new, (_, *arguments), *state = super().__reduce_ex__(protocol)
        return _anew, (new, self.replaced, *arguments), *state

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the framework's name
        """Convolve; a shape that was not announced to `assign` is decided when it comes."""
        assigned = self.assigned
        # compiled code decides for itself, and a closed part may call this layer, too
        compiles = torch.compiler.is_compiling()
        if assigned is None or compiles or input.is_meta or transformed(self, input):
            return super().forward(input)
        lowered = autocast_dtype(input.device.type) if _is_autocast() else None
        key = input.shape, input.dtype, self.stride, self.padding, self.dilation, lowered
        try:
            call = assigned.calls.get(key)
        except TypeError:  # a network may give lists
            return self._prepare(assigned, input)(self, input)
        if call is None:
            call = self._prepare(assigned, input)
            assigned.calls[key] = call
        return call(self, input)

    def _prepare(self, assigned: Assignment, x: torch.Tensor) -> Call:
        """Return what runs such calls, with all that stays the same looked up once."""
        shape = ConvShape.of(self, x)
        picked = assigned.decided.get(shape)
        if picked is None:
            picked = assigned.decide(shape, self, x.device.type)
            assigned.decided[shape] = picked
        if picked.fallback:
            return partial(_fall_back, picked)
        if picked.used == catalog.AUTO:
            return nn.Conv2d.forward
        if picked.used == catalog.AUTOTUNE:
            return _tuned
        convolve = assigned.backend.prepared(picked.used, picked.shape)
        computed = hasattr(type(self), "weight") or not self._parameters.keys() >= _HELD
        padded = needs_explicit_padding(self)
        if x.dim() == 4 and not (computed or padded or autocast_dtype(x.device.type)):
            return partial(_run_plainly, convolve)
        return partial(_run_padded_and_cast, convolve)


def _fall_back(picked: LayerChoice, layer: ExplicitConv2d, x: torch.Tensor) -> torch.Tensor:
    if layer.assigned is not None:
        layer.assigned.fell_back[picked] += 1
    return nn.Conv2d.forward(layer, x)


def _tuned(layer: ExplicitConv2d, x: torch.Tensor) -> torch.Tensor:
    """Switch the framework's autotuner on for one call."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark
    cudnn.benchmark = True
    try:
        return nn.Conv2d.forward(layer, x)
    finally:
        cudnn.benchmark = before


def _run_plainly(convolve: Convolve, layer: ExplicitConv2d, x: torch.Tensor) -> torch.Tensor:
    held = layer._parameters  # noqa: SLF001 - to ask the module takes as long as all of the above
    if "weight" in held and "bias" in held:
        return convolve(x, held["weight"], held["bias"])
    return convolve(x, layer.weight, layer.bias)  # pruned since the call was prepared


def _run_padded_and_cast(
    convolve: Convolve, layer: ExplicitConv2d, x: torch.Tensor
) -> torch.Tensor:
    """Add what the framework's layer adds to a call: padding, a batch, and the casts of autocast.

    Autocast is off inside, so that it does not cast the back-end's own operators.
    """
    kind = x.device.type
    weight = layer.weight
    bias = layer.bias  # each is asked for once: it may be computed, and change by that
    inside: AbstractContextManager[object] = nullcontext()
    if autocast_dtype(kind):
        dtype = compute_dtype(x)
        x = x.to(dtype)
        weight = weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
        inside = torch.autocast(kind, enabled=False)
    with inside:
        if needs_explicit_padding(layer):
            mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
            x = F.pad(x, padding_of(layer), mode=mode)
        if x.dim() == 4:
            return convolve(x, weight, bias)
        return convolve(x[None], weight, bias)[0]


def swap(model: nn.Module) -> list[str]:
    """Turn every plain convolution into an explicit one; return the names of all explicit ones."""
    entered = parts.convolutions(model)
    for _, module in entered:
        if is_plain(module) and not isinstance(module, ExplicitConv2d):
            module.__class__ = _explicit(type(module))
    return [name for name, module in entered if isinstance(module, ExplicitConv2d)]


def running(layer: nn.Conv2d, algorithm: str, backend: Backend) -> nn.Conv2d:
    """Return a plain layer with the same parameters that runs an algorithm."""
    kind = type(layer)
    twin = nn.Module.__new__(kind if issubclass(kind, ExplicitConv2d) else _explicit(kind))
    vars(twin).update(vars(layer))  # a parametrised layer refuses `copy.copy`
    vars(twin)["assigned"] = Assignment("", algorithm, backend)
    return twin


def is_plain(module: nn.Module) -> bool:
    """Say whether a layer convolves by the code of `nn.Conv2d` alone.

    A lazy one changes its class in its first call.
    """
    if not isinstance(module, nn.Conv2d):
        return False
    kind = type(module)
    for name in _OWN_CODE:
        # the code of an explicit layer was the framework's before `swap`
        is_own = getattr(kind, name) is not getattr(nn.Conv2d, name)
        if name in vars(module) or (is_own and not issubclass(kind, ExplicitConv2d)):
            return False
    return not any(is_lazy(parameter) for parameter in module.parameters())


def _explicit(replaced: type[nn.Conv2d]) -> type[ExplicitConv2d]:
    """Return an explicit class for layers of a plain class.

    Nobody keeps those of others: torch makes a class for each parametrised layer.
    """
    if replaced is nn.Conv2d:
        return ExplicitConv2d
    bases = (ExplicitConv2d, replaced)
    return type(f"Explicit{replaced.__name__}", bases, {"replaced": replaced})


def _anew(
    new: Callable[..., nn.Conv2d], replaced: type[nn.Conv2d], *arguments: object
) -> nn.Conv2d:
    return new(_explicit(replaced), *arguments)


def restore(model: nn.Module) -> None:
    """Undo `swap`."""
    for module in model.modules():
        if isinstance(module, ExplicitConv2d):
            module.__dict__.pop("assigned", None)
            if "replaced" in vars(type(module)):  # else the layer was parametrised since
                module.__class__ = module.replaced


def assign(
    model: nn.Module,
    calls: Sequence[tuple[str, ConvShape]],
    algorithm: Algorithm,
    policy: str,
    backend: Backend,
) -> list[LayerChoice]:
    """Decide what each convolution call of a swapped model runs, and tell the layers.

    `calls` are (layer name, shape) in call order; the answer has the same order. Raises
    `UnknownAlgorithm`, and, when a call cannot run as asked, `Unsupported` for the policy `skip` or
    `AlgorithmError` for `error`; the layers then keep what they had.
    """
    choice.check(algorithm)
    decided = []
    for layer, shape in calls:
        module = model.get_submodule(layer)
        picked = choice.decide(algorithm, layer, shape, backend, parts.device_type(module))
        by_framework = picked.requested in choice.FRAMEWORK_CHOICES
        if not isinstance(module, ExplicitConv2d) and not by_framework:
            why = f"{type(module).__name__} with code of its own is not a plain nn.Conv2d"
            picked = choice.refused(layer, shape, picked.requested, why)
            picked = replace(picked, swappable=False)
        decided.append(picked)
    decided = choice.one_plan_per_shape(decided)
    refused = [(one.layer, f"{one.requested}: {one.reason}") for one in decided if one.fallback]
    if refused and policy != FALLBACK:
        refusal = Unsupported if policy == SKIP else AlgorithmError
        raise refusal(refused, len(decided))
    by_module: dict[nn.Module, dict[ConvShape, LayerChoice]] = {}
    for picked in decided:  # a layer that is called under two names has one assignment
        by_module.setdefault(model.get_submodule(picked.layer), {})[picked.shape] = picked
    for name, module in parts.convolutions(model):
        if not isinstance(module, ExplicitConv2d):
            continue
        by_shape = by_module.get(module, {})
        requests = {picked.requested for picked in by_shape.values()}
        # to look a decision up costs microseconds, for which a map would seem slower
        if requests == {catalog.AUTO}:
            restore(module)
        else:
            module.assigned = Assignment(name, algorithm, backend, by_shape)
    return decided
