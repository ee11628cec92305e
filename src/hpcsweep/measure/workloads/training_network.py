"""Builds networks for training: number of classes, first layers for small images, compilation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hpcsweep import sources
from hpcsweep.catalog import AUTO, AUTOTUNE
from hpcsweep.errors import UsageError, first_line
from hpcsweep.measure import model_builder
from hpcsweep.measure.bench_api import CannotMeasure
from hpcsweep.measure.shape_pass import shape_pass
from hpcsweep.point import Point

# What torchvision's networks have unless told otherwise.
_IMAGENET_CLASSES: Final = 1000


def build(point: Point, num_classes: int, device: torch.device) -> nn.Module:
    """Return the point's network in training mode, on the device, in its dtype and layout.

    What its factory froze stays frozen: parameters, and modules in evaluation mode inside a network
    in training mode. The last layer always has `num_classes` outputs; with trained weights that is
    fine-tuning. New layers are drawn from the point's seed.

    Raises:
        UsageError: no such network, factory or weights.
        CannotMeasure: the network has no stem to replace, or no last layer.
    """
    axes = point.axes
    weights = axes["weights"]
    file = None
    if sources.is_weights_file(weights):
        file = sources.file(weights)
        weights = model_builder.RANDOM
    model = model_builder.build_float32(axes["model"], weights, axes["seed"], trains=True)
    frozen = []
    if model.training:
        frozen = [module for module in model.modules() if not module.training]
    model.train()
    for module in frozen:
        module.training = False
    called = _called(model, point, device) if ":" in axes["model"] else None
    # else the file is of a training: with stem and last layer replaced
    as_published = False
    if file is not None:
        with suppress(UsageError):
            model_builder.load_weights(model, file)
            as_published = True
    # new layers are the same whatever the factory drew
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(axes["seed"])
        if axes["stem"] == "cifar":
            give_cifar_stem(model)
        replaced = give_classes(model, num_classes, called)
    if called is not None and replaced:
        try:
            _called(model, point, device)
        except RuntimeError as error:
            raise CannotMeasure(
                f"the layer that a pass calls last, {replaced[0]}, is not the network's last step: "
                f"with {num_classes} outputs a pass fails ({first_line(error)})"
            ) from error
    if file is not None and not as_published:
        model_builder.load_weights(model, file)
    return model_builder.placed(model, device, axes["dtype"], axes["memory_format"])


def _called(model: nn.Module, point: Point, device: torch.device) -> list[str]:
    """Return the layers that a pass calls, in order; make layers that the first pass makes.

    The pass is one of training: in evaluation mode a network may fold its batch norms, for good.
    """
    axes = point.axes
    before = {}
    for name, buffer in model.named_buffers():
        if not is_lazy(buffer):
            before[name] = buffer.clone()
    model_builder.placed(model, device, axes["dtype"], axes["memory_format"])
    image = torch.zeros(axes["batch_size"], *model_builder.image_shape(axes), device=device)
    with model_builder.seeded(point):
        shapes = shape_pass(model, image.to(getattr(torch, axes["dtype"])))
    # a pass that runs for real has changed batch norms
    model.load_state_dict(before, strict=False)
    return [call.layer for call in shapes.calls]


def give_cifar_stem(model: nn.Module) -> None:
    """Give a ResNet first layers for 32x32 images: 3x3 of stride 1, no pooling.

    Source: He et al. 2016, section 4.2.
    """
    first = getattr(model, "conv1", None)
    pool = getattr(model, "maxpool", None)
    if not isinstance(first, nn.Conv2d) or not isinstance(pool, nn.MaxPool2d):
        raise CannotMeasure(
            f"stem: cifar is for ResNets; {type(model).__name__} has no conv1 and maxpool"
        )
    model.conv1 = nn.Conv2d(first.in_channels, first.out_channels, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()


def give_classes(
    model: nn.Module, num_classes: int, called: Sequence[str] | None = None
) -> list[str]:
    """Replace the last layers, auxiliary heads included, that have other numbers of outputs.

    In torchvision's networks these are the layers with 1000 outputs. In the user's own network it
    is the linear layer or convolution that comes last in `called`, the layers that a pass calls;
    if these are inside compiled code, the one that was defined last. Return the replaced names.
    """
    layers = model.named_modules()
    fitting = {name: layer for name, layer in layers if isinstance(layer, nn.Linear | nn.Conv2d)}
    if called is None:
        heads = [name for name in fitting if _outputs(fitting[name]) == _IMAGENET_CLASSES]
    else:
        in_pass = [name for name in called if name in fitting]
        heads = (in_pass or [*fitting])[-1:]
    if not heads:
        raise CannotMeasure(f"{type(model).__name__} has no last layer that could be replaced")
    replaced = [name for name in heads if _outputs(fitting[name]) != num_classes]
    for name in replaced:
        model_builder.put(model, name, _like(fitting[name], num_classes, name))
    return replaced


def _outputs(layer: nn.Module) -> int:
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)


def _like(layer: nn.Module, outputs: int, name: str) -> nn.Module:
    """Return a new layer that differs only in the number of outputs; `name` is for the error."""
    bias = layer.bias is not None
    if isinstance(layer, nn.Linear):
        return nn.Linear(layer.in_features, outputs, bias=bias)
    assert isinstance(layer, nn.Conv2d)  # noqa: S101 - `give_classes` chose it
    if outputs % layer.groups:
        raise CannotMeasure(
            f"the last layer, {name}, has {layer.groups} groups, which do not divide "
            f"{outputs} outputs"
        )
    return nn.Conv2d(
        layer.in_channels, outputs, layer.kernel_size, layer.stride, layer.padding,
        layer.dilation, layer.groups, bias=bias, padding_mode=layer.padding_mode,
    )  # fmt: skip


def compiled(model: nn.Module, point: Point) -> Callable[[Any], Any]:
    """Return a function for the forward pass: the network itself, a script, or compiled code.

    Raises:
        CannotMeasure: TorchScript cannot express the network, or the algorithm is an explicit one.
    """
    how = point.axes["compile"]
    algorithm = point.axes["algorithm"]
    if how == "none":
        return model
    if algorithm not in (AUTO, AUTOTUNE):
        raise CannotMeasure(
            f"compile: {how} lowers convolutions itself; algorithm must be {AUTO} or {AUTOTUNE}"
        )
    if how == "torchscript":
        return _scripted(model)
    return torch.compile(model, backend="inductor")


def _scripted(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        try:
            script: nn.Module = torch.jit.script(model)
        except Exception as error:
            reason = first_line(error).strip()
            raise CannotMeasure(f"TorchScript cannot express this network: {reason}") from error
    return script
