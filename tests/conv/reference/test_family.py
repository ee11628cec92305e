"""What an algorithm of the reference back-end is made of, tried with one that is thrown away."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from hpcsweep import catalog
from hpcsweep.conv import swap
from hpcsweep.conv.proof import profiled_passes
from hpcsweep.conv.reference import FAMILIES, family
from hpcsweep.conv.shape import ConvShape
from loops import ROW, Loops
from paths import SUPPORT
from references import BACKEND, PLAIN, error, operands, truth

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> str:
    """Add the algorithm as CONTRIBUTING says: a name, and a line in the table."""
    monkeypatch.setitem(catalog.ALGORITHMS, "loops", ROW)
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
    assert BACKEND.about(loops, shape) == (None, None, None)


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
    forward = profiled_passes.prove_forward(model, lambda: model(x), picked, BACKEND)
    backward = profiled_passes.prove_backward(
        model, lambda: model(x).sum().backward(), picked, BACKEND
    )
    assert [call.problem for call in (*forward.calls, *backward)] == [None] * 6
    assert all(call.seen for call in (*forward.calls, *backward))


@pytest.mark.slow
def test_a_new_algorithm_goes_from_a_sweep_file_to_a_verdict(tmp_path: Path) -> None:
    """The file may name it, and `hpcsweep verify` proves it, in a process of its own."""
    axes = "model: ['tinynets:small_vgg'], input_size: [16], algorithm: [loops]"
    (tmp_path / "sweep.yaml").write_text(f"workload: inference\naxes: {{{axes}}}\n")
    code = "import loops; loops.add(); from hpcsweep.cli import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code, "verify", "sweep.yaml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "calls ran: 2 loops" in done.stdout
    assert done.stdout.endswith("proven: 1 of 1 points\n")


IMAGE = ConvShape(2, 3, 7, 10, 4, 3, 3, pad_h=1, pad_w=2)


def image() -> torch.Tensor:
    """Return an input of `IMAGE`, all values different."""
    return torch.arange(2 * 3 * 7 * 10, dtype=torch.float32).view(2, 3, 7, 10)


def test_padding_puts_the_shapes_own_at_the_top_and_the_rest_below() -> None:
    """Tiles may hang over at the bottom and at the right."""
    padded = family.pad(image(), IMAGE, 12, 15)
    assert padded.shape == (2, 3, 12, 15)
    assert torch.equal(padded[..., 1:8, 2:12], image())
    assert padded.sum() == image().sum()


def test_what_needs_no_padding_is_not_copied() -> None:
    """The very tensor comes back."""
    x = image()
    assert family.pad_fully(x, ConvShape(2, 3, 7, 10, 4, 3, 3)) is x


@pytest.mark.parametrize("step", [(1, 1), (2, 2), (3, 4), (5, 30)])
def test_tiles_without_their_overlap_are_the_image(step: tuple[int, int]) -> None:
    """Cutting the upper left of each tile and joining them gives the padded input, cropped."""
    size = (step[0] + 2, step[1] + 2)
    found = family.tiles(image(), IMAGE, size, step)
    assert found.shape[2:4] == family.tile_count(IMAGE, step)
    cut = found[..., : step[0], : step[1]].transpose(3, 4)
    expected = F.pad(image(), (2, 2, 1, 1))[..., : IMAGE.out_h, : IMAGE.out_w]
    assert torch.equal(family.join(cut, IMAGE), expected)


def test_a_constant_is_made_once_and_can_take_part_in_training() -> None:
    """Even when the first call is in inference mode."""
    made = []

    @family.constant
    def ones(count: int) -> torch.Tensor:
        made.append(count)
        return torch.ones(count)

    with torch.inference_mode():
        first = ones(3)
    assert ones(3) is first
    assert made == [3]
    assert not first.is_inference()


def test_a_sweep_over_sizes_does_not_pile_up_the_indices_of_sizes_past() -> None:
    """Only so many are kept; the eldest go."""
    kept: list[torch.Tensor] = []

    @family.constant
    def zeros(count: int) -> torch.Tensor:
        kept.append(torch.zeros(count))
        return kept[-1]

    first = zeros(0)
    for count in range(1, 200):
        zeros(count)
    assert zeros(199) is kept[199]
    assert zeros(0) is not first
