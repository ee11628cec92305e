"""Padding, tiles and cached constants of the reference back-end."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from hpcsweep.conv.reference import windows
from hpcsweep.conv.reference.algorithms import Reference
from hpcsweep.conv.shape import ConvShape

SHAPE = ConvShape(2, 3, 7, 10, 4, 3, 3, pad_h=1, pad_w=2)


def image() -> torch.Tensor:
    """Return an input of `SHAPE`, all values different."""
    return torch.arange(2 * 3 * 7 * 10, dtype=torch.float32).view(2, 3, 7, 10)


def test_padding_puts_the_shapes_own_at_the_top_and_the_rest_below() -> None:
    """Tiles may hang over at the bottom and at the right."""
    padded = windows.pad(image(), SHAPE, 12, 15)
    assert padded.shape == (2, 3, 12, 15)
    assert torch.equal(padded[..., 1:8, 2:12], image())
    assert padded.sum() == image().sum()


def test_what_needs_no_padding_is_not_copied() -> None:
    """The very tensor comes back."""
    x = image()
    assert windows.pad_fully(x, ConvShape(2, 3, 7, 10, 4, 3, 3)) is x


@pytest.mark.parametrize("step", [(1, 1), (2, 2), (3, 4), (5, 30)])
def test_tiles_without_their_overlap_are_the_image(step: tuple[int, int]) -> None:
    """Cutting the upper left of each tile and joining them gives the padded input, cropped."""
    size = (step[0] + 2, step[1] + 2)
    found = windows.tiles(image(), SHAPE, size, step)
    assert found.shape[2:4] == windows.tile_count(SHAPE, step)
    cut = found[..., : step[0], : step[1]].transpose(3, 4)
    expected = F.pad(image(), (2, 2, 1, 1))[..., : SHAPE.out_h, : SHAPE.out_w]
    assert torch.equal(windows.join(cut, SHAPE), expected)


def test_a_constant_is_made_once_and_can_take_part_in_training() -> None:
    """Even when the first call is in inference mode."""
    made = []

    @windows.constant
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

    @windows.constant
    def zeros(count: int) -> torch.Tensor:
        kept.append(torch.zeros(count))
        return kept[-1]

    first = zeros(0)
    for count in range(1, 200):
        zeros(count)
    assert zeros(199) is kept[199]
    assert zeros(0) is not first


def test_repeated_calls_of_many_sizes_stay_exact() -> None:
    """Indices that were dropped are made again."""
    backend = Reference()
    for _ in range(2):
        for size in range(3, 75):
            shape = ConvShape(1, 1, size, 4, 1, 3, 3)
            x, weight = torch.rand(1, 1, size, 4), torch.rand(1, 1, 3, 3)
            found = backend.forward("implicit_precomp_gemm", x, weight, None, shape)
            torch.testing.assert_close(found, F.conv2d(x, weight))
