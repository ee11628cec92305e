"""What a workload hands to the pipeline (network, passes, times), and who runs its convolutions.

All convolutions of a pass count, whatever calls them. Back-ends run the calls of plain `nn.Conv2d`
layers; functions, other kinds of convolution and of code stay with the framework.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from torch import Tensor, nn

from hpcsweep import catalog
from hpcsweep.catalog import WORKLOADS
from hpcsweep.catalog.columns import Row
from hpcsweep.catalog.record import Cells
from hpcsweep.catalog.row_records import LayerPassCells
from hpcsweep.conv import choice, parts, swap
from hpcsweep.conv.backend import Backend
from hpcsweep.conv.choice import Algorithm, AlgorithmError, LayerChoice, Unsupported
from hpcsweep.conv.parts import Held
from hpcsweep.errors import UsageError, suggest
from hpcsweep.measure.bench_api import CannotMeasure
from hpcsweep.measure.machine.rig import Rig
from hpcsweep.measure.operations import Convolution
from hpcsweep.measure.shape_pass import Shapes
from hpcsweep.point import Point

if TYPE_CHECKING:
    from hpcsweep.measure.timing.lanes import Lanes
    from hpcsweep.measure.timing.stats import Summary

MIB: Final = 1 << 20
# layers that a message names: enough to recognise how a network names them
_SHOWN: Final = 3


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What the convolution calls of a pass run, in order; `setup_ms` is what deciding took.

    `gradients` are those of the calls that are `learning`.
    """

    calls: Sequence[LayerChoice]
    backend: Backend
    learning: Sequence[LayerChoice] = ()
    gradients: Sequence[LayerChoice] = ()
    setup_ms: float = 0.0

    @property
    def all(self) -> list[LayerChoice]:
        """The calls, then their gradients, as in the layer rows."""
        return [*self.calls, *self.gradients]

    @property
    def may_use_tensor_cores(self) -> bool:
        """Whether any convolution may use tensor cores."""
        for picked in self.calls:
            if catalog.may_use_tensor_cores(picked.backend, picked.used):
                return True
        return not self.calls


@dataclass(kw_only=True)
class Network(ABC):
    """A point's network on its device, with its inputs.

    `load` is the node's load before the network was built, `held` are the network's tensors,
    `compute` runs forward and backward if a pass is a step of a training.
    """

    point: Point
    rig: Rig
    model: nn.Module
    held: Held
    shapes: Shapes
    load: float | None
    compute: Callable[[], object] | None = None

    @property
    def learns(self) -> bool:
        """Whether a pass is a step of a training."""
        return WORKLOADS[self.point.workload].learns

    @abstractmethod
    def passes(self, choices: Choices) -> Passes:
        """Return the passes to time."""

    @abstractmethod
    def forward(self, image: Tensor | None = None) -> object:
        """Run the network once, eagerly; without images on the input of the last pass."""

    @abstractmethod
    def step(self) -> object:
        """Run what is timed once more, for profilers."""

    @abstractmethod
    def output(self, times: Times) -> object:
        """Return the output for the first input, drawn anew, of the pass as it was timed."""


class Passes(Protocol):
    """The passes of a point."""

    @property
    def repeatable(self) -> bool:
        """Whether the passes may be timed once more."""

    def warm_up(self) -> None:
        """Run what tunes, compiles and allocates."""

    def time(self, look: Callable[[], object]) -> None:
        """Time the passes, and call `look` between blocks of them; drop earlier times."""

    def samples(self) -> list[float]:
        """Return the milliseconds of the passes that were timed last."""

    def times(self) -> Times:
        """Return the times, after what else is timed: phases of a step, layers alone."""


class LayerRows(Protocol):
    """The layer rows of a point."""

    def rows(
        self, point: Point, about: Sequence[Sequence[Cells]], of_others: Sequence[Cells] = ()
    ) -> list[Row]:
        """Return the rows of timed calls; see `LayerTable`."""

    def convolution_means(self) -> tuple[list[float], list[float]] | None:
        """Return the mean ms of convolution calls, and of others that convolve; None: unknown."""

    def flags(self) -> list[str]:
        """Return the flags of a layer pass."""

    def overall_cells(self) -> LayerPassCells:
        """Return the columns on the layers together."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """What was timed: the passes in ms, without any hook, and the layers.

    `seconds` are those of all timed passes (see `Measurement`), `run` is the pass as it was timed,
    which may be the replay of a graph. `cells`, `flags` and `artifacts`, names of files, are the
    workload's own.
    """

    samples: list[float]
    summary: Summary
    seconds: float
    run: Callable[[], object]
    cells: Sequence[Cells]
    flags: Sequence[str] = ()
    artifacts: str = ""
    table: LayerRows | None = None
    lanes: Lanes | None = None
    compiled: bool = False
    recompiled: bool = False
    layers_compiled: bool = False


class Workload(Protocol):
    """How to build a network of a point; what a pass is, the network knows.

    `cannot` are messages of torch that mean `CannotMeasure`.
    """

    cannot: Sequence[str]

    def __init__(self, rig: Rig) -> None:
        """Measure on one device."""

    def refuse_early(self, point: Point) -> None:
        """Raise `CannotMeasure` before anything is built, if this device cannot do the point."""

    def scope(self) -> AbstractContextManager[object]:
        """Return the modes in which a point runs; afterwards give back what only it needs."""

    def build(self, point: Point) -> Network:
        """Return the point's network on the device, with its inputs."""

    def forget(self) -> None:
        """Drop what is kept for later points, and free its memory."""


def choose_algorithms(
    model: nn.Module,
    shapes: Shapes,
    algorithm: Algorithm,
    settings: Mapping[str, Any],
    backend: Backend,
) -> Choices:
    """Make the network run an algorithm; return what each convolution call runs.

    The setting `unsupported` is the policy for calls that cannot run it, `workspace_mib` the most
    scratch memory of a call. The framework's own choices run on its own layers, without a swap.

    Raises:
        CannotMeasure: a call cannot, and the policy is `skip`.
        AlgorithmError: a call cannot, and the policy is `error`.
        UsageError: a pattern of a map matches no convolution.
    """
    idle = idle_patterns(algorithm, convolution_names(shapes))
    for pattern, hint in idle.items():  # nothing would measure it
        why = f"matches no convolution of the network{hint}"
        raise UsageError(f"algorithm: pattern '{pattern}' {why}")
    swap.restore(model)
    backend.most_workspace = settings["workspace_mib"] * MIB
    calls = _assigned(model, shapes, algorithm, settings, backend)
    learning = []
    gradients = []
    for picked, call in zip(calls, shapes.convolution_calls, strict=True):
        if call.gradients:
            learning.append(picked)
            found = choice.gradients_of(picked, backend)
            gradients.append(choice.backward_choice(picked, found))
    return Choices(calls=calls, backend=backend, learning=learning, gradients=gradients)


def refuse_algorithm(axes: Mapping[str, Any], device_type: str) -> None:
    """Raise `CannotMeasure` if a point needs an autotuner, or plans, that the device lacks."""
    if device_type == "cuda":  # torch tunes the algorithms of no other library
        return
    algorithm = axes["algorithm"]
    is_heuristic = algorithm == catalog.HEURISTIC
    if isinstance(algorithm, str) and (is_heuristic or catalog.is_plan(algorithm)):
        raise CannotMeasure(
            f"algorithm: {algorithm} is a plan of cuDNN or MIOpen; on {device_type} there is none"
        )
    asks = {
        f"algorithm: {catalog.AUTOTUNE}": algorithm == catalog.AUTOTUNE,
        "cudnn_benchmark": axes.get("cudnn_benchmark", False),
    }
    for name, is_wanted in asks.items():
        if is_wanted:
            raise CannotMeasure(f"{name} tunes cuDNN; on {device_type} there is none")


def _assigned(
    model: nn.Module,
    shapes: Shapes,
    algorithm: Algorithm,
    settings: Mapping[str, Any],
    backend: Backend,
) -> list[LayerChoice]:
    calls = shapes.convolutions
    if algorithm in choice.FRAMEWORK_CHOICES:
        device = parts.device_type(model)
        return [choice.decide(algorithm, *call, backend, device) for call in calls]
    swap.swap(model)
    try:
        policy = settings["unsupported"]
        missed = unmet(algorithm, shapes.outside)
        if missed and policy != swap.FALLBACK:
            refused = [(conv.layer, reason(conv)) for conv in missed]
            kind = Unsupported if policy == swap.SKIP else AlgorithmError
            raise kind(refused, len(calls) + len(shapes.outside))
        return swap.assign(model, calls, algorithm, policy, backend)
    except Unsupported as error:
        raise CannotMeasure(str(error)) from error


def unmet(algorithm: Algorithm, outside: Iterable[Convolution]) -> list[Convolution]:
    """Return the convolutions with an explicit algorithm that cannot be swapped."""
    return [conv for conv in outside if not left_to_framework(algorithm, conv.layer)]


def reason(conv: Convolution) -> str:
    """Return why a convolution cannot be swapped."""
    return f"{conv.operator} {conv.part or 'that is no call of a plain nn.Conv2d'}"


def left_to_framework(algorithm: Algorithm, layer: str) -> bool:
    """Say whether a layer may run whatever the framework takes."""
    return choice.requested(algorithm, layer) in choice.FRAMEWORK_CHOICES


def convolution_names(shapes: Shapes) -> list[tuple[str, str]]:
    """Return layers and keys of shapes of all convolutions, which patterns of a map may match."""
    named = [(layer, shape.unique_key) for layer, shape in shapes.convolutions]
    return named + [(conv.layer, "") for conv in shapes.outside]


def idle_patterns(algorithm: Algorithm, names: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the patterns of a map that match none of `names`, each with the nearest layer."""
    layers = list(dict.fromkeys(layer for layer, _ in names))
    first = f"; layers are {', '.join(layers[:_SHOWN])} ..." if layers else ""
    patterns = choice.idle_patterns(algorithm, names)
    return {pattern: suggest(pattern, layers) or first for pattern in patterns}
