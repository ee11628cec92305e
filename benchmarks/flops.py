"""The operations of networks, as hpcsweep's columns tell them, against torch's FlopCounterMode.

    python -m benchmarks.flops

The counter runs by itself on the meta device, where every operator stands for itself: fused
attention, which it cannot see into, is a thing of real devices. Four numbers must be its: the
column `flops`; the convolutions' part, once as the shape pass tells it and once by the formula of
each call's shape; what is left for matrix products; and for each layer of convolutions its own.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
import torchvision
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.markdown import print_head, print_row
from benchmarks.odd_networks import Mixed, vit
from hpcsweep.measure.shape_pass import Shapes, shape_pass

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

_CONVOLUTIONS: Final = ("convolution", "_convolution")
_DILATED: Final = partial(
    torchvision.models.resnet50, replace_stride_with_dilation=[False, True, True]
)
# networks that torchvision's list has not
_OWN: Final[dict[str, Callable[[], nn.Module]]] = {
    "resnet50, dilated": _DILATED,
    "mixed (transposed, 1-D, 3-D, functional)": Mixed,
    "vit of two layers": vit,
}
_POINTS: Final = (  # name, batch, height, width
    ("alexnet", 1, 224, 224), ("alexnet", 3, 97, 131), ("vgg11", 1, 65, 65),
    ("vgg19_bn", 2, 224, 224),
    ("resnet18", 1, 224, 224), ("resnet18", 7, 33, 61), ("resnet152", 1, 512, 512),
    ("wide_resnet50_2", 1, 224, 224), ("resnext50_32x4d", 1, 75, 75),
    ("resnext101_64x4d", 1, 224, 224), ("resnet50, dilated", 1, 223, 225),
    ("densenet121", 1, 101, 224), ("densenet201", 1, 224, 224), ("squeezenet1_0", 1, 224, 224),
    ("squeezenet1_1", 5, 31, 47), ("mobilenet_v2", 1, 224, 224), ("mobilenet_v3_small", 2, 97, 97),
    ("mobilenet_v3_large", 1, 224, 224), ("mnasnet0_5", 1, 224, 224), ("mnasnet1_3", 1, 63, 63),
    ("shufflenet_v2_x0_5", 1, 224, 224), ("shufflenet_v2_x2_0", 1, 150, 90),
    ("efficientnet_b0", 1, 224, 224), ("efficientnet_b7", 1, 600, 600),
    ("efficientnet_v2_s", 1, 384, 300), ("regnet_x_400mf", 1, 224, 224),
    ("regnet_y_8gf", 1, 111, 111), ("googlenet", 1, 224, 224), ("inception_v3", 1, 299, 299),
    ("convnext_tiny", 1, 224, 224), ("convnext_large", 1, 96, 160), ("vit_b_16", 1, 224, 224),
    ("vit_l_32", 4, 224, 224), ("swin_t", 1, 224, 224), ("swin_v2_b", 1, 200, 264),
    ("maxvit_t", 1, 224, 224), ("mixed (transposed, 1-D, 3-D, functional)", 3, 75, 75),
    ("vit of two layers", 2, 75, 75),
)  # fmt: skip


def main() -> int:
    """Print a row per network and size; return 1 where something differs."""
    print(f"torchvision {torchvision.__version__}\n")
    print_head(
        "network | images | convolution calls | their FLOPs | matrix products' FLOPs "
        "| not equal to the counter's | s"
    )
    wrong = 0
    for name, *size in _POINTS:
        begin = time.perf_counter()
        shapes, differ, counted = compared(name, *size)
        wrong += bool(differ)
        convolutions = sum(counted.get(packet, 0) for packet in _CONVOLUTIONS)
        calls = len(shapes.convolution_calls) + len(shapes.outside)
        rest = sum(counted.values()) - convolutions
        shown = "x".join(map(str, (size[0], 3, *size[1:])))
        seconds = f"{time.perf_counter() - begin:.1f}"
        print_row(name, shown, calls, f"{convolutions:,}", f"{rest:,}", "; ".join(differ), seconds)
    networks = len({name for name, *_ in _POINTS})
    print(f"\n{len(_POINTS)} points of {networks} networks, {wrong} with a difference")
    return int(wrong > 0)


def compared(
    name: str, batch: int, height: int, width: int
) -> tuple[Shapes, list[str], dict[str, int]]:
    """Return what the shape pass found, what differs from the counter, and what that counted."""
    model = _on_meta(name)
    image = torch.empty(batch, 3, height, width)
    with FlopCounterMode(display=False, depth=99) as counter, torch.no_grad():
        model(image.to("meta"))
    tables: dict[str, dict[Any, int]] = counter.get_flop_counts()
    counted = {packet.__name__: flops for packet, flops in tables["Global"].items()}
    shapes = shape_pass(model, image)
    convolutions = sum(counted.get(packet, 0) for packet in _CONVOLUTIONS)
    formulas = sum(shape.flops for _, shape in shapes.convolutions)
    formulas += sum(one.flops for one in shapes.outside)
    calls = [call for call in shapes.calls if call.conv is None and not call.convolutions]
    checks = {
        "flops": (shapes.flops, counter.get_total_flops()),
        "convolutions": (shapes.convolution_flops, convolutions),
        "convolutions by formula": (formulas, convolutions),
        "matrix products": (
            sum(call.flops for call in calls), counter.get_total_flops() - convolutions
        ),
    }  # fmt: skip
    differ = [f"{what}: {a:,} not {b:,}" for what, (a, b) in checks.items() if a != b]
    return shapes, differ + _layers_that_differ(type(model).__name__, shapes, tables), counted


def _layers_that_differ(root: str, shapes: Shapes, tables: dict[str, dict[Any, int]]) -> list[str]:
    """Hold the layers' rows, all calls of a layer together, against the counter's modules."""
    own: Counter[str] = Counter()
    for call in shapes.calls:
        own[call.layer] += call.flops
    return [
        f"{layer}: {flops:,} not {sum(tables[f'{root}.{layer}'].values()):,}"
        for layer, flops in own.items()
        if flops and layer and flops != sum(tables[f"{root}.{layer}"].values())
    ]


def _on_meta(name: str) -> nn.Module:
    """Build a network without memory or time; RegNet computes its widths with tensors."""
    if name.startswith("regnet"):
        return torchvision.models.get_model(name, weights=None).eval().to("meta")
    options = {"init_weights": True} if name in {"googlenet", "inception_v3"} else {}
    make = _OWN.get(name) or partial(torchvision.models.get_model, name, weights=None, **options)
    with torch.device("meta"):
        return make().eval()


if __name__ == "__main__":
    sys.exit(main())
