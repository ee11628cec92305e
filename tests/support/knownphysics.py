"""Measurements on a device whose physics is known: what a prediction should find.

A network is a stack of convolutions, batch norms and activations. Every call takes a constant, and
a time for its bytes and its operations; between layers there is a time per pass and per call.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hpcsweep.catalog import AXES
from hpcsweep.catalog.columns import cell
from hpcsweep.forecast.training_data import SETTINGS, Measured

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULTS = ",".join(cell(AXES[name].default) for name in SETTINGS)  # of a sweep that sets nothing
TEXT = """\
name: demo
workload: inference
axes:
  model: [resnet18]
  input_size: [32, 48]
  algorithm: [auto]
"""  # a sweep of a network that `NAMED` has
NAMED = {"resnet18": (8, 16, 32, 64), "vgg11": (32, 64, 96)}
NETWORKS = {
    "narrow": (8, 16, 32, 64),
    "wide": (32, 64, 128, 256),
    "flat": (48, 48, 48, 48),
    "deep": (16, 16, 32, 32, 64, 64, 128, 128),
    "odd": (12, 40, 56, 100),
    "steep": (8, 64, 96, 200),
}


@dataclass(frozen=True)
class Device:
    """What a call, a gigabyte and a gigaflop take, ms; and how much each time is off."""

    call: float = 0.01
    gigabyte: float = 100.0
    gigaflop: Mapping[str, float] = field(default_factory=lambda: {"auto": 10.0, "gemm": 20.0})
    a_pass: float = 0.05
    between: float = 0.002
    noise: float = 0.0
    name: str = "cpu"


def measured(
    device: Device | None = None,
    networks: Mapping[str, Sequence[int]] | None = None,
    sizes: Sequence[int] = (32, 64, 128),
    batches: Sequence[int] = (1,),
) -> Measured:
    """Return every network at every size, batch and algorithm of a device."""
    device, networks = device or Device(), networks or NETWORKS
    chance = np.random.default_rng(0)
    points, layers = [], []
    combinations = itertools.product(networks, sizes, batches, device.gigaflop)
    for number, (model, size, batch, algorithm) in enumerate(combinations):
        axes = {"model": model, "input_size": size, "batch_size": batch, "algorithm": algorithm}
        axes |= {"gpu": device.name, "dtype": "float32", "setting": "1"}
        rows = [
            {**row, **axes, "point_id": f"p{number:04}", "call_index": index}
            for index, row in enumerate(_calls(networks[model], size, batch, algorithm))
        ]
        for row in rows:
            row["ms"] = _time(device, row) * float(np.exp(chance.normal(0, device.noise)))
        total = sum(row["ms"] for row in rows) + device.a_pass + device.between * len(rows)
        points.append({**axes, "point_id": f"p{number:04}", "total_ms": total, "source": "demo"})
        points[-1]["energy_j"] = np.nan
        layers += rows
    return Measured(pd.DataFrame(points).set_index("point_id"), pd.DataFrame(layers))


def with_defaults(found: Measured) -> Measured:
    """Return measurements as of a sweep that sets nothing."""
    both = (found.points, found.layers)
    return Measured(*(one.assign(setting=DEFAULTS) for one in both))


def _time(device: Device, row: Mapping[str, Any]) -> float:
    work = row["bytes_min"] * 1e-9 * device.gigabyte
    return device.call + work + row["flops"] * 1e-9 * device.gigaflop[row["algorithm"]]


def _calls(widths: Sequence[int], size: int, batch: int, algorithm: str) -> list[dict[str, Any]]:
    channels, rows = 3, []
    for number, width in enumerate(widths):
        kernel = 1 if number % 3 == 2 else 3
        stride = 2 if number % 2 == 1 else 1
        out = size // stride
        shape = {"batch_size": batch, "in_channels": channels, "in_h": size, "in_w": size,
                 "out_channels": width, "out_h": out, "out_w": out}  # fmt: skip
        params = width * channels * kernel * kernel
        pixels = batch * out * out
        rows.append(
            shape
            | {"layer": f"conv{number}", "op": "conv2d", "kernel_h": kernel, "kernel_w": kernel,
               "stride_h": stride, "dilation_h": 1, "groups": 1, "params": params,
               "algorithm_used": algorithm, "direction": "forward",
               "flops": 2 * pixels * params,
               "bytes_min": 4 * (batch * channels * size * size + params + pixels * width),
               "unique_key": f"conv-{batch}-{channels}-{size}-{width}-{kernel}-{stride}"}
        )  # fmt: skip
        after = {"in_channels": width, "in_h": out, "in_w": out, "direction": "forward",
                 "params": 0, "flops": 0, "bytes_min": 8 * pixels * width,
                 "algorithm_used": None, **dict.fromkeys(_CONVOLUTION)}  # fmt: skip
        rows += [
            shape | after
            | {"layer": f"{op}{number}", "op": op, "unique_key": f"{op}-{batch}-{width}-{out}"}
            for op in ("batchnorm2d", "relu")
        ]  # fmt: skip
        channels, size = width, out
    return rows


_CONVOLUTION = ("kernel_h", "kernel_w", "stride_h", "dilation_h", "groups")
