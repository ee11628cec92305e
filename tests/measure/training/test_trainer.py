"""The trainer: what a step does, and going on from a state as if nothing had happened."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from hpcsweep import catalog
from hpcsweep.measure.bench_api import Unsupported
from hpcsweep.measure.data import loaders
from hpcsweep.measure.training import evaluate, network, optimizers
from hpcsweep.measure.training.epochs import next_steps
from hpcsweep.measure.training.trainer import Score, Trainer
from measuring import CPU, training


def _trainer(point, steps=10):
    model = network.build(point, 10, CPU)
    return Trainer(point, CPU, model, model, steps)


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
    trainer, opened = _trainer(point), loaders.open_data(point)
    _losses(trainer, opened, 4)
    trainer.epoch = 1
    state = trainer.state_dict()
    wanted = _losses(trainer, opened, 3)
    other = _trainer(training("tinynets:Dropping", seed=9, **axes))
    other.load_state_dict(state)
    assert other.epoch == 1
    assert _losses(other, opened, 3) == wanted
    trainer.load_state_dict(state)
    assert _losses(trainer, opened, 3) == wanted


def test_a_step_that_the_scaler_skips_changes_no_weight_and_the_next_ones_do():
    """The first of a training in fp16 often overflows; no warning, and the schedule goes on."""
    trainer, opened = _trainer(training(lr_schedule="cosine")), loaders.open_data(training())
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


def test_the_learning_rate_rises_and_falls():
    """Linearly to the full rate, then half a cosine to nothing."""
    rates = [optimizers.factor(step, 4, 12, cosine=True) for step in range(13)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[8] == pytest.approx(0.5)
    assert rates[12] == pytest.approx(0)
    assert optimizers.factor(1000, 4, 12, cosine=False) == 1


def test_optimizers_take_the_axes_or_what_is_usual():
    """Unset is not nought."""
    weights = [nn.Parameter(torch.zeros(1))]
    usual = optimizers.optimizer(catalog.axis_defaults("training"), weights)
    assert (usual.defaults["lr"], usual.defaults["momentum"]) == (0.1, 0.9)
    named = {"optimizer": "adamw", "lr": 0.5, "weight_decay": 0.25}
    found = optimizers.optimizer(catalog.axis_defaults("training") | named, weights)
    assert (found.defaults["lr"], found.defaults["weight_decay"]) == (0.5, 0.25)


def test_evaluation_leaves_the_network_training_and_unchanged():
    """Batch norms do not count validation images; the loss is the plain one."""
    point = training(label_smoothing=0.5)
    trainer, opened = _trainer(point), loaders.open_data(point)
    before = trainer.state_dict()
    result = evaluate.evaluate(trainer, opened)
    assert trainer.model.training
    after = trainer.state_dict()
    assert all(torch.equal(before["model"][k], after["model"][k]) for k in before["model"])
    images, labels = next(iter(opened.val))
    with torch.no_grad():
        logits = trainer.model.eval()(images)
    assert result.loss == pytest.approx(nn.functional.cross_entropy(logits, labels).item())
    assert result.accuracy == pytest.approx((logits.argmax(1) == labels).float().mean().item())


def test_auxiliary_heads_count_less():
    """The loss of a tuple of outputs; the first one answers."""
    trainer = _trainer(training())
    logits, labels = torch.randn(4, 10), torch.tensor([0, 1, 2, 3])
    plain, _ = trainer.loss(logits, labels)
    both, answer = trainer.loss((logits, logits), labels)
    assert both.item() == pytest.approx(1.3 * plain.item())
    assert answer is logits


@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_1"])
def test_torchvision_networks_get_the_classes_of_the_data(name):
    """Whether the last layer is a product or a convolution."""
    model = network.build(training(name), 7, CPU).eval()
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 7)


def test_auxiliary_heads_get_the_classes_of_the_data_too():
    """All of inception's answers are about the same classes."""
    model = network.build(training("googlenet"), 7, CPU)
    assert [tuple(out.shape) for out in model(torch.zeros(2, 3, 64, 64))] == [(2, 7)] * 3


def test_the_small_stem_keeps_the_size_of_the_image():
    """3x3 of stride 1 and no pooling: the first blocks see all pixels."""
    model = network.build(training("resnet18", stem="cifar"), 10, CPU)
    assert model.maxpool(model.conv1(torch.zeros(1, 3, 32, 32))).shape == (1, 64, 32, 32)
    assert model.conv1.weight.std() < math.sqrt(2 / (64 * 9)) * 1.1


def test_a_network_without_a_last_layer_is_unsupported():
    """There is nothing that could make the right number of answers."""
    with pytest.raises(Unsupported, match="no last layer"):
        network.give_classes(nn.Sequential(nn.ReLU()), 10, own_factory=True)
