"""The reference back-end: every algorithm of the taxonomy as PyTorch operators, for any device.

With it any sweep runs on any device that torch knows, and the named algorithm is really that
algorithm. The libraries' results are compared with it. Rows say `backend=reference`: its times are
those of the algorithm in PyTorch operators, not those of cuDNN.

The families work in NCHW; a channels-last input costs two conversions, within the call, and gives
a channels-last output. Direct convolution is oneDNN's, which torch asks for it: on CPUs only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from hpcsweep import catalog
from hpcsweep.conv.backend import (
    FRAMEWORK_BACKWARD,
    FRAMEWORK_FORWARD,
    ONEDNN,
    REFERENCE,
    Convolve,
    Direction,
    Expected,
    Gradient,
    Operation,
    UnknownAlgorithm,
)
from hpcsweep.conv.reference import fft, gemm, winograd
from hpcsweep.conv.reference.family import OperatorFamily
from hpcsweep.conv.shape import ConvShape


class Direct(OperatorFamily):
    """oneDNN's operator; oneDNN may take an im2col GEMM instead, which its own report tells."""

    def unsupported(self, shape: ConvShape, device_type: str) -> str | None:
        """Return why oneDNN cannot run here, or None."""
        if device_type != "cpu":
            return f"oneDNN does not run on {device_type}"
        if not torch.backends.mkldnn.is_available():
            return "this torch build has no oneDNN"
        if shape.dtype == "float64":
            return "oneDNN has no float64"
        known = torch.ops.mkldnn
        if shape.dtype == "bfloat16" and not known._is_mkldnn_bf16_supported():  # noqa: SLF001
            return "this CPU has no bfloat16 for oneDNN"
        if shape.dtype == "float16" and not known._is_mkldnn_fp16_supported():  # noqa: SLF001
            return "this CPU has no float16 for oneDNN"
        return None

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None, shape: ConvShape) -> Tensor:
        """Call the operator; it adds the bias and keeps the layout."""
        geometry = (shape.padding, shape.stride, shape.dilation, shape.groups)
        return torch.ops.aten.mkldnn_convolution(x, weight, bias, *geometry)

    def expected(self, shape: ConvShape) -> Expected:  # noqa: ARG002 - the same for all
        """Want the operator alone, and oneDNN's report that it was direct."""
        work = {Operation(ONEDNN)}
        return Expected(work=work, must_not=FRAMEWORK_FORWARD, onednn_direct=True)

    def gradient(self) -> Expected:
        """Want the framework's backward, which hands convolutions to oneDNN."""
        return Expected(work={Operation(FRAMEWORK_BACKWARD)}, onednn_direct=True)


FAMILIES: Final[Mapping[str, OperatorFamily]] = {
    "gemm": gemm.Gemm(),
    "implicit_gemm": gemm.ImplicitGemm(),
    "implicit_precomp_gemm": gemm.PrecomputedGemm(),
    "direct": Direct(),
    "fft": fft.Fft(),
    "fft_tiling": fft.TiledFft(),
    "winograd": winograd.Winograd(),
    "winograd_nonfused": winograd.NonfusedWinograd(),
}


@dataclass
class Reference:
    """The back-end of one device type; what its algorithms take for themselves has no limit."""

    device_type: str = "cpu"
    most_workspace: float = math.inf
    name: str = REFERENCE  # what the column `backend` says

    def unsupported(self, algorithm: str, shape: ConvShape) -> str | None:
        """Return None if the algorithm can do the shape, else the reason."""
        if min(shape.n, shape.in_c, shape.out_h, shape.out_w) < 1:
            return "nothing to compute"
        if shape.dtype not in catalog.DTYPES:
            return f"{shape.dtype} is no type of {', '.join(catalog.DTYPES)}"
        if algorithm == catalog.HEURISTIC or catalog.is_plan(algorithm):
            return f"{algorithm}: there are no plans of cuDNN or MIOpen on {self.device_type}"
        return _family(algorithm).unsupported(shape, self.device_type)

    def forward(
        self, algorithm: str, x: Tensor, weight: Tensor, bias: Tensor | None, shape: ConvShape
    ) -> Tensor:
        """Convolve; autograd goes through the operators."""
        return _family(algorithm).forward(x, weight, bias, shape)

    def prepared(self, algorithm: str, shape: ConvShape) -> Convolve:
        """Return `forward`: an algorithm of operators has nothing to look up."""
        return lambda x, weight, bias: self.forward(algorithm, x, weight, bias, shape)

    def expected(self, algorithm: str, shape: ConvShape) -> Expected:
        """Return the operators that prove the algorithm."""
        return _family(algorithm).expected(shape)

    def gradients(self, algorithm: str, shape: ConvShape) -> tuple[Gradient, ...]:  # noqa: ARG002
        """Return what autograd makes of the algorithm's operators."""
        expected = _family(algorithm).gradient()
        ways = (Direction.DATA, Direction.FILTER)
        return tuple(Gradient(way, algorithm, expected) for way in ways)

    def plans(self, shape: ConvShape, most: int) -> list[str]:
        """Return the algorithms that can do the shape: they stand in for a library's plans."""
        names = [name for name in FAMILIES if self.unsupported(name, shape) is None]
        return names[:most]

    def about(self, algorithm: str, shape: ConvShape) -> tuple[None, None, None]:  # noqa: ARG002
        """Return nothing: what operators take for themselves is not known, and none has a plan."""
        return None, None, None


def create(device_type: str) -> Reference:
    """Return the back-end of a device type."""
    return Reference(device_type)


def _family(algorithm: str) -> OperatorFamily:
    if algorithm not in FAMILIES:
        raise UnknownAlgorithm(algorithm)
    return FAMILIES[algorithm]
