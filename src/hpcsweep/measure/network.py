"""What a workload hands to the pipeline: a network that is ready, its passes, and their times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn

from hpcsweep.catalog import WORKLOADS
from hpcsweep.catalog.columns import Row
from hpcsweep.catalog.record import Cells
from hpcsweep.catalog.row_records import LayerPassCells
from hpcsweep.conv.tensors import Held
from hpcsweep.measure.convolutions import Choices
from hpcsweep.measure.machine.rig import Rig
from hpcsweep.measure.shape_pass import Shapes
from hpcsweep.point import Point

if TYPE_CHECKING:
    from hpcsweep.measure.timing.lanes import Lanes
    from hpcsweep.measure.timing.stats import Summary


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
