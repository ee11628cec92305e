"""What exists, without torch: workloads, their axes and settings, algorithms, and launchers.

Axes, settings, models, GPUs and columns stand in the tables beside this module. The tests compare
the tables with torchvision, cuDNN's headers and the vendors' figures without sparsity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from hpcsweep.catalog.record import packaged

if TYPE_CHECKING:
    from hpcsweep.point import Point

Network = tuple[Hashable, ...]


@dataclass(frozen=True)
class WorkloadKind:
    """What other parts of the program need to know of what a point runs.

    A new workload is one module in `measure/workloads/`, one line in `measure/measure_point.py`,
    and one line in `WORKLOADS`.
    """

    name: str
    runs_network: bool = True  # the one that the axis `model` names; this needs torch
    learns: bool = False  # trains the network: a pass is a step, and there are epochs

    @property
    def infers(self) -> bool:
        """Whether a pass is the forward pass of a network, and nothing else."""
        return self.runs_network and not self.learns


INFERENCE: Final = WorkloadKind("inference")
TRAINING: Final = WorkloadKind("training", learns=True)
NOOP: Final = WorkloadKind("noop", runs_network=False)
COMMAND: Final = WorkloadKind("command", runs_network=False)
WORKLOADS: Final[Mapping[str, WorkloadKind]] = {
    workload.name: workload for workload in (INFERENCE, TRAINING, NOOP, COMMAND)
}

# how an algorithm adds up an output: its rounding, and the fewest products, follow from that
SUMS_PLAIN: Final = "plain"  # a product for each filter tap, as convolution is defined
SUMS_FFT: Final = "fft"
SUMS_WINOGRAD: Final = "winograd"


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A convolution algorithm that a sweep may ask for, or a choice that is left to others.

    How it computes is in `conv/reference`; the kernels by which it is known are in
    `conv/proof/kernels`. The names are cuDNN's (cudnnConvolutionFwdAlgo_t), and those of choices.
    """

    name: str
    doc: str
    place: int  # of its colour and marker, for ever; a new one takes the next
    sums: str = ""  # empty where nothing is known of it, as of a choice
    # Seconds of the reference on a CPU over those of the framework's own: medians over twelve
    # networks and twelve sizes (results/reference/prediction), some of ResNet-18 at 112 pixels.
    cpu_factor: float = 1.0
    cudnn: int | None = None  # cudnnConvolutionFwdAlgo_t
    miopen: int | None = None  # miopenConvAlgorithm_t: one numbering for all directions
    tensor_cores: bool = False  # may use them in cuDNN's forward calls, by NVIDIA's guide
    notes: frozenset[str] = frozenset()  # of cuDNN on engines, of which its own have one


ALGORITHMS: Final[Mapping[str, Algorithm]] = {
    row["name"]: Algorithm(
        name=row["name"],
        doc=row["doc"],
        place=int(row["place"]),
        sums=row["sums"],
        cpu_factor=float(row["cpu_factor"]),
        cudnn=int(row["cudnn"]) if row["cudnn"] else None,
        miopen=int(row["miopen"]) if row["miopen"] else None,
        tensor_cores=row["tensor_cores"] == "true",
        notes=frozenset(row["notes"].split()),
    )
    for row in packaged("algorithms.csv")
}


def algorithms_adding(sums: str) -> frozenset[str]:
    """Return the algorithms that add up an output in one way."""
    return frozenset(name for name, algorithm in ALGORITHMS.items() if algorithm.sums == sums)


AUTO: Final = "auto"
AUTOTUNE: Final = "autotune"
HEURISTIC: Final = "heuristic"

# what lets somebody else choose; what ran is told by its kernels
CHOOSING: Final = (AUTO, AUTOTUNE, HEURISTIC)

# A plan as the library prints it, of cuDNN an engine with its knobs, or without for their defaults;
# of MIOpen a solution. It may say the version that it was found with: eng53_k2=5_k13=1@9.26.0.
PLAN: Final = r"(eng\d+(_k\d+=-?\d+)*|sol\d+)(@[\d.]+)?"

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
    workloads: tuple[str, ...] = ()


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
# of points of `submit --each-node` alone; no workload has it, so no sweep file can name it
ON_NODE: Final = "on_node"

# the data sets that have a name; any other is package.module:factory
ON_DISK: Final = ("cifar10", "cifar100")  # below the folder in HPCSWEEP_DATA
DATASETS: Final = ("synthetic", *ON_DISK)


def _entries(table: str) -> Iterator[dict[str, Any]]:
    """Yield the fields of the axes or settings in a table, for which a row is all that is needed.

    Column, JSON Schema and documentation follow.
    """
    for row in packaged(table):
        default: object = row["default"]
        if row["kind"] in {"int", "float", "bool", "list"}:
            default = json.loads(row["default"] or "null")
        elif row["kind"] != "str":
            default = default or None  # unset; an empty text is a text
        yield {
            **row,
            "default": default,
            "minimum": json.loads(row["minimum"] or "null"),
            "choices": tuple(_SPELLED.get(word, word) for word in row["choices"].split()),
            "workloads": tuple(row["workloads"].split()),
        }


def _axis(entry: dict[str, Any]) -> Axis:
    role = Role(0)
    for word in entry["role"].split():
        role |= Role[word.upper()]
    return Axis(**{**entry, "role": role})


_SPELLED: Final = {"true": True, "false": False}
# The defaults of training are those of plain float32 training of an ImageNet network.
AXES: Final[Mapping[str, Axis]] = {entry["name"]: _axis(entry) for entry in _entries("axes.csv")}
DTYPES: Final[tuple[str, ...]] = AXES["dtype"].choices


@cache
def axes_with(role: Role) -> tuple[str, ...]:
    """Return the axes that have all of these roles, in column order."""
    return tuple(name for name, axis in AXES.items() if role in axis.role)


@cache
def sizes_of_inputs() -> tuple[str, ...]:
    """Return the axes that always say how large an input is: a larger value never needs less."""
    names = []
    for name in axes_with(Role.INPUT | Role.AMOUNT):
        axis = AXES[name]
        if axis.kind == "int" and axis.default is not None:
            names.append(name)
    return tuple(names)


@dataclass(frozen=True)
class Setting(Entry):
    """One key of `measure`."""


SETTINGS: Final[Mapping[str, Setting]] = {
    row["name"]: Setting(**row) for row in _entries("settings.csv")
}

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

    module: str  # in `cluster/`; it has the functions of a protocol in `cluster/__init__.py`
    template: str = ""  # of what it hands to sbatch, in `jobs/templates/`
    in_slurm: bool = False  # sends chunks to Slurm's queue; otherwise they run on this machine
    runs_profilers: bool = False  # its jobs take the profile's `wrapper`
    needs_time: bool = False  # the profile must have a time limit
    extra: str = ""  # of pip, that has what it needs


LAUNCHERS: Final[Mapping[str, Launcher]] = {
    "sbatch": Launcher("slurm.job_script", "job.sbatch.j2", in_slurm=True, runs_profilers=True),
    "submitit": Launcher(
        "slurm.via_submitit", "setup.sh.j2", in_slurm=True, needs_time=True, extra="submitit"
    ),
    "local": Launcher("local.supervisors"),
}


def may_use_tensor_cores(backend: str, algorithm: str) -> bool:
    """Say whether a back-end's explicit algorithm may; the framework chooses for itself."""
    known = ALGORITHMS.get(algorithm)
    return backend != "cudnn" or (known is not None and known.tensor_cores)


def is_plan(name: str) -> bool:
    """Say whether a name is that of a library's plan, which only the library can know."""
    return re.fullmatch(PLAN, name) is not None


def is_algorithm(name: str) -> bool:
    """Say whether a sweep may ask for this: a name of the table, or a plan."""
    return name in ALGORITHMS or is_plan(name)


def workload_of(cell: str | None) -> WorkloadKind:
    """Return the workload that a row names; a name of elsewhere is of one that runs a network."""
    return WORKLOADS.get(cell or "") or WorkloadKind(cell or "")


def axes_of(workload: str) -> dict[str, Axis]:
    """Return the axes that a workload takes, in column order."""
    return {name: axis for name, axis in AXES.items() if workload in axis.workloads}


def own_axis(name: str) -> Axis:
    """Return an axis of a command; one with a name of ours fits the column of that name."""
    kind: Kind = "any"
    if name in AXES and AXES[name].kind in {"int", "float", "bool"}:
        kind = AXES[name].kind
    return Axis(name, kind, None, "an axis of the command", workloads=(COMMAND.name,))


def settings_of(workload: str) -> dict[str, Setting]:
    """Return the keys of `measure` that a workload takes."""
    return {name: item for name, item in SETTINGS.items() if workload in item.workloads}


def axis_defaults(workload: str) -> dict[str, Any]:
    """Return the default of every axis of a workload."""
    return {name: axis.default for name, axis in axes_of(workload).items()}


def setting_defaults(workload: str) -> dict[str, Any]:
    """Return the default of every setting of a workload."""
    return {name: item.default for name, item in settings_of(workload).items()}


def network_of(axes: Mapping[str, Any]) -> Network:
    """Return a key that points, or rows, share if they have the same network."""
    return tuple(map(axes.get, axes_with(Role.NETWORK)))


def process_key(point: Point) -> str:
    """Return a key that differs between points that must not share a process on a GPU.

    torch keeps one plan for each shape, and reuses it before it checks whether to tune. A map that
    tunes some layers mixes tuned and untuned plans in a way that depends on the point, so each of
    its points has a process of its own. With the first product of a process torch settles whether
    cuBLAS may be asked for deterministic ones.
    """
    algorithm = point.axes.get("algorithm")
    kind = "deterministic" if point.axes.get("deterministic") else ""
    if isinstance(algorithm, Mapping):
        return point.point_id if AUTOTUNE in algorithm.values() else kind
    tunes = algorithm == AUTOTUNE or point.axes.get("cudnn_benchmark")
    return f"{AUTOTUNE} {kind}".strip() if tunes else kind


def worker_key(point: Point) -> tuple[object, Network, str]:
    """Return a key that differs between points that must not share a worker; the visit is first.

    Where no network runs, no code does that could change the process. With a worker of its own, all
    that a command leaves running ends before the next one.
    """
    visit = point.axes.get(VISIT)
    if point.workload == COMMAND.name:
        return visit, (), point.point_id
    if not workload_of(point.workload).runs_network:
        return visit, (), ""
    return visit, network_of(point.axes), process_key(point)
