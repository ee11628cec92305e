"""A collected sweep of a thousand points of two GPUs, with everything that a page can show.

Times follow a formula with a little noise. Some points failed, some times are unreliable.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import resultsfolder
from hpcsweep.store import shards
from hpcsweep.store.collect import collector

if TYPE_CHECKING:
    from pathlib import Path

    from hpcsweep.point import Point
    from hpcsweep.store.folders import SweepDir

SWEEP = """\
name: demo
workload: inference
axes:
  gpu: [v100, h100]
  model: [resnet18, vgg16]
  input_size: {start: 32, stop: 224, num: 50}
  algorithm: [auto, gemm, implicit_gemm, winograd, fft]
"""
FACTORS = {"auto": 1.0, "gemm": 1.3, "implicit_gemm": 1.1, "winograd": 0.8, "fft": 1.9}
DEVICES = {"v100": ("Tesla V100-SXM2-32GB", 1.0), "h100": ("NVIDIA H100 80GB HBM3", 0.2)}
# operation, input channels, share of the time
LAYERS = [
    ("conv2d", 3, 0.2), ("batchnorm2d", 64, 0.02), ("relu", 64, 0.01), ("conv2d", 64, 0.2),
    ("conv2d", 128, 0.2), ("maxpool2d", 128, 0.02), ("conv2d", 256, 0.3), ("linear", 512, 0.05),
]  # fmt: skip


def collected(path: Path, text: str = SWEEP) -> SweepDir:
    """Return the collected sweep."""
    folder = resultsfolder.make(path, text)
    rng = random.Random(12)
    for gpu in DEVICES:
        name = f"20260101-000000-{gpu}"
        points = resultsfolder.points_of(path, text, gpu)
        folder.submit(name, points, text=text, gpu=gpu, rehearsal=False)
        shard = folder.shard(name)
        shard.folder.mkdir(parents=True, exist_ok=True)
        with shards.ShardWriter(shard) as writer:
            for point in points:
                row = {**resultsfolder.row_of(point, shard), **_cells(point, rng)}
                ok = row["status"] == "ok"
                layers = list(_layers(point, row["median_ms"], rng)) if ok else ()
                writer.commit(row, layers, [row["median_ms"]] if ok else ())
    collector.collect(folder.sweep_dir)
    return folder.sweep_dir


def _cells(point: Point, rng: random.Random) -> dict[str, Any]:
    axes = point.axes
    device, scale = DEVICES[axes["gpu"]]
    size, algorithm = axes["input_size"], axes["algorithm"]
    provenance = {"device_name": device, "node": f"{axes['gpu']}-n1", "driver_version": "550.54"}
    if algorithm == "fft" and size > 200:
        reason = "CUDA out of memory: tried to allocate 3.2 GiB"
        return {"status": "oom", "status_reason": reason, "mean_ms": None, **provenance}
    ms = (
        scale * FACTORS[algorithm] * (0.5 + size**2 / 5000) * (4 if axes["model"] == "vgg16" else 1)
    )
    ms *= rng.uniform(0.98, 1.02)
    noisy = rng.random() < 0.03
    flops = 3.6e9 * (size / 224) ** 2
    return {
        "median_ms": ms, "mean_ms": ms, "q1_ms": 0.98 * ms, "q3_ms": 1.03 * ms,
        "ci95_lo_ms": 0.99 * ms, "ci95_hi_ms": 1.02 * ms, "n": 50, "throughput_ips": 1000 / ms,
        "flags": "very_noisy" if noisy else "", "valid": not noisy,
        "algorithm_coverage_pct": 82.7 if algorithm == "winograd" else 100.0,
        "flops": int(flops), "bytes_min": int(6e7 + 1e3 * size**2), "energy_j": ms / 4,
        "mem_peak_bytes": int(3e8 + 1e4 * size**2), **provenance,
    }  # fmt: skip


def _layers(point: Point, total: float, rng: random.Random) -> Any:
    for index, (op, channels, share) in enumerate(LAYERS):
        ms = total * share * rng.uniform(0.9, 1.1)
        yield {
            **resultsfolder.layer_of(point, f"features.{index}", ms),
            "op": op, "call_index": index, "in_channels": channels, "out_channels": channels,
            "kernel_size": "3", "median_ms": ms, "q1_ms": 0.99 * ms, "q3_ms": 1.01 * ms, "n": 20,
            "flops": int(1e9 * share), "bytes_min": int(1e7 * share), "percentage": 100 * share,
            "algorithm_used": point.axes["algorithm"], "backend": "cudnn", "direction": "forward",
        }  # fmt: skip
