"""An algorithm that is thrown away: added as CONTRIBUTING says, by a class, a name and a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcsweep import catalog
from hpcsweep.conv.backend import CONVOLUTIONS, PRODUCTS, Expected
from hpcsweep.conv.reference import FAMILIES
from hpcsweep.conv.reference.family import OperatorFamily, needs_unit_steps, pad_fully

if TYPE_CHECKING:
    import torch

    from hpcsweep.conv.shape import ConvShape


class Loops(OperatorFamily):
    """Multiplies and adds, one filter tap after the other."""

    def convolve(self, x: torch.Tensor, weight: torch.Tensor, shape: ConvShape) -> torch.Tensor:
        """Sum the products of shifted images and filter taps; groups, stride and dilation are 1."""
        x = pad_fully(x, shape)
        out = x.new_zeros(shape.output_size)
        for i in range(shape.kernel_h):
            for j in range(shape.kernel_w):
                image = x[:, None, :, i : i + shape.out_h, j : j + shape.out_w]
                out = out + (image * weight[None, :, :, i, j, None, None]).sum(2)
        return out

    def unsupported(self, shape: ConvShape, device_type: str) -> str | None:
        """Refuse groups, strides and dilations."""
        return "groups" if shape.groups > 1 else needs_unit_steps(shape, "a loop")

    def expected(self, shape: ConvShape) -> Expected:
        """Want products and sums by element."""
        never = (*CONVOLUTIONS, *PRODUCTS)
        return Expected(must=(("aten::mul",), ("aten::sum",)), must_not=never)

    def gradient(self) -> Expected:
        """Want the same of both."""
        return Expected(must=(("aten::mul",),), must_not=(*CONVOLUTIONS, *PRODUCTS))


ROW = catalog.Algorithm(name="loops", doc="one filter tap after the other", place=11)


def add() -> None:
    """Add it for the rest of this process, before anything is made of the catalogue."""
    catalog.ALGORITHMS["loops"] = ROW  # type: ignore[index]
    FAMILIES["loops"] = Loops()  # type: ignore[index]
