"""Bounds by rounding on the error of a convolution call, whatever network it is in.

An output value y is a sum of K products of filter weights and inputs. Its error is at
most, for each value by itself::

    2 u_out (|y| + |bias|)  +  (u_sum (sqrt(K) + 6 g) + 6 u_in) N,    N = |w| |x| + |bias|

N is the product of the 2-norms of the filter and of the patch that it meets, which bounds every
partial sum of the products. The unit roundoffs u are those of the stored output, of the additions,
and of the operands where they are rounded first (TF32: 2^-11; autocast). Reduced types add in
float32. That rounding errors of a sum grow as sqrt(K) u is the probabilistic bound of Higham and
Mary (SIAM J. Sci. Comput. 41, 2019, and 42, 2020); 6 standard deviations are exceeded by none of
10^8 values.

g is the growth of the algorithm: 1 for a plain sum. An FFT of S samples has log2 S (Higham,
Accuracy and Stability of Numerical Algorithms, chapter 24). Winograd has the largest over outputs i
of sum_p A_ip^2 |G_p|^2 |B_p|^2 / taps, with the matrices of its transforms: the norms of Barabasz
et al. (ACM Trans. Math. Softw. 46, 2020) for rounding errors that are independent of each other.
Transforms spread errors, so N is the largest of the image; on GPUs, u_sum is that of the stored
type, since what is transformed may be stored. Where the framework or a heuristic chooses on a GPU,
the largest g of a shape counts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from hpcsweep.conv.choice import LayerChoice
from hpcsweep.conv.shape import ConvShape, padding_of
from hpcsweep.errors import first_line
from hpcsweep.measure import switches
from hpcsweep.measure.machine import framework

T = TypeVar("T")
_log = logging.getLogger(__name__)

_SIGMAS: Final = 6.0
TF32: Final = 2.0**-11  # the unit roundoff of operands
_PLAIN: Final = frozenset({"gemm", "implicit_gemm", "implicit_precomp_gemm", "direct"})
_FFTS: Final = frozenset({"fft", "fft_tiling"})
_WINOGRADS: Final = frozenset({"winograd", "winograd_nonfused"})
# g of Winograd by taps: of the reference's tile of 2 x 2 outputs, and of the largest tile that
# libraries for GPUs have (6 x 6 and 4 x 4, with the points 0, 1, -1, 2, -2, 1/2, -1/2)
_SMALL_TILE: Final = {3: 5 / 3, 5: 70 / 9}
_LARGE_TILE: Final = {3: 46.257, 5: 29.754}
_MIXED: Final = 4  # random sums of channels that stand for all of them


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


def if_it_fits(compare: Callable[[], T]) -> T | None:
    """Return what a function returns; None if there is no memory for it.

    By then the error's frames are gone, which hold tensors.
    """
    try:
        return compare()
    except (RuntimeError, MemoryError) as error:
        if not framework.is_out_of_memory(error):
            raise
    return None


def why_not(error: Exception, images: int) -> str:
    """Return what `Exactness.reason` says of a comparison of a batch that failed."""
    if framework.is_out_of_memory(error):
        return no_memory(images, images)
    _log.warning("not compared: %s", error)
    return f"not compared: {first_line(error)}"


def no_memory(images: int, of: int) -> str:
    """Return what `Exactness.reason` says."""
    return f"no memory to compare {images} of {of} images"


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """The unit roundoffs of a call, and the growth of its algorithm."""

    stored: float
    sums: float
    operands: float
    growth: float
    spreads: bool

    @classmethod
    def of(cls, choice: LayerChoice, device: str, *, tf32: bool, casts: bool) -> Arithmetic:
        """Return the roundoffs of a call; `casts`: its operands are rounded to the type first."""
        shape = choice.shape
        on_gpu = device != "cpu"
        stored = unit(getattr(torch, shape.dtype))
        transforms = choice.used in _FFTS | _WINOGRADS or (on_gpu and choice.used not in _PLAIN)
        reduced = TF32 if tf32 and device == "cuda" and shape.dtype == "float32" else 0.0
        return cls(
            stored=stored,
            sums=stored if on_gpu and transforms else min(stored, unit(torch.float32)),
            operands=max(reduced, stored if casts else 0.0),
            growth=_growth(choice.used, shape, on_gpu=on_gpu),
            spreads=transforms,
        )


def unit(dtype: torch.dtype) -> float:
    """Return the unit roundoff of a type."""
    return torch.finfo(dtype).eps / 2


def _growth(used: str, shape: ConvShape, *, on_gpu: bool) -> float:
    """Return g; if a GPU's library chooses, that of the worst algorithm for the shape."""
    growths = [1.0]
    unit_steps = {*shape.stride, *shape.dilation} == {1}
    anything = on_gpu and unit_steps and used not in _PLAIN | _FFTS | _WINOGRADS
    if anything or used in _FFTS:
        growths.append(math.log2(4 * shape.in_h * shape.in_w))
    if anything or used in _WINOGRADS:
        growths.append((_LARGE_TILE if on_gpu else _SMALL_TILE).get(shape.kernel_h, 1.0))
    return max(growths)


@switches.plainly()
def of_call(  # noqa: PLR0913 - a call, and how to judge it
    layer: nn.Conv2d,
    x: Tensor,
    output: Tensor,
    how: Arithmetic,
    *,
    whole: bool,
    wide: torch.dtype = torch.float64,
) -> Exactness:
    """Compare a plain convolution's output with the framework's in a wide type, value by value.

    Unless `whole`, random sums of output channels stand for all of them, which costs less: the sums
    of filters with the same signs must give them (Freivalds' check of a product).

    Where memory runs out, fewer images are compared at a time; then errors are relative to the
    largest value of these.
    """
    if x.dim() == 3:
        x = x[None]
        output = output[None]
    found = list[Exactness]()
    done = 0
    size = len(x)
    while done < len(x) and size:
        images = slice(done, done + size)
        compare = partial(_of_images, layer, x[images], output[images], how, whole=whole, wide=wide)
        verdict = if_it_fits(compare)
        if verdict is None:
            size //= 2
        else:
            found.append(verdict)
            done = min(len(x), done + size)
    worst = max(found, key=severity, default=Exactness(subject=""))
    return worst if done == len(x) else replace(worst, reason=no_memory(len(x) - done, len(x)))


def _of_images(  # noqa: PLR0913 - as above
    layer: nn.Conv2d,
    x: Tensor,
    output: Tensor,
    how: Arithmetic,
    *,
    whole: bool,
    wide: torch.dtype,
) -> Exactness:
    x = _padded(layer, widened(x, wide))
    y = widened(output, wide).flatten(2)
    weight = widened(layer.weight, wide)
    filters = weight.flatten(1)
    bias = filters.new_zeros(len(filters)) if layer.bias is None else widened(layer.bias, wide)
    groups = layer.groups
    terms = filters.shape[1]
    rounded = 2 * how.stored
    exactly = unit(wide)  # of what it is compared with
    # squares of small numbers vanish in float32
    lengths = widened(filters).norm(dim=1)
    squares = widened(x).abs().square()
    if whole or len(weight) <= _MIXED:
        norms = _patch_norms(layer, squares.unflatten(1, (groups, -1)).sum(2), how)
        most = lengths[:, None] * norms.repeat_interleave(len(weight) // groups, 1)
        size = y.abs()
        offset = bias.abs()[:, None]
    else:
        # standard deviations of a sum, no longer a strict limit
        rounded = 2 * rounded + _SIGMAS * exactly * math.sqrt(len(weight))
        of_channels = lengths.view(groups, -1).square().sum(1)
        of_channels = of_channels.repeat_interleave(weight.shape[1])
        most = _patch_norms(layer, (of_channels @ squares.flatten(2)).view_as(x[:, :1]), how)
        size = torch.linalg.vecdot(y, y, dim=1).real.sqrt()[:, None]
        offset = bias.norm()
        signs = _signs(len(weight), weight.device)
        y = signs.to(y) @ y
        signs = signs.to(weight)
        bias = signs @ bias
        signs = signs.view(len(signs), groups, -1)
        mixed = torch.einsum("mgo,gok->mgk", signs, filters.view(groups, -1, terms))
        weight = mixed.reshape(len(signs), -1, *layer.kernel_size)
        groups = 1
    # A vendor's library might take an algorithm that rounds more than sums do, and might have the
    # fault of the call; on a GPU the framework has operators of its own, too.
    with switches.plainly(**{"cudnn.enabled": wide == torch.float64}):
        wanted = F.conv2d(x, weight, bias, layer.stride, 0, layer.dilation, groups).flatten(2)
    most = most + offset  # of partial sums
    sums = how.sums * (math.sqrt(terms) + _SIGMAS * how.growth)
    sums += exactly * (math.sqrt(weight[0].numel()) + _SIGMAS)
    bound = rounded * (size + offset) + (sums + _SIGMAS * how.operands) * most
    # near zero: a step of the stored type, and products that underflow
    stored = torch.finfo(output.dtype)
    smallest = min(torch.finfo(torch.float32).tiny, stored.tiny)
    bound += stored.tiny * stored.eps + 2 * terms * smallest
    return compared("", y, wanted, bound)


def severity(verdict: Exactness) -> tuple[bool, bool, float]:
    """Return a sort key: the worst comparison has the largest; one that was not made follows."""
    return is_wrong(verdict), is_partial(verdict), verdict.excess or 0.0


@lru_cache(maxsize=100)
def _signs(channels: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(channels)
    drawn = torch.randint(2, (_MIXED, channels), generator=generator)
    return (2 * drawn - 1).to(device, torch.float64)


def _padded(layer: nn.Conv2d, x: Tensor) -> Tensor:
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(x, padding_of(layer), mode=mode)


def _patch_norms(layer: nn.Conv2d, squares: Tensor, how: Arithmetic) -> Tensor:
    """Return the 2-norms of the patches of output pixels, from the squares of padded images."""
    ones = squares.new_ones(1, 1, *layer.kernel_size)
    sums = F.conv2d(squares.flatten(0, 1)[:, None], ones, None, layer.stride, 0, layer.dilation)
    norms = sums.sqrt().view(*squares.shape[:2], -1)
    return norms.amax(2, keepdim=True).expand_as(norms) if how.spreads else norms


def compared(name: str, output: Tensor, wanted: Tensor, bound: Tensor | float) -> Exactness:
    """Compare values by their bounds; equal infinities agree, zeros have no relative error."""
    if not wanted.numel():
        return Exactness(subject=name, excess=0.0)
    finite = torch.isfinite(wanted)
    same = output == wanted
    deviation = torch.where(same | ~finite, 0, (output - wanted).abs())
    over = torch.where(deviation == 0, 0, deviation / bound).nan_to_num(math.inf, math.inf)
    magnitude = wanted.abs().where(finite, 0)
    incomparable = ~(finite | same)
    found = [part.amax().double() for part in (deviation, magnitude, over, incomparable)]
    worst, largest, excess, unknown = torch.stack(found).tolist()  # a GPU is waited for once
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
