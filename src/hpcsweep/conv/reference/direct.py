"""Direct convolution: oneDNN, which torch asks for its direct algorithm. CPUs only."""

from __future__ import annotations

import torch
from torch import Tensor

from hpcsweep.conv.backend import Expected, Way
from hpcsweep.conv.operators import FRAMEWORK_BACKWARD, ONEDNN, Operation
from hpcsweep.conv.reference.family import Family
from hpcsweep.conv.shape import ConvShape


class Direct(Family):
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
        return Expected(work={Operation(ONEDNN): 1}, onednn_direct=True)

    def gradients(self, shape: ConvShape) -> dict[Way, Expected]:  # noqa: ARG002 - the same for all
        """Want the framework's backward, which hands convolutions to oneDNN."""
        backward = Expected(work={}, shared={Operation(FRAMEWORK_BACKWARD): 1}, onednn_direct=True)
        return {Way.DATA: backward, Way.FILTER: backward}
