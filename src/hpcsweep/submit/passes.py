"""How many passes a point makes, by its settings or by its row, and how long all should take.

A pass is a forward pass, or a step of a training. Nothing here knows of measured times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hpcsweep.catalog import ALGORITHMS, gpus, workload_of
from hpcsweep.catalog.limits import number
from hpcsweep.catalog.models import MODELS, REFERENCE_SIZE

Cells = Mapping[str, Any]

# Forward passes of a step: a backward pass computes two products for each of a forward pass, and
# the update of ResNet-18 takes about as long as one more on a CPU.
_OF_A_STEP: Final = 4.0
# A validation goes through a fifth of the images, forward only.
_VALIDATION_SHARE: Final = 0.2 / _OF_A_STEP
# The instrumented part of a training: phases, layers, and the clean steps beside them.
_LANES: Final = 3.0
_WITH_LAYERS: Final = 2.0  # the timed passes of an inference, and as many in which layers are timed
# Images of an epoch, where they are known before the data set is opened: 50,000 in both CIFARs.
_CIFAR_IMAGES: Final = 50_000.0
_SYNTHETIC_STEPS: Final = 20.0  # the default of an epoch of synthetic data
# Passes of `stop: adaptive` over the fewest that it may take; a planning figure.
_ADAPTIVE: Final = 3.0
# Share of the dense float32 peak that a convolutional network reaches; a planning figure.
_EFFICIENCY: Final = 0.25
# Of two cores, 27e9 each, by ResNet-18 at three sizes with four algorithms, as the next ones.
_CPU_FLOPS: Final = 60e9
_CALL_SECONDS: Final = 200e-6  # of each convolution of a pass with what follows it, however small
# Seconds beside the passes: of every point, of each convolution, and as many passes more.
_POINT_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 0.0075
_MORE_PASSES: Final = 4.0
_MORE_STEPS: Final = 20.0  # of a training, whose gradients are compared, too; 18 to 22 were seen
_CIFAR_STEM: Final = 16.0  # no stride 2 and no pooling before the blocks


@dataclass(frozen=True)
class Operations:
    """What a network computes: GFLOPs of an image of the reference size, and convolutions."""

    gflops: float
    convolutions: int = 20  # those of ResNet-18: the table of networks has none


UNKNOWN: Final = Operations(10.0)  # of a network that nobody could try


@dataclass(frozen=True)
class Peaks:
    """Planning figures for the points of a workload on a device, by the peak of that.

    Of a device without a sheet nothing is known (`is_known`): it counts as the slowest with one.
    `tried` are the operations of the user's own networks.
    """

    workload: str
    device: str
    tried: Mapping[str, Operations] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        """Say whether the catalogue knows how fast the device is."""
        return self.device == "cpu" or gpus.sheet(self.device) is not None

    def operations(self, model: str) -> Operations | None:
        """Return what a network computes; None where no table has it and nobody could try it."""
        if model in MODELS:
            return Operations(MODELS[model].gflops)
        return self.tried.get(model)

    def pass_s(self, axes: Cells) -> float:
        """Return the seconds of a pass."""
        operations = self.operations(axes["model"]) or UNKNOWN
        stem = _CIFAR_STEM if axes.get("stem") == "cifar" else 1.0
        flops = operations.gflops * 1e9 * stem * work(axes)
        if self.device == "cpu":
            algorithm = ALGORITHMS.get(str(axes.get("algorithm")))
            rate = _CPU_FLOPS / (algorithm.cpu_factor if algorithm else 1.0)
        else:
            gpu = gpus.sheet(self.device)
            tflops = gpu.fp32_tflops if gpu else min(each.fp32_tflops for each in gpus.DEVICES)
            rate = tflops * 1e12 * _EFFICIENCY
        seconds = operations.convolutions * _CALL_SECONDS + flops / rate
        return seconds * (_OF_A_STEP if workload_of(self.workload).learns else 1.0)

    def beside_s(self, axes: Cells, pass_s: float) -> float:
        """Return the seconds that a point takes beside its passes: evidence, numerics, shapes."""
        operations = self.operations(axes["model"]) or UNKNOWN
        more = _MORE_STEPS if workload_of(self.workload).learns else _MORE_PASSES
        return _POINT_SECONDS + operations.convolutions * _LOOK_SECONDS + more * pass_s


def planned(workload: str, axes: Cells, measure: Cells, adaptive: float = 0.0) -> float:
    """Return the passes that a point will make, by its settings.

    `adaptive` is how many timed passes usually satisfy `stop: adaptive`; 0: unknown.
    """
    timed = float(measure.get("iterations", 20))
    learns = workload_of(workload).learns
    epochs = float(axes.get("epochs") or 1)
    steps = epochs * _steps_of_epoch(axes) if learns else 0.0
    if measure.get("stop") == "adaptive" and not learns:
        timed = adaptive or _ADAPTIVE * float(measure.get("min_iterations", 30))
    if measure.get("layers", True):
        timed *= _LANES if learns else _WITH_LAYERS
    passes = float(measure.get("warmup", 10)) + timed + steps
    if measure.get("profile") and measure.get("profile_passes") == 0:
        passes += len(measure["profile"]) * steps  # the whole training once more
    return passes + (_validation(epochs, steps) if measure.get("validation", True) else 0.0)


def made(workload: str, row: Cells) -> float:
    """Return the passes that the point of a row made."""
    learns = workload_of(workload).learns
    steps = number(row, "steps") if learns else 0.0
    timed = number(row, "phase_steps" if learns else "n")
    if number(row, "layer_rows"):
        timed *= _LANES if learns else _WITH_LAYERS
    passes = number(row, "warmup_n") + timed + steps
    validated = _validation(number(row, "epochs") or 1.0, steps)
    return passes + (validated if row.get("val_loss_after") else 0.0)


def work(axes: Cells) -> float:
    """Return the pixels of a pass, in images of the reference size."""
    size = float(axes.get("input_size") or REFERENCE_SIZE)
    width = float(axes.get("input_width") or size)
    return size * width / REFERENCE_SIZE**2 * float(axes.get("batch_size") or 1)


def _steps_of_epoch(axes: Cells) -> float:
    if axes.get("steps_per_epoch"):
        return float(axes["steps_per_epoch"])
    if str(axes.get("dataset")).startswith("cifar"):
        return _CIFAR_IMAGES // float(axes.get("batch_size") or 1)
    return _SYNTHETIC_STEPS


def _validation(epochs: float, steps: float) -> float:
    """Return the passes of the validations before the training and after each epoch."""
    return (epochs + 1) * steps / epochs * _VALIDATION_SHARE
