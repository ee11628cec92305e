"""Networks that train: classes, stems, last layers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from hpcsweep.measure.bench_api import CannotMeasure
from hpcsweep.measure.data import loaders
from hpcsweep.measure.measure_point import on_device
from hpcsweep.measure.workloads import trainer as trainers
from hpcsweep.measure.workloads import training_network
from hpcsweep.measure.workloads.trainer import Score
from measuring import CPU, make_trainer, training


@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_1"])
def test_torchvision_networks_get_the_classes_of_the_data(name):
    """Whether the last layer is a product or a convolution."""
    model = training_network.build(training(name), 7, CPU).eval()
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 7)


def test_auxiliary_heads_get_the_classes_of_the_data_too():
    """All of inception's answers are about the same classes."""
    model = training_network.build(training("googlenet"), 7, CPU)
    assert [tuple(out.shape) for out in model(torch.zeros(2, 3, 64, 64))] == [(2, 7)] * 3


def test_the_small_stem_keeps_the_size_of_the_image():
    """3x3 of stride 1 and no pooling: the first blocks see all pixels."""
    model = training_network.build(training("resnet18", stem="cifar"), 10, CPU)
    assert model.maxpool(model.conv1(torch.zeros(1, 3, 32, 32))).shape == (1, 64, 32, 32)
    assert model.conv1.weight.std() < math.sqrt(2 / (64 * 9)) * 1.1


@pytest.mark.parametrize("name", ["HeadFirst", "LateFeatures", "ConvolvesLast"])
def test_the_head_of_an_own_network_is_what_its_pass_calls_last(name):
    """Wherever it was defined, and whatever was made after it."""
    model = training_network.build(training(f"tinynets:{name}"), 7, CPU)
    assert model(torch.zeros(2, 3, 16, 16)).shape == (2, 7)


def test_a_new_last_convolution_differs_in_its_outputs_only():
    """Also in what few heads have; groups must divide the outputs."""
    wanted = training("tinynets:ends_in_groups")
    told = training_network.build(wanted, 8, CPU)[1].extra_repr()
    assert told == training_network.build(wanted, 10, CPU)[1].extra_repr().replace("10", "8")
    with pytest.raises(CannotMeasure, match="has 2 groups, which do not divide 7 outputs"):
        training_network.build(wanted, 7, CPU)


def test_a_network_that_goes_on_after_its_last_layer_is_unsupported():
    """Its own filters of 10 inputs are no layer that could be replaced."""
    with pytest.raises(CannotMeasure, match=r"calls last, 1, is not .* with 7 outputs a pass"):
        training_network.build(training("tinynets:goes_on"), 7, CPU)
    assert training_network.build(training("tinynets:goes_on"), 10, CPU)


def test_a_network_without_a_last_layer_is_unsupported():
    """There is nothing that could make the right number of answers."""
    with pytest.raises(CannotMeasure, match="no last layer"):
        training_network.give_classes(nn.Sequential(nn.ReLU()), 10, called=["0"])


@pytest.mark.parametrize(
    ("name", "learning", "evaluating"),
    [
        ("FineTuned", {"head"}, {"stem", "conv", "norm"}),
        ("KeepsNormalisation", {"stem", "norm", "head"}, {"norm"}),
        ("for_inference", {"stem", "conv", "norm", "head"}, set()),
    ],
)
def test_what_a_user_froze_stays_frozen(name, learning, evaluating):
    """Parameters and modes, through training and validation; a new last layer learns."""
    wanted = training(f"tinynets:{name}", weight_decay=0.1)
    trainer = make_trainer(wanted)
    data = loaders.open_data(wanted)
    before = trainer.state_dict()["model"]
    trainers.evaluate(trainer, data)
    trainer.step(data.epoch(0), Score.zero(CPU))
    after = trainer.state_dict()["model"]
    changed = {name for name, value in after.items() if not torch.equal(before[name], value)}
    moving = {"norm"} - evaluating
    wanted_changes = {f"{part}.weight" for part in learning} & before.keys()
    assert {name for name in changed if name.endswith("weight")} == wanted_changes
    assert {name.partition(".")[0] for name in changed if "running" in name} == moving
    modes = {name for name, module in trainer.model.named_modules() if not module.training}
    assert modes == evaluating


def test_validation_gives_a_network_its_own_way_of_training_back():
    """What its `train` does beside the mode is done again, and what was frozen inside stays."""
    wanted = training("tinynets:two_graphs")
    trainer = make_trainer(wanted)
    data = loaders.open_data(wanted)
    assert trainer.model[0].graph == "training"
    trainers.evaluate(trainer, data)
    assert trainer.model[0].graph == "training"
    assert [part.training for part in trainer.model] == [True, False, True]


def test_a_network_that_is_frozen_whole_is_unsupported():
    """Its user forgot something, or its head has the right number of classes."""
    wanted = training("tinynets:frozen_whole")
    with pytest.raises(CannotMeasure, match="does not require grad"):
        on_device("training", "cpu").measure(wanted)
