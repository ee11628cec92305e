"""The shape pass: which layers a network calls, in order, on what shapes, and with how much work.

It is separate from every timed pass and runs on the meta device, without arithmetic and memory. A
network that cannot run there (it reads values, or keeps tensors that are no parameters) runs on its
real device.

A *layer* is a module call in which no other module was called. So an activation module that is
called in eight places is eight calls, and a block that uses its children's weights without calling
them (such as attention) is one layer. A block that calls children and multiplies matrices itself is
one layer, too, unless there are convolutions inside. Work between layers (residual additions,
flatten, Python) belongs to no layer.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from hpcsweep.conv.proof.autograd_graph import tensors_in
from hpcsweep.conv.shape import ConvShape, layout_of
from hpcsweep.errors import first_line
from hpcsweep.measure.bench_api import Unsupported

Size = Sequence[int]
Sizes = tuple[tuple[int, ...], ...]

# Looked at as one layer even where a torch version calls a child.
ATOMIC: Final = (nn.MultiheadAttention,)
_CANNOT_RUN: Final = (RuntimeError, NotImplementedError, AssertionError, ValueError, TypeError)
# How torch and torchvision say that an image is too small, or not of the one size that fits.
_SIZE_COMPLAINTS: Final = (
    "can't be greater than actual input size",
    "Output size is too small",
    "Wrong image",
    "Expected more than 1 value",
)
_ATEN: Final = torch.ops.aten
_IN_PLACE: Final = frozenset(
    getattr(_ATEN, name).default
    for name in ("relu_", "hardtanh_", "hardswish_", "hardsigmoid_", "silu_")
)
_LIKE_INPUT: Final = frozenset(
    getattr(_ATEN, name).default
    for name in ("relu", "hardtanh", "hardswish", "hardsigmoid", "silu", "gelu")
)
_TRAINING: Final = 5  # of the arguments of a batch norm


@dataclass(frozen=True)
class Convolution:
    """One run of an operator such as `conv2d` or `conv_transpose1d`, in the innermost module."""

    layer: str
    operator: str
    flops: int


@dataclass(frozen=True)
class Call:
    """One layer call of a pass; sizes are of the tensors in and out, `key` names equal work.

    `conv` is the shape of a call of an `nn.Conv2d`; `convolutions` are all that ran inside a call.
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

    @property
    def convolution_flops(self) -> int:
        """The operations of the convolutions inside."""
        return sum(one.flops for one in self.convolutions)


@dataclass(frozen=True)
class Shapes:
    """What the shape pass found: calls in order, and floating-point operations of all.

    `outside` are the convolutions that are no part of a call that has a `conv`.
    """

    calls: tuple[Call, ...]
    flops: int
    outside: tuple[Convolution, ...] = ()

    @property
    def bytes_min(self) -> int:
        """Inputs, weights and outputs of every layer, each once."""
        return sum(call.bytes_min for call in self.calls)

    @property
    def convolutions(self) -> list[tuple[str, ConvShape]]:
        """Layer and shape of the 2-D convolution calls, in order."""
        return [(call.layer, call.conv) for call in self.calls if call.conv is not None]

    @property
    def convolution_calls(self) -> list[Call]:
        """Those calls."""
        return [call for call in self.calls if call.conv is not None]

    @property
    def convolution_flops(self) -> int:
        """The operations of all convolutions of the pass, whoever calls them."""
        inside = sum(call.convolution_flops for call in self.convolution_calls)
        return inside + sum(one.flops for one in self.outside)


@dataclass
class _Frame:
    """A module call in progress."""

    name: str
    inputs: list[Tensor]
    flops_before: int
    calls_before: int
    convolutions_before: int
    has_children: bool = False
    flops_of_children: int = 0


@dataclass
class _Recorder:
    device: torch.device
    layout: str
    counter: FlopCounterMode = field(init=False)
    stack: list[_Frame] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    no_layers: set[str] = field(default_factory=set)
    convolutions: list[Convolution] = field(default_factory=list)

    def __post_init__(self) -> None:
        operators = (torch.ops.aten.convolution, torch.ops.aten._convolution)  # noqa: SLF001
        formulas = dict.fromkeys(operators, self.convolved)
        self.counter = FlopCounterMode(display=False, custom_mapping=formulas)

    def convolved(
        self,
        x: Size,
        weight: Size,
        _bias: object,
        _stride: object,
        _padding: object,
        _dilation: object,
        transposed: bool,  # noqa: FBT001
        *_: object,
        out_shape: Size,
        **_named: object,
    ) -> int:
        """Note a convolution, and count its operations as the counter would."""
        flops = int(conv_flop_count(list(x), list(weight), list(out_shape), transposed=transposed))
        operator = f"conv{'_transpose' if transposed else ''}{len(weight) - 2}d"
        layer = self.stack[-1].name if self.stack else ""
        self.convolutions.append(Convolution(layer, operator, flops))
        return flops

    def enter(self, name: str, args: object, kwargs: object) -> None:
        if self.stack:
            self.stack[-1].has_children = True
        inputs = list(tensors_in([args, kwargs]))
        flops = self.counter.get_total_flops()
        self.stack.append(_Frame(name, inputs, flops, len(self.calls), len(self.convolutions)))

    def leave(self, module: nn.Module, output: object) -> None:
        frame = self.stack.pop()
        flops = self.counter.get_total_flops() - frame.flops_before
        if self.stack:
            self.stack[-1].flops_of_children += flops
        inside = self.calls[frame.calls_before :]
        if frame.has_children and not self._is_one_layer(frame, inside, flops):
            self.no_layers.add(frame.name)
            return
        self.no_layers.update(call.layer for call in inside)
        outputs = list(tensors_in(output))
        self.calls.append(_call(frame, module, outputs, flops, self))

    def _is_one_layer(self, frame: _Frame, inside: list[Call], flops: int) -> bool:
        """Say whether a block that called others computes itself, and holds no convolution."""
        computes = flops > frame.flops_of_children
        return computes and bool(self.stack) and all(call.conv is None for call in inside)


class _SameShape(TorchDispatchMode):
    """Answers on the meta device for operators whose output is as their input, and has no FLOPs.

    torch derives that from what they compute, which takes it milliseconds for each call; and each
    call that is passed on takes the counter a tenth of one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._nothing = torch.empty(0, device="meta")

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        _types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Answer, or pass the call on."""
        if func in _IN_PLACE:
            return args[0]
        if func in _LIKE_INPUT:
            return torch.empty_like(args[0])
        if func is _ATEN.native_batch_norm.default and not args[_TRAINING]:
            return torch.empty_like(args[0]), self._nothing, self._nothing
        return func(*args, **(kwargs or {}))


def shape_pass(model: nn.Module, image: Tensor) -> Shapes:
    """Return the calls of one pass over an image batch.

    Raises:
        Unsupported: the network does not take images of this size.

    """
    try:
        return _record(model, image, on_meta=True)
    except _CANNOT_RUN:
        try:
            return _record(model, image, on_meta=False)
        except (RuntimeError, AssertionError, ValueError) as error:
            if any(text in str(error) for text in _SIZE_COMPLAINTS):
                size = "x".join(str(n) for n in image.shape[-2:])
                said = first_line(error)
                raise Unsupported(f"the network does not take {size} images: {said}") from error
            raise


def _record(model: nn.Module, image: Tensor, *, on_meta: bool) -> Shapes:
    # convolutions on the meta device forget the layout, which everywhere else they pass on
    layout = layout_of(image, *model.parameters())
    recorder = _Recorder(image.device, layout)
    with ExitStack() as hooks:
        for name, module in _outside_atomic(model):
            hooks.enter_context(
                module.register_forward_pre_hook(
                    lambda _m, args, kwargs, name=name: recorder.enter(name, args, kwargs),
                    with_kwargs=True,
                )
            )
            hooks.enter_context(
                module.register_forward_hook(lambda m, _args, output: recorder.leave(m, output))
            )
        # older counters see nothing in inference mode
        hooks.enter_context(_unfused_attention())
        with torch.inference_mode(mode=False), torch.no_grad():
            if on_meta:
                tensors, like = _on_meta(model), torch.empty_like(image, device="meta")
                with recorder.counter, _SameShape():
                    functional_call(model, tensors, (like,))
            else:
                with recorder.counter:
                    model(image)
    # a module that is a layer in one call only can have no timer, which would also see the others
    calls = tuple(call for call in recorder.calls if call.layer not in recorder.no_layers)
    inside = {id(one) for call in calls if call.conv for one in call.convolutions}
    outside = tuple(one for one in recorder.convolutions if id(one) not in inside)
    return Shapes(calls, recorder.counter.get_total_flops(), outside)


@contextmanager
def _unfused_attention() -> Iterator[None]:
    """Run attention as operators that count; real devices have one for all, which does not."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(value=False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(value=before)


def _outside_atomic(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules by qualified name, each once, but not those inside an atomic one."""
    seen: set[int] = set()
    found = []
    stack = [("", model)]
    while stack:
        prefix, module = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        found.append((prefix, module))
        if not isinstance(module, ATOMIC):
            children = [(f"{prefix}.{n}".lstrip("."), m) for n, m in module.named_children()]
            stack += reversed(children)
    return found


def layer_modules(model: nn.Module, calls: tuple[Call, ...]) -> list[nn.Module]:
    """Return the modules that the calls belong to, each once."""
    wanted = {call.layer for call in calls}
    return [module for name, module in _outside_atomic(model) if name in wanted]


def _on_meta(model: nn.Module) -> dict[str, Tensor]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors}


def analytic_flops(module: nn.Module, inputs: Sizes, outputs: Sizes) -> int | None:
    """Return the operations of a convolution or linear layer; None for any other module."""
    if type(module) in {nn.Conv1d, nn.Conv2d, nn.Conv3d}:
        per_output = math.prod(module.kernel_size) * module.in_channels // module.groups
        return 2 * math.prod(outputs[0]) * per_output
    if type(module) is nn.Linear:
        return 2 * math.prod(inputs[0]) * module.out_features
    return None


def _call(
    frame: _Frame,
    module: nn.Module,
    outputs: list[Tensor],
    counted: int,
    recorder: _Recorder,
) -> Call:
    conv = None
    if isinstance(module, nn.Conv2d) and len(frame.inputs) == 1 and frame.inputs[0].dim() == 4:
        # the pass's own device decides on autocast
        conv = ConvShape.of(module, frame.inputs[0], recorder.layout, recorder.device.type)
    inputs, results = _sizes(frame.inputs), _sizes(outputs)
    parameters = list(module.parameters())
    return Call(
        layer=frame.name,
        op="conv2d" if isinstance(module, nn.Conv2d) else type(module).__name__.lower(),
        inputs=inputs,
        outputs=results,
        params=sum(p.numel() for p in parameters),
        flops=analytic_flops(module, inputs, results) or counted,
        bytes_min=sum(t.numel() * t.element_size() for t in (*frame.inputs, *parameters, *outputs)),
        key=conv.unique_key if conv else _key(module, frame.inputs),
        conv=conv,
        convolutions=tuple(recorder.convolutions[frame.convolutions_before :]),
    )


def _sizes(tensors: list[Tensor]) -> Sizes:
    return tuple(tuple(tensor.shape) for tensor in tensors)


def _key(module: nn.Module, inputs: list[Tensor]) -> str:
    """Return a readable name of an operation on shapes; the hash covers its other settings."""
    text = f"{type(module).__name__}({module.extra_repr()})"
    settings = hashlib.sha256(text.encode()).hexdigest()[:6]
    shapes = "_".join("x".join(str(n) for n in tensor.shape) for tensor in inputs)
    dtype = str(inputs[0].dtype).rpartition(".")[2] if inputs else ""
    return f"{type(module).__name__.lower()}-{shapes}-{dtype}-{settings}"
