"""The shape pass: records the layer calls of a network in order, with their shapes and work.

It is separate from all timed passes and runs on the meta device, without arithmetic and memory. A
network that cannot run there (it reads values, or keeps tensors that are no parameters) runs on its
real device.

A *layer* is a module call in which no other module was called. So an activation module that is
called in eight places is eight calls, and a block that uses its children's weights without calling
them (such as attention) is one layer. A block that calls children and multiplies matrices itself is
one layer, too, unless there are convolutions inside. A module that has parameters or buffers of its
own and computes beside the children that it calls (such as a batch norm with an activation) is a
layer *around* these: it has what they have not. `nn.Identity` is none. Work between layers, such as
residual additions, flatten, Python, belongs to no layer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from hpcsweep.conv import parts
from hpcsweep.conv.parts import filters_learn, tensors_in
from hpcsweep.conv.shape import NHWC, ConvShape, layout_of, transformed
from hpcsweep.errors import first_line
from hpcsweep.measure import switches
from hpcsweep.measure.bench_api import CannotMeasure
from hpcsweep.measure.operations import Convolution, OperationCounter, bytes_of

Sizes = tuple[tuple[int, ...], ...]

# Messages of torch and torchvision about images that are too small, or of a wrong size.
_SIZE_COMPLAINTS: Final = (
    "can't be greater than actual input size",
    "Output size is too small",
    "Wrong image",
    "Expected more than 1 value",
)
# Attention as single operators, whose work is known: a fused one is an operator without a formula.
_UNFUSED: Final = {
    "mha.fastpath": False,
    "sdp.flash": False,
    "sdp.mem_efficient": False,
    "sdp.cudnn": False,
    "sdp.math": True,
}


@dataclass(frozen=True)
class LayerCall:
    """One layer call of a pass, with the sizes of its tensors; calls of equal work share a `key`.

    `conv` is the shape of a call of an `nn.Conv2d`; `convolutions` are all that ran inside a call.
    `bytes_of_products` are inputs and outputs of the operators inside that count.
    So many calls before this one are `inside` it, and end before it does: all else that is said of
    it, and its time, is without theirs.
    `gradients` says which of the two products of a convolution's backward pass it has, those for
    its input and for its filters; None if it has no backward pass.
    """

    layer: str
    op: str
    inputs: Sizes
    outputs: Sizes
    params: int
    flops: int
    bytes_min: int
    key: str
    conv: ConvShape | None = None
    convolutions: tuple[Convolution, ...] = ()
    gradients: tuple[bool, bool] | None = None
    bytes_of_products: int = 0
    inside: int = 0

    @property
    def convolution_flops(self) -> int:
        """Operations of the convolutions inside."""
        return sum(conv.flops for conv in self.convolutions)


@dataclass(frozen=True)
class Shapes:
    """The layer calls of a pass in order, and the floating-point operations of the whole pass.

    `bytes_min` are those of inputs, weights and outputs of every layer, each once, and of
    convolutions and products between layers; None where a part of the network is closed, so that
    nobody sees its layers. `outside` are the convolutions that are not inside a call with a `conv`.
    `late`: the network made layers in its first pass, which may fit one size of images only.
    """

    calls: tuple[LayerCall, ...]
    flops: int
    bytes_min: int | None
    outside: tuple[Convolution, ...] = ()
    late: bool = False

    @property
    def convolutions(self) -> list[tuple[str, ConvShape]]:
        """Layers and shapes of the calls of `nn.Conv2d`, in order."""
        return [(call.layer, call.conv) for call in self.calls if call.conv is not None]

    @property
    def convolution_calls(self) -> list[LayerCall]:
        """The calls of `nn.Conv2d`, in order."""
        return [call for call in self.calls if call.conv is not None]

    @property
    def convolution_flops(self) -> int:
        """Operations of all convolutions of the pass, whatever calls them."""
        inside = sum(call.convolution_flops for call in self.convolution_calls)
        return inside + sum(conv.flops for conv in self.outside)


@dataclass(frozen=True)
class _Count:
    """What was counted: operations, bytes of the operators that have some, operators."""

    flops: int = 0
    bytes: int = 0
    operators: int = 0

    def __add__(self, other: _Count) -> _Count:
        return _Count(
            self.flops + other.flops, self.bytes + other.bytes, self.operators + other.operators
        )

    def __sub__(self, other: _Count) -> _Count:
        return self + _Count(-other.flops, -other.bytes, -other.operators)


@dataclass
class _Frame:
    """A module call in progress."""

    name: str
    module: nn.Module
    part: str | None
    inputs: list[Tensor]
    before: _Count
    calls_before: int
    convolutions_before: int
    outputs: list[Tensor] = field(default_factory=list)
    has_children: bool = False
    has_closed: bool = False
    of_children: _Count = _Count()


class _Recorder(OperationCounter):
    """Records the layer calls of a pass, with the operations of each."""

    def __init__(self, device: torch.device, layout: str) -> None:
        super().__init__()
        self.device = device
        self.layout = layout
        self.stack = list[_Frame]()
        self.calls = list[LayerCall]()
        self.no_layers = set[str]()

    def count(self) -> _Count:
        """Return what was counted so far."""
        return _Count(self.flops, self.bytes, self.computed)

    def place(self) -> tuple[str, str | None]:
        """Return the innermost module's name and the kind of its part."""
        if not self.stack:
            return "", None
        return self.stack[-1].name, self.stack[-1].part

    def noting(
        self, name: str, module: nn.Module, part: str | None, forward: parts.Forward
    ) -> parts.Forward:
        """Return a module's `forward` that records its calls."""

        def noted(*args: object, **kwargs: object) -> object:
            if self.stack:
                self.stack[-1].has_children = True
            frame = _Frame(
                name,
                module,
                part,
                inputs=list(tensors_in([args, kwargs])),
                before=self.count(),
                calls_before=len(self.calls),
                convolutions_before=len(self.convolutions),
            )
            self.stack.append(frame)
            output = forward(*args, **kwargs)
            # convolutions in a script's graph that call a library without the dispatcher
            script = str(getattr(forward, "inlined_graph", ""))
            for operator in re.findall(r"\bprim::\w*conv\w*", script):
                self.convolutions.append(Convolution(name, operator, 0, part, counted=False))
            frame.outputs = list(tensors_in(output))
            self.leave()
            return output

        return noted

    def leave(self) -> None:
        """Record the call that ends, if it is one of a layer or around layers."""
        frame = self.stack.pop()
        module = frame.module
        done = self.count() - frame.before
        own = done - frame.of_children
        if self.stack:
            self.stack[-1].of_children += done
            self.stack[-1].has_closed |= bool(frame.part) or frame.has_closed
        inside = self.calls[frame.calls_before :]
        if frame.has_children:
            is_inner = bool(self.stack) or isinstance(module, nn.Conv2d)
            multiplies = own.flops > 0 and all(call.conv is None for call in inside)
            if not (is_inner and multiplies):
                self._leave_around(frame, own)
                return
        self.no_layers.update(call.layer for call in inside)
        if isinstance(module, nn.Identity) and type(module).forward is nn.Identity.forward:
            self.no_layers.add(frame.name)
        if frame.part == parts.COMPILES_ITSELF or self.higher_order:
            self.no_layers.add(frame.name)  # timers inside would be compiled, too
        conv = None
        gradients = None
        plain_input = isinstance(module, nn.Conv2d) and len(frame.inputs) == 1
        if plain_input and not transformed(module, frame.inputs[0]):
            # autocast depends on the real device, not on the meta device
            conv = ConvShape.of(module, frame.inputs[0], self.layout, self.device.type)
            if any(output.requires_grad for output in frame.outputs):
                gradients = frame.inputs[0].requires_grad, filters_learn(module)
        call = self._call(frame, list(module.parameters()), done, conv)
        self.calls.append(replace(call, gradients=gradients))

    def _leave_around(self, frame: _Frame, own: _Count) -> None:
        """Record a call around others, if it is one: without what these have."""
        parameters = list(frame.module.parameters(recurse=False))
        holds = parameters or [*frame.module.buffers(recurse=False)]
        if not (self.stack and holds and own.operators) or frame.has_closed:
            self.no_layers.add(frame.name)
            return
        call = self._call(frame, parameters, own)
        convolved = tuple(conv for conv in call.convolutions if conv.layer == frame.name)
        inside = len(self.calls) - frame.calls_before
        self.calls.append(replace(call, convolutions=convolved, inside=inside))

    def _call(
        self,
        frame: _Frame,
        parameters: list[nn.Parameter],
        counted: _Count,
        conv: ConvShape | None = None,
    ) -> LayerCall:
        """Return a call, with the shape of a plain convolution."""
        module = frame.module
        return LayerCall(
            layer=frame.name,
            op="conv2d" if isinstance(module, nn.Conv2d) else type(module).__name__.lower(),
            inputs=_sizes(frame.inputs),
            outputs=_sizes(frame.outputs),
            params=sum(parameter.numel() for parameter in parameters),
            flops=counted.flops,
            bytes_min=bytes_of([*frame.inputs, *parameters, *frame.outputs]),
            key=conv.unique_key if conv else _key(module, frame.inputs),
            conv=conv,
            convolutions=tuple(self.convolutions[frame.convolutions_before :]),
            bytes_of_products=counted.bytes,
        )

    def layer_calls(self) -> tuple[LayerCall, ...]:
        """Return the calls of layers.

        A module that is one in some calls only cannot be timed: its timer would see all calls.
        """
        of_layers = [call.layer not in self.no_layers for call in self.calls]
        calls = []
        for at, call in enumerate(self.calls):
            if of_layers[at]:
                inside = sum(of_layers[at - call.inside : at])
                calls.append(replace(call, inside=inside))
        return tuple(calls)


def shape_pass(model: nn.Module, image: Tensor) -> Shapes:
    """Return the calls of one pass over a batch of images; make layers that the first pass makes.

    With gradients switched on, calls of convolutions have those that they would compute.

    Raises:
        CannotMeasure: the network does not take images of this size.
    """
    learns = torch.is_grad_enabled()
    with torch.inference_mode(mode=False), torch.set_grad_enabled(learns):  # for layers made now
        # autocast casts nothing on the meta device
        casts = torch.is_autocast_enabled(image.device.type)
        if not parts.is_lazy(model) and (not casts or next(model.parameters(), image).is_meta):
            with suppress(Exception):  # the real pass raises again what is not the meta device's
                shapes = _on_meta(model, image)
                if shapes is not None:
                    return shapes
        try:
            return _for_real(model, image)
        except (RuntimeError, AssertionError, ValueError) as error:
            if any(text in str(error) for text in _SIZE_COMPLAINTS):
                size = "x".join(str(n) for n in image.shape[-2:])
                reason = first_line(error)
                raise CannotMeasure(f"the network does not take {size} images: {reason}") from error
            raise


def _on_meta(model: nn.Module, image: Tensor) -> Shapes | None:
    """Record a pass of a copy; None if that made layers, which the network does not have."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("the copy of a network called a layer of the network itself")

    like = partial(torch.empty_like, device="meta")
    entered = _entered(model)
    with parts.copied(model, like) as copy, _autocast_refused():
        before = parts.structure(copy)
        layers = [(name, copy.get_submodule(name), part) for name, _, part in entered]
        with parts.wrapped_forwards(list(model.modules()), lambda _: refuse):
            shapes = _record(copy, layers, like(image), image)
        return shapes if parts.structure(copy) == before else None


@contextmanager
def _autocast_refused() -> Iterator[None]:
    """Let a network's own autocast fail: it casts nothing on the meta device."""
    enter = torch.autocast.__enter__

    def entered(context: torch.autocast) -> object:
        if context._enabled:  # noqa: SLF001 - there is no other way to ask
            raise RuntimeError("autocast casts nothing on the meta device")
        return enter(context)

    torch.autocast.__enter__ = entered
    try:
        yield
    finally:
        torch.autocast.__enter__ = enter


def _for_real(model: nn.Module, image: Tensor) -> Shapes:
    """Record the second real pass: the first may make layers, which get type and layout.

    It may copy layers as well, and a copy would keep what records the calls of the original.
    """
    before = parts.structure(model)
    try:
        with parts.eagerly():
            model(image.clone())
    except RuntimeError:
        if parts.structure(model) == before:
            raise
        model.to(image.device, image.dtype)
    late = parts.structure(model) != before
    if late and layout_of(image) == NHWC:
        model.to(memory_format=torch.channels_last)
    return replace(_record(model, _entered(model), image.clone(), image), late=late)


def _entered(model: nn.Module) -> list[tuple[str, nn.Module, str | None]]:
    return [(name, module, parts.closed(module)) for name, module in parts.walk(model)]


def _record(
    model: nn.Module,
    layers: Sequence[tuple[str, nn.Module, str | None]],
    image: Tensor,
    real: Tensor,
) -> Shapes:
    # on the meta device convolutions do not pass on the layout
    layout = layout_of(real, *([] if parts.is_lazy(model) else model.parameters()))
    recorder = _Recorder(real.device, layout)
    noting = parts.wrapped_layers(layers, recorder.noting)
    with noting, switches.set_to(_UNFUSED), parts.eagerly(), recorder:
        model(image)
    calls = recorder.layer_calls()
    moved = recorder.bytes
    inside = set[int]()
    for call in calls:
        moved += call.bytes_min - call.bytes_of_products
        if call.conv is not None:
            inside.update(map(id, call.convolutions))
    outside = tuple(conv for conv in recorder.convolutions if id(conv) not in inside)
    is_closed = any(part for _, _, part in layers)
    return Shapes(calls, recorder.flops, None if is_closed else moved, outside)


def layer_modules(model: nn.Module, calls: tuple[LayerCall, ...]) -> list[nn.Module]:
    """Return the distinct modules of the calls."""
    names = dict.fromkeys(call.layer for call in calls)
    return [model.get_submodule(name) for name in names]


def _sizes(tensors: list[Tensor]) -> Sizes:
    return tuple(tuple(tensor.shape) for tensor in tensors)


def _key(module: nn.Module, inputs: list[Tensor]) -> str:
    """Return a readable name of an operation on shapes; the hash covers its other settings."""
    text = f"{type(module).__name__}({module.extra_repr()})"
    settings = hashlib.sha256(text.encode()).hexdigest()[:6]
    shapes = "_".join("x".join(str(n) for n in tensor.shape) for tensor in inputs)
    dtype = str(inputs[0].dtype).rpartition(".")[2] if inputs else ""
    return f"{type(module).__name__.lower()}-{shapes}-{dtype}-{settings}"
