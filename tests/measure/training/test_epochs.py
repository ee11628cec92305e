"""Steps across epochs, and evaluation in between."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from hpcsweep.measure.data import loaders
from hpcsweep.measure.training.epochs import evaluate, next_steps
from measuring import make_trainer, training


def test_evaluation_leaves_the_network_training_and_unchanged():
    """Batch norms do not count validation images; the loss is the plain one."""
    point = training(label_smoothing=0.5)
    trainer, opened = make_trainer(point), loaders.open_data(point)
    before = trainer.state_dict()
    result = evaluate(trainer, opened)
    assert trainer.model.training
    after = trainer.state_dict()
    assert all(torch.equal(before["model"][k], after["model"][k]) for k in before["model"])
    images, labels = next(iter(opened.val))
    with torch.no_grad():
        logits = trainer.model.eval()(images)
    assert result.loss == pytest.approx(nn.functional.cross_entropy(logits, labels).item())
    assert result.accuracy == pytest.approx((logits.argmax(1) == labels).float().mean().item())


def test_steps_go_on_from_one_epoch_to_the_next():
    """Each epoch has its own order; the last one may end early."""
    opened = loaders.open_data(training(steps_per_epoch=3))
    found = [next(batches)[1].tolist() for batches in next_steps(opened, 7)]
    wanted = [[labels.tolist() for _, labels in opened.epoch(number)] for number in range(3)]
    assert found == list(itertools.chain.from_iterable(wanted))[:7]
