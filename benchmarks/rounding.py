"""Holds errors of real networks against their bounds, and counts which planted faults are caught.

    python benchmarks/rounding.py                              # an hour on two cores
    python benchmarks/rounding.py --only resnet18 swin_t       # some networks
    python benchmarks/rounding.py --keep rounding.jsonl        # goes on after what that file has

Each network runs every algorithm in every type on small images. The first table has, per type, the
largest error over its bound: of convolution calls, each value by itself, of random sums of their
channels, and of outputs. Above 1 it is a FALSE ALARM. The networks of the list are two halves with
columns of their own, so that constants can be changed by one and judged by the other.

The second table has faults, each planted into one late convolution of the framework's own pass (or
beside the output), and how many are caught: by the values of calls, by random sums, by the output.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # no time is quoted, and others may be here

import torch
from torch import Tensor, nn

from hpcsweep import catalog
from hpcsweep.conv import backend as backends
from hpcsweep.conv import swap
from hpcsweep.conv.parts import wrapped_forwards
from hpcsweep.conv.proof import autograd_graph
from hpcsweep.measure import convolutions, models, numerics, rounding
from hpcsweep.measure.shape_pass import Shapes, shape_pass
from hpcsweep.point import Point
from hpcsweep.text import aligned

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcsweep.conv.choice import LayerChoice

    Forward = Callable[..., Any]
    Record = dict[str, Any]

CPU = torch.device("cpu")
TYPES = ("float32", "bfloat16", "float16", "float64")
ALGORITHMS = [name for name in catalog.ALGORITHMS if name != catalog.AUTOTUNE]
NETWORKS = (  # every other one is of the other half
    "alexnet", "vgg11", "vgg19_bn", "resnet18", "resnet152", "wide_resnet50_2", "resnext50_32x4d",
    "resnext101_64x4d", "densenet121", "densenet201", "squeezenet1_0", "squeezenet1_1",
    "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "mnasnet0_5", "mnasnet1_3",
    "shufflenet_v2_x0_5", "shufflenet_v2_x2_0", "efficientnet_b0", "efficientnet_b7",
    "efficientnet_v2_s", "regnet_x_400mf", "regnet_y_8gf", "googlenet", "inception_v3",
    "convnext_tiny", "convnext_large", "vit_b_16", "vit_l_32", "swin_t", "swin_v2_b", "maxvit_t",
    "resnet50", "densenet161", "shufflenet_v2_x1_0",
)  # fmt: skip
SIZES = {"vit_b_16": 224, "vit_l_32": 224, "maxvit_t": 224, "inception_v3": 96}
SIZE = 64


class Lab:
    """One network in one type."""

    def __init__(self, name: str, dtype: str) -> None:
        self.point = self._point(name, dtype, catalog.AUTO)
        self.model = models.build(models.ModelKey.of(self.point), CPU)
        (self.image,) = models.make_inputs(self.point, CPU)
        self.shapes: Shapes = shape_pass(self.model, self.image)
        self.reference = numerics.Float64Reference(CPU)

    def _point(self, name: str, dtype: str, algorithm: str) -> Point:
        axes = catalog.axis_defaults("inference") | {"model": name, "gpu": "cpu", "dtype": dtype}
        axes |= {"input_size": SIZES.get(name, SIZE), "batch_size": 1, "algorithm": algorithm}
        return Point("inference", axes, catalog.setting_defaults("inference"), "0" * 16)

    def choose(self, algorithm: str) -> list[LayerChoice]:
        """Give the network an algorithm."""
        back_end = backends.choose("cpu")
        of = self.model, self.shapes, algorithm, self.point.measure, back_end
        return [*convolutions.choose(*of).calls]

    def compare(self, choices: list[LayerChoice], *, whole: bool) -> tuple[list[float], list[Any]]:
        """Return how far calls are from their bounds, and the outputs."""
        calls = numerics.Convolutions(choices, tf32=False, whole=whole)
        with calls.compared(self.model):
            output = self.model(self.image)
        found = [verdict.excess for verdict in calls.verdicts("did not come")]
        assert None not in found, calls.verdicts("did not come")
        return found, [*autograd_graph.tensors_in(output)]

    def outputs(self, choices: list[LayerChoice], found: list[Tensor]) -> float:
        """Return how far outputs are from their bound."""
        swap.restore(self.model)
        how = [rounding.Arithmetic.of(c, "cpu", tf32=False, casts=False) for c in choices]
        dtype = self.point.axes["dtype"]
        limit = rounding.output_limit(self.shapes, how, dtype, tf32=False)
        verdicts = self.reference.verdicts(self.point, self.model, found, limit)
        return max(v.excess for v in verdicts if v.excess is not None)


def errors(lab: Lab, algorithm: str) -> Record:
    """Return the largest errors over their bounds of an honest pass."""
    choices = lab.choose(algorithm)
    values, found = lab.compare(choices, whole=True)
    sums, _ = lab.compare(choices, whole=False)
    return {"calls": max(values), "sums": max(sums), "outputs": lab.outputs(choices, found)}


def faulty(lab: Lab, fault: Callable[[nn.Conv2d, Forward], Forward] | None) -> Record:
    """Return the same with a fault in a late call of the framework's own pass."""
    choices = lab.choose(catalog.AUTO)
    spoilt = _late(lab, choices)
    honest: list[Tensor] = []
    with spoilt.register_forward_hook(lambda _m, _x, y: honest.append(y)):
        lab.model(lab.image)
    wrap = partial(fault, spoilt) if fault else None
    planted = wrapped_forwards([spoilt], wrap) if wrap else nullcontext()
    with planted, spoilt.register_forward_hook(lambda _m, _x, y: honest.append(y)):
        values, found = lab.compare(choices, whole=True)
        sums, _ = lab.compare(choices, whole=False)
    if not fault:  # a second output that is noise, and small beside the first
        noise = 1e-3 * torch.randn(16).to(found[0])
        limit = rounding.output_limit(lab.shapes, [], lab.point.axes["dtype"], tf32=False)
        pair = [found[0], noise], [found[0].double(), 1e-3 * torch.randn(16).double()]
        outputs = max(v.excess or 0 for v in rounding.of_outputs(*pair, limit))
        return {"calls": 0.0, "sums": 0.0, "outputs": outputs, "changed": True}
    changed = not torch.equal(honest[0], honest[1])  # else it is no fault: inputs were zero there
    outputs = lab.outputs(choices, found)
    return {"calls": max(values), "sums": max(sums), "outputs": outputs, "changed": changed}


def _late(lab: Lab, choices: list[LayerChoice]) -> nn.Conv2d:
    """Return the last convolution of several taps and rows, or the last of all."""
    wide = [c for c in choices if c.shape.taps > 1 and c.shape.out_h > 1] or choices
    layer = lab.model.get_submodule(wide[-1].layer)
    assert isinstance(layer, nn.Conv2d)
    return layer


def other_weights(change: Callable[[Tensor], None]) -> Callable[[nn.Conv2d, Forward], Forward]:
    """Return the fault of a layer that computes with other weights than its own."""

    def fault(layer: nn.Conv2d, _forward: Forward) -> Forward:
        weight = layer.weight.detach().clone()
        change(weight)
        return lambda x: layer._conv_forward(x, weight, layer.bias)  # noqa: SLF001

    return fault


def other_output(change: Callable[[Tensor], None]) -> Callable[[nn.Conv2d, Forward], Forward]:
    """Return the fault of a layer whose output is wrong."""

    def fault(_layer: nn.Conv2d, forward: Forward) -> Forward:
        def spoil(x: Tensor) -> Tensor:
            y: Tensor = forward(x).clone()
            change(y)
            return y

        return spoil

    return fault


def reduced(to: torch.dtype, bits: int) -> Callable[[nn.Conv2d, Forward], Forward]:
    """Return the fault of a layer that rounds its operands to fewer bits than it says."""

    def cut(t: Tensor) -> Tensor:
        if to != torch.float32:
            return t.to(to).to(t.dtype)
        mantissa, exponent = torch.frexp(t)
        return torch.ldexp((mantissa * 2**bits).round() / 2**bits, exponent)

    def fault(layer: nn.Conv2d, _forward: Forward) -> Forward:
        return lambda x: layer._conv_forward(cut(x), cut(layer.weight), layer.bias)  # noqa: SLF001

    return fault


def _drop_tap(weight: Tensor) -> None:
    weight[..., weight.shape[2] // 2, weight.shape[3] // 2] = 0


def _drop_tap_of_one(weight: Tensor) -> None:
    weight[len(weight) // 2, :, weight.shape[2] // 2, weight.shape[3] // 2] = 0


def _drop_weight(weight: Tensor) -> None:
    weight.view(-1)[weight.abs().argmax()] = 0


def _swap(y: Tensor) -> None:
    y[:, [0, 1]] = y[:, [1, 0]]


def _scale_channel(y: Tensor) -> None:
    y[:, -1] *= 1.05


def _copy_row(y: Tensor) -> None:
    y[..., -1, :] = y[..., -2 % y.shape[-2], :] if y.shape[-2] > 1 else 0


FAULTS: dict[str, Callable[[nn.Conv2d, Forward], Forward] | None] = {
    "one tap dropped": other_weights(_drop_tap),
    "one tap dropped in one channel": other_weights(_drop_tap_of_one),
    "one weight dropped": other_weights(_drop_weight),
    "two channels swapped": other_output(_swap),
    "one channel 5 % too large": other_output(_scale_channel),
    "last row is the one before": other_output(_copy_row),
    "operands of TF32": reduced(torch.float32, 11),
    "operands of float16": reduced(torch.float16, 11),
    "operands of bfloat16": reduced(torch.bfloat16, 8),
    "a second output of noise": None,
}
LESS_PRECISE = [name for name in FAULTS if name.startswith("operands")]


def main() -> int:
    """Run what is asked for and not kept already; return the exit code."""
    parser = argparse.ArgumentParser(description="Errors over bounds, and planted faults.")
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=[*NETWORKS])
    parser.add_argument("--types", nargs="+", choices=TYPES, default=[*TYPES])
    parser.add_argument("--keep", type=Path, help="a file of results to write, and to go on from")
    asked = parser.parse_args()
    found: list[Record] = []
    if asked.keep and asked.keep.exists():
        found = [json.loads(line) for line in asked.keep.read_text().splitlines()]
    done = {(record["network"], record["type"]) for record in found}
    for name in asked.only:
        for dtype in asked.types:
            if (name, dtype) not in done:
                found += examined(name, dtype, asked.keep)
    wanted = [r for r in found if r["network"] in asked.only and r["type"] in asked.types]
    print(text(wanted))
    return 1 if alarms(wanted) else 0


@torch.inference_mode()
def examined(name: str, dtype: str, keep: Path | None) -> list[Record]:
    """Return the records of a network in a type."""
    began = time.perf_counter()
    lab = Lab(name, dtype)
    found = [{"algorithm": algorithm, **errors(lab, algorithm)} for algorithm in ALGORITHMS]
    for fault, plant in FAULTS.items():
        if dtype == "float32" or (fault not in LESS_PRECISE and dtype != "float64"):
            record = faulty(lab, plant)
            if record["changed"]:
                found.append({"fault": fault, **record})
    records = [{"network": name, "type": dtype, **record} for record in found]
    if keep:
        with keep.open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
    print(f"{name} {dtype}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return records


def alarms(records: list[Record]) -> list[Record]:
    """Return the honest passes that exceed a bound."""
    honest = (record for record in records if "algorithm" in record)
    return [r for r in honest if max(r["calls"], r["sums"], r["outputs"]) > 1]


def text(records: list[Record]) -> str:
    """Return both tables."""
    kinds = ("calls", "sums", "outputs")
    rows = [("largest error over its bound", *kinds, *(f"{kind}, other half" for kind in kinds))]
    honest = [record for record in records if "algorithm" in record]
    for key in [*TYPES, *ALGORITHMS]:
        cells = [_largest(honest, key, kind, half) for half in (0, 1) for kind in kinds]
        rows.append((key, *cells))
    tallies = [["fault", "type", "planted", *kinds, "any, random sums"]]
    planted: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if "fault" in record:
            planted[record["fault"], record["type"]].append(record)
    for (fault, dtype), those in sorted(planted.items()):
        caught = [sum(one[kind] > 1 for one in those) for kind in kinds]
        either = sum(max(one["sums"], one["outputs"]) > 1 for one in those)
        tallies.append([fault, dtype, *map(str, [len(those), *caught, either])])
    false = [f"FALSE ALARM: {record}" for record in alarms(records)]
    networks = len({record["network"] for record in records})
    last = f"{networks} networks, {len(honest)} honest passes, {len(false)} false alarms"
    return "\n".join([*aligned(rows), "", *aligned(tallies), "", *false, last])


def _largest(records: list[Record], key: str, kind: str, half: int) -> str:
    those = (r for r in records if NETWORKS.index(r["network"]) % 2 == half)
    values = [r[kind] for r in those if key in {r["type"], r["algorithm"]}]
    return f"{max(values):.2f}" if values else ""


if __name__ == "__main__":
    sys.exit(main())
