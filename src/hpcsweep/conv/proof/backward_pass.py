"""Proof of what the gradients of each convolution call ran, from one profiled step.

A layer's algorithm says nothing about its gradients: where a library has no counterpart, the
framework computes them. In this pass, a profiler range is opened around each of autograd's nodes
between a call's output and its input. What the profiler saw in the ranges of a call is compared
with what the back-end expects of each gradient.

Activation checkpointing runs layers again inside a node. What that node ran is then not told apart
from them: its call has no evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

from torch import nn
from torch.profiler import record_function

from hpcsweep.conv import parts
from hpcsweep.conv.backend import FRAMEWORK_BACKWARD, Backend, Direction, Expected
from hpcsweep.conv.choice import LayerChoice, gradients_of
from hpcsweep.conv.proof import onednn, profiler_events
from hpcsweep.conv.proof.evidence import Evidence, Proof, completed
from hpcsweep.conv.proof.judgement import judge
from hpcsweep.conv.proof.onednn import Primitive
from hpcsweep.conv.proof.profiler_events import Call, title
from hpcsweep.conv.tensors import (
    filters_learn,
    in_backward,
    nodes_between,
    tensors_in,
)

_MARK: Final = "hpcsweep.gradient"
_AGAIN: Final = "hpcsweep.again"
_FRAMEWORK: Final = {Direction.FILTER: Expected(must=((FRAMEWORK_BACKWARD,),))}
_GRADIENTS: Final = (Direction.DATA, Direction.FILTER)


def prove(
    model: nn.Module, step: Callable[[], object], picked: Sequence[LayerChoice], backend: Backend
) -> list[Evidence]:
    """Profile a forward and backward pass; say what the gradients of each call of `picked` ran."""

    def once() -> Proof:
        events, primitives = profiler_events.record(model, ranges(model), step)
        return Proof(tuple(proof_of_backward(events, picked, backend, primitives)))

    return [*completed(once, lambda: profiler_events.passes(model)).calls]


@contextmanager
def ranges(model: nn.Module) -> Iterator[None]:
    """Mark the backward pass of every convolution call with profiler ranges."""
    numbers = count()

    def wrap(layer: str, module: nn.Module, forward: parts.Forward) -> parts.Forward:
        def watched(*args: object, **kwargs: object) -> object:
            if in_backward():
                with record_function(_AGAIN):
                    return forward(*args, **kwargs)
            with parts.computed(module) as filters:
                output = forward(*args, **kwargs)
            number = next(numbers)
            wants = []
            if any(tensor.requires_grad for tensor in tensors_in([args, kwargs])):
                wants.append(Direction.DATA)
            if filters_learn(module):
                wants.append(Direction.FILTER)
            opened = list[record_function]()

            def enter(*_: object) -> None:
                opened.append(record_function(title(_MARK, number, layer, wants)))
                opened[-1].__enter__()

            def leave(*_: object) -> None:
                opened.pop().__exit__(None, None, None)

            for node in nodes_between(output, [args, kwargs, filters]):
                node.register_prehook(enter)
                node.register_hook(leave)
            return output

        return watched

    with parts.wrapped_layers(parts.convolutions(model), wrap):
        yield


def proof_of_backward(
    events: Iterable[Any],
    picked: Sequence[LayerChoice],
    backend: Backend,
    primitives: Sequence[Primitive] = (),
) -> list[Evidence]:
    """Compare the profiler's events of a step with the choices, which are in call order."""
    calls = profiler_events.pair(picked, profiler_events.calls(events, _MARK))
    paired = [None if call and profiler_events.ran(call, _AGAIN) else call for call in calls]
    reports = _reports(picked, paired, primitives)
    return [
        judge(item.layer, call, _expected(item, call, backend), of_call)
        for item, call, of_call in zip(picked, paired, reports, strict=True)
    ]


def _expected(item: LayerChoice, call: Call | None, backend: Backend) -> dict[Direction, Expected]:
    expected = {one.way: one.expected for one in gradients_of(item, backend)} or _FRAMEWORK
    wants = call.wants if call else frozenset[Direction]()
    return {way: of_way for way, of_way in expected.items() if way in wants}


def _reports(
    picked: Sequence[LayerChoice], calls: Sequence[Call | None], primitives: Sequence[Primitive]
) -> list[list[Primitive]]:
    """Give each call oneDNN's reports of its gradients; the last call is the first to run."""
    found: list[list[Primitive]] = [[] for _ in picked]
    for way in _GRADIENTS:
        shapes = [
            item.shape if call and _reached_onednn(call, way) else None
            for item, call in zip(picked, calls, strict=True)
        ]
        last_first = onednn.assign(primitives, way, reversed(shapes))
        for of_call, report in zip(found, reversed(last_first), strict=True):
            of_call.extend([report] if report else [])
    return found


def _reached_onednn(call: Call, way: Direction) -> bool:
    """Say whether the framework's backward ran, which is what hands convolutions to oneDNN."""
    return way in call.wants and profiler_events.ran(call, FRAMEWORK_BACKWARD)
