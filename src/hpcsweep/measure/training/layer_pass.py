"""The layer pass of a training point: forward, loss and backward on one batch, layer by layer.

The batch lies on the device, and nothing is loaded, copied or updated: what is timed is the
computation. As for inference, a clean lane and a lane with timers take turns in blocks of a few
passes, so that the overhead of the timers and the sum of the layers are held against the same
machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcsweep.measure.layer_table import BACKWARD, LayerTable
from hpcsweep.measure.timing import clocks, lanes, loop
from hpcsweep.measure.training.backward import StepTimer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcsweep.catalog.columns import Row
    from hpcsweep.conv.choice import LayerChoice
    from hpcsweep.conv.proof.profiler_events import Evidence
    from hpcsweep.measure.shape_pass import Shapes
    from hpcsweep.measure.training.trainer import Batch, Trainer
    from hpcsweep.point import Point


@dataclass(frozen=True)
class LayerPass:
    """The times of a layer pass, and those of the clean passes next to it."""

    table: LayerTable
    clean_times: list[float]
    forward_calls: int

    def cells(self) -> Row:
        """Return the columns that hold the layer pass against the clean one."""
        return self.table.overall_cells(self.clean_times)

    def convolution_means(self) -> list[float]:
        """Return the mean of each convolution call: all forward, then all backward."""
        return self.table.convolution_means()

    def rows(
        self, point: Point, choices: Sequence[LayerChoice], proofs: Sequence[Evidence]
    ) -> list[Row]:
        """Return the layer rows: all forward calls, the convolutions backward, `__other__`.

        Choices and proofs are those of the forward calls, then those of their gradients.
        """
        rows = self.table.rows(point, choices, proofs)
        for row in rows[self.forward_calls : -1]:
            row["direction"] = BACKWARD
        return rows


def measure(trainer: Trainer, batch: Batch, shapes: Shapes, passes: int) -> LayerPass | None:
    """Time every layer in so many passes over a batch; None where layers cannot be timed."""

    def compute() -> None:
        trainer.compute(batch)

    todo = lanes.Pass(trainer.model, compute, clocks.nothing, shapes.calls, StepTimer)
    found = lanes.lanes(trainer.device, "eager", todo)
    if not isinstance(found.layer_timer, StepTimer):
        return None
    done = loop.collect(found.all(), loop.Fixed(passes))
    table = LayerTable(found.layer_timer.both(), done.times[1])
    return LayerPass(table, done.times[0], len(found.layer_timer.calls))
