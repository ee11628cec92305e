"""The shapes of a network's convolutions, by layer name: a pass on the meta device tells them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.catalog.columns import Row
from hpcsweep.catalog.models import MODELS

if TYPE_CHECKING:
    from torch import Tensor, nn

_STATED: Final = (
    "in_channels", "out_channels", "kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w",
)  # fmt: skip
_MOST: Final = 1 << 16  # pixels of a side, and images: more is no measured pass


def of_layer(
    model: str, size: int, batch: int, layer: str, stated: Mapping[str, Any]
) -> Row | None:
    """Return the cells of a layer's shape; None where the network has none that fits the row.

    It fits if channels, kernel, stride and padding are those that the row states.
    """
    shape = _of_image(model, size, batch).get(layer)
    fits = shape and all(str(stated[name]) in {"", str(shape[name])} for name in _STATED)
    return shape if fits else None


@lru_cache(maxsize=1024)
def _of_image(model: str, size: int, batch: int) -> Mapping[str, Row]:
    """Return the cells of each convolution that is called once; nothing for an unknown network."""
    network = _network(model)
    if network is None or not (1 <= size <= _MOST and 1 <= batch <= _MOST):
        return {}
    import torch  # noqa: PLC0415 - `_network` found it

    found: dict[str, Row] = {}
    again: set[str] = set()
    names = {module: name for name, module in network.named_modules()}

    def note(module: nn.Conv2d, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        name = names[module]
        again.update({name} & found.keys())
        found[name] = _cells(name, module, inputs[0], output)

    convolutions = [one for one in names if type(one) is torch.nn.Conv2d]
    hooks = [one.register_forward_hook(note) for one in convolutions]
    try:
        with torch.no_grad():
            network(torch.empty(batch, 3, size, size, device="meta"))
    except (RuntimeError, ValueError):  # the network does not take such images
        return {}
    finally:
        for hook in hooks:
            hook.remove()
    return {name: cells for name, cells in found.items() if name not in again}


@lru_cache(maxsize=1)
def _network(model: str) -> nn.Module | None:
    """Return a network of the catalog without weights; None where it, or torch, is not there."""
    if model not in MODELS:
        return None
    try:
        import torch  # noqa: PLC0415 - only tables of layers need it

        from hpcsweep.measure import models  # noqa: PLC0415 - it needs torch
    except ImportError:
        return None
    with torch.device("meta"):
        network = models.build_float32(model, enliven=False)
    for module in network.modules():  # what changes no shape costs most of a pass on this device
        if isinstance(module, (torch.nn.BatchNorm2d, torch.nn.ReLU, torch.nn.Dropout)):
            module.forward = lambda image: image
    return network


def _cells(name: str, module: nn.Conv2d, image: Tensor, output: Tensor) -> Row:
    from hpcsweep.conv.shape import NCHW, ConvShape  # noqa: PLC0415 - it needs torch
    from hpcsweep.measure import shape_pass, work  # noqa: PLC0415

    conv = ConvShape.of(module, image, NCHW, "cpu")
    params = sum(one.numel() for one in module.parameters())
    moved = conv.itemsize * (image.numel() + output.numel() + params)
    call = shape_pass.LayerCall(
        layer=name, op="conv2d", inputs=(tuple(image.shape),), outputs=(tuple(output.shape),),
        params=params, flops=conv.flops, bytes_min=moved, key=conv.unique_key, conv=conv,
    )  # fmt: skip
    return work.call_cells(call)
