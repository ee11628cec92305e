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

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hpcsweep.conv import parts, swap
from hpcsweep.conv.proof.autograd_graph import tensors_in
from hpcsweep.errors import first_line
from hpcsweep.measure import models, rounding, switches
from hpcsweep.measure.machine import framework
from hpcsweep.measure.network import Network, Times
from hpcsweep.measure.rounding import Exactness, compared, unit, widened

# What a layer may round, in unit roundoffs of its sums: the root of 4096 products, as many as the
# largest layers of usual networks have. The growth of the largest Winograd tile, 46, is below it.
_SUM: Final = 64.0
_TF32: Final = 2.0**-11  # of operands
# Honest points stay below 0.9 of the bound with this margin, and below 0.2 where nothing jumps, as
# the gradient of a ReLU does near zero; TF32 in one of ten layers is ten times above it.
_MARGIN: Final = 4.0
# In such a jump a nudged pass may miss what the pass had: so what looks wrong gets more of them.
_MORE: Final = 4
_LOST: Final = 0.5  # of the largest value: with such a bound nearly everything would be right
_REDUCED: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}  # mixed precision
_UNSTEADY: Final = "plain passes differ as much as wrong ones: random, with a state, or by choice"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Answers:
    """What a pass gave, by name, as float64 on the host."""

    outputs: dict[str, Tensor]
    gradients: dict[str, Tensor]

    @property
    def sizes(self) -> list[tuple[int, ...]]:
        """The sizes of the outputs."""
        return [tuple(tensor.shape) for tensor in self.outputs.values()]


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
        if framework.is_out_of_memory(error):
            images = network.point.axes["batch_size"]
            reason = rounding.no_memory(images, images)
        else:
            _log.warning("no plain pass to compare with: %s", error)
            reason = f"no plain pass to compare with: {first_line(error)}"
    return [Exactness(subject="output", reason=reason)]


def _verdicts(network: Network, times: Times, *, tf32: bool) -> list[Exactness]:
    axes = network.point.axes
    plainly = _Plainly(network)
    with models.seeded(network.point):
        seen = plainly.answers(lambda: network.output(times))
    swap.restore(network.model)
    dtype = _REDUCED.get(axes.get("amp", ""), getattr(torch, axes["dtype"]))
    sums = min(unit(dtype), unit(torch.float32))
    rounds = 2 * unit(dtype) + _SUM * sums + (_TF32 if tf32 else 0.0)
    plain = plainly.run()
    nudged = [plainly.run(rounds, 1)]
    found = _judged(seen, plain, nudged, rounds)
    if any(map(rounding.is_wrong, found)):
        draws = _Draws()
        plainly.run(watch=draws)
        if draws.some:  # then in another order, or by another generator
            return [Exactness(subject="output", reason="a pass draws random numbers")]
        nudged += [plainly.run(rounds, 2 + i) for i in range(_MORE)]
        found = _judged(seen, plain, nudged, rounds)
    return found


class _Plainly:
    """Runs a network plainly, with the numbers that its tensors had when this was made."""

    def __init__(self, network: Network) -> None:
        self._point = network.point
        self._model = network.model
        named = network.model.named_parameters() if network.learns else ()
        self._learning = {name: tensor for name, tensor in named if tensor.requires_grad}
        (self._image,) = models.make_inputs(network.point, network.rig.device.torch_device)
        with torch.no_grad():
            self._parameters = _copies(network.model.parameters())
            self._buffers = _copies(network.model.buffers())

    def run(
        self, nudge: float = 0.0, number: int = 0, watch: TorchDispatchMode | None = None
    ) -> _Answers:
        """Run a pass; each number draws other random numbers, those of nudges among them."""
        image = self._image.clone(memory_format=torch.contiguous_format)
        with (
            models.seeded(self._point, number),
            self._tensors(nudge),
            parts.eagerly(),
            switches.plainly(),
            torch.autocast(image.device.type, enabled=False),
        ):
            image = _nudged(image, nudge)

            def run() -> object:
                with watch or nullcontext():
                    return self._model(image)

            return self.answers(run)

    def answers(self, run: Callable[[], object]) -> _Answers:
        """Run a pass; derive a sum of its outputs for what learns."""
        with torch.set_grad_enabled(bool(self._learning)):
            found = [*tensors_in(run())]
            mixed = _mixed(found)
            gradients = dict[str, Tensor]()
            if mixed is not None:
                learning = [*self._learning.values()]
                several = torch.autograd.grad(mixed, learning, allow_unused=True)
                for name, tensor in zip(self._learning, several, strict=True):
                    if tensor is not None:
                        gradients[f"gradient of {name}"] = _on_host(tensor)
        outputs = {f"output {i + 1}": _on_host(tensor) for i, tensor in enumerate(found)}
        return _Answers(outputs, gradients)

    @contextmanager
    def _tensors(self, nudge: float) -> Iterator[None]:
        """Give the network those numbers, contiguous, and nudged if they are weights.

        What the block writes into buffers is undone.
        """
        held = [*self._parameters, *self._buffers]
        before = [tensor.data for tensor in held]
        with torch.no_grad():
            for tensor, numbers in self._parameters.items():
                tensor.data = _nudged(numbers, nudge)
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


def _nudged(tensor: Tensor, nudge: float) -> Tensor:
    """Return a copy with each number a little larger or smaller."""
    if not nudge or not tensor.is_floating_point():
        return tensor.clone()
    signs = torch.empty_like(tensor).bernoulli_().mul_(2).sub_(1)
    return torch.addcmul(tensor, tensor, signs, value=nudge)


def _mixed(outputs: Sequence[Tensor]) -> Tensor | None:
    """Return a number on which each output has a part, as a loss would have of any network."""
    generator = torch.Generator().manual_seed(0)
    products = []
    for tensor in outputs:
        if tensor.requires_grad and tensor.is_floating_point():
            factors = torch.randn(tensor.shape, generator=generator)
            products.append((tensor.float() * factors.to(tensor.device)).sum())
    return torch.stack(products).sum() if products else None


def _on_host(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor's numbers on the host, which has float64 and room."""
    return widened(tensor.detach().cpu()).clone()


def _judged(
    seen: _Answers, plain: _Answers, nudged: Sequence[_Answers], rounds: float
) -> list[Exactness]:
    """Compare a pass with a plain one; the nudged ones say what rounding may do."""
    if any(each.sizes != plain.sizes for each in nudged):
        return [Exactness(subject="output", reason=_UNSTEADY)]
    if seen.sizes != plain.sizes:
        reason = f"{seen.sizes} are the sizes, of a plain pass {plain.sizes}"
        return [Exactness(subject="output", error=math.inf, excess=math.inf, reason=reason)]
    found = []
    for name, wanted in plain.outputs.items():
        if wanted.is_floating_point() or wanted.is_complex():  # others are chosen by values
            others = [each.outputs[name] for each in nudged]
            bound = _bound(wanted, others, _largest(wanted), rounds)
            found.append(_compared(name, seen.outputs[name], wanted, bound))
    # Some gradients are zero but for rounding, such as that of a bias before a batch norm: so the
    # largest of a module says what is much.
    largest = dict[str, float]()
    for name, wanted in plain.gradients.items():
        module = name.rpartition(".")[0]
        largest[module] = max(largest.get(module, 0.0), _largest(wanted))
    for name, wanted in plain.gradients.items():
        others = [each.gradients.get(name, wanted) for each in nudged]
        bound = _bound(wanted, others, largest[name.rpartition(".")[0]], rounds)
        own = seen.gradients.get(name, torch.zeros_like(wanted))
        found.append(_compared(name, own, wanted, bound))
    return found or [Exactness(subject="output", reason="it has no numbers to compare")]


def _bound(wanted: Tensor, others: Sequence[Tensor], largest: float, rounds: float) -> float | None:
    """Return how far a pass may be from a plain one; None: nobody could tell what is wrong."""
    change = max(_largest(other - wanted) for other in others)
    tiny = _SUM * torch.finfo(torch.float32).tiny  # what may underflow on the way
    bound = _MARGIN * (change + rounds * largest) + tiny
    return None if bound > max(_LOST * largest, 2 * tiny) else bound


def _compared(name: str, seen: Tensor, wanted: Tensor, bound: float | None) -> Exactness:
    if bound is None:
        return Exactness(subject=name, reason=_UNSTEADY)
    return compared(name, seen, wanted, bound)


def _largest(tensor: Tensor) -> float:
    return tensor.abs().nan_to_num(0, 0).amax().item() if tensor.numel() else 0.0
