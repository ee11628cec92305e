"""What only torch can tell before anything enters the queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcsweep import sources
from hpcsweep.catalog import axis_defaults
from hpcsweep.measure import model_builder, trials
from hpcsweep.measure.network import convolution_names
from hpcsweep.measure.shape_pass import shape_pass
from hpcsweep.measure.workloads import training_network
from hpcsweep.point import Point

SHAPES = ("model", "input_size", "batch_size", "dtype", "memory_format")
OF_TRAINING = (*SHAPES, "stem", "num_classes", "amp")


@pytest.fixture(autouse=True)
def _same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_in_use", [])


def case(workload: str = "inference", **axes: Any) -> dict[str, Any]:
    """Return the axes of a point that shapes depend on."""
    names = OF_TRAINING if workload == "training" else SHAPES
    return {name: {**axis_defaults(workload), **axes}[name] for name in names}


def look(layers: dict[str, str], *cases: dict[str, Any], workload: str = "inference") -> Any:
    """Ask about one map."""
    asked = {"about": "map", "workload": workload, "layers": layers, "cases": cases}
    return json.loads(json.dumps(trials.answer(asked)))


@pytest.mark.parametrize(
    ("model", "pattern", "hint"),
    [
        ("alexnet", "featurs.*", "; did you mean 'features.8'?"),
        ("tinynets:Residual", "stm", "; did you mean 'stem'?"),
        ("tinynets:OtherKinds", "zzz", "; layers are conv, up, line ..."),
    ],
)
def test_a_pattern_that_matches_no_layer_is_named_with_the_nearest(
    model: str, pattern: str, hint: str
) -> None:
    """Of torchvision's networks, and of the user's own."""
    found = look({pattern: "fft", "default": "gemm"}, case(model=model, input_size=64))
    assert found == {"idle": {pattern: hint}}


@pytest.mark.parametrize(
    "pattern", ["features.?", "features.[03]", "*_11x11_s4x4_*", "conv2d_n7_*", "*_128x128_*"]
)
def test_a_pattern_must_match_in_one_case_only(pattern: str) -> None:
    """It may be about a size of images, or of batches."""
    small = case(model="alexnet", input_size=64, batch_size=2)
    assert look({pattern: "fft"}, small, case(model="alexnet", input_size=128, batch_size=7)) == {
        "idle": {}
    }


def _names(workload: str, axes: dict[str, Any]) -> list[tuple[str, str]]:
    return convolution_names(trials.shapes(workload, json.dumps(axes)))


@pytest.mark.parametrize(
    "axes",
    [
        {"model": "tinynets:Holding"},  # does not run on the meta device
        {"model": "tinynets:Functional", "batch_size": 5},
        {"model": "squeezenet1_1", "batch_size": 3, "dtype": "float16", "memory_format": "nhwc"},
        {"model": "regnet_x_400mf"},  # cannot be built on the meta device
    ],
)
def test_names_are_those_that_the_job_will_see(axes: dict[str, Any]) -> None:
    """Layers and keys of shapes, though no weights are drawn and few images are looked at."""
    point = Point("inference", {**axis_defaults("inference"), "input_size": 32, **axes})
    device = torch.device("cpu")
    model = model_builder.build(model_builder.ModelKey.of(point), device)
    (image,) = model_builder.make_inputs(point, device)
    wanted = convolution_names(shape_pass(model, image))
    assert _names("inference", case(**point.axes)) == wanted


def test_names_are_those_of_a_training() -> None:
    """With the stem and the types that it has."""
    axes = {"model": "resnet18", "input_size": 8, "batch_size": 8, "stem": "cifar", "amp": "bf16"}
    point = Point("training", {**axis_defaults("training"), **axes})
    model = training_network.build(point, 10, torch.device("cpu"))
    with torch.autocast("cpu", torch.bfloat16):
        wanted = convolution_names(shape_pass(model, torch.empty(8, 3, 8, 8)))
    assert _names("training", case("training", **point.axes)) == wanted


def test_a_network_that_nobody_can_build_here_is_not_judged() -> None:
    """The reason is told; where one size fails, another may do."""
    assert look({"fc": "fft"}, case(model="tinynets:no_module")) == {
        "failed": "UsageError: model 'tinynets:no_module': returned int, not a torch.nn.Module"
    }
    small, fits = (case(model="alexnet", input_size=size) for size in (8, 64))
    assert "8x8" in look({"features.0": "fft"}, small)["failed"]
    assert look({"features.0": "fft"}, small, fits) == {"idle": {}}


OWN = """\
import torch
from torch import nn

class Determined(nn.Module):
    def forward(self, images):
        images.sum().item()  # reads a value, which the meta device has not
        return torch.linalg.det(images)

class Headless(nn.Module):
    def forward(self, images):
        return images.mean((2, 3))
"""


@pytest.mark.parametrize(
    ("name", "workload", "axes"),
    [("Determined", "inference", {"dtype": "float16"}), ("Headless", "training", {})],
)
def test_what_this_machine_or_these_data_cannot_tell_refuses_no_network(
    tmp_path: Path, name: str, workload: str, axes: dict[str, Any]
) -> None:
    """A type of numbers that CPUs lack, and a last layer that the data may fit."""
    (tmp_path / "headnets.py").write_text(OWN)
    of_point = case(workload, model=f"headnets:{name}", input_size=8, **axes)
    asked = {"about": "network", "workload": workload, "axes": of_point}
    sources.look_in([str(tmp_path)])
    answer = trials.answer(asked)
    assert list(answer) == ["failed"], answer


RARE = """\
import torch
from torch import nn

def lazy():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(10))

class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.ones(3, 1, 1, dtype=torch.complex64))
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, images):
        return self.conv((images * self.turn).real).mean((2, 3))

def scripted():
    return torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten()))

def classifier():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 7))
"""


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
@pytest.mark.parametrize(
    ("workload", "name", "axes"),
    [
        ("inference", "lazy", {}),
        ("inference", "Complex", {}),
        ("inference", "scripted", {}),
        ("inference", "classifier", {}),
        ("training", "lazy", {}),
        ("training", "Complex", {"num_classes": 4}),
        ("training", "classifier", {}),
    ],
)
def test_an_honest_network_is_taken_at_every_size(
    tmp_path: Path, workload: str, name: str, axes: dict[str, Any]
) -> None:
    """A lazy one fits the images that it sees first; the next size gets one of its own."""
    (tmp_path / "rarenets.py").write_text(RARE)
    of_point = [
        case(workload, model=f"rarenets:{name}", input_size=size, **axes) for size in (8, 12)
    ]
    asked = [{"about": "network", "workload": workload, "axes": of} for of in of_point]
    sources.look_in([str(tmp_path)])
    assert all(trials.answer(one).keys() == {"calls", "gflops"} for one in asked)
