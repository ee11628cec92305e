"""Proof of what each convolution call ran, from one profiled pass.

Hooks open a profiler range around every `nn.Conv2d` call, in this pass only. What the profiler saw
inside a range is held against what the back-end expects of the algorithm: operators (and kernels)
that must appear, others that must not, and the size of the matrix product, which is what tells
Winograd (one per interpolation point) from im2col (over channels x taps) from a sum over taps.

A cell reads ``profiler: aten::unfold aten::bmm[1,64,576,3136]``; the numbers of a product are
[batch, m, k, n], those of a transform its last two dimensions. A GPU's kernels follow the
operators, each one word. Where oneDNN ran, its own line follows:
``onednn: jit:avx512_core convolution_direct``.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from torch import nn
from torch.profiler import record_function

from hpcsweep.conv.backend import Expected
from hpcsweep.conv.choice import FRAMEWORK_CHOICES
from hpcsweep.conv.proof import profiler_events
from hpcsweep.conv.proof.profiler_events import Evidence
from hpcsweep.conv.reference.backend import DIRECT, ONEDNN
from hpcsweep.conv.reference.gemm import CONVOLUTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hpcsweep.conv.backend import Backend
    from hpcsweep.conv.choice import LayerChoice
    from hpcsweep.conv.proof.onednn import Primitive
    from hpcsweep.conv.proof.profiler_events import Seen

_RANGE: Final = "hpcsweep.conv|"
_FRAMEWORK: Final = Expected(must=(CONVOLUTIONS,))


@dataclass(frozen=True)
class Proof:
    """One entry per choice, and the convolutions that ran outside of every layer."""

    calls: list[Evidence]
    outside: list[str]


def prove(
    model: nn.Module,
    run: Callable[[], object],
    picked: Sequence[LayerChoice],
    backend: Backend,
) -> Proof:
    """Profile one pass of `run` and say what each convolution call of `picked` did."""
    events, primitives = profiler_events.record(model, ranges(model), run)
    return read(events, picked, backend, primitives)


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

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if isinstance(module, nn.Conv2d):
                hooks.enter_context(module.register_forward_pre_hook(enter(name)))
                hooks.enter_context(module.register_forward_hook(leave))
        yield


def read(
    events: Iterable[Any],
    picked: Sequence[LayerChoice],
    backend: Backend,
    primitives: Sequence[Primitive] = (),
) -> Proof:
    """Hold profiler events of one pass against the choices, which are in call order."""
    events = list(events)
    marks = sorted(
        (event for event in events if profiler_events.is_range(event, _RANGE)), key=_index
    )
    seen = profiler_events.pair(
        picked, [profiler_events.look_into(_layer(event), [event]) for event in marks]
    )
    said = _align(picked, seen, primitives)
    calls = [
        _judge(item, saw, backend, line) for item, saw, line in zip(picked, seen, said, strict=True)
    ]
    return Proof(calls, _outside(events))


def _judge(
    item: LayerChoice, seen: Seen | None, backend: Backend, primitive: Primitive | None
) -> Evidence:
    if seen is None:
        return Evidence(item.layer)
    framework = item.used in FRAMEWORK_CHOICES
    expected = _FRAMEWORK if framework else backend.expected(item.used, item.shape)
    problem = profiler_events.contradiction(seen, expected)
    text = seen.text
    if primitive is not None:
        text += f"; onednn: {primitive.implementation} {primitive.algorithm}"
        if item.used == DIRECT and not primitive.is_direct:
            problem = f"oneDNN ran {primitive.implementation}"
    return Evidence(item.layer, text, problem)


def _align(
    picked: Sequence[LayerChoice], seen: Sequence[Seen | None], primitives: Sequence[Primitive]
) -> list[Primitive | None]:
    """Give each call that reached oneDNN the next of its lines that has the call's sizes."""
    rest = list(primitives)
    found: list[Primitive | None] = []
    for item, saw in zip(picked, seen, strict=True):
        reached = saw is not None and ONEDNN in saw.operators
        places = (i for i, one in enumerate(rest) if reached and one.does(item.shape))
        place = next(places, None)
        found.append(None if place is None else rest[place])
        rest = rest if place is None else rest[place + 1 :]
    return found


def _index(event: Any) -> int:  # noqa: ANN401
    return int(event.name.split("|", 2)[1])


def _layer(event: Any) -> str:  # noqa: ANN401
    return str(event.name.split("|", 2)[2])


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
