"""Networks by name, weights, and inputs."""

from __future__ import annotations

import gc

import pytest
import torch

import tinynets
from hpcsweep.errors import UsageError
from hpcsweep.measure import model_builder
from hpcsweep.measure.model_builder import ModelCache, ModelKey, build, build_float32, make_inputs
from hpcsweep.measure.timing import loop
from measuring import CPU, point


def _key(model="tinynets:Residual", **axes):
    return ModelKey.of(point(model, **axes))


def test_a_torchvision_network_comes_ready_to_infer():
    """Evaluation mode, no gradients, on the device, in the dtype and layout of the point."""
    model = build(_key("resnet18", dtype="bfloat16", memory_format="nhwc"), CPU)
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.conv1.weight.is_contiguous(memory_format=torch.channels_last)


def test_the_same_seed_gives_the_same_weights():
    """Weights depend on the seed, not on what the process drew before."""
    torch.manual_seed(123)
    first = build_float32("squeezenet1_1", seed=1)
    torch.randn(17)
    second, other = build_float32("squeezenet1_1", seed=1), build_float32("squeezenet1_1", seed=2)
    image = torch.randn(1, 3, 64, 64)
    assert torch.equal(first(image), second(image))
    assert not torch.equal(first(image), other(image))


def test_building_leaves_the_callers_random_numbers_alone():
    """Who draws numbers around a build sees the same ones."""
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    build_float32("squeezenet1_1")
    assert torch.equal(torch.randn(3), expected)


LARGE = ("resnet101", "efficientnet_b0", "vit_b_16")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["mobilenet_v2", *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)],
)
def test_untrained_networks_stay_in_the_range_of_half_precision(name):
    """Outputs are neither 1e7 nor 1e-9 nor all zero, as torchvision's own would be."""
    with torch.inference_mode():
        output = build_float32(name)(torch.randn(1, 3, 224, 224))
    assert 1e-3 < output.abs().max().item() < 6e4


def test_a_users_own_factory_is_taken_as_it_is():
    """`package.module:factory`; its weights are its own business."""
    model = build_float32("tinynets:Residual")
    assert isinstance(model, tinynets.Residual)
    assert model.norm.running_var.eq(1).all()


def test_weights_come_from_a_state_dict(tmp_path):
    """A path loads a state dict, bare or wrapped as in a checkpoint."""
    source = tinynets.Residual()
    torch.save(source.state_dict(), tmp_path / "bare.pt")
    torch.save({"state_dict": source.state_dict(), "epoch": 3}, tmp_path / "checkpoint.pt")
    for name in ("bare.pt", "checkpoint.pt"):
        model = build_float32("tinynets:Residual", str(tmp_path / name))
        assert torch.equal(model.head.weight, source.head.weight)


def test_a_state_dict_beats_random_weights_of_torchvision(tmp_path):
    """With weights from a file, batch norms keep the file's statistics."""
    from torchvision.models import shufflenet_v2_x0_5

    source = shufflenet_v2_x0_5(weights=None)
    torch.save(source.state_dict(), tmp_path / "w.pt")
    model = build_float32("shufflenet_v2_x0_5", str(tmp_path / "w.pt"))
    assert torch.equal(model.conv1[1].running_var, source.conv1[1].running_var)


@pytest.mark.parametrize(
    ("name", "weights", "words"),
    [
        ("resnet19", "random", "did you mean 'resnet18'"),
        ("nowhere.at_all:net", "random", "PYTHONPATH"),
        ("tinynets:Residuum", "random", "has no 'Residuum'"),
        ("tinynets:no_module", "random", "returned int, not a torch.nn.Module"),
        ("tinynets:Residual", "IMAGENET1K_V1", "your own factory"),
        ("resnet18", "IMAGENET1K_V9", "resnet18 has IMAGENET1K_V1, DEFAULT, a path"),
        ("resnet18", "/nowhere/w.pt", "No such file"),
    ],
)
def test_what_does_not_exist_is_named(name, weights, words):
    """Unknown networks, factories and weights: what was wrong, and what to do."""
    with pytest.raises(UsageError, match=words):
        build_float32(name, weights)


def test_weights_that_would_be_downloaded_are_refused(tmp_path, monkeypatch):
    """By the name of torchvision they are taken from its cache, which a login node fills."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    fetched = []
    monkeypatch.setattr(torch.hub, "download_url_to_file", lambda *a, **_: fetched.append(a))
    with pytest.raises(UsageError, match=r"resnet18-f37072fd\.pth is not there.* login node"):
        build_float32("resnet18", "IMAGENET1K_V1")
    assert not fetched
    cached = tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth"
    cached.parent.mkdir(parents=True)
    state = build_float32("resnet18", seed=7).state_dict()
    torch.save(state, cached)
    built = build_float32("resnet18", "IMAGENET1K_V1")
    assert torch.equal(built.fc.weight, state["fc.weight"])


def test_weights_of_another_network_are_refused(tmp_path):
    """A state dict that does not fit names the file."""
    torch.save(tinynets.Dicts().state_dict(), tmp_path / "other.pt")
    with pytest.raises(UsageError, match=r"other\.pt.*do not fit"):
        build_float32("tinynets:Residual", str(tmp_path / "other.pt"))


def test_the_network_is_kept_while_points_share_it():
    """The same _key gives the same object; another dtype or seed a new one."""
    cache = ModelCache(CPU)
    first = cache.get(_key())
    assert cache.get(_key(input_size=64, algorithm="gemm")) is first
    other = cache.get(_key(seed=1))
    assert other is not first
    cache.drop()
    assert cache.get(_key(seed=1)) is not other


@pytest.mark.parametrize(
    ("fill", "holds"),
    [
        ("randn", lambda x: x.min() < -1 and x.max() > 1),
        ("uniform", lambda x: x.min() >= 0 and 0.5 < x.max() <= 1),
        ("zeros", lambda x: not x.any()),
    ],
)
def test_inputs_are_filled_as_the_point_says(fill, holds):
    """Normal, uniform or zero; size, dtype and layout from the point."""
    (image,) = make_inputs(point(input_fill=fill, batch_size=2, memory_format="nhwc"), CPU)
    assert image.shape == (2, 3, 32, 32)
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert holds(image)


def test_inputs_come_from_the_seed_alone():
    """More inputs do not change the first ones; another seed changes all."""
    one, three = make_inputs(point(), CPU), make_inputs(point(), CPU, 3)
    assert torch.equal(one[0], three[0])
    assert not torch.equal(three[0], three[1])
    assert not torch.equal(one[0], make_inputs(point(seed=1), CPU)[0])


def test_the_bytes_of_an_input_are_known_before_it_exists():
    """The rotated cache state has to know how many inputs fill the cache."""
    wanted = point(batch_size=3, dtype="float16")
    (image,) = make_inputs(wanted, CPU)
    assert model_builder.input_bytes(wanted) == image.numel() * image.element_size()


def test_images_need_be_neither_square_nor_of_three_channels():
    """A torchvision network gets a first convolution for them; a fourth of it is no copy."""
    axes = {"input_size": 64, "input_width": 96, "input_channels": 4}
    made = point(model="squeezenet1_1", **axes)
    (image,) = model_builder.make_inputs(made, CPU)
    assert image.shape == (1, 4, 64, 96)
    assert model_builder.input_bytes(made) == image.nbytes
    network = model_builder.build(model_builder.ModelKey.of(made), CPU)
    assert network.features[0].in_channels == 4
    assert network(image).shape == (1, 1000)
    again = model_builder.build(model_builder.ModelKey.of(made), CPU)
    assert torch.equal(network.features[0].weight, again.features[0].weight)


def test_published_weights_are_for_three_channels():
    """Told before anything is loaded."""
    with pytest.raises(UsageError, match="are for 3 channels"):
        model_builder.build_float32("squeezenet1_1", "DEFAULT", channels=1)


def test_what_there_is_when_the_heap_settles_is_not_looked_at_again():
    """Half a million objects of torch would be, before the passes of each point."""
    model_builder.settle()
    settled = gc.get_freeze_count()
    assert settled > 1000
    with loop.quiet_collector():
        assert gc.get_freeze_count() > 0.9 * settled  # what nobody needs any more leaves it
    assert len(gc.get_objects()) < settled
