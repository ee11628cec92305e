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
    AUTOTUNE: "the framework benchmarks and picks (torch.backends.cudnn.benchmark); GPUs only",
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
    minimum: float | None = None
    workloads: tuple[str, ...] = WORKLOADS


# what a name without a colon may be on the axis `dataset`
DATASETS: Final = ("synthetic", "cifar10", "cifar100", "imagefolder")

_TRAINING: Final = ("training",)
_INFERENCE: Final = ("inference",)
_ONE_PASS: Final = ("inference", "noop")  # what means nothing to a training step

# What only a training has; the defaults are plain float32 training of an ImageNet network.
TRAINING_AXES: Final = (
    Axis(
        "dataset",
        "str",
        "synthetic",
        "synthetic, cifar10, cifar100, imagefolder, or package.module:factory",
        workloads=_TRAINING,
    ),
    Axis(
        "num_classes",
        "int",
        None,
        "classes of a synthetic data set, unset: 10; other data sets fix theirs",
        minimum=2,
        workloads=_TRAINING,
    ),
    Axis(
        "stem",
        "str",
        "imagenet",
        "first layers of a ResNet; cifar: 3x3 of stride 1 and no pooling, for 32x32 images",
        ("imagenet", "cifar"),
        workloads=_TRAINING,
    ),
    Axis("epochs", "int", 1, "passes over the training data", minimum=1, workloads=_TRAINING),
    Axis(
        "steps_per_epoch",
        "int",
        None,
        "batches per epoch; unset: all of the data, or 20 of a synthetic data set",
        minimum=1,
        workloads=_TRAINING,
    ),
    Axis(
        "optimizer",
        "str",
        "sgd",
        "sgd (with momentum 0.9), adam or adamw",
        ("sgd", "adam", "adamw"),
        workloads=_TRAINING,
    ),
    Axis(
        "lr",
        "float",
        None,
        "learning rate; unset: 0.1 for sgd, 0.001 for adam and adamw",
        minimum=0,
        workloads=_TRAINING,
    ),
    Axis(
        "weight_decay",
        "float",
        None,
        "weight decay; unset: the optimizer's default (0, and 0.01 for adamw)",
        minimum=0,
        workloads=_TRAINING,
    ),
    Axis(
        "lr_schedule",
        "str",
        "constant",
        "constant, or cosine decay to zero over the whole training",
        ("constant", "cosine"),
        workloads=_TRAINING,
    ),
    Axis(
        "lr_warmup_steps",
        "int",
        0,
        "steps in which the learning rate rises linearly to `lr`",
        minimum=0,
        workloads=_TRAINING,
    ),
    Axis(
        "label_smoothing",
        "float",
        0.0,
        "label smoothing of the cross-entropy loss, 0 to 1",
        minimum=0,
        workloads=_TRAINING,
    ),
    Axis(
        "amp",
        "str",
        "off",
        "automatic mixed precision: off, bf16, or fp16 with gradient scaling",
        ("off", "fp16", "bf16"),
        workloads=_TRAINING,
    ),
    Axis(
        "compile",
        "str",
        "none",
        "compiler of the network: none, torchscript or inductor (torch.compile)",
        ("none", "torchscript", "inductor"),
        workloads=_TRAINING,
    ),
    Axis(
        "cudnn_benchmark",
        "bool",
        default=False,
        doc="cuDNN benchmarks its algorithms; the same as `algorithm: autotune`",
        workloads=_TRAINING,
    ),
    Axis(
        "cudnn_deterministic",
        "bool",
        default=False,
        doc="only algorithms of cuDNN that give the same bits every time",
        workloads=_TRAINING,
    ),
    Axis(
        "deterministic",
        "bool",
        default=False,
        doc="torch.use_deterministic_algorithms: every operator gives the same bits",
        workloads=_TRAINING,
    ),
    Axis(
        "pin_memory",
        "bool",
        default=False,
        doc="batches are in page-locked memory and copied while the GPU works",
        workloads=_TRAINING,
    ),
    Axis(
        "num_workers",
        "int",
        0,
        "processes that load data; 0: the training process loads them",
        minimum=0,
        workloads=_TRAINING,
    ),
)

AXES: Final[Mapping[str, Axis]] = {
    axis.name: axis
    for axis in (
        Axis("model", "model", None, "torchvision classifier, or package.module:factory"),
        Axis("input_size", "int", 224, "image height and width, pixels", minimum=1),
        Axis("batch_size", "int", 1, "images per pass", minimum=1),
        Axis("algorithm", "algorithm", AUTO, "convolution algorithm, or a map of layers to names"),
        Axis("dtype", "str", "float32", "type of weights and activations", DTYPES),
        Axis("gpu", "gpu", None, "GPU type; unset: that of the profile"),
        Axis("weights", "str", "random", "random, a torchvision weights name, or a path"),
        Axis("memory_format", "str", "nchw", "layout of activations", ("nchw", "nhwc")),
        Axis(
            "launch",
            "str",
            "eager",
            "eager, or one replay of a CUDA graph",
            ("eager", "graph"),
            workloads=_ONE_PASS,
        ),
        Axis(
            "cache_state",
            "str",
            "hot",
            "cache before a pass: as left (hot), flushed (cold), or with rotated inputs",
            ("hot", "cold", "rotated"),
            workloads=_ONE_PASS,
        ),
        Axis("tf32", "bool", default=False, doc="allow TF32 tensor cores for float32"),
        Axis(
            "num_threads",
            "int",
            None,
            "CPU threads of one operator; unset: torch's choice",
            minimum=1,
        ),
        Axis("input_fill", "str", "randn", "contents of inputs", ("randn", "uniform", "zeros")),
        Axis("seed", "int", 0, "seed of weights, inputs and the order of data", minimum=0),
        *TRAINING_AXES,
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
        Setting("warmup", "int", 10, "warm-up passes, which are not counted", minimum=0),
        Setting(
            "iterations",
            "int",
            20,
            "timed passes when `stop` is fixed; in training, steps of the phase and layer passes",
            minimum=1,
        ),
        Setting(
            "stop",
            "str",
            "fixed",
            "fixed: `iterations` passes; adaptive: until the noise is small or stable",
            ("fixed", "adaptive"),
            workloads=_INFERENCE,
        ),
        Setting(
            "target",
            "float",
            0.01,
            "adaptive: target of the relative IQR, or of the CI of the median",
            minimum=1e-6,
            workloads=_INFERENCE,
        ),
        Setting(
            "min_iterations",
            "int",
            30,
            "adaptive: fewest timed passes",
            minimum=3,
            workloads=_INFERENCE,
        ),
        Setting(
            "max_seconds",
            "float",
            60.0,
            "adaptive: longest time of the timed passes, seconds",
            minimum=0,
            workloads=_INFERENCE,
        ),
        Setting(
            "validation",
            "bool",
            default=True,
            doc="loss and accuracy on the validation data, before training and after each epoch",
            workloads=_TRAINING,
        ),
        Setting(
            "layers",
            "bool",
            default=True,
            doc="time every layer in a separate pass; unique: each distinct convolution alone",
            choices=(True, False, "unique"),
        ),
        Setting(
            "evidence", "bool", default=True, doc="one profiled pass that proves the algorithm"
        ),
        Setting(
            "numerics",
            "bool",
            default=True,
            doc="compare the output with float64; layers: also that of every convolution",
            choices=(True, False, "layers"),
        ),
        Setting(
            "energy",
            "bool",
            default=True,
            doc="measure energy: 1.5 more seconds of passes on a GPU with an energy counter",
            workloads=_INFERENCE,
        ),
        Setting(
            "unsupported",
            "str",
            "fallback",
            "if the algorithm cannot do a layer: run `auto` there, skip the point, or fail it",
            ("fallback", "skip", "error"),
        ),
        Setting(
            "workspace_mib",
            "float",
            4096.0,
            "most scratch memory of a convolution, MiB; what needs more is unsupported",
            minimum=0,
        ),
        Setting(
            "profile",
            "list",
            [],
            "profilers, each in separate passes after the timed ones; see docs/profiling.md",
            ("torch", "cprofile", "nvtx"),
        ),
        Setting(
            "save_every",
            "int",
            0,
            "keep checkpoints: last, best, and one every so many epochs; 0: none",
            minimum=0,
            workloads=_TRAINING,
        ),
        Setting(
            "save_final",
            "bool",
            default=False,
            doc="keep the final weights, in the form that the axis `weights` takes",
            workloads=_TRAINING,
        ),
        Setting("resume_from", "str", "", "checkpoint from which to continue", workloads=_TRAINING),
        Setting("profile_passes", "int", 3, "passes under `torch` and `cprofile`", minimum=1),
        Setting(
            "profile_iter",
            "int",
            1,
            "number of the pass after the warm-up that `nvtx` marks",
            minimum=1,
        ),
        Setting("artifact_mb", "float", 100.0, "largest trace that is kept, MB", minimum=0),
        Setting("sleep_ms", "float", 0.0, "length of a pass, ms", minimum=0, workloads=("noop",)),
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
    "error": "raises an exception; `error`",
    "crash": "dies of SIGSEGV; `crashed`",
    "kill": "dies of SIGKILL, as under the kernel's OOM killer; `crashed`",
    "exit": "ends with exit code 1; `crashed`",
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
