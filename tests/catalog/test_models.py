"""The torch-free table of networks, held against torchvision itself."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch
import torchvision

from hpcsweep.catalog.models import MODELS
from paths import ROOT

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture(scope="module")
def table() -> ModuleType:
    """Return the script that writes the table."""
    path = ROOT / "benchmarks" / "model_table.py"
    spec = importlib.util.spec_from_file_location("model_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_has_exactly_torchvisions_classifiers() -> None:
    """No name is missing, none is invented."""
    assert sorted(MODELS) == sorted(torchvision.models.list_models(module=torchvision.models))


def _meta_refuses_small_images() -> bool:
    """Say whether this torch's meta device checks images against kernels; 2.4 does not."""
    image, kernel = torch.empty(1, 3, 3, 3, device="meta"), torch.empty(4, 3, 4, 4, device="meta")
    try:
        torch.nn.functional.conv2d(image, kernel)
    except RuntimeError:
        return True
    return False


# One of each kind on every day: plain, residual, depthwise, several branches, attention, windows.
FEW = ("alexnet", "resnet50", "mobilenet_v2", "googlenet", "vit_b_16", "swin_v2_t")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
@pytest.mark.filterwarnings("ignore:.*init_weights.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:torch.meshgrid:UserWarning")
def test_sizes_and_work_are_what_the_network_itself_says(table: ModuleType, name: str) -> None:
    """It runs at its smallest size and not below; a fixed one at no other; counts are exact."""
    network, entry = table.on_meta(name), MODELS[name]
    assert table.work(network) == (entry.flops, entry.params)
    assert table.runs(network, entry.size)
    if entry.fixed:
        assert not table.runs(network, 2 * entry.size)
        assert not table.runs(network, entry.size // 2)
    elif entry.size > 1 and _meta_refuses_small_images():
        assert not table.runs(network, entry.size - 1)


@pytest.mark.parametrize("name", ["alexnet", "densenet121", "squeezenet1_1"])
def test_the_smallest_size_holds_on_a_real_device(table: ModuleType, name: str) -> None:
    """The meta device computes shapes only; the CPU computes."""
    network = torchvision.models.get_model(name, weights=None).eval()
    size = MODELS[name].size
    assert table.runs(network, size, "cpu")
    assert not table.runs(network, size - 1, "cpu")


def test_the_two_networks_of_reference_have_their_known_operations() -> None:
    """Two per multiply-add, at 224."""
    assert MODELS["resnet18"].flops == 3_628_146_688
    assert MODELS["resnet50"].flops == 8_178_368_512
    assert MODELS["resnet50"].gflops == pytest.approx(8.178368512)


def test_a_network_says_which_sizes_it_takes() -> None:
    """At least its smallest, or its only one."""
    assert [MODELS["alexnet"].takes(size) for size in (62, 63, 512)] == [False, True, True]
    assert [MODELS["vit_b_16"].takes(size) for size in (223, 224, 225)] == [False, True, False]


def test_the_table_needs_no_torch() -> None:
    """A login node may not have it."""
    code = (
        "import sys, hpcsweep.catalog.models, hpcsweep.catalog.gpus; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_counting_leaves_attention_as_it_was(table: ModuleType) -> None:
    """The switch that the count needs is put back."""
    before = torch.backends.mha.get_fastpath_enabled()
    table.work(table.on_meta("resnet18"))
    assert torch.backends.mha.get_fastpath_enabled() == before
