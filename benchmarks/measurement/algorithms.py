"""Reference convolutions against the CPU algorithms of the package aithree: errors and times.

aithree (ai3) swaps the convolutions of a torch module for algorithms in C++; hpcsweep's reference
back-end has its algorithms as PyTorch operators. Both get the same input, filters and bias. Errors
are largest deviations over the largest magnitude of torch's result in float64. Times are those of
one thread, in turns, over the framework's own convolution, which comes twice as the control.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from benchmarks import pairs
from benchmarks.markdown import print_head, print_row
from benchmarks.measurement.printing import need
from hpcsweep.conv.reference.algorithms import FAMILIES, Reference
from hpcsweep.conv.shape import ConvShape
from hpcsweep.errors import first_line
from hpcsweep.measure import rounding
from hpcsweep.measure.timing import loop, stats
from hpcsweep.measure.timing.clocks import HostClock

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[[], Tensor]

_AITHREE: Final = "aithree==0.1.0"
_WARM_UP = 3
_PASSES = 30
_TOLERANCE: Final = 1e-4  # of the reference algorithms, in float32
_THEIRS: Final = ("direct", "smm")
_ITSELF = "framework"
_CONTROL = "framework again (A/A control)"
_LAYERS: Final[dict[str, tuple[int, int, nn.Conv2d]]] = {  # batch and size of the image, layer
    "stem 7x7 s2": (1, 64, nn.Conv2d(3, 64, 7, stride=2, padding=3)),
    "3x3": (1, 28, nn.Conv2d(64, 64, 3, padding=1)),
    "1x1": (1, 28, nn.Conv2d(64, 128, 1)),
    "5x5 s2, odd": (2, 33, nn.Conv2d(16, 24, 5, stride=2, padding=2)),
    "3x3 dilated": (1, 28, nn.Conv2d(32, 32, 3, padding=2, dilation=2)),
    "3x3 depthwise": (1, 28, nn.Conv2d(32, 32, 3, padding=1, groups=32)),
    "3x3, batch 4": (4, 7, nn.Conv2d(128, 128, 3, padding=1)),
}
_NONE: Final = "-"


@dataclass(frozen=True)
class Found:
    """What a table's column has: a cell per algorithm; and why some algorithms have none."""

    errors: dict[str, float]
    ratios: dict[str, str]
    refused: dict[str, str]


def main() -> bool:
    """Print what aithree has here, errors, and times; return whether all outputs are right."""
    need(_AITHREE)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.inference_mode():
        _print_offer()
        found = {
            name: _compare(layer, torch.randn(batch, layer.in_channels, size, size))
            for name, (batch, size, layer) in _LAYERS.items()
        }
    errors = {name: {a: f"{e:.1e}" for a, e in one.errors.items()} for name, one in found.items()}
    _print_table("error", errors)
    _print_table("time over the framework's", {name: one.ratios for name, one in found.items()})
    print()
    for name, one in found.items():
        for reason in sorted(set(one.refused.values())):
            who = ", ".join(algorithm for algorithm, why in one.refused.items() if why == reason)
            print(f"* {name}: {reason} ({who})")
    return all(error <= _TOLERANCE for one in found.values() for error in one.errors.values())


def _print_table(what: str, cells: dict[str, dict[str, str]]) -> None:
    print()
    print_head(" | ".join([what, *cells]))
    names = [_ITSELF, _CONTROL, *(f"hpcsweep {name}" for name in FAMILIES)]
    for name in [*names, *(f"aithree {name}" for name in _THEIRS)]:
        print_row(name, *(column.get(name, _NONE) for column in cells.values()))


def _print_offer() -> None:
    """Print which of its algorithms run on a CPU, and what the others say."""
    import ai3  # noqa: PLC0415 - may have been installed just now

    image = torch.randn(1, 4, 8, 8)
    print_head(f"algorithm of {_AITHREE} | on this CPU")
    for name in ai3.SUPPORTED_ALGORITHMS["conv2d"]:
        print_row(name, _refusal(_theirs(nn.Conv2d(4, 4, 3), name, image)) or "runs")


def _compare(layer: nn.Conv2d, image: Tensor) -> Found:
    runs, refused = _runs(layer, image, ConvShape.of(layer, image))
    exact = copy.deepcopy(layer).double()(image.double())
    lanes = [loop.Lane(run, HostClock()) for run in runs.values()]
    loop.collect(lanes, loop.Fixed(_WARM_UP))
    times = loop.collect(lanes, loop.Fixed(_PASSES)).times
    errors = {}
    ratios = {}
    for (name, run), own in zip(runs.items(), times, strict=True):
        error = rounding.of_outputs([run()], [exact], _TOLERANCE)[0].error
        errors[name] = math.nan if error is None else error
        middle, low, high = pairs.ratio(times[0], own)
        typical = f"{stats.median(own):.2f} ms"
        ratios[name] = typical if name == _ITSELF else f"{middle:.3g} [{low:.3g}, {high:.3g}]"
    return Found(errors, ratios, refused)


def _runs(
    layer: nn.Conv2d, image: Tensor, shape: ConvShape
) -> tuple[dict[str, Run], dict[str, str]]:
    """Return how to run each algorithm, and why some cannot."""
    framework = partial(layer, image)
    ours = Reference()
    runs: dict[str, Run] = {_ITSELF: framework, _CONTROL: framework}
    refused: dict[str, str] = {}
    for name in FAMILIES:
        if reason := ours.unsupported(name, shape):
            refused[f"hpcsweep {name}"] = reason
        else:
            of_call = (image, layer.weight, layer.bias, shape)
            runs[f"hpcsweep {name}"] = partial(ours.forward, name, *of_call)
    for name in _THEIRS:
        run = _theirs(layer, name, image)
        if reason := _refusal(run):
            refused[f"aithree {name}"] = reason
        else:
            runs[f"aithree {name}"] = run
    return runs, refused


def _refusal(run: Run) -> str | None:
    try:
        run()
    except (RuntimeError, AssertionError) as error:  # C++ and Python of it
        return first_line(error)
    return None


def _theirs(layer: nn.Conv2d, algorithm: str, image: Tensor) -> Run:
    import ai3  # noqa: PLC0415 - may have been installed just now

    network = nn.Sequential(layer)  # it swaps the layers in a module, and leaves the layer as it is
    ai3.swap_conv2d(network, algorithm)
    return partial(network, image)
