"""The reference back-end: every algorithm of the taxonomy as PyTorch operators.

It lets any sweep run end to end on any device that torch knows, with the named algorithm really
being that algorithm, and is what the libraries' results are checked against. Rows say
`backend=reference`: its times tell how the families behave here, not what cuDNN would do.

Numbers: float32 and float64 are computed in their own precision. Of the reduced ones, bfloat16
(and float16 off the CPU) stays as it is where one product sums everything, since GEMMs accumulate
in float32; where a family adds up or transforms by itself, and for float16 on CPUs, whose GEMM is
tens of times slower than float32, operands are widened to float32 and the result is rounded once.

Layout: the families work in NCHW; a channels-last input costs two conversions, within the call,
and gives a channels-last output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from hpcsweep import catalog
from hpcsweep.conv.backend import REFERENCE, Expected, Gradient
from hpcsweep.conv.errors import UnknownAlgorithm
from hpcsweep.conv.reference import fft, gemm, winograd
from hpcsweep.conv.shape import NHWC, layout_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpcsweep.conv.shape import ConvShape

DIRECT: Final = "direct"
ONEDNN: Final = "aten::mkldnn_convolution"
ONEDNN_BACKWARD: Final = "aten::convolution_backward"
_REDUCED: Final = (torch.float16, torch.bfloat16)


def _anything(_: ConvShape) -> None:
    """Refuse nothing."""
    return


@dataclass(frozen=True)
class Family:
    """One algorithm: how it runs, what it refuses, its scratch memory, its traces.

    `one_sum` says that a single matrix product does all additions of an output value.
    """

    forward: Callable[[torch.Tensor, torch.Tensor, ConvShape], torch.Tensor]
    workspace: Callable[[ConvShape], int]
    expected: Callable[[ConvShape], Expected]
    gradients: Callable[[ConvShape], dict[str, Expected]]
    unsupported: Callable[[ConvShape], str | None] = _anything
    one_sum: bool = False


FAMILIES: Final[Mapping[str, Family]] = {
    "gemm": Family(
        gemm.gemm,
        gemm.gemm_workspace,
        gemm.gemm_expected,
        gemm.gemm_gradients,
        one_sum=True,
    ),
    "implicit_gemm": Family(
        gemm.implicit_gemm,
        gemm.implicit_workspace,
        gemm.implicit_expected,
        gemm.implicit_gradients,
    ),
    "implicit_precomp_gemm": Family(
        gemm.precomp_gemm,
        gemm.precomp_workspace,
        gemm.precomp_expected,
        gemm.precomp_gradients,
        one_sum=True,
    ),
    "fft": Family(
        fft.fft,
        fft.fft_workspace,
        fft.expected,
        fft.gradients,
        fft.unsupported,
    ),
    "fft_tiling": Family(
        fft.fft_tiling,
        fft.tiling_workspace,
        fft.expected,
        fft.gradients,
        fft.unsupported,
    ),
    "winograd": Family(
        winograd.winograd,
        winograd.workspace,
        winograd.expected,
        winograd.gradients,
        winograd.unsupported,
    ),
    "winograd_nonfused": Family(
        winograd.nonfused,
        winograd.nonfused_workspace,
        winograd.nonfused_expected,
        winograd.gradients,
        winograd.nonfused_unsupported,
    ),
}


@dataclass(frozen=True)
class Reference:
    """The back-end of one device type; it holds nothing else, so models that use it pickle."""

    device_type: str = "cpu"

    @property
    def name(self) -> str:
        """Return what the column `backend` says."""
        return REFERENCE

    def unsupported(self, algorithm: str, shape: ConvShape) -> str | None:
        """Return None if the algorithm can do the shape, else the reason."""
        if min(shape.n, shape.in_c, shape.out_h, shape.out_w) < 1:
            return "nothing to compute"
        if shape.dtype not in catalog.DTYPES:
            return f"{shape.dtype} is no type of {', '.join(catalog.DTYPES)}"
        if algorithm == DIRECT:
            return _no_onednn(self.device_type, shape.dtype)
        return _family(algorithm).unsupported(shape)

    def workspace_bytes(self, algorithm: str, shape: ConvShape) -> int | None:
        """Return the bytes of what the algorithm itself keeps; oneDNN's own is unknown."""
        return None if algorithm == DIRECT else _family(algorithm).workspace(shape)

    def forward(
        self,
        algorithm: str,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        shape: ConvShape,
    ) -> torch.Tensor:
        """Convolve; autograd goes through the operators."""
        if algorithm == DIRECT:
            return _direct(x, weight, bias, shape)
        family = _family(algorithm)
        dtype = _working_dtype(x, one_sum=family.one_sum)
        out = family.forward(x.to(dtype), weight.to(dtype), shape)
        if bias is not None:
            out = out + bias.to(dtype).view(-1, 1, 1)
        return out.to(x.dtype).contiguous(memory_format=_layout(x, weight))

    def expected(self, algorithm: str, shape: ConvShape) -> Expected:
        """Return the operators that prove the algorithm."""
        if algorithm == DIRECT:
            return Expected(must=((ONEDNN,),))
        return _family(algorithm).expected(shape)

    def gradients(self, algorithm: str, shape: ConvShape) -> tuple[Gradient, ...]:
        """Return what autograd makes of the algorithm's operators."""
        if algorithm == DIRECT:
            backward = Expected(must=((ONEDNN_BACKWARD,),))
            return Gradient("data", DIRECT, backward), Gradient("filter", DIRECT, backward)
        expected = _family(algorithm).gradients(shape)
        return tuple(Gradient(way, algorithm, of_way) for way, of_way in expected.items())


def create(device_type: str) -> Reference:
    """Return the back-end of a device type."""
    return Reference(device_type)


def _family(algorithm: str) -> Family:
    if algorithm not in FAMILIES:
        raise UnknownAlgorithm(algorithm)
    return FAMILIES[algorithm]


def _direct(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: ConvShape
) -> torch.Tensor:
    """Run oneDNN, which torch asks for its direct algorithm."""
    return torch.ops.aten.mkldnn_convolution(
        x,
        weight,
        bias,
        (shape.pad_h, shape.pad_w),
        (shape.stride_h, shape.stride_w),
        (shape.dilation_h, shape.dilation_w),
        shape.groups,
    )


def _no_onednn(device_type: str, dtype: str) -> str | None:
    """Return why oneDNN cannot run here, or None."""
    if device_type != "cpu":
        return f"oneDNN does not run on {device_type}"
    if not torch.backends.mkldnn.is_available():
        return "this torch build has no oneDNN"
    if dtype == "float64":
        return "oneDNN has no float64"
    if dtype == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():  # noqa: SLF001
        return "this CPU has no bfloat16 for oneDNN"
    if dtype == "float16" and not torch.ops.mkldnn._is_mkldnn_fp16_supported():  # noqa: SLF001
        return "this CPU has no float16 for oneDNN"
    return None


def _working_dtype(x: torch.Tensor, *, one_sum: bool) -> torch.dtype:
    if x.dtype not in _REDUCED:
        return x.dtype
    slow = x.dtype == torch.float16 and x.device.type == "cpu"
    return x.dtype if one_sum and not slow else torch.float32


def _layout(x: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Return the output's layout: channels last if an operand is, as in the framework."""
    return torch.channels_last if layout_of(x, weight) == NHWC else torch.contiguous_format
