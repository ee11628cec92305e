"""Steps across epochs, and evaluation in between."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from hpcsweep.measure.data import loaders
from hpcsweep.measure.machine import memory
from hpcsweep.measure.workloads.training import epochs
from hpcsweep.measure.workloads.training.epochs import evaluate, next_steps
from hpcsweep.measure.workloads.training.phases import PHASES
from measuring import CPU, make_trainer, training


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


@pytest.fixture
def ready():
    """Return a trainer and its data."""
    return make_trainer(training()), loaders.open_data(training())


def test_every_phase_of_every_step_is_timed(ready):
    """Six phases that are the step, but for what lies between them."""
    times = epochs.time_phases(*ready, 4, epochs.phase_timer(CPU))
    assert {name: len(of_phase) for name, of_phase in times.phases.items()} == dict.fromkeys(
        PHASES, 4
    )
    assert all(time > 0 for of_phase in times.phases.values() for time in of_phase)
    assert len(times.steps) == 4
    assert times.sum_over_step < 1


def test_steps_are_ticked_without_touching_them(ready):
    """One tick more than there are steps."""
    ticker = epochs.ticker(CPU)
    for _ in range(3):
        ticker.tick()
    assert (ticker.timer, len(ticker.read()), ticker.read()) == ("host", 2, [])


def test_the_memory_of_a_step_is_an_average_in_bytes(ready):
    """Between nothing and all that there is; unknown where the system does not say."""
    watched = memory.watch(CPU)
    assert 0 < epochs.average_memory(*ready, watched) < watched.limit()

    class Silent:
        def now(self):
            return None

    assert epochs.average_memory(*ready, Silent()) is None
