"""Compares a point that is not a plain eager pass with one that is, of the same weights.

Compiled, scripted, in NHWC, in mixed precision, with TF32, replayed as a graph, or trained: the
outputs, and the gradients of a network that learns, are held against those of the network run
eagerly, contiguous, without autocast and TF32, in the same type.

How far rounding alone takes them apart is different for each network: it grows with the depth, with
cancellation, with a batch norm that divides by little. So it is not computed but tried: further
plain passes have their input and all weights changed by as much as a layer may round. What that
changes in an output, times `_MARGIN`, is the bound. If that is as large as the outputs are, since
the network draws random numbers, keeps a state, or chooses among nearly equal values, nothing can
be judged: that is said, and is no doubt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hpcsweep.conv import parts, swap
from hpcsweep.conv.tensors import tensors_in
from hpcsweep.measure import model_builder, rounding, switches
from hpcsweep.measure.network import Network, Times
from hpcsweep.measure.rounding import TF32, Exactness, compared, unit, widened

# What a layer may round, in unit roundoffs of its sums: the root of 4096 products, as many as the
# largest layers of usual networks have. The growth of the largest Winograd tile, 46, is below it.
_SUM: Final = 64.0
# Honest points stay below 0.9 of the bound with this margin, and below 0.2 where nothing jumps, as
# the gradient of a ReLU does near zero; TF32 in one of ten layers is ten times above it.
_MARGIN: Final = 4.0
# In such a jump a nudged pass may miss what the pass had: so what looks wrong gets more of them.
_TRIES: Final = 5
_LOST: Final = 0.5  # of the largest value: with such a bound nearly everything would be right
_UNSTEADY: Final = "plain passes differ as much as wrong ones: random, with a state, or by choice"

# what a pass gave, by name, as float64 on the host: outputs, and gradients of parameters
_Answers = dict[str, Tensor]
_OUTPUT: Final = "output"


def is_transformed(network: Network, *, tf32: bool) -> bool:
    """Say whether a pass is another one than a plain pass of the network."""
    axes = network.point.axes
    changed = axes["memory_format"] == "nhwc" or axes.get("launch") == "graph" or tf32
    return network.learns or changed or parts.is_compiled_in_part(network.model)


def verdicts(network: Network, times: Times, *, tf32: bool) -> list[Exactness]:
    """Compare the pass as it was timed; leave the network with plain layers.

    The code of a network may raise anything: then there is one verdict, which says so.
    """
    try:
        return _verdicts(network, times, tf32=tf32)
    except Exception as error:  # noqa: BLE001
        return [Exactness(subject=_OUTPUT, reason=rounding.why_not(error))]


def _verdicts(network: Network, times: Times, *, tf32: bool) -> list[Exactness]:
    axes = network.point.axes
    dtype = model_builder.AUTOCAST.get(axes.get("amp", ""), getattr(torch, axes["dtype"]))
    sums = min(unit(dtype), unit(torch.float32))
    rounds = 2 * unit(dtype) + _SUM * sums + (TF32 if tf32 else 0.0)
    # devices may take subnormal numbers of float32 for zero, but not those of float16
    step = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    floor = _SUM * max(step, torch.finfo(torch.float32).tiny)

    plainly = _Plainly(network)
    with model_builder.seeded(network.point):
        seen = plainly.answers(lambda: network.output(times))
    swap.restore(network.model)
    draws = _Draws()
    plain = plainly.run(watch=draws)
    nudged = list[_Answers]()
    found = list[Exactness]()
    for number in range(1, 1 + _TRIES):
        nudged.append(plainly.run(rounds, number))
        found = _judged(seen, plain, nudged, rounds, floor)
        if not any(map(rounding.is_wrong, found)):
            break
        if draws.some:  # then in another order, or by another generator
            return [Exactness(subject=_OUTPUT, reason="a pass draws random numbers")]
    return found


class _Plainly:
    """Runs a network plainly, with the numbers that its tensors had when this was made."""

    def __init__(self, network: Network) -> None:
        self._point = network.point
        self._model = network.model
        named = network.model.named_parameters() if network.learns else ()
        self._learning = {name: tensor for name, tensor in named if tensor.requires_grad}
        (self._image,) = model_builder.make_inputs(network.point, network.rig.device.torch_device)
        with torch.no_grad():
            self._parameters = _copies(network.model.parameters())
            self._buffers = _copies(network.model.buffers())

    def run(
        self, nudge: float = 0.0, number: int = 0, watch: TorchDispatchMode | None = None
    ) -> _Answers:
        """Run a pass; each number draws other random numbers, those of nudges among them."""
        image = self._image.clone(memory_format=torch.contiguous_format)
        with (
            model_builder.seeded(self._point, number),
            self._tensors(nudge),
            parts.eagerly(),
            switches.plainly(),
            torch.autocast(image.device.type, enabled=False),
        ):
            image = changed_a_little(image, nudge)

            def run() -> object:
                with watch or nullcontext():
                    return self._model(image)

            return self.answers(run)

    def answers(self, run: Callable[[], object]) -> _Answers:
        """Run a pass; derive a sum of its outputs for what learns."""
        with torch.set_grad_enabled(bool(self._learning)):
            outputs = list(tensors_in(run()))
            answers = {f"{_OUTPUT} {i + 1}": _on_host(t) for i, t in enumerate(outputs)}
            mixed = _mixed(outputs)
            if not mixed.requires_grad:
                return answers
            for parameter in self._learning.values():
                parameter.grad = None
            mixed.backward()  # activation checkpointing takes no `torch.autograd.grad`
        for name, parameter in self._learning.items():
            if parameter.grad is not None:
                answers[f"gradient of {name}"] = _on_host(parameter.grad)
                parameter.grad = None
        return answers

    @contextmanager
    def _tensors(self, nudge: float) -> Iterator[None]:
        """Give the network those numbers, contiguous, and nudged if they are weights.

        What the block writes into buffers is undone.
        """
        held = [*self._parameters, *self._buffers]
        before = [tensor.data for tensor in held]
        with torch.no_grad():
            for tensor, numbers in self._parameters.items():
                tensor.data = changed_a_little(numbers, nudge)
            for tensor, numbers in self._buffers.items():
                tensor.data = numbers.clone()
        try:
            yield
        finally:
            for tensor, data in zip(held, before, strict=True):
                tensor.data = data


def _copies(held: Iterable[Tensor]) -> dict[Tensor, Tensor]:
    """Return contiguous copies."""
    return {tensor: tensor.clone(memory_format=torch.contiguous_format) for tensor in held}


class _Draws(TorchDispatchMode):
    """Notes whether operators draw random numbers; attention that drops some has others for it."""

    some = False

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - an operator
        _types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Look at an operator's tags, and run it."""
        if torch.Tag.nondeterministic_seeded in func.tags and "attention" not in str(func):
            self.some = True
        return func(*args, **(kwargs or {}))


def changed_a_little(tensor: Tensor, nudge: float) -> Tensor:
    """Return a copy with each number a little larger or smaller."""
    if not nudge or not tensor.is_floating_point():
        return tensor.clone()
    signs = torch.empty_like(tensor).bernoulli_().mul_(2).sub_(1)
    return torch.addcmul(tensor, tensor, signs, value=nudge)


def _mixed(outputs: Iterable[Tensor]) -> Tensor:
    """Return a number on which each output has a part, as a loss would have of any network."""
    generator = torch.Generator().manual_seed(0)
    mixed = torch.zeros(())
    for tensor in outputs:
        if tensor.requires_grad and tensor.is_floating_point():
            factors = torch.randn(tensor.shape, generator=generator).to(tensor.device)
            mixed = mixed.to(tensor.device) + (tensor.float() * factors).sum()
    return mixed


def _on_host(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor's numbers on the host, which has float64 and room."""
    return widened(tensor.detach().cpu()).clone()


def _judged(
    seen: _Answers, plain: _Answers, nudged: list[_Answers], rounds: float, floor: float
) -> list[Exactness]:
    """Compare a pass with a plain one; the nudged ones say what rounding may do."""
    if any(_sizes(each) != _sizes(plain) for each in nudged):
        return [Exactness(subject=_OUTPUT, reason=_UNSTEADY)]
    if _sizes(seen) != _sizes(plain):
        reason = f"{_sizes(seen)} are the sizes, of a plain pass {_sizes(plain)}"
        return [Exactness(subject=_OUTPUT, error=math.inf, excess=math.inf, reason=reason)]
    # numbers that are chosen by values, such as indices, say little
    inexact = {name: t for name, t in plain.items() if t.is_floating_point() or t.is_complex()}
    # Some gradients are zero but for rounding, such as that of a bias before a batch norm: so the
    # largest of a module says what is much.
    largest = dict[str, float]()
    for name, wanted in inexact.items():
        largest[_owner(name)] = max(largest.get(_owner(name), 0.0), _largest(wanted))
    found = []
    for name, wanted in inexact.items():
        much = largest[_owner(name)]
        change = max(_largest(each.get(name, wanted) - wanted) for each in nudged)
        bound = _MARGIN * (change + rounds * much) + floor
        if bound > max(_LOST * much, 2 * floor):
            found.append(Exactness(subject=name, reason=_UNSTEADY))
        else:
            own = seen.get(name, torch.zeros_like(wanted))
            found.append(compared(name, own, wanted, bound))
    return found or [Exactness(subject=_OUTPUT, reason="it has no numbers to compare")]


def _sizes(answers: _Answers) -> list[tuple[int, ...]]:
    return [tuple(t.shape) for name, t in answers.items() if name.startswith(_OUTPUT)]


def _owner(name: str) -> str:
    """Return the module of a gradient, or the output itself."""
    return name.rpartition(".")[0] or name


def _largest(tensor: Tensor) -> float:
    return tensor.abs().nan_to_num(0, 0).amax().item() if tensor.numel() else 0.0
