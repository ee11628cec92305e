"""How many passes a point makes, by its settings or by its row, and how long one should take.

A step of a training counts as three forward passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from hpcsweep.catalog import workload_of
from hpcsweep.catalog.gpus import GPUS
from hpcsweep.catalog.models import MODELS, REFERENCE_SIZE

Cells = Mapping[str, Any]

OF_A_STEP: Final = (
    3.0  # forward passes: a backward pass computes two products for each of a forward one
)
OF_STEPS: Final = ("batch_size", "dataset", "epochs", "steps_per_epoch")  # axes that count passes
# Images of a training epoch, where they are known before the data set is opened.
_DATASETS: Final[Mapping[str, float]] = {"cifar10": 50_000, "cifar100": 50_000}
_SYNTHETIC_STEPS: Final = 20.0
_VALIDATION_SHARE: Final = 0.2
_LAYER_LANES: Final = 3.0  # of a training: phases, layers, and the clean steps beside them
# Share of the dense float32 peak that a convolutional network reaches; a planning figure.
_EFFICIENCY: Final = 0.25
_CPU_FLOPS: Final = 60e9
_LAUNCH_SECONDS: Final = 0.004  # of a pass, however small
_UNKNOWN_GFLOPS: Final = 10.0  # of an image of a network that no table has
# Reference families on a CPU against its own library; planning figures, too.
_CPU_FACTOR: Final[Mapping[str, float]] = {
    "gemm": 3, "implicit_gemm": 3, "implicit_precomp_gemm": 4, "fft": 20, "fft_tiling": 20,
    "winograd": 6, "winograd_nonfused": 6,
}  # fmt: skip
_CIFAR_STEM: Final = 16.0  # no stride 2 and no pooling before the blocks


def of_point(
    workload: str, axes: Cells, measure: Cells, *, layer_factor: float = 1.0, adaptive: float = 0.0
) -> float:
    """Return the timed and warm-up passes of a point.

    `layer_factor` is how much longer a pass with layer timers takes, `adaptive` how many passes
    usually satisfy `stop: adaptive`; 0: unknown.
    """
    warmup = float(measure.get("warmup", 10))
    timed = float(measure.get("iterations", 20))
    layers = measure.get("layers", True)
    if workload_of(workload).learns:
        epochs = float(axes.get("epochs") or 1)
        instrumented = warmup + timed * (_LAYER_LANES if layers else 1.0)
        if measure.get("profile") and measure.get("profile_passes") == 0:  # the training once more
            instrumented += len(measure["profile"]) * epochs * _epoch(axes)
        validates = bool(measure.get("validation", True))
        return _training(epochs, epochs * _epoch(axes), instrumented, validates=validates)
    if measure.get("stop") == "adaptive":
        timed = adaptive or 3.0 * float(measure.get("min_iterations", 30))
    return warmup + timed * (1.0 + (layer_factor if layers else 0.0))


def of_row(workload: str, row: Cells) -> float:
    """Return the same of a row; NaN where it does not tell."""
    warmup = number(row, "warmup_n", 0.0)
    if workload_of(workload).learns:
        lanes = _LAYER_LANES if number(row, "layer_rows", 0.0) else 1.0
        instrumented = warmup + lanes * number(row, "phase_steps", 0.0)
        epochs = number(row, "epochs", 1.0)
        steps = number(row, "steps")
        return _training(epochs, steps, instrumented, validates=bool(row.get("val_loss_after")))
    return warmup + number(row, "n") * (1.0 + (layer_factor(row) or 0.0))


def layer_factor(row: Cells) -> float | None:
    """Return how much longer than a clean pass all the passes that time layers once took."""
    factor = number(row, "layer_pass_mean_ms") / _mean_ms(row)
    return None if math.isnan(factor) else factor * number(row, "layer_pass_parts", 1.0)


def work(axes: Cells) -> float:
    """Return the pixels of a pass, in images of the reference size."""
    size = float(axes.get("input_size") or 224)
    batch = float(axes.get("batch_size") or 1)
    width = float(axes.get("input_width") or size)
    return size * width / REFERENCE_SIZE**2 * batch


def table(axes: Cells) -> Callable[[float], float]:
    """Return the seconds of a pass of some work by its operations and the peak of the device."""
    image = _image(str(axes.get("model")), str(axes.get("gpu")), str(axes.get("algorithm")))
    stem = _CIFAR_STEM if axes.get("stem") == "cifar" else 1.0
    return lambda work: _LAUNCH_SECONDS + stem * image * work


@lru_cache
def _image(model: str, gpu: str, algorithm: str) -> float:
    """Return the seconds of one image of the reference size."""
    gflops = MODELS[model].gflops if model in MODELS else _UNKNOWN_GFLOPS
    rate = _CPU_FLOPS / _CPU_FACTOR.get(algorithm, 1.0)
    if gpu in GPUS:
        rate = GPUS[gpu].fp32_tflops * 1e12 * _EFFICIENCY
    return gflops * 1e9 / rate


def pass_seconds(workload: str, row: Cells) -> float:
    """Return the mean seconds of a forward pass; NaN where the row has no time."""
    return _mean_ms(row) / 1000 / (OF_A_STEP if workload_of(workload).learns else 1.0)


def upper_factor(row: Cells) -> float:
    """Return the factor from a predicted time to the upper end of its interval."""
    return number(row, "predicted_hi_ms", math.inf) / _mean_ms(row)


def _mean_ms(row: Cells) -> float:
    return number(row, "mean_ms", number(row, "median_ms"))


def _training(epochs: float, steps: float, instrumented: float, *, validates: bool) -> float:
    validation = (epochs + 1) * steps / epochs * _VALIDATION_SHARE if validates else 0.0
    return OF_A_STEP * (steps + instrumented) + validation


def _epoch(axes: Cells) -> float:
    batch = float(axes.get("batch_size") or 1)
    images = _DATASETS.get(str(axes.get("dataset")), _SYNTHETIC_STEPS * batch)
    return float(axes.get("steps_per_epoch") or max(1.0, images // batch))


def number(row: Cells, name: str, missing: float = math.nan) -> float:
    """Return a positive cell as a number."""
    try:
        value = float(row.get(name) or missing)
    except ValueError:
        return missing
    return value if value > 0 else missing
