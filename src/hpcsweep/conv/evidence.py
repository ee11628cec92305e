"""Proof of what each convolution call ran, from one profiled pass.

Hooks open a profiler range around every `nn.Conv2d` call, in this pass only. What the profiler saw
inside a range is held against what the back-end expects of the algorithm: operators (and kernels)
that must appear, others that must not, and the size of the matrix product, which is what tells
Winograd (one per interpolation point) from im2col (over channels x taps) from a sum over taps.

A cell reads ``profiler: aten::unfold aten::bmm[1,64,576,3136]``; the numbers of a product are
[batch, m, k, n], those of a transform its last two dimensions. Where oneDNN ran, its own line
follows: ``onednn: jit:avx512_core convolution_direct``.
"""

from __future__ import annotations

from collections import defaultdict, deque
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from hpcsweep.conv import onednn
from hpcsweep.conv.backend import Expected
from hpcsweep.conv.choice import FRAMEWORK_CHOICES
from hpcsweep.conv.reference import DIRECT, ONEDNN
from hpcsweep.conv.reference_gemm import CONVOLUTIONS, PRODUCTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hpcsweep.conv.backend import Backend
    from hpcsweep.conv.choice import LayerChoice
    from hpcsweep.conv.onednn import Primitive

NONE: Final = "none"
_RANGE: Final = "hpcsweep.conv|"
_TRANSFORMS: Final = ("aten::_fft_*",)
_TELLING: Final = (
    *PRODUCTS,
    *_TRANSFORMS,
    *CONVOLUTIONS,
    "aten::unfold",
    "aten::im2col",
    "aten::index_select",
)
_FRAMEWORK: Final = Expected(must=(CONVOLUTIONS,))
_MOST_SHOWN: Final = 6


@dataclass(frozen=True)
class Evidence:
    """What one convolution call ran: `text` for the tables, `problem` where it contradicts."""

    layer: str
    text: str = NONE
    problem: str | None = None

    @property
    def mismatch(self) -> bool:
        """Say whether the profiler saw something else than the algorithm."""
        return self.problem is not None


@dataclass(frozen=True)
class Proof:
    """One entry per choice, and the convolutions that ran outside of every layer."""

    calls: list[Evidence]
    outside: list[str]


@dataclass(frozen=True)
class _Seen:
    """What the profiler saw in one range; products are (batch, m, k, n)."""

    layer: str
    names: list[str]
    told: list[str]
    products: list[tuple[int, int, int, int]]


def prove(
    model: nn.Module,
    run: Callable[[], object],
    picked: Sequence[LayerChoice],
    backend: Backend,
) -> Proof:
    """Profile one pass of `run` and say what each convolution call of `picked` did."""
    activities = [ProfilerActivity.CPU]
    if any(p.device.type == "cuda" for p in model.parameters()):
        activities.append(ProfilerActivity.CUDA)
    with (
        onednn.listening() as lines,
        ranges(model),
        profile(activities=activities, record_shapes=True) as profiler,
    ):
        run()
    return read(profiler.events(), picked, backend, onednn.parse(lines))


@contextmanager
def ranges(model: nn.Module) -> Iterator[None]:
    """Mark every convolution call with a profiler range while the block runs."""
    opened: list[Any] = []
    count = 0

    def enter(name: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            nonlocal count
            opened.append(record_function(f"{_RANGE}{count}|{name}"))
            opened[-1].__enter__()
            count += 1

        return hook

    def leave(*_: object) -> None:
        opened.pop().__exit__(None, None, None)

    handles = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            handles.append(module.register_forward_pre_hook(enter(name)))
            handles.append(module.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def read(
    events: Iterable[Any],
    picked: Sequence[LayerChoice],
    backend: Backend,
    primitives: Sequence[Primitive] = (),
) -> Proof:
    """Hold profiler events of one pass against the choices, which are in call order."""
    events = list(events)
    marks = sorted((event for event in events if _is_range(event)), key=_index)
    seen = _pair(picked, [_look_into(event) for event in marks])
    said = _align(picked, seen, primitives)
    calls = [
        _judge(item, saw, backend, line) for item, saw, line in zip(picked, seen, said, strict=True)
    ]
    return Proof(calls, _outside(events))


def source(proof: Proof | None) -> str:
    """Return where the proof comes from: the profiler, or nowhere if it saw no convolution."""
    seen = proof is not None and any(call.text != NONE for call in proof.calls)
    return "profiler" if seen else NONE


def _pair(picked: Sequence[LayerChoice], seen: Iterable[_Seen]) -> list[_Seen | None]:
    """Give each choice the next call of its layer; other calls of the pass may lie between."""
    waiting: dict[str, deque[_Seen]] = defaultdict(deque)
    for one in seen:
        waiting[one.layer].append(one)
    return [waiting[p.layer].popleft() if waiting[p.layer] else None for p in picked]


def _judge(
    item: LayerChoice, seen: _Seen | None, backend: Backend, primitive: Primitive | None
) -> Evidence:
    if seen is None:
        return Evidence(item.layer)
    framework = item.used in FRAMEWORK_CHOICES
    expected = _FRAMEWORK if framework else backend.expected(item.used, item.shape)
    problem = _contradiction(seen, expected)
    text = f"profiler: {' '.join(seen.told) or NONE}"
    if primitive is not None:
        text += f"; onednn: {primitive.implementation} {primitive.algorithm}"
        if item.used == DIRECT and not primitive.is_direct:
            problem = f"oneDNN ran {primitive.implementation}"
    return Evidence(item.layer, text, problem)


def _contradiction(seen: _Seen, expected: Expected) -> str | None:
    """Return the first thing that does not fit, or None."""
    for name in seen.names:
        if _any_matches(name, expected.must_not):
            return f"ran {name}"
    for group in expected.must:
        if not any(_any_matches(name, group) for name in seen.names):
            return f"no {group[0]}"
    return _wrong_product(seen.products, expected)


def _wrong_product(products: Sequence[tuple[int, int, int, int]], expected: Expected) -> str | None:
    """Look for the product that makes the algorithm; without recorded sizes say nothing."""
    if expected.inner is None or not products:
        return None
    fitting = [
        k for batch, _, k, _ in products if k == expected.inner and not batch % expected.batch
    ]
    if not fitting:
        return f"no product over {expected.inner} in batches of {expected.batch}"
    if expected.products is not None and len(fitting) != expected.products:
        return f"{len(fitting)} products over {expected.inner} instead of {expected.products}"
    return None


def _align(
    picked: Sequence[LayerChoice], seen: Sequence[_Seen | None], primitives: Sequence[Primitive]
) -> list[Primitive | None]:
    """Give each call that reached oneDNN the next of its lines that has the call's sizes."""
    rest = list(primitives)
    found: list[Primitive | None] = []
    for item, saw in zip(picked, seen, strict=True):
        reached = saw is not None and ONEDNN in saw.names
        places = (i for i, one in enumerate(rest) if reached and one.does(item.shape))
        place = next(places, None)
        found.append(None if place is None else rest[place])
        rest = rest if place is None else rest[place + 1 :]
    return found


def _is_range(event: Any) -> bool:  # noqa: ANN401 - the profiler's own record
    """Leave out the copy of a range that the profiler draws on a GPU's time line."""
    return event.name.startswith(_RANGE) and event.device_type == torch.autograd.DeviceType.CPU


def _index(event: Any) -> int:  # noqa: ANN401
    return int(event.name.split("|", 2)[1])


def _look_into(event: Any) -> _Seen:  # noqa: ANN401
    inside = list(_descendants(event))
    names = [one.name for one in inside]
    kernels = [kernel.name for one in inside for kernel in one.kernels]
    told: dict[str, str] = {}
    for one in inside:
        if one.name not in told and _tells(one):
            told[one.name] = _told(one)
    shown = [*told.values(), *dict.fromkeys(name[:60] for name in kernels)]
    products = [size for one in inside if (size := _product_size(one))]
    layer = event.name.split("|", 2)[2]
    return _Seen(layer, [*names, *kernels], shown[:_MOST_SHOWN], products)


def _descendants(event: Any) -> Iterator[Any]:  # noqa: ANN401
    for child in event.cpu_children:
        yield child
        yield from _descendants(child)


def _tells(event: Any) -> bool:  # noqa: ANN401
    """Say whether an operator belongs into the text: telling, and nothing inside it is more so."""
    if not _any_matches(event.name, _TELLING):
        return False
    return not any(_any_matches(inner.name, _TELLING) for inner in _descendants(event))


def _told(event: Any) -> str:  # noqa: ANN401
    size = _product_size(event)
    if size is None and _any_matches(event.name, _TRANSFORMS) and event.input_shapes:
        size = tuple(event.input_shapes[0][-2:])
    return event.name if size is None else f"{event.name}[{','.join(map(str, size))}]"


def _product_size(event: Any) -> tuple[int, int, int, int] | None:  # noqa: ANN401
    """Return (batch, m, k, n) of a matrix product whose operand sizes were recorded."""
    if not _any_matches(event.name, PRODUCTS):
        return None
    adds = event.name.startswith(("aten::addmm", "aten::baddbmm"))  # to their first operand
    operands = list(event.input_shapes or ())[adds : 2 + adds]
    if len(operands) != 2 or min(map(len, operands)) < 2:
        return None
    left, right = operands
    return prod(left[:-2]), left[-2], left[-1], right[-1]


def _outside(events: Iterable[Any]) -> list[str]:
    """Return the convolutions that no layer made: a functional call in a model's own code."""
    names = (
        event.name
        for event in events
        if fnmatchcase(event.name, "aten::*convolution*") and not _within_range(event)
    )
    return list(dict.fromkeys(names))


def _within_range(event: Any) -> bool:  # noqa: ANN401
    while event is not None:
        if event.name.startswith(_RANGE):
            return True
        event = event.cpu_parent
    return False


def _any_matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
