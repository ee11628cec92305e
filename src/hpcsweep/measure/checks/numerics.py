"""The numerics check: convolution calls of a pass, and what was done to the network.

The calls of a pass are compared each on its own input, so that errors do not add up. The first call
of a shape that runs an algorithm is compared with float64, whoever runs it; further calls of an
explicit algorithm with the framework's own, which costs less. Layers with code of their own are
left out: they need not compute what their filters say. A pass that is not a plain eager one is
compared with one that is. `rounding` has the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn

from hpcsweep.catalog.checks.numerics import (
    INACCURATE,
    PARTLY_CHECKED,
    UNCHECKED,
    LayerNumerics,
    NumericsCells,
)
from hpcsweep.conv import parts, shape, swap
from hpcsweep.conv.backend import FRAMEWORK
from hpcsweep.conv.choice import LayerChoice
from hpcsweep.conv.shape import ConvShape
from hpcsweep.conv.swap import is_plain
from hpcsweep.measure import model_builder, rounding
from hpcsweep.measure.checks import Finding, PointCheck
from hpcsweep.measure.network import Choices, Network, Times
from hpcsweep.measure.rounding import Exactness

# Messages in a row; a table stays readable, and the layer rows have the figures of all.
_SHOWN: Final = 3


class NumericsCheck(PointCheck):
    """Runs the pass once more, and others beside it; leaves the network with plain layers."""

    def after(self, network: Network, choices: Choices, times: Times) -> Finding:
        """Compare what the sweep wants to be compared."""
        point = network.point
        if not point.measure["numerics"]:
            return Finding(cells=NumericsCells(), flags={UNCHECKED: True})
        tf32 = point.axes["tf32"] and self.rig.device.type == "cuda"
        whole = point.measure["numerics"] == "layers"
        calls = self._compare_calls(network, choices, tf32=tf32, whole=whole)
        # Without dropout more can be compared; but in another mode torch would compile anew.
        if network.learns and point.axes["compile"] == "none":
            network.model.eval()
        outputs = list[Exactness]()
        if rounding.is_transformed(network, tf32=tf32):
            outputs = rounding.of_pass(network, times, tf32=tf32)
        swap.restore(network.model)
        flags = {
            INACCURATE: any(map(rounding.is_wrong, [*outputs, *calls])),
            PARTLY_CHECKED: any(map(rounding.is_partial, [*outputs, *calls])),
        }
        layers = []
        for call in calls:
            error = call.error if whole else None  # else it may be that of another call
            layers.append(LayerNumerics(max_rel_error=error, error_over_bound=call.excess))
        return Finding(cells=cells(calls, outputs), flags=flags, layers=layers)

    def _compare_calls(
        self, network: Network, choices: Choices, *, tf32: bool, whole: bool
    ) -> list[Exactness]:
        """Compare the convolution calls of one more pass."""
        model = network.model
        calls = Convolutions(choices.calls, tf32=tf32, whole=whole)
        # some layers of a training are called at random
        missing = None if network.learns else "its call did not come"
        (image,) = model_builder.make_inputs(network.point, self.rig.device.torch_device)
        try:
            with torch.no_grad(), model_builder.seeded(network.point), calls.compared(model):
                network.forward(image)
        except Exception as error:  # noqa: BLE001 - the times are there, whatever it raises
            missing = rounding.why_not(error)
        return calls.verdicts(missing)


def cells(calls: Sequence[Exactness], outputs: Sequence[Exactness]) -> NumericsCells:
    """Return the columns on all comparisons."""
    wrong = []
    partial = []
    excess: float | None = None
    for verdict in [*outputs, *calls]:
        if rounding.is_wrong(verdict):
            wrong.append(verdict)
        elif rounding.is_partial(verdict):
            partial.append(verdict)
        if verdict.excess is not None:
            excess = max(excess or 0.0, verdict.excess)
    wrong.sort(key=lambda verdict: verdict.excess or 0.0, reverse=True)
    doubts = [*wrong, *partial]
    reasons = [verdict.message for verdict in doubts[:_SHOWN]]
    if len(doubts) > _SHOWN:
        reasons.append(f"{len(doubts) - _SHOWN} more")
    return NumericsCells(
        call_rel_error=_largest(calls),
        plain_rel_error=_largest(outputs),
        error_over_bound=excess,
        numerics_reason="; ".join(reasons) or None,
    )


def _largest(verdicts: Sequence[Exactness]) -> float | None:
    errors = [verdict.error for verdict in verdicts if verdict.error is not None]
    return math.nan if any(map(math.isnan, errors)) else max(errors, default=None)


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
        plain = {}
        for i, choice in enumerate(self._choices):
            layer = network.get_submodule(choice.layer)
            if is_plain(layer):
                plain[choice.layer] = layer
            else:
                self._verdicts[i] = Exactness(subject=choice.layer)
        return parts.wrapped_layers([*plain.items()], self._comparing)

    def verdicts(self, missing: str | None) -> list[Exactness]:
        """Return a verdict for each choice; `missing` is the reason for calls that did not come."""
        found = []
        for i, choice in enumerate(self._choices):
            missed = Exactness(subject=choice.layer, reason=missing)
            found.append(self._verdicts.get(i, missed))
        return found

    def _comparing(
        self, name: str, layer: nn.Conv2d, forward: Callable[..., Tensor]
    ) -> Callable[..., Tensor]:
        """Return a layer's `forward` with a comparison of its output."""
        waiting = [i for i, choice in enumerate(self._choices) if choice.layer == name]

        def run(input: Tensor) -> Tensor:  # noqa: A002 - the framework's name
            output = forward(input)
            if shape.transformed(layer, input):
                return output
            called = ConvShape.of(layer, input)
            for number in waiting:
                if self._choices[number].shape == called:
                    waiting.remove(number)
                    verdict = self._judge(layer, self._choices[number], input, output)
                    self._verdicts[number] = replace(verdict, subject=name)
                    break
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
        try:
            with torch.no_grad(), torch.autocast(device, enabled=False):
                return rounding.of_call(
                    layer, x, output, choice, device=device, tf32=self._tf32, wide=wide
                )
        except Exception as error:  # noqa: BLE001 - of tensors of any class
            return Exactness(subject="", reason=rounding.why_not(error))


CHECK: Final = NumericsCheck
