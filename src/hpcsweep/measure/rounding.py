"""Bounds by rounding on the error of a convolution call, whatever network it is in.

An output value y is a sum of K products of filter weights and inputs. Its error is at most::

    2 u_out (|y| + |bias|)  +  (u_sum (sqrt(K) + 6 g) + 6 u_in) N,    N = |w| |x| + |bias|

N is the product of the 2-norms of the filter and of the largest patch of the image, which bounds
every partial sum of the products. The unit roundoffs u are those of the stored output, of the
additions, and of the operands where they are rounded first (TF32: 2^-11; autocast). Reduced types
add in float32. That rounding errors of a sum grow as sqrt(K) u is the probabilistic bound of Higham
and Mary (SIAM J. Sci. Comput. 41, 2019, and 42, 2020); 6 standard deviations are exceeded by none
of 10^8 values.

g is the growth of the algorithm: 1 for a plain sum. An FFT of S samples has log2 S (Higham,
Accuracy and Stability of Numerical Algorithms, chapter 24). Winograd has the largest over outputs i
of sum_p A_ip^2 |G_p|^2 |B_p|^2 / taps, with the matrices of its transforms: the norms of Barabasz
et al. (ACM Trans. Math. Softw. 46, 2020) for rounding errors that are independent of each other. On
GPUs what is transformed may be stored, so u_sum is that of the stored type; and where the framework
or a heuristic chooses, the largest g of all algorithms counts.
"""

from __future__ import annotations

import logging
import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from hpcsweep.catalog import algorithms
from hpcsweep.conv.choice import LayerChoice
from hpcsweep.conv.shape import ConvShape, padding_of
from hpcsweep.errors import first_line
from hpcsweep.measure import switches
from hpcsweep.measure.bench_api import is_out_of_memory

_log = logging.getLogger(__name__)

_SIGMAS: Final = 6.0  # of a sum's error; see above
TF32: Final = 2.0**-11  # the unit roundoff of operands
_PLAIN: Final = algorithms.adding(algorithms.PLAIN)
_FFTS: Final = algorithms.adding(algorithms.FFT)
_WINOGRADS: Final = algorithms.adding(algorithms.WINOGRAD)
# g of Winograd by taps, of the reference's tile of 2 x 2 outputs
_SMALL_TILE: Final = {3: 5 / 3, 5: 70 / 9}
# g of the largest tile that libraries for GPUs have: 6 x 6 outputs of 3 x 3 taps, with the points
# 0, 1, -1, 2, -2, 1/2, -1/2. Their tile for 5 x 5 taps has 29.754, an FFT of a whole image less.
_LARGEST: Final = 46.257


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


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """The unit roundoffs of a call, and the growth of its algorithm."""

    stored: float
    sums: float
    operands: float
    growth: float

    @classmethod
    def of(cls, choice: LayerChoice, device: str, *, tf32: bool, casts: bool) -> Arithmetic:
        """Return the roundoffs of a call; `casts`: its operands are rounded to the type first."""
        dtype = choice.shape.dtype
        stored = unit(getattr(torch, dtype))
        sums = min(stored, unit(torch.float32))
        growth = _growth(choice.used, choice.shape, on_gpu=device != "cpu")
        if device != "cpu" and growth > 1:
            sums = stored
        reduced = TF32 if tf32 and device == "cuda" and dtype == "float32" else 0.0
        operands = max(reduced, stored if casts else 0.0)
        return cls(stored=stored, sums=sums, operands=operands, growth=growth)


def unit(dtype: torch.dtype) -> float:
    """Return the unit roundoff of a type."""
    return torch.finfo(dtype).eps / 2


def _growth(used: str, shape: ConvShape, *, on_gpu: bool) -> float:
    """Return g; if a GPU's library chooses or transforms, that of the worst algorithm."""
    if on_gpu:
        plain = used in _PLAIN or {*shape.stride, *shape.dilation} != {1}
        return 1.0 if plain else _LARGEST
    if used in _FFTS:
        return math.log2(4 * shape.in_h * shape.in_w)
    return _SMALL_TILE.get(shape.kernel_h, 1.0) if used in _WINOGRADS else 1.0


def of_call(
    layer: nn.Conv2d,
    x: Tensor,
    output: Tensor,
    how: Arithmetic,
    wide: torch.dtype = torch.float64,
) -> Exactness:
    """Compare a plain convolution's output with the framework's in a wide type, value by value."""
    if x.dim() == 3:
        x = x[None]
        output = output[None]
    x = widened(x, wide)
    y = widened(output, wide)
    weight = widened(layer.weight, wide)
    bias = weight.new_zeros(len(weight)) if layer.bias is None else widened(layer.bias, wide)
    padding = padding_of(layer)
    if any(padding):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x = F.pad(x, padding, mode=mode)
    # On a GPU, trials in float64 take longer than they save, and TF32 is no reference.
    with switches.plainly() if x.is_cuda else nullcontext():
        wanted = F.conv2d(x, weight, bias, layer.stride, 0, layer.dilation, layer.groups)
    terms = weight[0].numel()
    # in float64, since squares of small numbers vanish in float32
    lengths = weight.flatten(1).abs().double().norm(dim=1).view(layer.groups, -1)
    most = (_patch_norms(layer, x)[:, :, None] * lengths).flatten(1) + bias.abs()
    relative = how.sums * (math.sqrt(terms) + _SIGMAS * how.growth) + _SIGMAS * how.operands
    # what it is compared with is rounded, too, on a GPU as its library likes
    growth = _LARGEST if x.is_cuda else 1.0
    relative += unit(wide) * (math.sqrt(terms) + _SIGMAS * growth)
    rounded = relative * most + 2 * how.stored * bias.abs()
    # near zero: a step of the stored type, and products that underflow
    stored = torch.finfo(output.dtype)
    smallest = min(torch.finfo(torch.float32).tiny, stored.tiny)
    rounded += stored.tiny * stored.eps + 2 * terms * smallest
    bound = y.abs().mul_(2 * how.stored).add_(rounded[:, :, None, None])
    return compared("", y, wanted, bound)


def severity(verdict: Exactness) -> tuple[bool, bool, float]:
    """Return a sort key: the worst comparison has the largest; one that was not made follows."""
    return is_wrong(verdict), is_partial(verdict), verdict.excess or 0.0


def _patch_norms(layer: nn.Conv2d, padded: Tensor) -> Tensor:
    """Return the 2-norm of the largest patch of each image and group of channels."""
    sizes = padded.abs()
    largest = sizes.amax((1, 2, 3), keepdim=True).clamp(min=torch.finfo(sizes.dtype).tiny)
    squares = sizes.div_(largest).float().square_()  # float32 is enough, and quick everywhere
    ones = squares.new_ones(layer.groups, padded.shape[1] // layer.groups, *layer.kernel_size)
    sums = F.conv2d(squares, ones, None, layer.stride, 0, layer.dilation, layer.groups)
    norms = sums.amax((2, 3)).sqrt() * largest.double().flatten(1)
    return norms.nan_to_num(math.inf)  # of an image that is not finite nothing is known


def compared(name: str, output: Tensor, wanted: Tensor, bound: Tensor | float) -> Exactness:
    """Compare values by their bounds; equal infinities agree, zeros have no relative error."""
    if not wanted.numel():
        return Exactness(subject=name, excess=0.0)
    deviation = (output - wanted).abs()
    magnitude = wanted.abs()
    unknown = False
    if not deviation.amax().isfinite():
        finite = torch.isfinite(wanted)
        same = output == wanted
        unknown = not (finite | same).all()
        deviation = deviation.where(finite & ~same, 0)
        magnitude = magnitude.where(finite, 0)
    found = [part.amax().double() for part in (deviation, magnitude, deviation / bound)]
    worst, largest, excess = torch.stack(found).nan_to_num(math.inf, math.inf).tolist()
    error = worst / largest if largest else (math.inf if worst else None)
    if excess <= 1 and unknown:
        return Exactness(subject=name, reason="what it is compared with is not finite")
    return Exactness(subject=name, error=error, excess=excess)


def widened(tensor: Tensor, wide: torch.dtype = torch.float64) -> Tensor:
    """Return a tensor's numbers in a wide type, or its complex one; whole numbers as they are."""
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
    if tensor.is_complex():
        return tensor.to(wide.to_complex()).contiguous()
    return tensor.to(wide).contiguous() if tensor.is_floating_point() else tensor
