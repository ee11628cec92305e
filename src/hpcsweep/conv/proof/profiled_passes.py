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
import time
from bisect import bisect_right
from collections import Counter, abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import count
from typing import Any, Final

import torch
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
    matches,
)
from hpcsweep.conv.choice import FRAMEWORK_CHOICES, LayerChoice, gradients_of
from hpcsweep.conv.parts import filters_learn, in_backward, nodes_between, tensors_in
from hpcsweep.conv.proof import (
    Evidence,
    Observation,
    Proof,
    Work,
    contradiction,
    onednn,
    other_work,
    profiler_events,
)
from hpcsweep.conv.proof.kernels import kernel_word
from hpcsweep.conv.proof.onednn import Primitive
from hpcsweep.conv.proof.profiler_events import Call, descendants, look_into, title
from hpcsweep.conv.shape import ConvShape

_CALL: Final = "hpcsweep.conv"
_GRADIENT: Final = "hpcsweep.gradient"
# a layer that activation checkpointing runs again
_AGAIN: Final = "hpcsweep.again"
# what the framework runs is its own choice: some convolution, and for gradients its own backward
_FRAMEWORK: Final = Expected(must=(CONVOLUTIONS,))
_FRAMEWORK_GRADIENT: Final = {Direction.FILTER: Expected(must=((FRAMEWORK_BACKWARD,),))}
# what any call of the framework runs, also one that no layer makes
_FUNCTIONAL: Final = ("aten::*convolution*",)
# "hpcsweep::...": an explicit algorithm, in a layer that the shape pass did not see
_CONVOLVING: Final = (*_FUNCTIONAL, "aten::conv[0-9]d*", "aten::conv_*", "hpcsweep::convolution*")
# run products inside that the profiler does not show
_FUSED: Final = (
    *("*::*attention*", "*::*transformer*", "*::*rnn*", "*::*lstm*", "*::*gru*"),
    *("*::bilinear", "*::_trilinear"),  # those that interpolate have no products
)
_REPLAY: Final = "hpcsweep.replay"
# in a session, which may lose kernels of one, and hardly the same of three
_REPLAYS: Final = 3
# until one shows a kernel of a replay; as many as an eager pass may have
_SESSIONS: Final = 3
# Before each replay, in which the GPU is idle. A kernel belongs to the replay whose range began
# last, and the clocks of host and GPU may differ: by microseconds, so that half of this is plenty.
_GAP_SECONDS: Final = 0.01


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


def forward_ranges(model: nn.Module) -> AbstractContextManager[None]:
    """Mark every convolution call with a profiler range while the block runs."""
    numbers = count()

    def wrap(layer: str, module: nn.Module, forward: parts.Forward) -> parts.Forward:
        def run(*args: object, **kwargs: object) -> object:
            # products that make the filters are none of the convolution's
            with parts.computed(module), record_function(title(_CALL, next(numbers), layer)):
                return forward(*args, **kwargs)

        return run

    return parts.wrapped_layers(parts.convolutions(model), wrap)


def backward_ranges(model: nn.Module) -> AbstractContextManager[None]:
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

    return parts.wrapped_layers(parts.convolutions(model), wrap)


def proof_of_forward(
    events: Iterable[Any],
    picked: Sequence[LayerChoice],
    backend: Backend,
    primitives: Sequence[Primitive] = (),
) -> Proof:
    """Compare the profiler's events of one pass with the choices, which are in call order."""
    events = list(events)
    calls = profiler_events.pair(picked, profiler_events.calls(events, _CALL))
    reports = _reports(picked, calls, primitives, Direction.FORWARD)
    found = []
    for item, call, report in zip(picked, calls, reports, strict=True):
        expected = _FRAMEWORK
        if item.used not in FRAMEWORK_CHOICES:
            expected = backend.expected(item.used, item.shape)
        found.append(judge(item.layer, call, {Direction.FORWARD: expected}, [report]))
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
    of_data = _reports(picked, calls, primitives, Direction.DATA)
    of_filters = _reports(picked, calls, primitives, Direction.FILTER)
    found = []
    for item, call, *reports in zip(picked, calls, of_data, of_filters, strict=True):
        expected = {gradient.way: gradient.expected for gradient in gradients_of(item, backend)}
        claims = expected or _FRAMEWORK_GRADIENT
        wants = call.wants if call else ()
        wanted = {way: claim for way, claim in claims.items() if way in wants}
        found.append(judge(item.layer, call, wanted, reports))
    return found


def _reports(
    picked: Sequence[LayerChoice],
    calls: Sequence[Call | None],
    primitives: Sequence[Primitive],
    way: Direction,
) -> list[Primitive | None]:
    """Return oneDNN's report on each call, of those that handed a convolution to it."""
    # the framework's backward is what hands gradients to oneDNN
    operator = ONEDNN if way is Direction.FORWARD else FRAMEWORK_BACKWARD
    shapes: list[ConvShape | None] = []
    for item, call in zip(picked, calls, strict=True):
        wanted = call and (way is Direction.FORWARD or way in call.wants)
        # without reports there is nothing to assign, and calls have thousands of operators
        handed_on = call and wanted and primitives and call.ran(operator)
        shapes.append(item.shape if handed_on else None)
    return onednn.assign(primitives, way, shapes)


def judge(
    layer: str,
    call: Call | None,
    expected: Mapping[Direction, Expected],
    primitives: Iterable[Primitive | None] = (),
) -> Evidence:
    """Return the evidence of one call, with the first thing that contradicts its claims."""
    if call is None:
        return Evidence(layer)
    seen = look_into(call.events)
    reports = tuple(report for report in primitives if report)
    problems = _problems(call, seen, expected, reports)
    return Evidence(layer, seen, reports, next(problems, None))


def _problems(
    call: Call,
    seen: Observation,
    expected: Mapping[Direction, Expected],
    reports: Iterable[Primitive],
) -> Iterator[str]:
    """Yield what contradicts the claims of a call, or of an operator inside it."""
    for way, claim in expected.items():
        inside = seen
        if claim.inside is not None:
            operators = [inner for inner in call.inside() if inner.name == claim.inside]
            if not operators:
                yield _of_way(way, f"no {claim.inside}")
            inside = look_into(operators, themselves=True)
        problem = contradiction(inside, claim)
        if problem:
            yield _of_way(way, problem)
    problem = other_work(seen.telling, expected.values())
    if problem:
        yield problem
    for report in reports:
        reported = expected.get(report.way)
        if reported and reported.onednn_direct and not report.is_direct:
            yield _of_way(report.way, f"oneDNN ran {report.implementation}")


def _of_way(way: Direction, problem: str) -> str:
    return problem if way is Direction.FORWARD else f"{way.value}: {problem}"


def _work_of_pass(
    events: Iterable[Any], layers: abc.Set[str], primitives: Iterable[Primitive]
) -> Work:
    """Count what a pass ran; a call of one of the layers is a convolution, whatever it runs."""
    reported = sum(primitive.way is Direction.FORWARD for primitive in primitives)
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
            if reported:
                onednn_calls += sum(inner.name == ONEDNN for inner in descendants(event))
            continue
        size = profiler_events.product_size(event)
        if size is None:
            todo += event.cpu_children
        elif flops is not None:
            flops += 2 * math.prod(size)
    return Work(convolutions, flops, max(0, reported - onednn_calls))


def _within_range(event: Any) -> bool:  # noqa: ANN401 - the profiler's own record
    while event is not None:
        if event.name.startswith(_CALL):
            return True
        event = event.cpu_parent
    return False


def replayed_kernels(run: Callable[[], object], device: torch.device) -> Counter[str]:
    """Return the kernels of one replay, the most that any of three has; none if none was seen."""
    kernels = Counter[str]()
    sessions = 0
    while not kernels and sessions < _SESSIONS and profiler_events.sees_kernels():
        sessions += 1
        with profiler_events.session(device) as profiler:
            for number in range(_REPLAYS):
                time.sleep(_GAP_SECONDS)
                with record_function(f"{_REPLAY}|{number}"):
                    run()
                    torch.cuda.synchronize()
        events = list(profiler.events())
        on_gpu = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA]
        profiler_events.note_session(is_empty=not on_gpu)
        kernels = most_of_a_replay(events)
    return kernels


def most_of_a_replay(events: Iterable[Any]) -> Counter[str]:
    """Return how often each kernel ran in a replay, of several the most."""
    events = list(events)
    replays = [event for event in events if profiler_events.is_range(event, _REPLAY)]
    begins = sorted(event.time_range.start for event in replays)  # in microseconds
    ran = [Counter[str]() for _ in begins]
    for event in events:
        on_gpu = event.device_type == torch.autograd.DeviceType.CUDA
        is_kernel = on_gpu and not event.name.startswith(
            _REPLAY
        )  # the GPU's copy of a range is none
        begun = bisect_right(begins, event.time_range.start + 1e6 * _GAP_SECONDS / 2)
        if is_kernel and begun:
            ran[begun - 1][event.name] += 1
    most = Counter[str]()
    for kernels in ran:
        most |= kernels
    return most


def held_against(proof: Proof, ran: Counter[str]) -> Proof:
    """Return a proof whose calls are contradicted where the replay lacks kernels of theirs.

    If no kernel of the replay was seen, nobody knows what it ran: the eager pass proves no call.
    """
    needed = Counter[str]()
    for call in proof.calls:
        if call.seen:
            needed.update(call.seen.computing)
    calls = []
    for call in proof.calls:
        if not call.problem and not ran:
            calls.append(Evidence(call.layer))
        elif not call.problem and call.seen:
            lacking = [name for name in call.seen.computing if ran[name] < needed[name]]
            problem = f"the replay lacks {kernel_word(lacking[0])}" if lacking else None
            calls.append(replace(call, problem=problem))
        else:
            calls.append(call)
    return replace(proof, calls=tuple(calls))
