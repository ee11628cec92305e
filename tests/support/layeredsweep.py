"""A collected sweep whose layers have exact times, under three algorithms."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import resultsfolder
from hpcsweep.store import shards
from hpcsweep.store.collect import collector

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpcsweep.store.folders import SweepDir

SUBMISSION = "20260101-000000-local"
SWEEP = """\
name: demo
workload: inference
axes:
  model: [resnet18]
  input_size: [64, 128]
  algorithm: [auto, gemm, winograd]
"""
REPEATED = f"{SWEEP}measure: {{repeats: 3}}\n"
# ms at 64 pixels by algorithm; winograd cannot do conv1, and ties with auto in conv3
TIMES = {
    "conv1": {"auto": 4.0, "gemm": 3.0, "winograd": 4.0},
    "conv2": {"auto": 4.0, "gemm": 5.0, "winograd": 1.0},
    "conv3": {"auto": 2.0, "gemm": 3.0, "winograd": 1.99},
    "relu": {"auto": 0.5, "gemm": 0.5, "winograd": 0.5},
}
REST = 0.5  # ms outside of all layers


def layer_rows(
    point: Any,
    spread: float = 0.02,
    least: Mapping[str, Mapping[str, float]] | None = None,
    between: float = 0.0,
    means: Mapping[str, Mapping[str, float]] | None = None,
) -> list[dict[str, Any]]:
    """Return the layer rows of a point; times grow with the image's area.

    `least` and `means` do not. Each layer of each visit is off by itself, by `between` as a
    standard deviation.
    """
    axes, source = point.axes, random.Random(point.point_id)
    area = (axes["input_size"] / 64) ** 2
    rows = []
    for index, (name, ms) in enumerate([*TIMES.items(), ("__other__", {})]):
        time = area * ms.get(axes["algorithm"], REST) * source.lognormvariate(0, between)
        conv = name.startswith("conv")
        row = resultsfolder.layer_of(point, name, time)
        used = "auto" if (name, axes["algorithm"]) == ("conv1", "winograd") else axes["algorithm"]
        row |= {
            "call_index": index,
            "op": "conv2d" if conv else name,
            "direction": "forward",
            "unique_key": f"{name}-{axes['input_size']}" if conv or name == "relu" else None,
            "algorithm_used": used if conv else None,
            "mean_ms": (means or {}).get(name, {}).get(axes["algorithm"], time),
            "median_ms": time,
            "min_ms": (least or {}).get(name, {}).get(axes["algorithm"]),
            "n": 20,
            "q1_ms": time * (1 - spread / 2),
            "q3_ms": time * (1 + spread / 2),
        }
        rows.append(row | (shape_of(axes["input_size"]) if conv else {}))
    return rows


def shape_of(size: int) -> dict[str, int]:
    """Return the shape of each convolution: 3x3, eight channels."""
    channels = {"in_channels": 8, "out_channels": 8, "kernel_h": 3, "kernel_w": 3}
    sides = dict.fromkeys(("in_h", "in_w", "out_h", "out_w"), size)
    return channels | sides | {"flops": 2 * 9 * 64 * size * size}


def alone(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of convolutions, each timed alone in half of the time, the last one first."""
    rows = [row for row in reversed(layers) if row["op"] == "conv2d"]
    return [
        row | {"call_index": index, "layer_timer": "isolated", "median_ms": row["median_ms"] / 2}
        for index, row in enumerate(rows)
    ]


def cells_of(layers: list[dict[str, Any]], spread: float = 0.02) -> dict[str, Any]:
    """Return the times of a point whose layers these are."""
    time = sum(row["mean_ms"] for row in layers)
    low, high = time * (1 - spread / 4), time * (1 + spread / 4)
    times = {"mean_ms": time, "median_ms": time, "ci95_lo_ms": low, "ci95_hi_ms": high, "n": 20}
    return {**times, "valid": True, "flags": ""}


def layered(
    path: Path,
    text: str = SWEEP,
    spread: float = 0.02,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    least: Mapping[str, Mapping[str, float]] | None = None,
    *,
    means: Mapping[str, Mapping[str, float]] | None = None,
) -> SweepDir:
    """Return a collected sweep; `changes` are cells of the points of an algorithm."""
    folder = resultsfolder.make(path, text)
    folder.submit(SUBMISSION, text=text)
    shard = folder.shard(SUBMISSION)
    with shards.ShardWriter(shard) as writer:
        for point in folder.points:
            between = spread / 7 if "repeats" in text else 0.0
            layers = layer_rows(point, spread, least, between, means)
            cells = cells_of(layers, spread) | (changes or {}).get(point.axes["algorithm"], {})
            if point.measure["layers"] == "unique":
                layers = alone(layers)
            writer.commit({**resultsfolder.row_of(point, shard), **cells}, layers)
    collector.collect(folder.sweep_dir)
    return folder.sweep_dir
