"""The shape of one convolution call: everything that a library's choice of a kernel depends on.

Library calls cannot express asymmetric `padding="same"`, or a `padding_mode` other than zeros. The
layer then pads before the call, as the framework does, and the shape is that of the padded input,
with `pad_h = pad_w = 0`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn


Size = tuple[int, int, int, int]
Pair = tuple[int, int]  # down, then across
# the axis `memory_format` has the same names
NCHW: Final = "nchw"
NHWC: Final = "nhwc"


@dataclass(frozen=True)
class ConvShape:
    """A two-dimensional convolution: input `n, in_c, in_h, in_w`, filters and geometry.

    Sizes are elements; `dtype` is the name of the type that the call computes with (`float32`).
    `layout` is how tensors lie in memory. It does not count when shapes are compared, since a
    tensor whose sizes are 1 has both layouts.
    """

    n: int
    in_c: int
    in_h: int
    in_w: int
    out_c: int
    kernel_h: int
    kernel_w: int
    stride_h: int = 1
    stride_w: int = 1
    pad_h: int = 0
    pad_w: int = 0
    dilation_h: int = 1
    dilation_w: int = 1
    groups: int = 1
    bias: bool = False
    dtype: str = "float32"
    layout: str = field(default=NCHW, compare=False)

    @classmethod
    def of(
        cls, module: nn.Conv2d, x: torch.Tensor, layout: str | None = None, device: str = ""
    ) -> ConvShape:
        """Return the shape of calling `module` on `x`; a 3-dimensional `x` is a batch of one.

        The layout is that of `x` and the filters, and the type of device that of `x`, unless given.
        """
        n = x.shape[0] if x.dim() == 4 else 1
        in_c, in_h, in_w = x.shape[-3:]
        left, right, top, bottom = padding_of(module)
        if needs_explicit_padding(module):
            in_h += top + bottom
            in_w += left + right
            top = left = 0
        kernel_h, kernel_w = module.kernel_size
        stride_h, stride_w = _pair(module.stride)
        dilation_h, dilation_w = _pair(module.dilation)
        dtype = compute_dtype(x, device)
        if layout is None:
            layout = layout_of(x, *module.parameters())  # filters may be computed of them
        return cls(
            n=n,
            in_c=in_c,
            in_h=in_h,
            in_w=in_w,
            out_c=module.out_channels,
            kernel_h=kernel_h,
            kernel_w=kernel_w,
            stride_h=stride_h,
            stride_w=stride_w,
            pad_h=top,
            pad_w=left,
            dilation_h=dilation_h,
            dilation_w=dilation_w,
            groups=module.groups,
            bias=module.bias is not None,
            dtype=str(dtype).removeprefix("torch."),
            layout=layout,
        )

    @property
    def input_size(self) -> Size:
        return self.n, self.in_c, self.in_h, self.in_w

    @property
    def filter_size(self) -> Size:
        """Sizes of the filters: output channels, channels of a group, height, width."""
        return self.out_c, self.group_in, self.kernel_h, self.kernel_w

    @property
    def output_size(self) -> Size:
        return self.n, self.out_c, self.out_h, self.out_w

    @property
    def stride(self) -> Pair:
        """Down, then across; the next two as well."""
        return self.stride_h, self.stride_w

    @property
    def padding(self) -> Pair:
        return self.pad_h, self.pad_w

    @property
    def dilation(self) -> Pair:
        return self.dilation_h, self.dilation_w

    @property
    def out_h(self) -> int:
        return _out(self.in_h, self.kernel_h, self.stride_h, self.pad_h, self.dilation_h)

    @property
    def out_w(self) -> int:
        return _out(self.in_w, self.kernel_w, self.stride_w, self.pad_w, self.dilation_w)

    @property
    def group_in(self) -> int:
        return self.in_c // self.groups

    @property
    def group_out(self) -> int:
        return self.out_c // self.groups

    @property
    def taps(self) -> int:
        return self.kernel_h * self.kernel_w

    @property
    def pixels(self) -> int:
        """Output pixels of one image."""
        return self.out_h * self.out_w

    @property
    def flops(self) -> int:
        """Floating-point operations by definition, without the bias; an algorithm may need fewer.

        They are 2 for each multiply-add.
        """
        return 2 * self.n * self.out_c * self.pixels * self.group_in * self.taps

    @property
    def itemsize(self) -> int:
        return {"float64": 8, "float32": 4, "int8": 1}.get(self.dtype, 2)

    @property
    def unique_key(self) -> str:
        """Readable, stable text of all fields: equal keys are equal work.

        It has no spaces and no characters with a meaning in shell patterns, so that
        ``conv2d_*_3x3_s1x1_*`` selects shapes in a map of algorithms.
        """
        return (
            f"conv2d_n{self.n}_c{self.in_c}_{self.in_h}x{self.in_w}"
            f"_k{self.out_c}_{self.kernel_h}x{self.kernel_w}_s{self.stride_h}x{self.stride_w}"
            f"_p{self.pad_h}x{self.pad_w}_d{self.dilation_h}x{self.dilation_w}_g{self.groups}"
            f"_{'bias' if self.bias else 'nobias'}_{self.dtype}"
            f"{'_nhwc' if self.layout == NHWC else ''}"
        )


def layout_of(*operands: torch.Tensor) -> str:
    """Return the layout of the framework's output: NHWC if an operand is NHWC and not NCHW."""
    import torch  # noqa: PLC0415 - who has a tensor has torch

    for operand in operands:
        is_nchw = operand.dim() != 4 or operand.is_contiguous()
        if not is_nchw and operand.is_contiguous(memory_format=torch.channels_last):
            return NHWC
    return NCHW


def transformed(module: nn.Conv2d, x: torch.Tensor) -> bool:
    """Say whether `vmap` or `grad` of torch.func has the input or the filters of a call.

    Such a tensor has no memory of its own, and may have no layout and hide a dimension.
    """
    import torch  # noqa: PLC0415 - who has a tensor has torch

    wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # noqa: SLF001 - no other name
    weight = module._parameters.get("weight")  # noqa: SLF001 - the attribute may be computed
    return wrapped(x) or (weight is not None and wrapped(weight))


def padding_of(module: nn.Conv2d) -> tuple[int, int, int, int]:
    """Return the padding of a layer as (left, right, top, bottom); `same` may be asymmetric."""
    if module.padding == "valid":
        return 0, 0, 0, 0
    if module.padding == "same":
        dilation_h, dilation_w = _pair(module.dilation)
        across = dilation_w * (module.kernel_size[1] - 1)
        down = dilation_h * (module.kernel_size[0] - 1)
        return across // 2, across - across // 2, down // 2, down - down // 2
    pad_h, pad_w = _pair(module.padding)
    return pad_w, pad_w, pad_h, pad_h


def _pair(setting: Sequence[int] | int) -> Pair:
    """Return a setting down and across; a network may have written one number for both."""
    down, across = (setting, setting) if isinstance(setting, int) else setting
    return down, across


def needs_explicit_padding(module: nn.Conv2d) -> bool:
    """Say whether the layer must pad before the call, which cannot express the padding."""
    left, right, top, bottom = padding_of(module)
    return module.padding_mode != "zeros" or left != right or top != bottom


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """Return the type to which autocast lowers operands on a kind of device; None: it is off."""
    import torch  # noqa: PLC0415 - who runs a layer has torch

    on = torch.is_autocast_enabled(device_type)
    return torch.get_autocast_dtype(device_type) if on else None


def compute_dtype(x: torch.Tensor, device: str = "") -> torch.dtype:
    """Return the type that a convolution of `x` computes with: autocast may lower it.

    A tensor on the meta device stands for one on a device of the given type.
    """
    import torch  # noqa: PLC0415 - who has a tensor has torch; the shape alone needs none

    lowered = None if x.dtype == torch.float64 else autocast_dtype(device or x.device.type)
    return lowered or x.dtype


def _out(size: int, kernel: int, stride: int, pad: int, dilation: int) -> int:
    return (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
