"""Estimates how long a point will take, by a model that the sweep's rows correct.

The model: floating-point operations of the network (from the catalogue, scaled by area and batch),
divided by the rate that such a device reaches, times the passes of the point, plus a fixed cost. A
training step counts as three forward passes. The correction is the median of measured over modelled
seconds: of the same model and algorithm if there are such rows, else of the same algorithm, else of
all rows of the device.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.catalog.gpus import GPUS
from hpcsweep.catalog.models import MODELS, REFERENCE_SIZE
from hpcsweep.store import shards
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpcsweep.point import Point
    from hpcsweep.store.rundir import RunDir

# Share of the dense float32 peak that a convolutional network reaches; a planning figure.
_EFFICIENCY: Final = 0.25
_CPU_FLOPS: Final = 60e9
_POINT_OVERHEAD: Final = 0.5
_LAUNCH_SECONDS: Final = 0.004
_UNKNOWN_GFLOPS: Final = 10.0
# Reference families on a CPU against its own library, from the tables of docs/measuring.md.
_CPU_FACTOR: Final[Mapping[str, float]] = {
    "gemm": 3, "implicit_gemm": 3, "implicit_precomp_gemm": 4, "fft": 20, "fft_tiling": 20,
    "winograd": 6, "winograd_nonfused": 6,
}  # fmt: skip
# Images of a training epoch, where they are known before the data set is opened.
_DATASETS: Final[Mapping[str, float]] = {"cifar10": 50_000, "cifar100": 50_000}
_SYNTHETIC_STEPS: Final = 20.0
_VALIDATION_SHARE: Final = 0.2
_CIFAR_STEM: Final = 16.0  # no stride 2 and no pooling before the blocks
_MAX_ROWS: Final = 20_000


@dataclass
class Estimates:
    """Estimates seconds per point; counts the points with rows of their model and algorithm."""

    corrections: Mapping[tuple[str, ...], float]
    measured: int = 0
    by_gpu: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __call__(self, point: Point) -> float:
        """Return the expected seconds of one point."""
        seconds = modelled(point.workload, point.axes, point.measure)
        for key in _keys(point.axes) if self.corrections else ():
            if key in self.corrections:
                self.measured += len(key) > 1
                seconds *= self.corrections[key]
                break
        self.by_gpu[str(point.axes.get("gpu"))] += seconds
        return seconds


def estimator(run: RunDir, device: str) -> Estimates:
    """Return an estimator for points on a device, corrected by the sweep's rows so far."""
    ratios: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in _rows(run):
        if row["status"] != PointStatus.OK or row.get("gpu") != device:
            continue
        ratio = _ratio(row)
        if ratio:
            for key in _keys(row):
                ratios[key].append(ratio)
    return Estimates({key: statistics.median(values) for key, values in ratios.items()})


def modelled(workload: str, axes: Mapping[str, Any], measure: Mapping[str, Any]) -> float:
    """Return the model's seconds for a point."""
    if workload == "noop":
        return 0.001 + float(measure.get("sleep_ms") or 0) / 1000
    passes = _training_passes(axes, measure) if workload == "training" else _passes(measure)
    size, batch = float(axes.get("input_size") or 224), float(axes.get("batch_size") or 1)
    stem, algorithm = axes.get("stem"), str(axes.get("algorithm"))
    image = _image(str(axes.get("model")), str(axes.get("gpu")), algorithm, stem == "cifar")
    one = image * (size / REFERENCE_SIZE) ** 2 * batch + _LAUNCH_SECONDS
    return _POINT_OVERHEAD + passes * one


def _passes(measure: Mapping[str, Any]) -> float:
    timed = float(measure.get("iterations", 20))
    if measure.get("stop") == "adaptive":
        timed = 3.0 * float(measure.get("min_iterations", 30))
    layers = 2.0 if measure.get("layers", True) else 1.0
    return float(measure.get("warmup", 10)) + layers * timed + 4.0


def _training_passes(axes: Mapping[str, Any], measure: Mapping[str, Any]) -> float:
    """Return the forward passes that a training point costs; a step costs three."""
    batch = float(axes.get("batch_size") or 1)
    images = _DATASETS.get(str(axes.get("dataset")), _SYNTHETIC_STEPS * batch)
    epoch = float(axes.get("steps_per_epoch") or max(1.0, images // batch))
    epochs = float(axes.get("epochs") or 1)
    instrumented = float(measure.get("iterations", 20)) * (
        3.0 if measure.get("layers", True) else 1
    )
    steps = epochs * epoch + float(measure.get("warmup", 10)) + instrumented
    validation = (epochs + 1) * epoch * _VALIDATION_SHARE if measure.get("validation", True) else 0
    return 3.0 * steps + validation


@lru_cache
def _image(model: str, gpu: str, algorithm: str, for_cifar: bool) -> float:  # noqa: FBT001
    """Return the seconds of one image of the reference size."""
    gflops = MODELS[model].gflops if model in MODELS else _UNKNOWN_GFLOPS
    rate = _CPU_FLOPS / _CPU_FACTOR.get(algorithm, 1.0)
    if gpu in GPUS:
        rate = GPUS[gpu].fp32_tflops * 1e12 * _EFFICIENCY
    return gflops * 1e9 * (_CIFAR_STEM if for_cifar else 1.0) / rate


def _keys(axes: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    algorithm = str(axes.get("algorithm"))
    yield (str(axes.get("model")), algorithm)
    yield (algorithm,)
    yield ()


def _rows(run: RunDir) -> Iterator[dict[str, Any]]:
    count = 0
    for shard in reversed(run.shards()):
        for row in shards.read(shard).rows:
            yield row
            count += 1
        if count > _MAX_ROWS:
            return


def _ratio(row: Mapping[str, Any]) -> float | None:
    """Return measured over modelled seconds of a row, with the passes that it took.

    None for a no-op: it lasts as long as the sweep says, and no row repeats that.
    """
    if row.get("workload") == "noop":
        return None
    try:
        wall, warmup = float(row["wall_s"]), float(row["warmup_n"] or 0)
        measure = {"warmup": warmup, "layers": int(row["layer_rows"] or 0) > 0}
        if row.get("workload") == "training":
            axes = {**row, "steps_per_epoch": float(row["steps"]) / float(row["epochs"])}
            measure |= {
                "iterations": float(row["phase_steps"]),
                "validation": bool(row["val_loss_after"]),
            }
            return wall / modelled("training", axes, measure)
        measure["iterations"] = float(row["n"])
    except (KeyError, ValueError):
        return None
    return wall / modelled(str(row.get("workload")), row, measure)
