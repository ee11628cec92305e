"""The shape of a convolution call: sizes, work and the key that names equal work."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hpcsweep.conv.shape import ConvShape, needs_explicit_padding, padding_of

LAYERS = [
    nn.Conv2d(3, 8, 7, stride=2, padding=3),
    nn.Conv2d(4, 6, (3, 5), stride=(2, 1), padding=(0, 4), dilation=(2, 1), groups=2, bias=False),
    nn.Conv2d(6, 6, 3, padding="valid", groups=6),
    nn.Conv2d(5, 4, 3, padding="same", dilation=2),
    nn.Conv2d(5, 4, (4, 2), padding="same"),
    nn.Conv2d(5, 4, 3, padding=(2, 1), padding_mode="reflect"),
]


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_output_and_work_are_those_of_the_framework(layer: nn.Conv2d) -> None:
    """Output size from a real call; operations from torch's own counter."""
    x = torch.randn(2, layer.in_channels, 19, 23)
    shape = ConvShape.of(layer, x)
    with FlopCounterMode(display=False) as counter:
        out = layer(x)
    assert tuple(out.shape) == (shape.n, shape.out_c, shape.out_h, shape.out_w)
    assert shape.flops == counter.get_total_flops()


def test_the_first_layer_of_a_resnet_has_the_known_work() -> None:
    """118,013,952 multiply-adds at 224."""
    shape = ConvShape(1, 3, 224, 224, 64, 7, 7, 2, 2, 3, 3)
    assert (shape.out_h, shape.out_w, shape.flops) == (112, 112, 2 * 118_013_952)


def test_symmetric_same_padding_stays_in_the_call() -> None:
    """A library can pad it, so the shape keeps the image's own size."""
    layer = nn.Conv2d(5, 4, 3, padding="same", dilation=2)
    shape = ConvShape.of(layer, torch.empty(1, 5, 20, 30))
    assert not needs_explicit_padding(layer)
    assert (shape.in_h, shape.in_w, shape.pad_h, shape.pad_w) == (20, 30, 2, 2)


def test_asymmetric_same_padding_becomes_part_of_the_input() -> None:
    """Four rows need three zeros: one above, two below, as the framework places them."""
    layer = nn.Conv2d(5, 4, (4, 2), padding="same")
    shape = ConvShape.of(layer, torch.empty(1, 5, 20, 30))
    assert needs_explicit_padding(layer)
    assert padding_of(layer) == (0, 1, 1, 2)
    assert (shape.in_h, shape.in_w, shape.pad_h, shape.pad_w) == (23, 31, 0, 0)


def test_an_image_without_a_batch_is_a_batch_of_one() -> None:
    """The framework takes three dimensions too."""
    layer = nn.Conv2d(3, 8, 3)
    assert ConvShape.of(layer, torch.empty(3, 9, 9)) == ConvShape.of(layer, torch.empty(1, 3, 9, 9))


def test_autocast_lowers_the_type_of_the_call() -> None:
    """The kernel is that of the lowered type; float64 is never lowered."""
    layer = nn.Conv2d(3, 8, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ConvShape.of(layer, torch.empty(1, 3, 9, 9)).dtype == "bfloat16"
        wide = torch.empty(1, 3, 9, 9, dtype=torch.float64)
        assert ConvShape.of(layer, wide).dtype == "float64"


def test_every_field_changes_the_key() -> None:
    """Equal keys are equal work, the batch included."""
    shape = ConvShape(1, 4, 20, 21, 8, 3, 5, 1, 2, 1, 2, 3, 4, 2, bias=False)
    assert shape.unique_key == ("conv2d_n1_c4_20x21_k8_3x5_s1x2_p1x2_d3x4_g2_nobias_float32")
    other: dict[str, object] = {"bias": True, "dtype": "float16", "layout": "nhwc"}
    changed = {
        replace(shape, **{f.name: other.get(f.name, 7)}).unique_key for f in fields(ConvShape)
    }
    assert len(changed) == len(fields(ConvShape))
    assert shape.unique_key not in changed


def test_the_shape_alone_needs_no_torch() -> None:
    """Whoever reads results can rebuild shapes without it."""
    code = (
        "import sys; from hpcsweep.conv.shape import ConvShape;"
        "print(ConvShape(1, 3, 8, 8, 4, 3, 3).flops, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["7776", "False"]
