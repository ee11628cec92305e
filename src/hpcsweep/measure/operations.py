"""Counts the operations of a pass at torch's dispatcher, and records its convolutions.

Matrix products and convolutions count, by torch's formulas; where torch has none (vectors, batches
that are added up, bilinear forms, recurrent layers of libraries), by those here. A convolution is
any operator with "conv" in its name, also a quantized, fused or custom one. Its work may be
unknown.

The dispatcher also names the operator for which no CUDA graph can hold a pass. While a stream is
captured nothing runs, so whatever waits for a result, or copies from memory of the host, is
refused. CUDA's own message names no operator.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from hpcsweep import sources
from hpcsweep.conv.parts import tensors_in
from hpcsweep.errors import first_line

_ATEN: Final = torch.ops.aten
# On the meta device torch derives the output of these in Python, which was more than half of the
# time of recording a network's shapes: 0.27 instead of 0.12 s of ResNet-50.
_IN_PLACE: Final = frozenset(
    getattr(_ATEN, name).default
    for name in ("relu_", "hardtanh_", "hardswish_", "hardsigmoid_", "silu_")
)
_LIKE_INPUT: Final = frozenset(
    getattr(_ATEN, name).default
    for name in ("relu", "hardtanh", "hardswish", "hardsigmoid", "silu", "gelu")
)
# place among the arguments of a batch norm
_TRAINING: Final = 5
_PLAIN: Final = ("aten::convolution", "aten::_convolution")
# place among the arguments of these
_TRANSPOSED: Final = 6
# not "convert" or "convex"
_CONVOLVES: Final = re.compile(r"conv(?!e[rx])")
# filters, once; and the backward pass, which the row tells by its forward one
_PREPARES: Final = re.compile(r"pack|reorder|backward")
_QUANTIZED: Final = ("linear", "linear_relu", "linear_dynamic", "linear_relu_dynamic")
# Products without a formula of torch: the multiply-adds of each, by its arguments.
_PRODUCTS: Final[Mapping[Any, Callable[..., int]]] = {
    _ATEN.mv: lambda matrix, _vector: matrix.numel(),
    _ATEN.addmv: lambda _added, matrix, _vector: matrix.numel(),
    _ATEN._int_mm: lambda left, right: left.numel() * right.shape[-1],  # noqa: SLF001
    _ATEN.dot: lambda left, _right: left.numel(),
    _ATEN.vdot: lambda left, _right: left.numel(),
    _ATEN.addbmm: lambda _added, left, right: left.numel() * right.shape[-1],
    _ATEN._trilinear: lambda left, matrices, *_: len(left) * matrices.numel(),  # noqa: SLF001
    _ATEN.mkldnn_rnn_layer: lambda x, *held: _steps(x) * _numbers_in(held[:2]),
    _ATEN._cudnn_rnn: lambda x, weights, *_: _steps(x) * _numbers_in(weights),  # noqa: SLF001
    _ATEN.miopen_rnn: lambda x, weights, *_: _steps(x) * _numbers_in(weights),
    **dict.fromkeys(
        (getattr(torch.ops.quantized, name) for name in _QUANTIZED),
        lambda x, packed, *_: x.numel() * len(packed.unpack()[0]),
    ),
}
# Libraries whose operators take an input and filters alone; `conv_tbc` has other dimensions.
_KNOWN: Final = re.compile(r"(aten|mkldnn|onednn|quantized|torchvision)::(?!conv_tbc)")
# in torch's error of `set_sync_debug_mode`
_SYNCHRONIZING: Final = "synchronizing"
_COPIES: Final = "data goes between host and GPU"
_MEANS: Final[Mapping[str, str]] = {
    "aten::is_nonzero": "a branch asks for a value",
    "aten::to": _COPIES,
    "aten::copy_": _COPIES,
}


@dataclass(frozen=True)
class Convolution:
    """One run of an operator such as `conv2d` or `conv_transpose1d`, in the innermost module.

    `part` is the kind of the closed part of the network around it, if any. If its work is unknown,
    `flops` is 0 and `counted` False.
    """

    layer: str
    operator: str
    flops: int
    part: str | None = None
    counted: bool = True


class OperationCounter(TorchDispatchMode):
    """Counts while it is on."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.bytes = 0  # inputs and outputs of the operators that count
        self.computed = 0  # operators of any kind that do more than to look at a tensor
        self.convolutions = list[Convolution]()
        self.higher_order: str | None = None  # around the function that runs now

    def place(self) -> tuple[str, str | None]:
        """Return the innermost module's name and the kind of its part; a subclass knows them."""
        return "", None

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - an operator
        _types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Run an operator, and count it."""
        kwargs = kwargs or {}
        formula, name, computes = kind_of(func)
        self.computed += computes
        stand_in = _stand_in(func, args)
        if stand_in is not None:
            return stand_in
        if isinstance(func, HigherOrderOperator) and not formula:
            return self._within(func, args, kwargs)
        if self.higher_order and not formula:  # there, operators come before they are taken apart
            with self:
                output = func.decompose(*args, **kwargs)
            if output is not NotImplemented:
                return output
        output = func(*args, **kwargs)
        if name:
            self._convolved(name, [*args, *kwargs.values()], output)
        elif formula:
            self.flops += formula(*args, **kwargs, out_val=output)
        if name or formula:
            self.bytes += bytes_of(tensors_in([args, kwargs, output]))
        return output

    def _within(
        self, func: HigherOrderOperator, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> object:
        """Run an operator that calls functions, such as `cond`, and count what these run."""

        def counted(function: Callable[..., object]) -> Callable[..., object]:
            def run(*args: object, **kwargs: object) -> object:
                with self:
                    return function(*args, **kwargs)

            return run

        before = self.higher_order
        self.higher_order = f"in a function of torch's {func.name()}"
        try:
            return func(*(counted(arg) if callable(arg) else arg for arg in args), **kwargs)
        finally:
            self.higher_order = before

    def _convolved(self, name: str, args: list[Any], output: Any) -> None:  # noqa: ANN401
        """Record a convolution: 2 operations for each filter's weight and pixel of the output."""
        out = next(tensors_in(output), None)
        x = next(tensors_in(args), None)
        if out is None or x is None:  # an operator that prepares filters
            return
        transposed = "transpose" in name
        operator = name
        if name in _PLAIN:
            transposed = args[_TRANSPOSED]
            operator = f"conv{'_transpose' if transposed else ''}{x.dim() - 2}d"
        layer, part = self.place()
        part = part or self.higher_order
        filters = _filters(args) if _KNOWN.match(name) else None
        flops = 0
        if filters is not None:
            places = (x if transposed else out).shape
            flops = 2 * places[0] * math.prod(places[2:]) * math.prod(filters)
        counted = filters is not None
        self.convolutions.append(Convolution(layer, operator, flops, part, counted=counted))
        self.flops += flops


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the size of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _steps(x: Tensor) -> int:
    return math.prod(x.shape[:-1])


def _numbers_in(weights: Iterable[Tensor]) -> int:
    return sum(weight.numel() for weight in weights if weight.dim() > 1)


def _filters(args: list[Any]) -> tuple[int, ...] | None:
    """Return the sizes of filters: a second tensor, or packed ones."""
    for arg in args[1:]:
        if isinstance(arg, Tensor):
            return tuple(arg.shape)
        if hasattr(arg, "unpack"):
            return tuple(arg.unpack()[0].shape)
    return None


def _stand_in(func: object, args: tuple[Any, ...]) -> object:
    """Return what an operator without operations gives on the meta device, else None."""
    on_meta = bool(args) and isinstance(args[0], Tensor) and args[0].is_meta
    if not on_meta:
        return None
    if func in _IN_PLACE:
        return args[0]
    if func in _LIKE_INPUT:
        return torch.empty_like(args[0])
    if func is _ATEN.native_batch_norm.default and not args[_TRAINING]:
        nothing = torch.empty(0, device="meta")
        return torch.empty_like(args[0]), nothing, nothing
    return None


@lru_cache(maxsize=10_000)
def kind_of(func: Any) -> tuple[Any, str, bool]:  # noqa: ANN401 - an operator
    """Return the formula for an operator's operations, or None; its name if it convolves.

    And whether it computes: a view launches nothing.
    """
    computes = not getattr(func, "is_view", False)
    name = getattr(getattr(func, "_schema", None), "name", "")
    own = name.partition("::")[2]
    if name in _PLAIN or (_CONVOLVES.search(own) and not _PREPARES.search(own)):
        return None, name, computes
    operator = getattr(func, "overloadpacket", func)
    products = _PRODUCTS.get(operator)
    if products is not None:
        return lambda *args, **_: 2 * products(*args), "", computes
    return flop_registry.get(operator), "", computes


class CannotCapture(RuntimeError):
    """A pass that runs cannot be captured; CUDA, or torch's allocator, may be of no use then."""


class OperatorWatch(TorchDispatchMode):
    """Calls `look` with each operator, and runs it."""

    def __init__(self, look: Callable[[Any], object]) -> None:
        super().__init__()
        self._look = look

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        _types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Run an operator."""
        self._look(func)
        return func(*args, **(kwargs or {}))


def not_captured(run: Callable[[], object], raised: RuntimeError) -> CannotCapture:
    """Return the error of a pass that was refused with `raised`; run it once more to find out."""
    first: BaseException = raised  # that of the pass: the end of the capture fails after it, too
    while isinstance(first.__context__, RuntimeError):
        first = first.__context__
    operator = _that_synchronizes(run)
    means = f" ({_MEANS[operator]})" if operator in _MEANS else ""
    why = f"{type(first).__name__}: {first_line(first)}"
    if operator:
        why = f"{operator} synchronizes{means}"
    where = ", ".join(filter(None, (why, sources.own_line(first))))
    return CannotCapture(
        f"the network cannot be captured as a CUDA graph: {where}; take `launch: eager`"
    )


def _that_synchronizes(run: Callable[[], object]) -> str:
    """Return the first operator of an eager pass that waits for the GPU; empty without one."""
    names = [""]
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with OperatorWatch(lambda operator: names.append(operator.name())):
            run()
    except Exception as error:  # noqa: BLE001 - after a failed capture nothing is sure
        return names[-1].partition(".")[0] if _SYNCHRONIZING in str(error) else ""
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return ""
