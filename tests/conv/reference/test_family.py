"""What an algorithm of the reference back-end is made of, tried with one that is thrown away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from hpcsweep import catalog
from hpcsweep.conv import swap
from hpcsweep.conv.backend import Expected, Way
from hpcsweep.conv.operators import CONVOLUTIONS, PRODUCTS
from hpcsweep.conv.proof import backward_pass, forward_pass
from hpcsweep.conv.reference.backend import FAMILIES
from hpcsweep.conv.reference.family import OperatorFamily, needs_unit_steps
from hpcsweep.conv.reference.windows import pad_fully
from hpcsweep.conv.shape import ConvShape
from hpcsweep.measure.inference import Inference
from hpcsweep.node import verify
from hpcsweep.spec import sweep_file
from measuring import point
from references import BACKEND, PLAIN, error, operands, truth

if TYPE_CHECKING:
    from pathlib import Path


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

    def gradients(self, shape: ConvShape) -> dict[Way, Expected]:
        """Want the same of both."""
        wanted = Expected(must=(("aten::mul",),), must_not=(*CONVOLUTIONS, *PRODUCTS))
        return {Way.DATA: wanted, Way.FILTER: wanted}


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> str:
    """Add the algorithm as CONTRIBUTING says: a name, and a line in the table."""
    monkeypatch.setitem(catalog.ALGORITHMS, "loops", "one filter tap after the other")
    monkeypatch.setitem(FAMILIES, "loops", Loops())
    return "loops"


def test_a_new_algorithm_computes_and_says_what_it_cannot(loops: str) -> None:
    """Its bias, layout and types are dealt with as everybody's."""
    shape = ConvShape(2, 6, 17, 20, 4, 3, 3, pad_h=1, pad_w=1, bias=True)
    x, weight, bias = operands(shape)
    found = BACKEND.forward(loops, x, weight, bias, shape)
    assert error(found, truth(x, weight, bias, shape)) < 2e-6
    last = x.contiguous(memory_format=torch.channels_last)
    assert BACKEND.forward(loops, last, weight, bias, shape).stride()[1] == 1
    halves = [t.half() for t in operands(PLAIN)[:2]]
    assert BACKEND.forward(loops, *halves, None, PLAIN).dtype == torch.float16
    strided = ConvShape(2, 6, 17, 20, 4, 3, 3, 2, 2)
    assert BACKEND.unsupported(loops, strided) == "stride 2x2: a loop needs 1x1"
    assert BACKEND.workspace_bytes(loops, shape) is None


def test_a_new_algorithm_is_swapped_in_and_proven_both_ways(loops: str) -> None:
    """Its evidence is its own, and what it cannot do falls back."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, groups=2))
    x = torch.randn(1, 3, 12, 12)
    calls = [("0", ConvShape.of(model[0], x))]
    calls += [(f"{n}", ConvShape.of(model[n], torch.empty(1, 4, 12 - 2 * n, 9))) for n in (1, 2)]
    swap.swap(model)
    picked = swap.assign(model, calls, loops, "fallback", BACKEND)
    assert [c.used for c in picked] == ["loops", "loops", "auto"]
    assert picked[2].reason == "groups"
    forward = forward_pass.prove(model, lambda: model(x), picked, BACKEND)
    backward = backward_pass.prove(model, lambda: model(x).sum().backward(), picked, BACKEND)
    assert [call.problem for call in (*forward.calls, *backward)] == [None] * 6
    assert all(call.seen for call in (*forward.calls, *backward))


def test_a_new_algorithm_goes_from_a_sweep_file_to_a_verdict(loops: str, tmp_path: Path) -> None:
    """The file may name it, and `verify` proves it."""
    path = tmp_path / "sweep.yaml"
    path.write_text("workload: inference\naxes: {model: [resnet18], algorithm: [loops]}\n")
    sweep_file.load(str(path))  # a name that nobody knows is refused
    (finding,) = verify.verify(
        [point("tinynets:small_vgg", algorithm=loops, input_size=16)], Inference("cpu")
    )
    assert finding.proven
    assert {row["algorithm_used"] for row, _ in finding.explicit} == {"loops"}
    assert "calls ran: 2 loops" in verify.text([finding])
