"""Compares the convolution calls of a pass, each on its own input, so that errors do not add up.

The first call of a shape that runs an algorithm is compared with float64, whoever runs it. Further
calls of an explicit algorithm are compared with the framework's own, which costs less. `rounding`
has the bounds. Layers with code of their own are left out: they need not compute what their filters
say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor, nn

from hpcsweep.conv import parts
from hpcsweep.conv.backend import FRAMEWORK
from hpcsweep.conv.choice import LayerChoice
from hpcsweep.conv.shape import ConvShape, transformed
from hpcsweep.conv.swap import is_plain
from hpcsweep.measure import rounding
from hpcsweep.measure.rounding import Arithmetic, Exactness


class Convolutions:
    """The verdicts on the convolution calls of a pass.

    With `whole` every call is compared with float64. Otherwise the first one of a shape stands for
    all that the framework runs on it.
    """

    def __init__(self, choices: Sequence[LayerChoice], *, tf32: bool, whole: bool) -> None:
        self._choices = choices
        self._tf32 = tf32
        self._whole = whole
        self._verdicts: dict[int, Exactness] = {}
        self._firsts: dict[tuple[ConvShape, str], Exactness] = {}

    def compared(self, network: nn.Module) -> AbstractContextManager[None]:
        """Compare the calls of a pass in the block."""
        layers = {choice.layer: network.get_submodule(choice.layer) for choice in self._choices}
        for i, choice in enumerate(self._choices):
            if not is_plain(layers[choice.layer]):
                self._verdicts[i] = Exactness(subject=choice.layer)
        plain = [(name, layer) for name, layer in layers.items() if is_plain(layer)]
        return parts.wrapped_layers(plain, self._comparing)

    def verdicts(self, missing: str | None) -> list[Exactness]:
        """Return a verdict for each choice; `missing` is the reason for calls that did not come."""
        return [
            self._verdicts.get(i, Exactness(subject=choice.layer, reason=missing))
            for i, choice in enumerate(self._choices)
        ]

    def _comparing(
        self, name: str, layer: nn.Conv2d, forward: Callable[..., Tensor]
    ) -> Callable[..., Tensor]:
        """Return a layer's `forward` with a comparison of its output."""
        waiting = [i for i, choice in enumerate(self._choices) if choice.layer == name]

        def run(input: Tensor) -> Tensor:  # noqa: A002 - the framework's name
            output = forward(input)
            shape = None if transformed(layer, input) else ConvShape.of(layer, input)
            number = next((i for i in waiting if self._choices[i].shape == shape), None)
            if number is not None:
                waiting.remove(number)
                verdict = self._judge(layer, self._choices[number], input, output)
                self._verdicts[number] = replace(verdict, subject=name)
            return output

        return run

    def _judge(self, layer: nn.Conv2d, choice: LayerChoice, x: Tensor, output: Tensor) -> Exactness:
        """Compare a call, unless the first one of its kind stands for it."""
        if output.shape[-3:] != choice.shape.output_size[1:]:
            sizes = f"the output is {tuple(output.shape)}, not {choice.shape.output_size}"
            return Exactness(subject="", excess=math.inf, reason=sizes)
        kind = choice.shape, choice.used
        first = self._firsts.get(kind)
        if self._whole or first is None:
            self._firsts[kind] = self._compare(layer, choice, x, output, torch.float64)
            return self._firsts[kind]
        if choice.backend == FRAMEWORK:
            return first
        # in float32 at least, so that no other rounding counts than that of the call
        wide = torch.promote_types(layer.weight.dtype, torch.float32).to_real()
        return self._compare(layer, choice, x, output, wide)

    def _compare(
        self, layer: nn.Conv2d, choice: LayerChoice, x: Tensor, output: Tensor, wide: torch.dtype
    ) -> Exactness:
        device = x.device.type
        casts = {x.dtype, layer.weight.dtype} != {getattr(torch, choice.shape.dtype)}
        how = Arithmetic.of(choice, device, tf32=self._tf32, casts=casts)
        try:
            with torch.no_grad(), torch.autocast(device, enabled=False):
                return rounding.of_call(layer, x, output, how, wide)
        except Exception as error:  # noqa: BLE001 - of tensors of any class
            return Exactness(subject="", reason=rounding.why_not(error))
