"""Proves which algorithm each convolution call ran, from a pass under the profiler; times nothing.

1. A pass runs under torch's profiler, with a range around each call of an `nn.Conv2d`; for its
   gradients, around each of autograd's nodes between its output and its input.
2. The ranges give each choice its call: the next one of its layer (`profiler_events`).
3. In a call's ranges are its operators, the library's calls and kernels; reports of oneDNN are
   found by their sizes (`onednn`), and kernels say by their names whose they are (`kernels`).
4. What ran is compared with what the back-end expects of the algorithm that the call claims. What
   tells algorithms apart is compared by sizes: Winograd has products over the channels for each
   interpolation point, im2col one over channels x taps, implicit GEMM one for each tap. Where a
   library computes, names of operators and kernels must appear, and others must not.

A layer's algorithm says nothing about its gradients: where a library has no counterpart, the
framework computes them. Activation checkpointing runs layers again inside one of autograd's nodes.
What that node ran is then not told apart from them: its call has no evidence.
"""

from __future__ import annotations

import math
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import count
from typing import Any, Final

from torch import nn
from torch.profiler import record_function

from hpcsweep.conv import parts
from hpcsweep.conv.backend import (
    CONVOLUTIONS,
    FRAMEWORK_BACKWARD,
    ONEDNN,
    Backend,
    Direction,
    Expected,
    Operation,
)
from hpcsweep.conv.choice import FRAMEWORK_CHOICES, LayerChoice, gradients_of
from hpcsweep.conv.proof import kernels, onednn, profiler_events
from hpcsweep.conv.proof.evidence import Evidence, Observation, Proof, Work
from hpcsweep.conv.proof.onednn import Primitive
from hpcsweep.conv.proof.profiler_events import Call, descendants, look_into, matches, title
from hpcsweep.conv.shape import ConvShape
from hpcsweep.conv.tensors import filters_learn, in_backward, nodes_between, tensors_in

_CALL: Final = "hpcsweep.conv"
_GRADIENT: Final = "hpcsweep.gradient"
_AGAIN: Final = "hpcsweep.again"  # a layer that activation checkpointing runs again
_FRAMEWORK: Final = Expected(must=(CONVOLUTIONS,))
_FRAMEWORK_GRADIENT: Final = {Direction.FILTER: Expected(must=((FRAMEWORK_BACKWARD,),))}
_FUNCTIONAL: Final = ("aten::*convolution*",)
# "hpcsweep::...": an explicit algorithm, in a layer that the shape pass did not see
_CONVOLVING: Final = (*_FUNCTIONAL, "aten::conv[0-9]d*", "aten::conv_*", "hpcsweep::convolution*")
# run products inside that the profiler does not show
_FUSED: Final = (
    *("*::*attention*", "*::*transformer*", "*::*rnn*", "*::*lstm*", "*::*gru*"),
    *("*::bilinear", "*::_trilinear"),  # those that interpolate have no products
)


def prove_forward(
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
            events, primitives = profiler_events.record(model, forward_ranges(model), run)
        return proof_of_forward(events, picked, backend, primitives)

    return _completed(model, once)


def prove_backward(
    model: nn.Module, step: Callable[[], object], picked: Sequence[LayerChoice], backend: Backend
) -> list[Evidence]:
    """Profile a forward and backward pass; say what the gradients of each call of `picked` ran."""

    def once() -> Proof:
        events, primitives = profiler_events.record(model, backward_ranges(model), step)
        return Proof(tuple(proof_of_backward(events, picked, backend, primitives)))

    return list(_completed(model, once).calls)


def _completed(model: nn.Module, once: Callable[[], Proof]) -> Proof:
    """Profile a network as often as it may be while calls show no kernel: a session may lose some.

    Each call keeps what the first pass saw that saw a kernel of it.
    """
    proof = once()
    done = 1
    # asked after each pass: it shows whether there are kernels
    while done < profiler_events.passes(model) and any(call.lacks_kernel for call in proof.calls):
        again = once()
        done += 1
        calls = list(proof.calls)
        for place, new in enumerate(again.calls):
            if calls[place].lacks_kernel:
                calls[place] = new
        others = []
        for old_ms, new_ms in zip(proof.others_ms, again.others_ms, strict=False):
            others.append(new_ms if old_ms is None else old_ms)
        proof = replace(proof, calls=tuple(calls), others_ms=tuple(others))
    return proof


@contextmanager
def forward_ranges(model: nn.Module) -> Iterator[None]:
    """Mark every convolution call with a profiler range while the block runs."""
    numbers = count()

    def wrap(layer: str, module: nn.Module, forward: parts.Forward) -> parts.Forward:
        def run(*args: object, **kwargs: object) -> object:
            # products that make the filters are none of the convolution's
            with parts.computed(module), record_function(title(_CALL, next(numbers), layer)):
                return forward(*args, **kwargs)

        return run

    with parts.wrapped_layers(parts.convolutions(model), wrap):
        yield


@contextmanager
def backward_ranges(model: nn.Module) -> Iterator[None]:
    """Mark the backward pass of every convolution call with profiler ranges."""
    numbers = count()

    def wrap(layer: str, module: nn.Conv2d, forward: parts.Forward) -> parts.Forward:
        def watched(*args: object, **kwargs: object) -> object:
            if in_backward():
                with record_function(_AGAIN):
                    return forward(*args, **kwargs)
            with parts.computed(module) as filters:
                output = forward(*args, **kwargs)
            wants = []
            if any(tensor.requires_grad for tensor in tensors_in([args, kwargs])):
                wants.append(Direction.DATA)
            if filters_learn(module):
                wants.append(Direction.FILTER)
            name = title(_GRADIENT, next(numbers), layer, wants)
            opened = list[record_function]()

            def enter(*_: object) -> None:
                opened.append(record_function(name))
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


def proof_of_forward(
    events: Iterable[Any],
    picked: Sequence[LayerChoice],
    backend: Backend,
    primitives: Sequence[Primitive] = (),
) -> Proof:
    """Compare the profiler's events of one pass with the choices, which are in call order."""
    events = list(events)
    calls = profiler_events.pair(picked, profiler_events.calls(events, _CALL))
    shapes = _shapes_in_onednn(picked, calls, ONEDNN)
    reports = onednn.assign(primitives, Direction.FORWARD, shapes)
    found = []
    for item, call, report in zip(picked, calls, reports, strict=True):
        expected = _FRAMEWORK
        if item.used not in FRAMEWORK_CHOICES:
            expected = backend.expected(item.used, item.shape)
        own_reports = [report] if report else []
        found.append(judge(item.layer, call, {Direction.FORWARD: expected}, own_reports))
    outside: dict[str, None] = {}  # such as `F.conv2d` in a model's code; in order, each once
    for event in events:
        if matches(event.name, _FUNCTIONAL) and not _within_range(event):
            outside[event.name] = None
    # of layers that are no convolutions; one around others is without theirs
    others = profiler_events.calls(events, profiler_events.LAYER)
    times = [look_into(other.events, apart=True).kernel_ms for other in others]
    work = _work_of_pass(events, {item.layer for item in picked}, primitives)
    return Proof(tuple(found), tuple(outside), tuple(times), work)


def proof_of_backward(
    events: Iterable[Any],
    picked: Sequence[LayerChoice],
    backend: Backend,
    primitives: Sequence[Primitive] = (),
) -> list[Evidence]:
    """Compare the profiler's events of a step with the choices, which are in call order."""
    calls = profiler_events.pair(picked, profiler_events.calls(events, _GRADIENT))
    for place, call in enumerate(calls):
        if call and call.ran(_AGAIN):
            calls[place] = None
    reports: list[list[Primitive]] = [[] for _ in picked]
    for way in (Direction.DATA, Direction.FILTER):
        # the framework's backward is what hands convolutions to oneDNN
        shapes = _shapes_in_onednn(picked, calls, FRAMEWORK_BACKWARD, way)
        # the last call of the forward pass is the first of the backward pass
        last_first = onednn.assign(primitives, way, reversed(shapes))
        for own_reports, report in zip(reports, reversed(last_first), strict=True):
            if report:
                own_reports.append(report)
    found = []
    for item, call, own_reports in zip(picked, calls, reports, strict=True):
        expected = {gradient.way: gradient.expected for gradient in gradients_of(item, backend)}
        wants = call.wants if call else frozenset()
        wanted = expected or _FRAMEWORK_GRADIENT
        wanted = {way: claim for way, claim in wanted.items() if way in wants}
        found.append(judge(item.layer, call, wanted, own_reports))
    return found


def _shapes_in_onednn(
    picked: Sequence[LayerChoice],
    calls: Sequence[Call | None],
    operator: str,
    gradient: Direction | None = None,
) -> list[ConvShape | None]:
    """Return the shape of each call that ran the operator, and wanted the gradient; else None."""
    shapes: list[ConvShape | None] = []
    for item, call in zip(picked, calls, strict=True):
        shape = None
        wanted = call and (gradient is None or gradient in call.wants)
        if call and wanted and call.ran(operator):
            shape = item.shape
        shapes.append(shape)
    return shapes


def judge(
    layer: str,
    call: Call | None,
    expected: Mapping[Direction, Expected],
    primitives: Sequence[Primitive] = (),
) -> Evidence:
    """Return the evidence of one call, with the first thing that contradicts its claims."""
    if call is None:
        return Evidence(layer)
    seen = look_into(call.events)
    problem = _first_problem(call, seen, expected, primitives)
    return Evidence(layer, seen, tuple(primitives), problem)


def _first_problem(
    call: Call,
    seen: Observation,
    expected: Mapping[Direction, Expected],
    primitives: Sequence[Primitive],
) -> str | None:
    for way, wanted in expected.items():
        problem = _problem_of_way(call, seen, wanted)
        if problem:
            return _told(way, problem)
    problem = other_work(profiler_events.work_of(call.events), expected.values())
    if problem:
        return problem
    for primitive in primitives:
        claim = expected.get(primitive.way)
        if claim and claim.onednn_direct and not primitive.is_direct:
            return _told(primitive.way, f"oneDNN ran {primitive.implementation}")
    return None


def _told(way: Direction, problem: str) -> str:
    return problem if way is Direction.FORWARD else f"{way.value}: {problem}"


def _problem_of_way(call: Call, seen: Observation, expected: Expected) -> str | None:
    """Return what contradicts an expectation in a call, or inside an operator of it."""
    if expected.inside is None:
        return contradiction(seen, expected)
    operators = [inner for inner in call.inside() if inner.name == expected.inside]
    if not operators:
        return f"no {expected.inside}"
    return contradiction(look_into(operators, themselves=True), expected)


def contradiction(seen: Observation, expected: Expected) -> str | None:
    """Return the first thing that does not fit, or None."""
    names = seen.names
    for name in names:
        if matches(name, expected.must_not):
            return f"ran {name}"
    if expected.algorithm:
        other = kernels.recognise(seen.kernels).against(expected.algorithm)
        if other:
            return f"ran {kernels.kernel_word(other)}, which is of {kernels.recognise([other])}"
    for group in expected.must:
        if not any(matches(name, group) for name in names):
            return f"no {group[0]}"
    for group in expected.kernels:
        # a profiler that recorded no kernel at all has not seen that one is missing
        computing = seen.computing
        if computing and not any(matches(name, group) for name in computing):
            return f"no {group[0]}"
    return None


def other_work(
    work: Iterable[tuple[Operation, Operation]], expected: Iterable[Expected]
) -> str | None:
    """Return the first operation of another algorithm that ran, or one of this that did not."""
    named = [each.work for each in expected if each.work is not None]
    if not named:
        return None
    wanted = frozenset[Operation]().union(*named)
    ran = dict(work)
    for operation, shown in ran.items():
        if operation not in wanted:
            return f"ran {shown}"
    missing = sorted(str(operation) for operation in wanted - ran.keys())
    return f"did not run {missing[0]}" if missing else None


def _work_of_pass(
    events: Iterable[Any], layers: abc.Set[str], primitives: Iterable[Primitive]
) -> Work:
    """Count what a pass ran; a call of one of the layers is a convolution, whatever it runs."""
    convolutions = 0
    onednn_calls = 0
    flops: int | None = 0
    todo = [e for e in events if e.cpu_parent is None and profiler_events.is_on_host(e)]
    while todo:
        event = todo.pop()
        words = event.name.split("|", 3)
        operator = event.name if profiler_events.is_operator(event) else ""
        is_call = words[0] == _CALL and words[-1] in layers
        if matches(operator, _FUSED):
            flops = None
            continue
        if is_call or matches(operator, _CONVOLVING):
            convolutions += 1
            onednn_calls += sum(inner.name == ONEDNN for inner in descendants(event))
            continue
        size = profiler_events.product_size(event)
        if size is None:
            todo += event.cpu_children
        elif flops is not None:
            flops += 2 * math.prod(size)
    reported = sum(primitive.way is Direction.FORWARD for primitive in primitives)
    return Work(convolutions, flops, max(0, reported - onednn_calls))


def _within_range(event: Any) -> bool:  # noqa: ANN401 - the profiler's own record
    while event is not None:
        if event.name.startswith(_CALL):
            return True
        event = event.cpu_parent
    return False
