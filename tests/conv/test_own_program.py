"""A map in one's own program: what runs, what stays as it was, and what is told."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch
import yaml
from torch import nn
from torch.nn.utils import prune
from torchvision.models import get_model

import hpcsweep
from hpcsweep.analysis.best import Best
from hpcsweep.conv.swap import ExplicitConv2d
from hpcsweep.errors import SpecError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

IMAGE = torch.randn(2, 3, 32, 32)
MAP = {"0": "gemm", "2": "winograd", "*": "implicit_gemm"}


def network() -> nn.Sequential:
    """Return three convolutions, of which the last is small."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
    ).eval()


def ran(model: nn.Module, *inputs: torch.Tensor) -> list[tuple[str, str]]:
    """Return layer and algorithm of each call; each was proved."""
    used = hpcsweep.algorithms_used(model, *inputs)
    assert not [one for one in used if "mismatch" in one.evidence or one.evidence == "none"]
    return [(one.layer, one.used) for one in used]


def test_each_convolution_runs_what_the_map_gives_it_and_the_rest_is_untouched():
    """Output within rounding; names, state and a user's hook as they were, also afterwards."""
    model = network()
    heard: list[str] = []
    model[2].register_forward_hook(lambda *_: heard.append("hook"))
    before = model(IMAGE), list(model.state_dict()), [name for name, _ in model.named_modules()]
    with hpcsweep.algorithms(model, MAP), torch.inference_mode():
        out = model(IMAGE)
        assert ran(model, IMAGE) == [("0", "gemm"), ("2", "winograd"), ("3", "implicit_gemm")]
        assert list(model.state_dict()) == before[1]
        assert [name for name, _ in model.named_modules()] == before[2]
    torch.testing.assert_close(out, before[0], rtol=1e-4, atol=1e-5)
    assert [type(part) for part in model] == [nn.Conv2d, nn.ReLU, nn.Conv2d, nn.Conv2d]
    assert ran(model, IMAGE) == [("0", "auto"), ("2", "auto"), ("3", "auto")]
    assert torch.equal(model(IMAGE), before[0])
    assert len(heard) == 7  # before, inside, two passes each to tell what ran, and after


def test_a_name_without_a_pattern_that_matches_keeps_its_own_class():
    """Nothing is looked up for it; a pattern of shapes may match any layer, so all are asked."""
    model = network()
    installed = hpcsweep.algorithms(model, {"2": "gemm"}).install()
    assert [type(part) for part in model] == [nn.Conv2d, nn.ReLU, ExplicitConv2d, nn.Conv2d]
    installed.remove()
    with hpcsweep.algorithms(model, {"conv2d_*_1x1_s1x1_*": "gemm"}):
        assert ran(model, IMAGE) == [("0", "auto"), ("2", "auto"), ("3", "gemm")]


def test_autocast_that_comes_and_goes_is_another_call():
    """The same input under autocast and without: each in its own type."""
    model = network()
    with hpcsweep.algorithms(model, MAP), torch.inference_mode():
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                assert model(IMAGE).dtype == torch.bfloat16
            assert model(IMAGE).dtype == torch.float32


def test_a_layer_that_is_pruned_after_its_first_call_runs_the_map():
    """It computes its weight before each call from then on."""
    model = network()
    with hpcsweep.algorithms(model, MAP):
        model(IMAGE)
        prune.l1_unstructured(model[2], "weight", amount=0.5)
        found = model(IMAGE)
        assert ran(model, IMAGE)[1] == ("2", "winograd")
    torch.testing.assert_close(found, model(IMAGE), rtol=1e-4, atol=1e-5)


def test_what_an_algorithm_cannot_do_falls_back_and_is_counted():
    """Winograd has no 1x1: two passes are two calls."""
    model = network()
    plain = model(IMAGE)
    with hpcsweep.algorithms(model, {"*": "winograd", "0": "gemm"}) as given:
        model(IMAGE)
        torch.testing.assert_close(model(IMAGE), plain, rtol=1e-4, atol=1e-5)
        ((told, calls),) = given.fallbacks.items()
    assert told.startswith("3: winograd: ")
    assert calls == 2


def test_the_file_of_best_holds_for_the_shapes_that_it_was_measured_for(tmp_path: Path):
    """Another image size runs the default, and the calls are counted by layer and reason."""
    maps = {"best_a": {"conv1": "gemm"}, "best_b": {"conv1": "winograd"}}
    axes = {name: {"model": "resnet18", "input_size": 64, "batch_size": 2} for name in maps}
    file = tmp_path / "map.yaml"
    file.write_text(Best(None, "auto", maps, axes, "s_best", ("made",)).sweep_file())
    model = get_model("resnet18", weights=None).eval()
    with pytest.raises(SpecError, match=r"2 maps; choose one by name=: best_a, best_b"):
        hpcsweep.algorithms(model, file)
    with pytest.raises(SpecError, match=r"no 'best_c'; did you mean 'best_.'\?"):
        hpcsweep.algorithms(model, file, name="best_c")
    with hpcsweep.algorithms(model, file, name="best_a") as given, torch.inference_mode():
        model(torch.randn(2, 3, 64, 64))
        assert given.fallbacks == {}
        model(torch.randn(2, 3, 96, 96))
        assert given.fallbacks == {"conv1: gemm: the map was measured on others": 1}
    assert {p.device.type for p in model.parameters()} == {"cpu"}


def test_a_file_may_be_the_map_alone(tmp_path: Path):
    """Layers and algorithms, nothing else; what is no map is told with the file."""
    file = tmp_path / "map.yaml"
    file.write_text(yaml.safe_dump(MAP))
    model = network()
    with hpcsweep.algorithms(model, file):
        assert ran(model, IMAGE)[1] == ("2", "winograd")
    for text, words in (("- a", "no map"), ("a: [", "not YAML"), ("name: s\naxes: {}", "`maps`")):
        file.write_text(text)
        with pytest.raises(SpecError, match=words) as error:
            hpcsweep.algorithms(model, file)
        assert str(error.value).startswith(f"{file}: ")
    with pytest.raises(SpecError, match="No such file"):
        hpcsweep.algorithms(model, tmp_path / "none.yaml")


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # of newer torch
def test_names_that_cannot_run_are_told_with_the_nearest_one():
    """A missing layer, one that is no convolution, one that torch compiles, no algorithm."""
    model = nn.ModuleDict({"conv1": nn.Conv2d(3, 4, 3), "relu": nn.ReLU()})
    with pytest.raises(UsageError, match=r"'conv2', which the network .*did you mean 'conv1'\?"):
        hpcsweep.algorithms(model, {"conv2": "gemm"})
    with pytest.raises(UsageError, match=r"'relu', which is a ReLU and no plain nn.Conv2d"):
        hpcsweep.algorithms(model, {"relu": "gemm"})
    with pytest.raises(UsageError, match=r"unknown convolution algorithm 'gem'"):
        hpcsweep.algorithms(model, {"conv1": "gem"})
    part = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3)))
    scripted = nn.ModuleDict({"part": part})
    with pytest.raises(UsageError, match=r"'part.0', which is in a TorchScript module"):
        hpcsweep.algorithms(scripted, {"part.0": "gemm"})
    compiled = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3)))
    compiled[0].compile()
    with pytest.raises(UsageError, match=r"'0.0', which is in a module that compiles itself"):
        hpcsweep.algorithms(compiled, {"0.0": "gemm"})
    with hpcsweep.algorithms(model, {"conv1": "gemm"}), pytest.raises(UsageError, match="already"):
        hpcsweep.algorithms(model, {"conv1": "gemm"}).install()


def test_it_loads_nothing_of_the_orchestrator():
    """A program that uses a map loads torch, and of hpcsweep the convolutions."""
    code = (
        "import sys, torch, hpcsweep\n"
        "model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))\n"
        "with hpcsweep.algorithms(model, {'0': 'gemm'}):\n"
        "    hpcsweep.algorithms_used(model, torch.randn(1, 3, 8, 8))\n"
        "names = {n.split('.')[1] for n in sys.modules if n.startswith('hpcsweep.')}\n"
        "below = {'conv', 'catalog', 'errors', 'text', 'point', 'extras', 'version'}\n"
        "print(sorted(names - below))\n"
        "print('pandas' in sys.modules, 'click' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nFalse False\n"
