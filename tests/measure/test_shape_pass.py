"""The shape pass: layer calls in order, their sizes, their work."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision import models as torchvision_models

import tinynets
from hpcsweep.measure import shape_pass as shapes
from hpcsweep.measure.bench_api import CannotMeasure
from hpcsweep.measure.shape_pass import shape_pass


def _shapes_of(model, size, batch=1):
    return shape_pass(model.eval(), torch.zeros(batch, 3, size, size))


def _only_real(model):
    """Let a network read a number, which the meta device has not."""

    def read(_model, inputs):
        inputs[0].sum().item()

    model.register_forward_pre_hook(read)
    return model


def _torchvision_shapes(name, size=224):
    with torch.device("meta"):  # nobody draws weights that only have a shape
        model = torchvision_models.get_model(name, weights=None)
    return shape_pass(model.eval(), torch.zeros(1, 3, size, size))


@pytest.mark.parametrize(
    ("name", "calls", "convolutions", "flops"),
    [
        ("resnet18", 60, 20, 3_628_146_688),
        ("resnet50", 158, 53, 8_178_368_512),
        ("mobilenet_v2", 141, 52, None),
    ],
)
def test_calls_and_work_of_known_networks(name, calls, convolutions, flops):
    """Calls are counted, not modules (ResNets share ReLUs); operations agree to the integer."""
    found = _torchvision_shapes(name)
    assert len(found.calls) == calls
    assert len(found.convolutions) == convolutions
    if flops:
        assert found.flops == flops


@pytest.mark.parametrize("name", ["mobilenet_v2", "swin_v2_t"])
def test_the_operations_of_the_layers_add_up_to_those_of_the_pass(name):
    """Per call by formula, in total by torch's counter: two sources, one number."""
    found = _torchvision_shapes(name)
    assert sum(call.flops for call in found.calls) == found.flops


def test_a_module_that_computes_beside_its_children_has_a_call_without_what_they_have():
    """With parameters or buffers of its own; calls are in the order in which they end."""
    model = tinynets.around()
    calls = _shapes_of(model, 16).calls
    assert [(call.layer, call.op, call.inside, call.params) for call in calls] == [
        ("0", "conv2d", 0, 32),
        ("1.block.0", "conv2d", 0, 72),
        ("1.block.1.act", "relu", 0, 0),
        ("1.block.1", "normact", 1, 16),
        ("1", "scaled", 3, 0),
        ("2.act", "relu", 0, 0),
        ("2", "normact", 1, 16),
        ("3", "flatten", 0, 0),
    ]
    assert sum(call.params for call in calls) == sum(p.numel() for p in model.parameters())
    assert [call.flops for call in calls if call.conv is None] == [0] * 6
    image = 4 * 8 * 16**2
    assert [calls[at].bytes_min for at in (2, 3)] == [2 * image, 2 * image + 4 * 16]


def test_a_network_that_is_one_parametrised_convolution_has_its_call():
    """What computes its filters is no layer."""
    model = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
    assert [call.op for call in _shapes_of(model, 16).calls] == ["conv2d"]


def test_a_module_that_is_called_twice_has_two_calls():
    """The shared ReLU appears where it is called, in order."""
    found = _shapes_of(tinynets.Residual(), 16)
    names = [call.layer for call in found.calls]
    assert names == ["stem", "relu", "conv", "norm", "relu", "head"]


def test_an_in_place_layer_shows_its_own_shapes():
    """An in-place ReLU has input and output of the same size; nobody looks at values."""
    relu = _shapes_of(tinynets.Residual(), 16).calls[1]
    assert relu.inputs == relu.outputs == ((1, 8, 16, 16),)
    assert relu.bytes_min == 2 * 8 * 16 * 16 * 4


@pytest.mark.parametrize("within", [False, True])
def test_bytes_are_those_of_the_types_that_autocast_gives(within):
    """In a block of the caller's, or in one of the network's own."""
    net = (tinynets.Casting16 if within else tinynets.Residual)().eval()
    with torch.autocast("cpu", torch.bfloat16, enabled=not within):
        found = shape_pass(net, torch.zeros(2, 3, 16, 16))
    relu = next(call for call in found.calls if call.layer == "relu")
    assert relu.bytes_min == 2 * (2 * 8 * 16 * 16) * 2
    assert "bfloat16" in relu.key


def test_attention_is_one_layer():
    """The projection inside attention is never called, so attention is the layer."""
    found = _shapes_of(tinynets.Attention(), 32)
    assert [call.op for call in found.calls] == ["conv2d", "multiheadattention"]
    assert found.calls[1].flops > 0
    assert found.calls[1].params == sum(
        p.numel() for p in tinynets.Attention().attention.parameters()
    )


def test_a_block_that_borrows_its_childrens_weights_is_a_layer():
    """Its children never run as modules, so the block itself is what can be timed."""
    found = _shapes_of(tinynets.Borrowing(), 8)
    assert [call.layer for call in found.calls] == [""]
    assert [call.op for call in found.calls] == ["borrowing"]
    assert found.flops == found.calls[0].flops == 2 * (3 * 4 + 4 * 2)


def test_a_block_that_calls_and_computes_is_one_layer():
    """Attention with a projection inside: one layer, so that no work is lost between layers."""
    found = _shapes_of(nn.Sequential(tinynets.Biased(), nn.ReLU()), 4)
    assert [call.op for call in found.calls] == ["biased", "relu"]
    assert found.calls[0].flops == found.flops == 2 * (4 * 4 * 4) + 2 * (4 * 4 * 4)
    assert found.calls[0].params == 4 * 4 + 4


def test_a_block_with_a_convolution_is_never_one_layer():
    """Convolutions are what this is about: they keep rows of their own."""
    found = _shapes_of(nn.Sequential(tinynets.Convolving(), nn.ReLU()), 4)
    assert [call.op for call in found.calls] == ["conv2d", "relu"]


def test_a_network_that_cannot_run_on_meta_runs_for_real():
    """A tensor that is no buffer breaks the meta pass; the real pass sees the same layers."""
    found = _shapes_of(tinynets.Holding(), 8)
    assert [call.layer for call in found.calls] == ["block"]


def _activations():
    """Return layers that keep shape, type and layout; one batch norm trains."""
    kinds = (nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.SiLU)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8),
        *(kind(inplace=inplace) for kind in kinds for inplace in (False, True)),
    ).eval()  # fmt: skip
    model[1].train()
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("make", [tinynets.Residual, tinynets.Attention, _activations])
def test_the_meta_pass_and_a_real_pass_agree(make, layout, dtype):
    """Shapes, order and work are the same on both devices; fused attention is counted."""
    image = torch.zeros(2, 3, 16, 16, dtype=dtype).to(memory_format=layout)
    model = make().to(dtype=dtype, memory_format=layout)
    if make is not _activations:
        model.eval()
    ran = []
    model.register_forward_pre_hook(lambda _, inputs: ran.append(inputs[0].device.type))
    on_meta = shape_pass(model, image)
    assert set(ran) == {"meta"}
    assert shape_pass(_only_real(model), image) == on_meta
    assert torch.backends.mha.get_fastpath_enabled()


def test_the_network_is_left_as_it_was():
    """No hook and no meta tensor stays behind."""
    model = tinynets.Residual().eval()
    _shapes_of(model, 16)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert {p.device.type for p in model.parameters()} == {"cpu"}


@pytest.mark.parametrize(("name", "size"), [("alexnet", 20), ("vit_b_16", 200)])
def test_an_image_size_that_does_not_fit_is_a_finding(name, size):
    """Too small, or not the only one: unsupported, with the network's own words."""
    with pytest.raises(CannotMeasure, match=f"does not take {size}x{size} images"):
        _torchvision_shapes(name, size)


def test_a_bug_in_the_network_is_not_called_a_finding():
    """Any other failure is an error with its own type."""

    class Broken(nn.Module):
        def forward(self, x):
            return x.reshape(7)

    with pytest.raises(RuntimeError, match="shape"):
        _shapes_of(Broken(), 8)


def test_equal_keys_are_equal_work():
    """Two calls of one shape share a key; another stride, size or slope does not."""
    net = nn.Sequential(nn.Conv2d(3, 3, 3), nn.LeakyReLU(0.1), nn.LeakyReLU(0.1), nn.LeakyReLU(0.2))
    keys = [call.key for call in _shapes_of(net, 8).calls]
    assert keys[1] == keys[2] != keys[3]
    assert keys[0] == _shapes_of(net, 8).calls[0].key != _shapes_of(net, 9).calls[0].key


def test_layer_modules_are_found_by_call():
    """Only the modules of calls are returned, shared ones once, in the order in which they end."""
    model = tinynets.Residual().eval()
    calls = _shapes_of(model, 16).calls
    found = shapes.layer_modules(model, calls)
    assert found == [model.stem, model.relu, model.conv, model.norm, model.head]


def test_batches_scale_work_but_not_parameters():
    """Twice the images: twice the operations, the same weights."""
    small, large = (_shapes_of(tinynets.Residual(), 16, batch) for batch in (1, 2))
    assert large.flops == 2 * small.flops
    assert [c.params for c in large.calls] == [c.params for c in small.calls]


def test_the_layout_of_a_pass_reaches_every_convolution() -> None:
    """Filters of one pixel have no layout of their own; their input has."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1))
    image, last = torch.zeros(2, 3, 9, 9), torch.channels_last
    assert [c.layout for _, c in shape_pass(model, image).convolutions] == ["nchw", "nchw"]
    found = shape_pass(model.to(memory_format=last), image.to(memory_format=last))
    assert [c.layout for _, c in found.convolutions] == ["nhwc", "nhwc"]


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv2d(6, 8, (3, 5), stride=2, padding=1, groups=2), (2, 6, 12, 13)),
        (nn.Conv1d(4, 8, 3), (1, 4, 20)),
        (nn.Conv3d(2, 2, 3, groups=2), (1, 2, 5, 6, 7)),
        (nn.Linear(7, 3), (5, 7)),
        (nn.Linear(7, 3), (2, 5, 7)),
    ],
)
def test_the_work_of_a_layer_is_the_counters(module, shape):
    """Convolutions in 1, 2 and 3 dimensions and linear layers; an activation counts nothing."""
    x = torch.zeros(shape)
    with FlopCounterMode(display=False) as counter:
        module(x)
    layer, activation = shape_pass(nn.Sequential(module, nn.ReLU()), x).calls
    assert (layer.flops, activation.flops) == (counter.get_total_flops(), 0)


@pytest.mark.parametrize("is_real", [False, True])
@pytest.mark.parametrize(
    ("network", "outside"),
    [
        ("Residual", []),
        ("Functional", [("", "conv2d", 2 * 16 * 16 * 4 * 4 * 9)]),
        (
            "OtherKinds",
            [
                ("up", "conv_transpose2d", 2 * 16 * 16 * 4 * 4 * 4),
                ("line", "conv1d", 2 * 1022 * 4 * 4 * 3),
            ],
        ),
        ("Volume", [("conv", "conv3d", 2 * 3 * 16 * 16 * 2 * 27)]),
        ("Unbatched", []),
    ],
)
def test_convolutions_that_no_plain_call_makes_are_told(network, outside, is_real):
    """Functions, other kinds and other shapes of input: where, which operator, how much work."""
    model = getattr(tinynets, network)()
    found = _shapes_of(_only_real(model) if is_real else model, 16)
    assert [(one.layer, one.operator, one.flops) for one in found.outside] == outside
    inside = sum(call.flops for call in found.calls if call.conv is not None)
    assert inside + sum(one.flops for one in found.outside) == found.flops - _linear(found)


def _linear(found):
    return sum(call.flops for call in found.calls if call.op == "linear")


def test_a_layer_of_its_own_class_has_the_work_that_was_counted():
    """The formula of the class that it derives from need not be its own."""

    class Twice(nn.Conv2d):
        def forward(self, x):
            return super().forward(x) + super().forward(x)

    (call,) = _shapes_of(nn.Sequential(Twice(3, 4, 1)), 8).calls
    assert call.conv is not None
    assert call.flops == 2 * call.conv.flops == call.convolution_flops

    class Adapted(nn.Linear):
        def forward(self, x):
            return super().forward(x) + x.mean(-1, keepdim=True) @ self.weight[:, :1].T

    found = _shapes_of(nn.Sequential(Adapted(8, 4)), 8)
    assert [call.flops for call in found.calls] == [found.flops] == [2 * 3 * 8 * (8 + 1) * 4]
