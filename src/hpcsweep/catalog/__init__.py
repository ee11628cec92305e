"""What exists, without torch: workloads with their axes, settings and algorithms, and launchers.

Models, GPUs and columns have tables of their own beside this one. The tests compare the tables with
torchvision, cuDNN's headers and the vendors' figures without sparsity.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, auto
from functools import cache, partial
from typing import Any, Final, Literal


@dataclass(frozen=True)
class Workload:
    """What other parts of the program need to know of what a point runs.

    A new workload is one module in `measure/workloads/`, one line in `measure/bench.py`, and one
    line in `WORKLOADS`.
    """

    name: str
    runs_network: bool = True  # the one that the axis `model` names; this needs torch
    learns: bool = False  # trains the network: a pass is a step, and there are epochs

    @property
    def infers(self) -> bool:
        """Whether a pass is the forward pass of a network, and nothing else."""
        return self.runs_network and not self.learns


INFERENCE: Final = Workload("inference")
TRAINING: Final = Workload("training", learns=True)
NOOP: Final = Workload("noop", runs_network=False)
COMMAND: Final = Workload("command", runs_network=False)
WORKLOADS: Final[Mapping[str, Workload]] = {
    workload.name: workload for workload in (INFERENCE, TRAINING, NOOP, COMMAND)
}
_EVERY: Final = tuple(WORKLOADS)
_OURS: Final = (INFERENCE.name, TRAINING.name, NOOP.name)  # a command has axes of its own

AUTO: Final = "auto"
AUTOTUNE: Final = "autotune"
HEURISTIC: Final = "heuristic"

# what lets somebody else choose; what ran is told by its kernels
CHOOSING: Final = (AUTO, AUTOTUNE, HEURISTIC)

# The names are cuDNN's (cudnnConvolutionFwdAlgo_t), and the framework's own two choices.
ALGORITHMS: Final[Mapping[str, str]] = {
    AUTO: "the framework's default choice",
    AUTOTUNE: "the framework benchmarks and picks (torch.backends.cudnn.benchmark); GPUs only",
    HEURISTIC: "the first choice of cuDNN's heuristic mode A, or of MIOpen's guess; GPUs only",
    "implicit_gemm": "GEMM without an im2col matrix",
    "implicit_precomp_gemm": "implicit GEMM with precomputed gather indices",
    "gemm": "im2col into memory, then GEMM",
    "direct": "direct convolution",
    "fft": "FFT of the whole image",
    "fft_tiling": "FFT of tiles",
    "winograd": "Winograd F(2x2,3x3), transforms fused with the product",
    "winograd_nonfused": "Winograd with the transforms as separate passes",
}

# A plan as the library prints it, of cuDNN an engine with its knobs, or without for their defaults;
# of MIOpen a solution. It may say the version that it was found with: eng53_k2=5_k13=1@9.26.0.
PLAN: Final = r"(eng\d+(_k\d+=-?\d+)*|sol\d+)(@[\d.]+)?"

# NVIDIA's guide to cuDNN: the forward algorithms that may use tensor cores, TF32 among them
_ON_TENSOR_CORES: Final = frozenset({"implicit_precomp_gemm", "winograd_nonfused"})

DTYPES: Final = ("float32", "float16", "bfloat16", "float64")

Kind = Literal["str", "int", "bool", "float", "list", "algorithm", "model", "dataset", "gpu", "any"]


@dataclass(frozen=True)
class Entry:
    """What a sweep may set; its value is part of the point id.

    A point has the `default` where the sweep does not name it; it never changes once it is released
    (see `point`). Without `choices`, any value of the kind will do; a number must be at least the
    `minimum`.
    """

    name: str
    kind: Kind
    default: Any
    doc: str
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    workloads: tuple[str, ...] = _OURS


class Role(Flag):
    """What another value of an axis changes; an axis may have several roles."""

    NETWORK = auto()  # the network: a worker has to build another one
    INPUT = auto()  # what goes into it: its shape or its contents
    AMOUNT = auto()  # how much is computed: times of other values can be interpolated
    SETTING = auto()  # how the work is done; a time says nothing of another value's
    NUMBERS = auto()  # which numbers are computed with, not how many: times stay as they are
    REPETITION = auto()  # which repetition it is: points that differ in it alone are comparable
    PLACE = auto()  # where it runs


@dataclass(frozen=True)
class Axis(Entry):
    """One axis of a sweep; the column of the same name holds its values."""

    role: Role = Role.SETTING


VISIT: Final = "visit"

# the data sets that have a name; any other is package.module:factory
ON_DISK: Final = ("cifar10", "cifar100")  # below the folder in HPCSWEEP_DATA
DATASETS: Final = ("synthetic", *ON_DISK)

NETWORK, INPUT, AMOUNT, SETTING, NUMBERS, REPETITION, PLACE = Role
_one_pass = partial(Axis, workloads=(INFERENCE.name, NOOP.name))  # means nothing to a training step
_training = partial(Axis, workloads=(TRAINING.name,))

# One line adds an axis: column, JSON Schema and documentation follow. The defaults of training are
# those of plain float32 training of an ImageNet network.
# fmt: off
_AXES: Final = (
    Axis("model", "model", None, "a torchvision classifier, or package.module:factory",
        role=NETWORK),
    Axis("input_size", "int", 224, "image height, and width where no other is set, pixels",
        minimum=1, role=INPUT | AMOUNT),
    _one_pass("input_width", "int", None, "image width, pixels; unset: `input_size`", minimum=1,
        role=INPUT | AMOUNT),
    _one_pass("input_channels", "int", 3, minimum=1,
        doc="channels of an image; the first convolution of a torchvision network takes as many",
        role=NETWORK | INPUT),
    Axis("batch_size", "int", 1, "images per pass", minimum=1, role=INPUT | AMOUNT),
    Axis("algorithm", "algorithm", AUTO, "convolution algorithm, or a map of layers to names"),
    Axis("dtype", "str", "float32", "type of weights and activations", choices=DTYPES,
        role=NETWORK | SETTING),
    Axis("gpu", "gpu", None, "GPU type; unset: that of the profile", role=PLACE,
        workloads=_EVERY),
    Axis("weights", "str", "random", "random, a torchvision weights name, or a path",
        role=NETWORK | NUMBERS),
    Axis("memory_format", "str", "nchw", "layout of activations", choices=("nchw", "nhwc"),
        role=NETWORK | SETTING),
    _one_pass("launch", "str", "eager", choices=("eager", "graph"),
        doc="eager, or one replay of a CUDA graph"),
    _one_pass("cache_state", "str", "hot", choices=("hot", "cold", "rotated"),
        doc="cache before a pass: as left (hot), flushed (cold), or with rotated inputs"),
    Axis("tf32", "bool", default=False, doc="allow TF32 tensor cores for float32"),
    Axis("num_threads", "int", None, minimum=1,
        doc="CPU threads of one operator; unset: torch's choice"),
    Axis("input_fill", "str", "randn", "contents of inputs", choices=("randn", "uniform", "zeros"),
        role=INPUT | NUMBERS),
    Axis("seed", "int", 0, "seed of weights, inputs and the order of data", minimum=0,
        role=NETWORK | INPUT | NUMBERS | REPETITION),
    Axis(VISIT, "int", 1, minimum=1,
        doc="number of the visit: `measure: {repeats: N}` visits each point so often",
        role=REPETITION, workloads=_EVERY),
    _training("dataset", "dataset", "synthetic",
        doc="synthetic, cifar10, cifar100, or package.module:factory",
        role=NETWORK | INPUT | AMOUNT),
    _training("num_classes", "int", None, minimum=2,
        doc="classes of a synthetic data set, unset: 10; other data sets fix theirs",
        role=NETWORK),
    _training("stem", "str", "imagenet", choices=("imagenet", "cifar"),
        doc="first layers of a ResNet; cifar: 3x3 of stride 1 and no pooling, for 32x32 images",
        role=NETWORK),
    _training("epochs", "int", 1, "passes over the training data", minimum=1, role=AMOUNT),
    _training("steps_per_epoch", "int", None, minimum=1,
        doc="batches per epoch; unset: all of the data, or 20 of a synthetic data set",
        role=AMOUNT),
    _training("optimizer", "str", "sgd", choices=("sgd", "adam", "adamw"),
        doc="sgd (with momentum 0.9), adam or adamw"),
    _training("lr", "float", None, minimum=0,
        doc="learning rate; unset: 0.1 for sgd, 0.001 for adam and adamw", role=NUMBERS),
    _training("weight_decay", "float", None, minimum=0,
        doc="weight decay; unset: the optimizer's default (0, and 0.01 for adamw)", role=NUMBERS),
    _training("lr_schedule", "str", "constant", choices=("constant", "cosine"),
        doc="constant, or cosine decay to zero over the whole training", role=NUMBERS),
    _training("lr_warmup_steps", "int", 0, minimum=0,
        doc="steps in which the learning rate rises linearly to `lr`", role=NUMBERS),
    _training("label_smoothing", "float", 0.0, minimum=0,
        doc="label smoothing of the cross-entropy loss, 0 to 1", role=NUMBERS),
    _training("amp", "str", "off", choices=("off", "fp16", "bf16"),
        doc="automatic mixed precision: off, bf16, or fp16 with gradient scaling"),
    _training("compile", "str", "none", choices=("none", "torchscript", "inductor"),
        doc="compiler of the network: none, torchscript or inductor (torch.compile)"),
    _training("cudnn_benchmark", "bool", default=False,
        doc="cuDNN benchmarks its algorithms; the same as `algorithm: autotune`"),
    _training("cudnn_deterministic", "bool", default=False,
        doc="only algorithms of cuDNN that give the same bits every time"),
    _training("deterministic", "bool", default=False,
        doc="torch.use_deterministic_algorithms: every operator gives the same bits"),
    _training("pin_memory", "bool", default=False,
        doc="batches are in page-locked memory and copied while the GPU works"),
    _training("num_workers", "int", 0, minimum=0,
        doc="processes that load data; 0: the training process loads them"),
)
# fmt: on
AXES: Final[Mapping[str, Axis]] = {axis.name: axis for axis in _AXES}


@cache
def axes_with(role: Role) -> tuple[str, ...]:
    """Return the axes that have all of these roles, in column order."""
    return tuple(name for name, axis in AXES.items() if role in axis.role)


@cache
def sizes_of_inputs() -> tuple[str, ...]:
    """Return the axes that always say how large an input is: a larger value never needs less."""
    named = axes_with(Role.INPUT | Role.AMOUNT)
    return tuple(n for n in named if AXES[n].kind == "int" and AXES[n].default is not None)


@dataclass(frozen=True)
class Setting(Entry):
    """One key of `measure`."""

    workloads: tuple[str, ...] = (INFERENCE.name, TRAINING.name)


_inference_setting = partial(Setting, workloads=(INFERENCE.name,))
_training_setting = partial(Setting, workloads=(TRAINING.name,))
_noop_setting = partial(Setting, workloads=(NOOP.name,))

# fmt: off
_SETTINGS: Final = (
    Setting("warmup", "int", 10, "warm-up passes, which are not counted", minimum=0),
    Setting("iterations", "int", 20, minimum=1,
        doc="timed passes when `stop` is fixed; in training, steps of the phase and layer passes"),
    Setting("repeats", "int", 1, minimum=1, workloads=_EVERY,
        doc="visits of each point, each in another process and at another time; a row each"),
    _inference_setting("stop", "str", "fixed", choices=("fixed", "adaptive"),
        doc="fixed: `iterations` passes; adaptive: until the noise is small or stable"),
    _inference_setting("target", "float", 0.01, minimum=1e-6,
        doc="adaptive: target of the relative IQR, or of the CI of the median"),
    _inference_setting("min_iterations", "int", 30, "adaptive: fewest timed passes", minimum=3),
    _inference_setting("max_seconds", "float", 60.0, minimum=0,
        doc="adaptive: longest time of the timed passes, seconds"),
    _training_setting("validation", "bool", default=True,
        doc="loss and accuracy on the validation data, before training and after each epoch"),
    Setting("layers", "bool", default=True, choices=(True, False, "unique", "batched", "plans"),
        doc="time every layer in a separate pass; unique: each distinct convolution alone; "
        "batched: many calls of each in one graph, divided by their number; plans: every plan of "
        "the library for each distinct convolution, with its error against float64"),
    _inference_setting("plans", "int", 20, minimum=1,
        doc="layers: plans: most of the heuristic's plans; engines that it leaves out come, too"),
    Setting("evidence", "bool", default=True, doc="one profiled pass that proves the algorithm"),
    Setting("numerics", "bool", default=True, choices=(True, False, "layers"),
        doc="compare outputs and convolutions with float64; layers: each value, in layer rows"),
    _inference_setting("energy", "bool", default=True,
        doc="measure energy: 1.5 more seconds of passes on a GPU with an energy counter"),
    _inference_setting("fresh_inputs", "bool", default=True,
        doc="time a few passes on inputs that the network never saw"),
    Setting("unsupported", "str", "fallback", choices=("fallback", "skip", "error"),
        doc="if the algorithm cannot do a layer: run `auto` there, skip the point, or fail it"),
    Setting("workspace_mib", "float", 4096.0, minimum=0,
        doc="most scratch memory of a convolution, MiB; what needs more is unsupported"),
    Setting("profile", "list", [], choices=("torch", "cprofile", "nvtx"),
        doc="profilers, each in passes after the timed ones; see docs/profiles.md"),
    _training_setting("save_every", "int", 0, minimum=0,
        doc="keep checkpoints: last, best, and one every so many epochs; 0: none"),
    _training_setting("save_final", "bool", default=False,
        doc="keep the final weights, in the form that the axis `weights` takes"),
    _training_setting("resume_from", "str", "", "checkpoint from which to continue"),
    Setting("profile_passes", "int", 3, minimum=0,
        doc="passes under `torch` and `cprofile`; 0: as many as are timed, so all of a training"),
    Setting("profile_iter", "int", 1, minimum=1,
        doc="number of the pass after the warm-up that `nvtx` marks"),
    Setting("artifact_mb", "float", 100.0, "largest trace that is kept, MB", minimum=0),
    _noop_setting("sleep_ms", "float", 0.0, "length of a pass, ms", minimum=0),
    _noop_setting("fail", "list", (),
        doc="failures to inject: [{when: {axis: value}, how: crash, attempts: 1}]"),
)
# fmt: on
SETTINGS: Final[Mapping[str, Setting]] = {setting.name: setting for setting in _SETTINGS}

# the failures that can be injected into a no-op point; and the status that its row has then
INJECTIONS: Final[Mapping[str, str]] = {
    "error": "raises an exception; `error`",
    "crash": "dies of SIGSEGV; `crashed`",
    "kill": "dies of SIGKILL, as under the kernel's OOM killer; `crashed`",
    "exit": "ends with exit code 1; `crashed`",
    "hang": "never ends; `timeout`",
    "oom": "runs out of memory; `oom`",
    "unsupported": "cannot be done here; `unsupported`",
    "contended": "is measured, with the flag `contended`; `ok`, but not valid",
}


@dataclass(frozen=True)
class Launcher:
    """What other parts of the program need to know of a way to start chunks.

    A new launcher is one file in `cluster/` and one line in `LAUNCHERS`.
    """

    module: str  # in `cluster/`; it has the functions of a protocol in `cluster/launchers.py`
    template: str = ""  # of what it hands to sbatch, in `jobs/templates/`
    in_slurm: bool = False  # sends chunks to Slurm's queue; otherwise they run on this machine
    runs_profilers: bool = False  # its jobs take the profile's `wrapper`
    needs_time: bool = False  # the profile must have a time limit
    extra: str = ""  # of pip, that has what it needs


LAUNCHERS: Final[Mapping[str, Launcher]] = {
    "sbatch": Launcher("slurm.arrays", "job.sbatch.j2", in_slurm=True, runs_profilers=True),
    "submitit": Launcher(
        "slurm.via_submitit", "setup.sh.j2", in_slurm=True, needs_time=True, extra="submitit"
    ),
    "local": Launcher("local.supervisors"),
}


def may_use_tensor_cores(backend: str, algorithm: str) -> bool:
    """Say whether a back-end's explicit algorithm may; the framework chooses for itself."""
    return backend != "cudnn" or algorithm in _ON_TENSOR_CORES


def is_plan(name: str) -> bool:
    """Say whether a name is that of a library's plan, which only the library can know."""
    return re.fullmatch(PLAN, name) is not None


def is_algorithm(name: str) -> bool:
    """Say whether a sweep may ask for this: a name of the table, or a plan."""
    return name in ALGORITHMS or is_plan(name)


def workload_of(cell: str | None) -> Workload:
    """Return the workload that a row names; a name of elsewhere is of one that runs a network."""
    return WORKLOADS.get(cell or "") or Workload(cell or "")


def axes_of(workload: str) -> dict[str, Axis]:
    """Return the axes that a workload takes, in column order."""
    return {name: axis for name, axis in AXES.items() if workload in axis.workloads}


def own_axis(name: str) -> Axis:
    """Return an axis of a command; one with a name of ours fits the column of that name."""
    kind = AXES[name].kind if name in AXES else "any"
    return Axis(
        name,
        kind if kind in {"int", "float", "bool"} else "any",
        None,
        "an axis of the command",
        workloads=(COMMAND.name,),
    )


def settings_of(workload: str) -> dict[str, Setting]:
    """Return the keys of `measure` that a workload takes."""
    return {name: item for name, item in SETTINGS.items() if workload in item.workloads}


def axis_defaults(workload: str) -> dict[str, Any]:
    """Return the default of every axis of a workload."""
    return {name: axis.default for name, axis in axes_of(workload).items()}


def setting_defaults(workload: str) -> dict[str, Any]:
    """Return the default of every setting of a workload."""
    return {name: item.default for name, item in settings_of(workload).items()}
