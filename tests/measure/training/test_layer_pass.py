"""The layer pass of a training point: forward, loss and backward on one batch."""

from __future__ import annotations

import pytest
import torch

from hpcsweep.measure.data import loaders
from hpcsweep.measure.shape_pass import shape_pass
from hpcsweep.measure.training import layer_pass
from measuring import make_trainer, training


def test_layers_forward_then_convolutions_backward_then_the_rest():
    """All of it is the pass; no weight moves."""
    point = training()
    trainer = make_trainer(point)
    batch = next(loaders.open_data(point).epoch(0))
    shapes = shape_pass(trainer.model, batch[0])
    before = trainer.state_dict()
    table, seconds = layer_pass.measure(trainer, batch, shapes, 3)
    assert seconds > 3 * table.overall_cells()["layer_pass_mean_ms"] / 1000
    rows = table.rows(point, [{}] * 4)
    directions = [(row["layer"], row["direction"]) for row in rows[5:]]
    assert directions == [
        ("head", "forward"),
        ("stem", "backward"),
        ("conv", "backward"),
        ("__other__", None),
    ]
    assert {row["n"] for row in rows} == {3}
    assert sum(row["percentage"] for row in rows) == pytest.approx(100)
    assert len(table.convolution_means()) == 4
    weights = dict(trainer.model.named_parameters())
    assert all(torch.equal(before["model"][name], value) for name, value in weights.items())
