"""The trainer: what a step does, and going on from a state as if nothing had happened."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torchvision
from torch import nn

from hpcsweep import catalog
from hpcsweep.measure.data import loaders
from hpcsweep.measure.workloads import trainer
from hpcsweep.measure.workloads.trainer import Score, evaluate, next_steps
from measuring import CPU, make_trainer, training


def test_the_learning_rate_rises_and_falls():
    """Linearly to the full rate, then half a cosine to nothing."""
    rates = [trainer.factor(step, 4, 12, cosine=True) for step in range(13)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[8] == pytest.approx(0.5)
    assert rates[12] == pytest.approx(0)
    assert trainer.factor(1000, 4, 12, cosine=False) == 1


def test_optimizers_take_the_axes_or_what_is_usual():
    """Unset is not nought."""
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    usual = trainer.optimizer(catalog.axis_defaults("training"), network)
    assert (usual.defaults["lr"], usual.defaults["momentum"]) == (0.1, 0.9)
    named = {"optimizer": "adamw", "lr": 0.5, "weight_decay": 0.25}
    found = trainer.optimizer(catalog.axis_defaults("training") | named, network)
    assert (found.defaults["lr"], found.defaults["weight_decay"]) == (0.5, 0.25)


@pytest.mark.parametrize(
    ("network", "rate"),
    [("resnet18", 0.1), ("convnext_tiny", 0.1), ("squeezenet1_1", 0.01), ("alexnet", 0.01)],
)
def test_networks_without_normalization_learn_at_a_tenth_of_the_rate(network: str, rate: float):
    """At that of others they diverge."""
    with torch.device("meta"):
        model = torchvision.models.get_model(network)
    assert trainer.usual_lr("sgd", model) == rate
    assert trainer.usual_lr("adamw", model) == 0.001


def _losses(trainer, opened, count):
    losses = []
    for batches in next_steps(opened, count):
        score = Score.zero(CPU)
        trainer.step(batches, score)
        losses.append(score.result().loss)
    return losses


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_state_goes_on_as_if_it_had_never_stopped(optimizer):
    """Weights, moments, learning rate and dropout; also in a new trainer."""
    axes = {"optimizer": optimizer, "lr_schedule": "cosine", "lr_warmup_steps": 3}
    point = training("tinynets:Dropping", **axes)
    torch.manual_seed(0)
    trainer, opened = make_trainer(point), loaders.open_data(point)
    _losses(trainer, opened, 4)
    trainer.epoch = 1
    state = trainer.state_dict()
    wanted = _losses(trainer, opened, 3)
    other = make_trainer(training("tinynets:Dropping", seed=9, **axes))
    other.load_state_dict(state)
    assert other.epoch == 1
    assert _losses(other, opened, 3) == wanted
    trainer.load_state_dict(state)
    assert _losses(trainer, opened, 3) == wanted


def test_a_step_that_the_scaler_skips_changes_no_weight_and_the_next_ones_do():
    """The first of a training in fp16 often overflows; no warning, and the schedule goes on."""
    trainer, opened = make_trainer(training(lr_schedule="cosine")), loaders.open_data(training())
    trainer.scaler = torch.amp.GradScaler("cpu")
    weights = [p.detach().clone() for p in trainer.model.parameters()]
    overflow = trainer.model.head.weight.register_hook(lambda grad: grad * math.inf)
    _losses(trainer, opened, 1)
    overflow.remove()
    assert all(map(torch.equal, weights, trainer.model.parameters()))
    assert trainer.scaler.get_scale() == 32768
    assert trainer.schedule.last_epoch == 1
    before = trainer.state_dict()
    trainer.scaler.update(1024.0)
    _losses(trainer, opened, 2)
    assert not all(map(torch.equal, weights, trainer.model.parameters()))
    trainer.load_state_dict(before)
    assert trainer.scaler.get_scale() == 32768
    assert all(map(torch.equal, weights, trainer.model.parameters()))


def test_auxiliary_heads_count_less():
    """The loss of a tuple of outputs; the first one answers."""
    trainer = make_trainer(training())
    logits, labels = torch.randn(4, 10), torch.tensor([0, 1, 2, 3])
    plain, _ = trainer.loss(logits, labels)
    both, answer = trainer.loss((logits, logits), labels)
    assert both.item() == pytest.approx(1.3 * plain.item())
    assert answer is logits


def test_what_scores_other_things_has_no_part_in_the_loss():
    """Such as the features that a network returns beside its scores."""
    trainer = make_trainer(training())
    logits, labels = torch.randn(4, 10), torch.tensor([0, 1, 2, 3])
    plain, _ = trainer.loss(logits, labels)
    beside, answer = trainer.loss((logits, torch.randn(4, 32), torch.randn(4, 8, 2, 2)), labels)
    assert beside.item() == plain.item()
    assert answer is logits


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
