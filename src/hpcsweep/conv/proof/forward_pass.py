"""Proof of what each convolution call ran, from one profiled forward pass.

In this pass a profiler range is open around every `nn.Conv2d` call. What the profiler saw
inside a range is compared with what the back-end expects of the algorithm.
"""

from __future__ import annotations

import math
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from typing import Any, Final

from torch import nn

from hpcsweep.conv import parts
from hpcsweep.conv.backend import CONVOLUTIONS, ONEDNN, Backend, Direction, Expected
from hpcsweep.conv.choice import FRAMEWORK_CHOICES, LayerChoice
from hpcsweep.conv.proof import onednn, profiler_events
from hpcsweep.conv.proof.evidence import Proof, Work, completed
from hpcsweep.conv.proof.judgement import judge
from hpcsweep.conv.proof.onednn import Primitive
from hpcsweep.conv.proof.profiler_events import matches

_MARK: Final = "hpcsweep.conv"
# run products inside that the profiler does not show
_FUSED: Final = (
    *("*::*attention*", "*::*transformer*", "*::*rnn*", "*::*lstm*", "*::*gru*"),
    *("*::bilinear", "*::_trilinear"),  # those that interpolate have no products
)
_FRAMEWORK: Final = Expected(must=(CONVOLUTIONS,))
_FUNCTIONAL: Final = ("aten::*convolution*",)
# "hpcsweep::...": an explicit algorithm, in a layer that the shape pass did not see
_CONVOLVING: Final = (*_FUNCTIONAL, "aten::conv[0-9]d*", "aten::conv_*", "hpcsweep::convolution*")


def prove(
    model: nn.Module,
    run: Callable[[], object],
    picked: Sequence[LayerChoice],
    backend: Backend,
    marking: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Proof:
    """Profile a pass of `run` and say what each convolution call of `picked` did.

    `marking` opens ranges named `profiler_events.LAYER` around other layers.
    """

    def once() -> Proof:
        with marking():
            events, primitives = profiler_events.record(model, ranges(model), run)
        return proof_of_forward(events, picked, backend, primitives)

    return completed(once, lambda: profiler_events.passes(model))


@contextmanager
def ranges(model: nn.Module) -> Iterator[None]:
    """Mark every convolution call with a profiler range while the block runs."""
    numbers = count()

    def wrap(layer: str, module: nn.Module, forward: parts.Forward) -> parts.Forward:
        ranged = profiler_events.ranged(forward, _MARK, numbers, layer)

        def run(*args: object, **kwargs: object) -> object:
            with parts.computed(module):  # its products are none of the convolution's
                return ranged(*args, **kwargs)

        return run

    with parts.wrapped_layers(parts.convolutions(model), wrap):
        yield


def proof_of_forward(
    events: Iterable[Any],
    picked: Sequence[LayerChoice],
    backend: Backend,
    primitives: Sequence[Primitive] = (),
) -> Proof:
    """Compare the profiler's events of one pass with the choices, which are in call order."""
    events = list(events)
    paired = profiler_events.pair(picked, profiler_events.calls(events, _MARK))
    shapes = [
        item.shape if call and profiler_events.ran(call, ONEDNN) else None
        for item, call in zip(picked, paired, strict=True)
    ]
    reports = onednn.assign(primitives, Direction.FORWARD, shapes)
    claims = (
        _FRAMEWORK if c.used in FRAMEWORK_CHOICES else backend.expected(c.used, c.shape)
        for c in picked
    )
    calls = (
        judge(item.layer, call, {Direction.FORWARD: expected}, [report] if report else ())
        for item, call, expected, report in zip(picked, paired, claims, reports, strict=True)
    )
    # such as `F.conv2d` in a model's code
    outside = (e.name for e in events if matches(e.name, _FUNCTIONAL) and not _within_range(e))
    times = profiler_events.kernel_times(events)
    ran = work_of_pass(events, {item.layer for item in picked}, primitives)
    return Proof(tuple(calls), tuple(dict.fromkeys(outside)), tuple(times), ran)


def work_of_pass(
    events: Iterable[Any], layers: abc.Set[str], primitives: Iterable[Primitive]
) -> Work:
    """Count what a pass ran; a call of one of the layers is a convolution, whatever it runs."""
    convolutions = 0
    onednn_calls = 0
    flops: int | None = 0
    todo = [e for e in events if e.cpu_parent is None and profiler_events.is_on_host(e)]
    while todo:
        event = todo.pop()
        title = event.name.split("|", 3)
        operator = event.name if profiler_events.is_operator(event) else ""
        is_call = title[0] == _MARK and title[-1] in layers
        if matches(operator, _FUSED):
            flops = None
        elif is_call or matches(operator, _CONVOLVING):
            convolutions += 1
            onednn_calls += sum(e.name == ONEDNN for e in profiler_events.descendants(event))
        elif size := profiler_events.product_size(event):
            flops = None if flops is None else flops + 2 * math.prod(size)
        else:
            todo += event.cpu_children
    reported = sum(primitive.way is Direction.FORWARD for primitive in primitives)
    return Work(convolutions, flops, max(0, reported - onednn_calls))


def _within_range(event: Any) -> bool:  # noqa: ANN401
    while event is not None:
        if event.name.startswith(_MARK):
            return True
        event = event.cpu_parent
    return False
