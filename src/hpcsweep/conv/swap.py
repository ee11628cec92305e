"""Gives the convolutions of a model an explicit algorithm, and takes it away again.

`swap` turns every plain `nn.Conv2d` into an `ExplicitConv2d`. The module object stays the same,
only its class changes: parameters, hooks, state dict, sharing, and references that others hold are
untouched, and `restore` changes the class back. Then `assign` decides what each call runs, from the
shapes that a shape pass saw. It is called again for each point.

A class that derives from `nn.Conv2d` (or a parametrised layer) may compute anything. It is left as
it is, and recorded as a fallback. What runs in compiled code or in TorchScript is left to it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from hpcsweep import catalog
from hpcsweep.conv import choice as choices
from hpcsweep.conv import parts
from hpcsweep.conv.backend import Backend
from hpcsweep.conv.choice import Algorithm, LayerChoice
from hpcsweep.conv.errors import AlgorithmError, Unsupported
from hpcsweep.conv.shape import (
    ConvShape,
    compute_dtype,
    needs_explicit_padding,
    padding_of,
    transformed,
)

# what becomes of a point whose calls cannot all run as asked; anything else is an error
FALLBACK: Final = "fallback"
SKIP: Final = "skip"
_OWN_CODE: Final = frozenset({"forward", "_conv_forward"})  # which a network may put on a layer


@dataclass
class _Assignment:
    """What one layer runs: its name, the request, and the decision for each shape.

    `by_input` has the same decisions by what a call can look up quickly: its input's size and type,
    and the layer's geometry, which a network may change between calls.
    """

    layer: str
    algorithm: Algorithm
    backend: Backend
    most_workspace: float = math.inf
    decided: dict[ConvShape, LayerChoice] = field(default_factory=dict)
    by_input: dict[Hashable, LayerChoice] = field(default_factory=dict)

    def decide(self, shape: ConvShape, device_type: str) -> LayerChoice:
        """Ask the back-end for one call."""
        most = self.most_workspace
        return choices.decide(
            self.algorithm, self.layer, shape, self.backend, device_type, most_workspace=most
        )


class ExplicitConv2d(nn.Conv2d):
    """An `nn.Conv2d` that runs the algorithm it was assigned; without one it runs as before."""

    assigned: _Assignment | None = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the framework's name
        """Convolve; a shape that was not announced to `assign` is decided when it comes."""
        assigned = self.assigned
        # compiled code decides for itself, and a closed part may call this layer, too
        if assigned is None or torch.compiler.is_compiling() or transformed(self, input):
            return super().forward(input)
        seen = (input.shape, input.dtype, self.stride, self.padding, self.dilation)
        try:
            picked = assigned.by_input.get(seen)
            if picked is None:
                picked = assigned.by_input[seen] = self._look_up(assigned, input)
        except TypeError:  # a network may give lists
            picked = self._look_up(assigned, input)
        if picked.used == catalog.AUTO:
            return super().forward(input)
        if picked.used == catalog.AUTOTUNE:
            with _benchmarking():
                return super().forward(input)
        return self._explicitly(input, picked, assigned.backend)

    def _look_up(self, assigned: _Assignment, x: torch.Tensor) -> LayerChoice:
        shape = ConvShape.of(self, x)
        picked = assigned.decided.get(shape)
        if picked is None and shape.in_c != self.in_channels:
            # the framework's own error says it best
            name = choices.requested(assigned.algorithm, assigned.layer, shape.unique_key)
            picked = choices.refused(assigned.layer, shape, name, f"{shape.in_c} channels")
        if picked is None:
            picked = assigned.decide(shape, x.device.type)
        assigned.decided[shape] = picked
        return picked

    def _explicitly(self, x: torch.Tensor, picked: LayerChoice, backend: Backend) -> torch.Tensor:
        """Run the back-end. Under autocast, cast the operands once, as the framework does.

        Autocast is off inside, so that it does not cast the back-end's own operators.
        """
        kind = x.device.type
        if not torch.is_autocast_enabled(kind):
            return self._run(x, self.weight, self.bias, picked, backend)
        dtype = compute_dtype(x)
        bias = None if self.bias is None else self.bias.to(dtype)
        with torch.autocast(kind, enabled=False):
            return self._run(x.to(dtype), self.weight.to(dtype), bias, picked, backend)

    def _run(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        picked: LayerChoice,
        backend: Backend,
    ) -> torch.Tensor:
        """Pad and add a batch where the framework's layer would, then convolve."""
        if needs_explicit_padding(self):
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            x = F.pad(x, padding_of(self), mode=mode)
        if x.dim() == 3:
            return backend.forward(picked.used, x[None], weight, bias, picked.shape)[0]
        return backend.forward(picked.used, x, weight, bias, picked.shape)


def swap(model: nn.Module) -> list[str]:
    """Turn every plain convolution into an explicit one; return the names of all explicit ones."""
    entered = parts.convolutions(model)
    for _, module in entered:
        if type(module) is nn.Conv2d and is_plain(module):
            module.__class__ = ExplicitConv2d
    return [name for name, module in entered if isinstance(module, ExplicitConv2d)]


@contextmanager
def running(layer: nn.Conv2d, algorithm: str, backend: Backend) -> Iterator[None]:
    """Make one plain layer run an algorithm in the block, whatever it is asked to run else."""
    kind = layer.__class__
    before = layer.__dict__.get("assigned")
    layer.__class__ = ExplicitConv2d
    layer.__dict__["assigned"] = _Assignment("", algorithm, backend)
    try:
        yield
    finally:
        layer.__class__ = kind
        layer.__dict__.pop("assigned")
        if before is not None:
            layer.__dict__["assigned"] = before


def is_plain(module: nn.Module) -> bool:
    """Say whether a layer is an `nn.Conv2d` that has no code of its own, nor its class."""
    return type(module) in {nn.Conv2d, ExplicitConv2d} and _OWN_CODE.isdisjoint(vars(module))


def restore(model: nn.Module) -> None:
    """Undo `swap`."""
    for module in model.modules():
        if isinstance(module, ExplicitConv2d):
            _take_back(module)


def _take_back(module: ExplicitConv2d) -> None:
    module.__dict__.pop("assigned", None)
    module.__class__ = nn.Conv2d


def assign(  # noqa: PLR0913 - what a decision depends on
    model: nn.Module,
    calls: Sequence[tuple[str, ConvShape]],
    algorithm: Algorithm,
    policy: str,
    backend: Backend,
    *,
    most_workspace: float = math.inf,
) -> list[LayerChoice]:
    """Decide what each convolution call of a swapped model runs, and tell the layers.

    `calls` are (layer name, shape) in call order; the answer has the same order. Raises
    `UnknownAlgorithm`, and, when a call cannot run as asked, `Unsupported` for the policy `skip` or
    `AlgorithmError` for `error`; the layers then keep what they had.
    """
    choices.check(algorithm)
    backend = backend.limited(most_workspace)
    picked = choices.one_plan_per_shape(
        [
            _decide(model, _Assignment(layer, algorithm, backend, most_workspace), shape)
            for layer, shape in calls
        ]
    )
    refused = [(c.layer, f"{c.requested}: {c.reason}") for c in picked if c.fallback]
    if refused and policy != FALLBACK:
        raise (Unsupported if policy == SKIP else AlgorithmError)(refused, len(picked))
    for name, module in parts.convolutions(model):
        if isinstance(module, ExplicitConv2d):
            module.assigned = _Assignment(name, algorithm, backend, most_workspace)
    for item in picked:  # a layer that is called under two names has one assignment
        module = model.get_submodule(item.layer)
        if isinstance(module, ExplicitConv2d) and module.assigned is not None:
            module.assigned.decided[item.shape] = item
    _leave_alone(model, picked)
    return picked


def _leave_alone(model: nn.Module, picked: Sequence[LayerChoice]) -> None:
    """Give layers of which nothing is asked their own class again.

    To look a decision up costs some microseconds a call, for which a map would seem slower.
    """
    asked: dict[nn.Module, set[str]] = {}
    for item in picked:
        asked.setdefault(model.get_submodule(item.layer), set()).add(item.requested)
    for module, names in asked.items():
        if isinstance(module, ExplicitConv2d) and names == {catalog.AUTO}:
            _take_back(module)


def _decide(model: nn.Module, assigned: _Assignment, shape: ConvShape) -> LayerChoice:
    module = model.get_submodule(assigned.layer)
    picked = assigned.decide(shape, module.weight.device.type)
    if isinstance(module, ExplicitConv2d) or picked.requested in choices.FRAMEWORK_CHOICES:
        return picked
    with_own = " with code of its own" if type(module) is nn.Conv2d else ""
    reason = f"{type(module).__name__}{with_own} is not a plain nn.Conv2d"
    refused = choices.refused(assigned.layer, shape, picked.requested, reason)
    return replace(refused, swappable=False)


@contextmanager
def _benchmarking() -> Iterator[None]:
    """Switch the framework's autotuner on during one call."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
