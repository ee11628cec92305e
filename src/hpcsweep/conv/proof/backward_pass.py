"""What the gradients of each convolution call run: decided, and proven by a profiled step.

A layer's algorithm says nothing about its gradients: a library may have no counterpart, and the
framework then takes its own. Autograd's nodes between a call's output and its input get a profiler
range each, in this pass only; what the profiler saw in those of a call is held against what the
back-end expects of each gradient.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.profiler import record_function

from hpcsweep import catalog
from hpcsweep.conv.backend import FRAMEWORK, Expected, Gradient
from hpcsweep.conv.choice import FRAMEWORK_CHOICES
from hpcsweep.conv.proof import profiler_events
from hpcsweep.conv.proof.autograd_graph import nodes_between, tensors_in
from hpcsweep.conv.proof.profiler_events import Evidence
from hpcsweep.conv.reference.backend import DIRECT, ONEDNN_BACKWARD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hpcsweep.conv.backend import Backend
    from hpcsweep.conv.choice import LayerChoice
    from hpcsweep.conv.proof.onednn import Primitive

DATA: Final = "data"
FILTER: Final = "filter"
_RANGE: Final = "hpcsweep.gradient|"
_FRAMEWORK: Final = (Gradient(FILTER, None, Expected(must=(("aten::*convolution_backward",),))),)
# what oneDNN calls the two
_KINDS: Final[Mapping[str, str]] = {DATA: "backward_data", FILTER: "backward_weights"}


def choices(picked: Sequence[LayerChoice], backend: Backend) -> list[LayerChoice]:
    """Return, for each call, what its backward pass runs; joined by `+` where gradients differ."""
    return [_choice(item, backend) for item in picked]


def prove(
    model: nn.Module,
    step: Callable[[], object],
    picked: Sequence[LayerChoice],
    backend: Backend,
) -> list[Evidence]:
    """Profile a forward and backward pass; say what the gradients of each call of `picked` ran."""
    events, primitives = profiler_events.record(model, ranges(model), step)
    return read(events, picked, backend, primitives)


@contextmanager
def ranges(model: nn.Module) -> Iterator[None]:
    """Mark the backward pass of every convolution call with profiler ranges."""
    count = 0

    def watch(name: str, _module: nn.Module, inputs: object, output: object) -> None:
        nonlocal count
        title = f"{_RANGE}{count}|{int(_wants_gradient(inputs))}|{name}"
        count += 1
        for node in nodes_between(output, inputs):
            opened: list[Any] = []
            node.register_prehook(partial(_enter, opened, title))
            node.register_hook(partial(_leave, opened))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if isinstance(module, nn.Conv2d):
                hooks.enter_context(module.register_forward_hook(partial(watch, name)))
        yield


def read(
    events: Iterable[Any],
    picked: Sequence[LayerChoice],
    backend: Backend,
    primitives: Sequence[Primitive] = (),
) -> list[Evidence]:
    """Hold profiler events of a step against the choices, which are in call order."""
    paired = profiler_events.pair(picked, _calls(events))
    said = _align(picked, paired, primitives)
    return [
        _judge(item, call, backend, lines)
        for item, call, lines in zip(picked, paired, said, strict=True)
    ]


@dataclass(frozen=True)
class _Call:
    """The ranges of one call's nodes; `wants_data`: its input needed a gradient."""

    layer: str
    wants_data: bool
    events: list[Any] = field(default_factory=list)


def _choice(item: LayerChoice, backend: Backend) -> LayerChoice:
    if item.used in FRAMEWORK_CHOICES:
        return item
    found = backend.gradients(item.used, item.shape)
    used = [catalog.AUTO if g.algorithm is None else item.used for g in found]
    who = [FRAMEWORK if g.algorithm is None else backend.name for g in found]
    reasons = [g.reason for g in found if g.reason]
    sizes = [g.workspace_bytes for g in found if g.workspace_bytes is not None]
    return replace(
        item,
        used="+".join(dict.fromkeys(used)),
        backend="+".join(dict.fromkeys(who)),
        reason="; ".join(dict.fromkeys(reasons)) or None,
        fallback=bool(reasons),
        workspace_bytes=max(sizes, default=None),
    )


def _judge(
    item: LayerChoice, call: _Call | None, backend: Backend, lines: Mapping[str, Primitive]
) -> Evidence:
    if call is None:
        return Evidence(item.layer)
    framework = item.used in FRAMEWORK_CHOICES
    wanted = _FRAMEWORK if framework else backend.gradients(item.used, item.shape)
    wanted = tuple(g for g in wanted if call.wants_data or g.way != DATA)
    problems = [_problem(gradient, call) for gradient in wanted]
    text = profiler_events.look_into(item.layer, call.events, all_sizes=True).text
    for way, line in lines.items():
        text += f"; onednn {way}: {line.implementation} {line.algorithm}"
        if item.used == DIRECT and not line.is_direct:
            problems.append(f"{way}: oneDNN ran {line.implementation}")
    return Evidence(item.layer, text, next(filter(None, problems), None))


def _problem(gradient: Gradient, call: _Call) -> str | None:
    """Return what contradicts a gradient in a call, or None."""
    where = call.events
    if gradient.operator is not None:
        inside = (one for event in call.events for one in profiler_events.descendants(event))
        where = [one for one in inside if one.name == gradient.operator]
        if not where:
            return f"{gradient.way}: no {gradient.operator}"
    seen = profiler_events.look_into(call.layer, where, themselves=gradient.operator is not None)
    found = profiler_events.contradiction(seen, gradient.expected)
    return found and f"{gradient.way}: {found}"


def _align(
    picked: Sequence[LayerChoice], calls: Sequence[_Call | None], primitives: Sequence[Primitive]
) -> list[dict[str, Primitive]]:
    """Give each call the lines of oneDNN that have its sizes; the last call is the first to run."""
    found: list[dict[str, Primitive]] = [{} for _ in picked]
    for way, kind in _KINDS.items():
        rest = [line for line in primitives if line.kind == kind]
        for index in reversed(range(len(picked))):
            call, shape = calls[index], picked[index].shape
            if call is None or not _reached_onednn(call) or (way == DATA and not call.wants_data):
                continue
            place = next((i for i, line in enumerate(rest) if line.does(shape)), None)
            if place is not None:
                found[index][way] = rest.pop(place)
    return found


def _reached_onednn(call: _Call) -> bool:
    """Say whether the framework's backward ran, which is what hands convolutions to oneDNN."""
    inside = (one.name for event in call.events for one in profiler_events.descendants(event))
    return any(name == ONEDNN_BACKWARD for name in inside)


def _calls(events: Iterable[Any]) -> list[_Call]:
    """Return the marked calls in the order of their forward passes."""
    found: dict[int, _Call] = {}
    for event in events:
        if profiler_events.is_range(event, _RANGE):
            _, index, wants_data, layer = event.name.split("|", 3)
            call = found.setdefault(int(index), _Call(layer, wants_data == "1"))
            call.events.append(event)
    return [found[index] for index in sorted(found)]


def _wants_gradient(inputs: object) -> bool:
    return any(tensor.requires_grad for tensor in tensors_in(inputs))


def _enter(opened: list[Any], title: str, *_gradients: torch.Tensor) -> None:
    opened.append(record_function(title))
    opened[-1].__enter__()


def _leave(opened: list[Any], *_gradients: torch.Tensor) -> None:
    opened.pop().__exit__(None, None, None)
