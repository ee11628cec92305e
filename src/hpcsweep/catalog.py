"""What exists, without torch: workloads, axes, algorithms, dtypes.

The models and the GPUs' peaks are tables of their own (`catalog_models`, `catalog_gpus`); the
tests hold all of them against torchvision, cuDNN's headers and the vendors' dense figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

WORKLOADS: Final = ("inference", "training", "noop")

AUTO: Final = "auto"
AUTOTUNE: Final = "autotune"

# The taxonomy is cuDNN's (cudnnConvolutionFwdAlgo_t) plus the framework's own two choices.
ALGORITHMS: Final[Mapping[str, str]] = {
    AUTO: "the framework's default choice",
    AUTOTUNE: "the framework's own benchmark picks (torch.backends.cudnn.benchmark)",
    "implicit_gemm": "GEMM without an im2col matrix",
    "implicit_precomp_gemm": "implicit GEMM with precomputed gather indices",
    "gemm": "im2col into memory, then GEMM",
    "direct": "direct convolution",
    "fft": "FFT of the whole image",
    "fft_tiling": "FFT of tiles",
    "winograd": "Winograd F(2x2,3x3), transforms fused with the product",
    "winograd_nonfused": "Winograd with the transforms as separate passes",
}

DTYPES: Final = ("float32", "float16", "bfloat16", "float64")

Kind = Literal["str", "int", "bool", "float", "algorithm", "model", "gpu"]


@dataclass(frozen=True)
class Axis:
    """One axis of a sweep; the column of the same name holds its values.

    `default` is what a point has when the sweep does not say; it is frozen once released
    (see `point`). `choices` empty means: anything of the kind, `minimum` and up for numbers.
    """

    name: str
    kind: Kind
    default: Any
    doc: str
    choices: tuple[Any, ...] = ()
    minimum: int | None = None
    workloads: tuple[str, ...] = WORKLOADS


AXES: Final[Mapping[str, Axis]] = {
    axis.name: axis
    for axis in (
        Axis("model", "model", None, "torchvision classifier, or package.module:factory"),
        Axis("input_size", "int", 224, "image height and width, pixels", minimum=1),
        Axis("batch_size", "int", 1, "images per pass", minimum=1),
        Axis("algorithm", "algorithm", AUTO, "convolution algorithm, or a map of layers to names"),
        Axis("dtype", "str", "float32", "type of weights and activations", DTYPES),
        Axis("gpu", "gpu", None, "GPU type; the profile's where the sweep does not say"),
        Axis("weights", "str", "random", "random, a torchvision weights name, or a path"),
        Axis("memory_format", "str", "nchw", "layout of activations", ("nchw", "nhwc")),
        Axis("launch", "str", "eager", "eager, or one replay of a CUDA graph", ("eager", "graph")),
        Axis(
            "cache_state",
            "str",
            "hot",
            "cache before each pass: as left, flushed, or inputs rotated",
            ("hot", "cold", "rotated"),
        ),
        Axis("tf32", "bool", default=False, doc="allow TF32 tensor cores for float32"),
        Axis("num_threads", "int", None, "CPU threads of one operator; unset: torch's", minimum=1),
        Axis("input_fill", "str", "randn", "contents of inputs", ("randn", "uniform", "zeros")),
        Axis("seed", "int", 0, "seed of weights and inputs", minimum=0),
    )
}


@dataclass(frozen=True)
class Setting:
    """One key below `measure:`; all of them are part of the point id."""

    name: str
    kind: Literal["int", "float", "bool", "str", "list"]
    default: Any
    doc: str
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    workloads: tuple[str, ...] = ("inference", "training")


SETTINGS: Final[Mapping[str, Setting]] = {
    setting.name: setting
    for setting in (
        Setting("warmup", "int", 10, "passes that are not counted", minimum=0),
        Setting("iterations", "int", 20, "timed passes when `stop` is fixed", minimum=1),
        Setting(
            "stop",
            "str",
            "fixed",
            "fixed: `iterations` passes; adaptive: until the noise is small or known",
            ("fixed", "adaptive"),
        ),
        Setting(
            "target", "float", 0.01, "adaptive: relative IQR, or CI of the median", minimum=1e-6
        ),
        Setting("min_iterations", "int", 30, "adaptive: fewest timed passes", minimum=3),
        Setting("max_seconds", "float", 60.0, "adaptive: time cap of the timed passes", minimum=0),
        Setting(
            "layers",
            "bool",
            default=True,
            doc="time every layer in a pass of its own; unique: every distinct convolution, alone",
            choices=(True, False, "unique"),
        ),
        Setting(
            "evidence", "bool", default=True, doc="one profiled pass that proves the algorithm"
        ),
        Setting(
            "numerics", "bool", default=True, doc="compare the output with a float64 reference"
        ),
        Setting(
            "unsupported",
            "str",
            "fallback",
            "a layer that the algorithm cannot do: runs `auto`, or the point is not measured",
            ("fallback", "skip", "error"),
        ),
        Setting(
            "profile",
            "list",
            (),
            "profilers, each in passes of its own after the timed ones; see docs/profiling.md",
            ("torch", "cprofile", "nvtx"),
        ),
        Setting("profile_passes", "int", 3, "passes under `torch` and `cprofile`", minimum=1),
        Setting("profile_iter", "int", 1, "pass after the warm-up that `nvtx` marks", minimum=1),
        Setting("artifact_mb", "float", 100.0, "largest trace that is kept, MB", minimum=0),
        Setting("sleep_ms", "float", 0.0, "how long a pass lasts", minimum=0, workloads=("noop",)),
        Setting(
            "fail",
            "list",
            (),
            "failures to inject: [{when: {axis: value}, how: crash, attempts: 1}]",
            workloads=("noop",),
        ),
    )
}

# how a no-op point can be made to fail, and what becomes of it
INJECTIONS: Final[Mapping[str, str]] = {
    "error": "raises; the row says `error`",
    "crash": "dies of SIGSEGV; `crashed`",
    "kill": "dies of SIGKILL, as under the kernel's OOM killer; `crashed`",
    "exit": "leaves with exit code 1; `crashed`",
    "hang": "never ends; `timeout`",
    "oom": "runs out of memory; `oom`",
    "unsupported": "cannot be done here; `unsupported`",
}


def axes_of(workload: str) -> dict[str, Axis]:
    """Return the axes that a workload takes, in column order."""
    return {name: axis for name, axis in AXES.items() if workload in axis.workloads}


def settings_of(workload: str) -> dict[str, Setting]:
    """Return the `measure:` keys that a workload takes."""
    return {name: item for name, item in SETTINGS.items() if workload in item.workloads}


def axis_defaults(workload: str) -> dict[str, Any]:
    """Return axis name to default for a workload."""
    return {name: axis.default for name, axis in axes_of(workload).items()}


def setting_defaults(workload: str) -> dict[str, Any]:
    """Return setting name to default for a workload."""
    return {name: item.default for name, item in settings_of(workload).items()}
