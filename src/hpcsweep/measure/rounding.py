"""Tells mistakes from rounding: in a convolution call by a bound, in a whole pass by trying.

An output value y of a convolution is a sum of K products of filter weights and inputs. Its error is
at most::

    2 u_out (|y| + |bias|)  +  (u_sum (sqrt(K) + 6 g) + 6 u_in) N

N is the largest sum of the products' sizes, and of |bias|, that the output's channel has anywhere
in its image, since an algorithm may mix what lies side by side. The unit roundoffs u are those of
the stored output, of the additions, and of the operands where they are rounded first (TF32: 2^-11;
autocast). Reduced types add in float32. That rounding errors of a sum grow as sqrt(K) u is the
probabilistic bound of Higham and Mary (SIAM J. Sci. Comput. 41, 2019, and 42, 2020); 6 standard
deviations are exceeded by none of 10^8 values.

g is the growth of the algorithm: 1 for a plain sum. An FFT of S samples has log2 S (Higham,
Accuracy and Stability of Numerical Algorithms, chapter 24). Winograd has the largest over outputs i
of sum_p A_ip^2 |G_p|^2 |B_p|^2 / taps, with the matrices of its transforms: the norms of Barabasz
et al. (ACM Trans. Math. Softw. 46, 2020) for rounding errors that are independent of each other. On
GPUs what is transformed may be stored, so u_sum is that of the stored type; and where the framework
or a heuristic chooses, the largest g of all algorithms counts.

A pass that is not a plain eager one (compiled, scripted, in NHWC, in mixed precision, with TF32,
replayed as a graph, or trained) is held against one that is, of the same weights: run eagerly,
contiguous, without autocast and TF32, in the same type. Compared are outputs, and the gradients of
a network that learns.

How far rounding alone takes these apart is different for each network: it grows with the depth,
with cancellation, with a batch norm that divides by little. So it is not computed but tried:
further plain passes have their input and all weights changed by as much as a layer may round. What
that changes in an output, times `_MARGIN`, is the bound. If that is as large as the outputs are,
since the network draws random numbers, keeps a state, or chooses among nearly equal values, nothing
can be judged: that is said, and is no doubt.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from hpcsweep.catalog import SUMS_FFT, SUMS_PLAIN, SUMS_WINOGRAD, algorithms_adding
from hpcsweep.conv import parts, swap
from hpcsweep.conv.choice import LayerChoice
from hpcsweep.conv.parts import tensors_in
from hpcsweep.conv.shape import ConvShape, padding_of
from hpcsweep.errors import first_line
from hpcsweep.measure import model_builder, switches
from hpcsweep.measure.bench_api import is_out_of_memory
from hpcsweep.measure.network import Network, Times
from hpcsweep.measure.operations import OperatorWatch

_log = logging.getLogger(__name__)

# of a sum's error; see above
_SIGMAS: Final = 6.0
# the unit roundoff of operands: 10 bits of mantissa are stored
_TF32: Final = 2.0**-11
_PLAIN: Final = algorithms_adding(SUMS_PLAIN)
_FFTS: Final = algorithms_adding(SUMS_FFT)
_WINOGRADS: Final = algorithms_adding(SUMS_WINOGRAD)
# g of Winograd by taps, of the reference's tile of 2 x 2 outputs
_SMALL_TILE: Final = {3: 5 / 3, 5: 70 / 9}
# g of the largest tile that libraries for GPUs have: 6 x 6 outputs of 3 x 3 taps, with the points
# 0, 1, -1, 2, -2, 1/2, -1/2. Their tile for 5 x 5 taps has 29.754, an FFT of a whole image less.
_LARGEST: Final = 46.257

# What a layer may round, in unit roundoffs of its sums: the root of 4096 products, as many as the
# largest layers of usual networks have. The growth of the largest Winograd tile, 46, is below it.
_SUM: Final = 64.0
# Honest points stay below 0.9 of the bound with this margin, and below 0.2 where nothing jumps, as
# the gradient of a ReLU does near zero; TF32 in one of ten layers is ten times above it.
_MARGIN: Final = 4.0
# In such a jump a nudged pass may miss what the pass had: so what looks wrong gets more of them.
_TRIES: Final = 5
# of the largest value: with such a bound nearly everything would be right
_LOST: Final = 0.5
_UNSTEADY: Final = "plain passes differ as much as wrong ones: random, with a state, or by choice"

# what a pass gave, by name, as float64 on the host: outputs, and gradients of parameters
_Answers = dict[str, Tensor]
_OUTPUT: Final = "output"


@dataclass(frozen=True, kw_only=True)
class Exactness:
    """The comparison of one output, gradient or convolution call.

    `error` is relative; `excess` is the error over its bound, above 1 if it is wrong; None: not
    compared. `reason` says what is wrong, or what was not compared and why, which is no doubt.
    """

    subject: str
    error: float | None = None
    excess: float | None = None
    reason: str | None = None

    @property
    def message(self) -> str:
        """Its subject, and what is wrong or missing."""
        return f"{self.subject}: {self.reason or f'error is {self.excess:.3g} times its bound'}"


def is_wrong(verdict: Exactness) -> bool:
    """Say whether an error is larger than rounding explains."""
    return verdict.excess is not None and verdict.excess > 1


def is_partial(verdict: Exactness) -> bool:
    """Say whether some of it could not be compared."""
    return verdict.reason is not None and not is_wrong(verdict)


def why_not(error: Exception) -> str:
    """Return what `Exactness.reason` says of a comparison that failed."""
    if is_out_of_memory(error):
        return "no memory to compare it"
    _log.warning("not compared: %s", error)
    return f"not compared: {first_line(error)}"


def unit(dtype: torch.dtype) -> float:
    """Return the unit roundoff of a type."""
    return torch.finfo(dtype).eps / 2


def growth(used: str, shape: ConvShape, *, on_gpu: bool) -> float:
    """Return g; if a GPU's library chooses or transforms, that of the worst algorithm."""
    if on_gpu:
        plain = used in _PLAIN or {*shape.stride, *shape.dilation} != {1}
        return 1.0 if plain else _LARGEST
    if used in _FFTS:
        return math.log2(4 * shape.in_h * shape.in_w)
    if used in _WINOGRADS:
        return _SMALL_TILE.get(shape.kernel_h, 1.0)
    return 1.0


def of_call(  # noqa: PLR0913 - a call, and how it was computed
    layer: nn.Conv2d,
    x: Tensor,
    output: Tensor,
    choice: LayerChoice,
    *,
    device: str,
    tf32: bool,
    wide: torch.dtype = torch.float64,
) -> Exactness:
    """Compare a plain convolution's output with the framework's in a wide type, value by value.

    The output was computed on a type of `device`, there perhaps with `tf32`.
    """
    dtype = getattr(torch, choice.shape.dtype)
    stored = unit(dtype)
    grows = growth(choice.used, choice.shape, on_gpu=device != "cpu")
    sums = min(stored, unit(torch.float32))
    if device != "cpu" and grows > 1:
        sums = stored
    operands = 0.0
    if tf32 and device == "cuda" and dtype == torch.float32:
        operands = _TF32
    if {x.dtype, layer.weight.dtype} != {dtype}:  # autocast rounds to the type first
        operands = max(operands, stored)
    smallest = torch.finfo(output.dtype)

    if x.dim() == 3:
        x = x[None]
        output = output[None]
    x = _widened(x, wide)
    y = _widened(output, wide)
    weight = _widened(layer.weight, wide)
    bias = weight.new_zeros(len(weight)) if layer.bias is None else _widened(layer.bias, wide)
    padding = padding_of(layer)
    if any(padding):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x = F.pad(x, padding, mode=mode)
    steps = (layer.stride, 0, layer.dilation, layer.groups)
    # On a GPU, trials in float64 take longer than they save, and TF32 is no reference.
    with switches.plainly():
        wanted = F.conv2d(x, weight, bias, *steps)
        # float32 is enough for the products' sizes, and quick everywhere
        sizes = [tensor.abs().float() for tensor in (x, weight, bias)]
        largest = F.conv2d(*sizes, *steps).amax((2, 3), keepdim=True).double()
    largest = largest.nan_to_num(math.inf)  # of an image that is not finite nothing is known

    terms = weight[0].numel()
    relative = sums * (math.sqrt(terms) + _SIGMAS * grows) + _SIGMAS * operands
    # what it is compared with is rounded, too, on a GPU as its library likes
    relative += unit(wide) * (math.sqrt(terms) + _SIGMAS * (_LARGEST if x.is_cuda else 1.0))
    rounded = relative * largest + 2 * stored * bias.abs()[:, None, None]
    # near zero: a step of the stored type, and products that underflow
    rounded += smallest.tiny * smallest.eps
    rounded += 2 * terms * min(torch.finfo(torch.float32).tiny, smallest.tiny)
    return _compared("", y, wanted, y.abs().mul_(2 * stored) + rounded)


def _compared(name: str, output: Tensor, wanted: Tensor, bound: Tensor | float) -> Exactness:
    """Compare values by their bounds; equal infinities agree, zeros have no relative error."""
    if not wanted.numel():
        return Exactness(subject=name, excess=0.0)
    deviation = (output - wanted).abs()
    magnitude = wanted.abs()
    worst, largest, excess = _largest_of(deviation, magnitude, deviation / bound)
    # of what is not finite, which takes as many passes over the values again
    if not math.isfinite(worst + largest + excess):
        finite = torch.isfinite(wanted)
        same = output == wanted
        deviation = deviation.where(finite & ~same, 0)
        magnitude = magnitude.where(finite, 0)
        worst, largest, excess = _largest_of(deviation, magnitude, deviation / bound)
        if excess <= 1 and not (finite | same).all():
            return Exactness(subject=name, reason="what it is compared with is not finite")
    error = None
    if worst or largest:
        error = worst / largest if largest else math.inf
    return Exactness(subject=name, error=error, excess=excess)


def _largest_of(*parts: Tensor) -> list[float]:
    """Return the largest value of each, infinity for what is no number."""
    found = torch.stack([part.amax().double() for part in parts])
    return found.nan_to_num(math.inf, math.inf).tolist()


def _widened(tensor: Tensor, wide: torch.dtype = torch.float64) -> Tensor:
    """Return a tensor's numbers in a wide type, or its complex one; whole numbers as they are."""
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        return tensor.to(wide.to_complex()).contiguous()
    return tensor.to(wide).contiguous() if tensor.is_floating_point() else tensor


def is_transformed(network: Network, *, tf32: bool) -> bool:
    """Say whether a pass is another one than a plain pass of the network."""
    axes = network.point.axes
    changed = axes["memory_format"] == "nhwc" or axes.get("launch") == "graph" or tf32
    return network.learns or changed or parts.is_compiled_in_part(network.model)


def of_pass(network: Network, times: Times, *, tf32: bool) -> list[Exactness]:
    """Compare the pass as it was timed with plain ones; leave the network with plain layers.

    The code of a network may raise anything: then there is one verdict, which says so.
    """
    try:
        return _against_plain_passes(network, times, tf32=tf32)
    except Exception as error:  # noqa: BLE001
        return [Exactness(subject=_OUTPUT, reason=why_not(error))]


def _against_plain_passes(network: Network, times: Times, *, tf32: bool) -> list[Exactness]:
    axes = network.point.axes
    dtype = model_builder.AUTOCAST.get(axes.get("amp", ""), getattr(torch, axes["dtype"]))
    sums = min(unit(dtype), unit(torch.float32))
    rounds = 2 * unit(dtype) + _SUM * sums + (_TF32 if tf32 else 0.0)
    # devices may take subnormal numbers of float32 for zero, but not those of float16
    step = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    floor = _SUM * max(step, torch.finfo(torch.float32).tiny)

    plain_runs = _PlainRuns(network)
    with model_builder.seeded(network.point):
        timed = plain_runs.answers(lambda: network.output(times))
    swap.restore(network.model)
    plain = plain_runs.run()
    nudged = list[_Answers]()
    found = list[Exactness]()
    for number in range(1, 1 + _TRIES):
        nudged.append(plain_runs.run(rounds, number))
        found = _judged(timed, plain, nudged, rounds, floor)
        if not any(map(is_wrong, found)):
            break
        if plain_runs.draws:  # then in another order, or by another generator
            return [Exactness(subject=_OUTPUT, reason="a pass draws random numbers")]
    return found


class _PlainRuns:
    """Runs a network plainly, with the numbers that its tensors had when this was made."""

    def __init__(self, network: Network) -> None:
        self._point = network.point
        self._model = network.model
        self.draws = False  # whether a pass drew random numbers
        self._learning = dict[str, nn.Parameter]()
        if network.learns:
            for name, parameter in network.model.named_parameters():
                if parameter.requires_grad:
                    self._learning[name] = parameter
        (self._image,) = model_builder.make_inputs(network.point, network.rig.device.torch_device)
        with torch.no_grad():
            self._parameters = _copies(network.model.parameters())
            self._buffers = _copies(network.model.buffers())

    def run(self, nudge: float = 0.0, number: int = 0) -> _Answers:
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
                with OperatorWatch(self._look):
                    return self._model(image)

            return self.answers(run)

    def _look(self, operator: Any) -> None:  # noqa: ANN401
        # attention that drops some has other operators for it
        if torch.Tag.nondeterministic_seeded in operator.tags and "attention" not in str(operator):
            self.draws = True

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
        before = [(tensor, tensor.data) for tensor in (*self._parameters, *self._buffers)]
        with torch.no_grad():
            for tensor, numbers in self._parameters.items():
                tensor.data = changed_a_little(numbers, nudge)
            for tensor, numbers in self._buffers.items():
                tensor.data = numbers.clone()
        try:
            yield
        finally:
            for tensor, data in before:
                tensor.data = data


def _copies(held: Iterable[Tensor]) -> dict[Tensor, Tensor]:
    """Return contiguous copies."""
    return {tensor: tensor.clone(memory_format=torch.contiguous_format) for tensor in held}


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
    return _widened(tensor.detach().cpu()).clone()


def _judged(
    timed: _Answers, plain: _Answers, nudged: list[_Answers], rounds: float, floor: float
) -> list[Exactness]:
    """Compare a pass with a plain one; the nudged ones say what rounding may do."""
    sizes = _sizes(plain)
    for answers in nudged:
        if _sizes(answers) != sizes:
            return [Exactness(subject=_OUTPUT, reason=_UNSTEADY)]
    if _sizes(timed) != sizes:
        reason = f"{_sizes(timed)} are the sizes, of a plain pass {sizes}"
        return [Exactness(subject=_OUTPUT, error=math.inf, excess=math.inf, reason=reason)]
    # numbers that are chosen by values, such as indices, say little
    inexact = {name: t for name, t in plain.items() if t.is_floating_point() or t.is_complex()}
    # Some gradients are zero but for rounding, such as that of a bias before a batch norm: so the
    # largest of a module says what is much.
    much = dict[str, float]()
    for name, wanted in inexact.items():
        much[_owner(name)] = max(much.get(_owner(name), 0.0), _largest(wanted))
    found = []
    for name, wanted in inexact.items():
        largest = much[_owner(name)]
        change = max(_largest(answers.get(name, wanted) - wanted) for answers in nudged)
        bound = _MARGIN * (change + rounds * largest) + floor
        if bound > max(_LOST * largest, 2 * floor):
            found.append(Exactness(subject=name, reason=_UNSTEADY))
        else:
            own = timed.get(name, torch.zeros_like(wanted))
            found.append(_compared(name, own, wanted, bound))
    return found or [Exactness(subject=_OUTPUT, reason="it has no numbers to compare")]


def _sizes(answers: _Answers) -> list[tuple[int, ...]]:
    return [tuple(t.shape) for name, t in answers.items() if name.startswith(_OUTPUT)]


def _owner(name: str) -> str:
    """Return the module of a gradient, or the output itself."""
    return name.rpartition(".")[0] or name


def _largest(tensor: Tensor) -> float:
    return tensor.abs().nan_to_num(0, 0).amax().item() if tensor.numel() else 0.0
