"""The layer pass of a training point: forward, loss and backward on one batch, layer by layer.

The batch is on the device, and nothing is loaded, copied or updated: only the computation is
timed. As for inference, a clean lane and a lane with timers take turns in blocks of a few
passes, so that the timers' overhead and the sum of the layers are compared on the same machine.
"""

from __future__ import annotations

from hpcsweep.measure.layer_table import LayerTable
from hpcsweep.measure.shape_pass import Shapes
from hpcsweep.measure.timing import clocks, lanes
from hpcsweep.measure.training.backward import StepTimer
from hpcsweep.measure.training.trainer import Batch, Trainer


def measure(
    trainer: Trainer, batch: Batch, shapes: Shapes, passes: int
) -> tuple[LayerTable | None, float]:
    """Time every layer in so many passes over a batch; None where layers cannot be timed.

    The second value is the seconds of these passes.
    """

    def compute() -> None:
        trainer.compute(batch)

    todo = lanes.Pass(trainer.model, compute, clocks.nothing, shapes.calls, (), StepTimer)
    found = lanes.lanes(trainer.device, "eager", todo).settled(0)
    if found.untimed:
        return None, 0.0
    done, _ = found.collect({"stop": "fixed", "iterations": passes})
    return LayerTable.of(found, done.times), done.timed_s
