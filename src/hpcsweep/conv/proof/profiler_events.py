"""Runs a pass under torch's profiler, and reads its events: ranges of calls, and what ran in them.

It judges nothing: `profiled_passes` does.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple
from weakref import proxy

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from hpcsweep.conv import parts
from hpcsweep.conv.backend import (
    ADDING,
    CONVOLUTIONS,
    LIBRARY_CALLS,
    PRODUCTS,
    Direction,
    Operation,
    matches,
)
from hpcsweep.conv.choice import LayerChoice
from hpcsweep.conv.proof import Observation, onednn
from hpcsweep.conv.proof.onednn import Primitive

TRANSFORMS: Final = ("aten::_fft_*",)
_WHOLE: Final = (*PRODUCTS, *TRANSFORMS)
# operators that tell one algorithm from another; those of a library's call are its own
TELLING: Final = (
    *PRODUCTS,
    *TRANSFORMS,
    *CONVOLUTIONS,
    "aten::unfold*",
    "aten::im2col",
    "aten::index_select",
    "aten::index_add_",
)
# marks the calls of layers that are no convolutions
LAYER: Final = "hpcsweep.layer"
# how the names of ranges around calls begin
_OF_CALLS: Final = "hpcsweep."
# Launches at the beginning of a session, so that they are what it loses: with CUDA 12.6 update 2 to
# 13.0 each session loses its first ones (pytorch issue 192021). More take longer in each session;
# fewer may not be all that is lost, which `benchmarks.gpu` asks a GPU.
SACRIFICE: Final = 600
# of a network: the same kernel is hardly lost in three sessions, and each more costs a pass
_PASSES: Final = 3
# sessions in a row: one alone may have been lost
_EMPTY_IF_BLIND: Final = 2
# for CUPTI to leave, which takes milliseconds; then go on without
_DETACH_SECONDS: Final = 5.0
# between two calls that let CUPTI leave; less would keep a core busy
_LOOK_SECONDS: Final = 0.001
# those of libraries, too
_THREADS: Final = Path("/proc/self/task")
# what torch's reader leaves out, too
_UNTOLD: Final = frozenset(
    {
        "[memory]",
        "[OutOfMemory]",
        "profiler::_record_function_enter",
        "profiler::_record_function_enter_new",
        "profiler::_record_function_exit",
        "aten::is_leaf",
        "aten::output_nr",
        "aten::_version",
    }
)
# the kind of records that are not torch's own
_RUNTIME: Final = torch._C._profiler._EventType.Kineto  # noqa: SLF001
# the scope of what `record_function` opens (ATen/record_function.h)
_RANGE: Final = 7


@dataclass
class _Sessions:
    """How many sessions of this process on a GPU, up to the last one, had no kernel at all."""

    empty: int = 0


_SESSIONS: Final = _Sessions()


@dataclass(frozen=True)
class Call:
    """The ranges of one convolution call; `wants` are the gradients that it needs."""

    layer: str
    wants: frozenset[Direction] = frozenset()
    events: list[Any] = field(default_factory=list)

    def inside(self) -> Iterator[Any]:
        """Yield all that ran in the ranges, in order."""
        for event in self.events:
            yield from descendants(event)

    def ran(self, name: str) -> bool:
        """Say whether an operator or a range of this name ran in the call."""
        return any(inner.name == name for inner in self.inside())


@dataclass(frozen=True)
class RecordedKernel:
    """What ran on a GPU, a copy of memory included; `duration` is in microseconds."""

    name: str
    duration: float


class Event:
    """What a session recorded of one operator or range; named as torch names it."""

    __slots__ = (
        *("__weakref__", "_record", "_scope", "cpu_children", "cpu_parent", "kernels", "name"),
    )
    device_type: Final = torch.autograd.DeviceType.CPU

    def __init__(
        self,
        name: str,
        record: Any,  # noqa: ANN401 - the profiler's own
        kernels: list[RecordedKernel],
        around: Event | None,
    ) -> None:
        """Take the profiler's own record, its kernels, and what is around it."""
        self.name = name
        self._record = record
        self._scope: int | None = None
        # weak: a cycle for each event is garbage that takes tens of milliseconds to find
        self.cpu_parent = around and proxy(around)
        self.cpu_children: list[Event] = []
        self.kernels = kernels
        if around:
            around.cpu_children.append(self)

    @property
    def scope(self) -> int:
        """What kind of thing was recorded, as torch numbers it."""
        if self._scope is None:  # the profiler makes a copy of all that it knows of an event
            self._scope = int(getattr(self._record.extra_fields, "scope", 0))
        return self._scope

    @property
    def input_shapes(self) -> list[list[int]]:
        """The sizes of the inputs; those of few events are asked for."""
        inputs = getattr(self._record.extra_fields, "inputs", ())  # a range has none
        return [list(getattr(one, "sizes", ())) for one in inputs]

    def is_merged(self) -> bool:
        """Give what is inside to an operator around it of the same name, if it is all of that."""
        around = self.cpu_parent
        if around is None or around.name != self.name or len(around.cpu_children) > 1:
            return False
        around.cpu_children = self.cpu_children
        around.kernels += self.kernels
        for child in self.cpu_children:
            child.cpu_parent = around
        return True


def title(mark: str, number: int, layer: str, wants: Iterable[Direction] = ()) -> str:
    """Return the name of a range around one call, or around a node of its backward pass."""
    return f"{mark}|{number}|{' '.join(way.value for way in wants)}|{layer}"


def ranged(
    forward: Callable[..., object], mark: str, numbers: Iterator[int], layer: str = ""
) -> Callable[..., object]:
    """Return a function whose every call is a range with the next number."""

    def run(*args: object, **kwargs: object) -> object:
        with record_function(title(mark, next(numbers), layer)):
            return forward(*args, **kwargs)

    return run


@contextmanager
def session(device: torch.device | None) -> Iterator[profile]:
    """Profile the block; on a GPU launch first what the session may lose.

    The next session may begin at once.
    """
    activities = [ProfilerActivity.CPU]
    if device:
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True) as profiler:
        if device:
            numbers = torch.zeros(8, device=device)
            for _ in range(SACRIFICE):
                numbers.add_(1)
            torch.cuda.synchronize()
        yield profiler
        running = threads() if device else None
    if running is not None:
        let_cupti_go(running)


def threads() -> frozenset[Path]:
    """Return all threads of this process; none where the system has no such list."""
    try:
        return frozenset(_THREADS.iterdir())
    except OSError:
        return frozenset()


def let_cupti_go(running: frozenset[Path]) -> None:
    """Return when CUPTI has left the process after a session, if it leaves (TEARDOWN_CUPTI=1).

    `running` are the threads just before the session ended.

    At a session's end Kineto starts a thread, which asks CUPTI to be told of calls. At the end of
    the next call of CUDA's runtime Kineto calls `cuptiFinalize`, and the thread ends. If the next
    session has begun by then, that ends its records: it is empty. So calls follow here until no
    thread is left that the session's end started. One call is not enough: it may come before the
    thread has asked (kineto, CuptiActivityApi.cpp, `teardownContext`; pull request 1554).
    """
    until = time.monotonic() + _DETACH_SECONDS
    while threads() - running and time.monotonic() < until:
        torch.cuda.synchronize()
        time.sleep(_LOOK_SECONDS)


def record(
    model: nn.Module, ranges: AbstractContextManager[None], run: Callable[[], object]
) -> tuple[list[Any], list[Primitive]]:
    """Profile one run, with ranges around convolution calls; return events and oneDNN's reports."""
    on_gpu = parts.device_type(model) == "cuda"
    device = torch.device("cuda") if on_gpu else None
    with onednn.listening() as lines, ranges, session(device) as profiler:
        run()
    return events_of(profiler), onednn.parse(lines)


def events_of(profiler: profile) -> list[Event]:
    """Return the operators and ranges of a session in order, as torch's own reader does.

    That reader takes eighty microseconds an event, most of it for what nobody asks here. An
    operator that only calls one of its name is one with it.
    """
    results = profiler.profiler.kineto_results
    on_gpu = profiler.profiler.use_device is not None
    kernels = kernels_by_operator(results) if on_gpu else {}
    found = list[Event]()
    tree = results.experimental_event_tree()
    todo: list[tuple[Any, Event | None]] = [(record, None) for record in reversed(tree)]
    while todo:
        record, around = todo.pop()
        name = record.name
        # else a call of the GPU's runtime, or a kernel, which is known by its operator
        is_own = not on_gpu or record.tag != _RUNTIME
        if is_own and name not in _UNTOLD:
            ran = kernels.get(record.correlation_id, []) if kernels else []
            around = Event(name, record, ran, around)
            found.append(around)
        todo += [(inner, around) for inner in reversed(record.children)]
    return [event for event in found if not event.is_merged()]


def kernels_by_operator(results: Any) -> dict[int, list[RecordedKernel]]:  # noqa: ANN401 - torch's own
    """Return the kernels of a session by the number of the operator that launched each.

    A session on a GPU without any is noted; it launched hundreds.
    """
    found: dict[int, list[RecordedKernel]] = defaultdict(list)
    is_empty = True
    for event in results.events():
        if event.device_type() != torch.autograd.DeviceType.CUDA:
            continue
        is_empty = False
        kernel = RecordedKernel(event.name(), event.duration_ns() / 1000)
        found[event.linked_correlation_id()].append(kernel)
    note_session(is_empty=is_empty)
    found.pop(0, None)  # nobody knows who launched them
    return found


def note_session(*, is_empty: bool) -> None:
    """Note whether a session on a GPU has no kernel.

    Without CUPTI none has any: in some containers, on parts of a GPU, or without permission.
    """
    _SESSIONS.empty = _SESSIONS.empty + 1 if is_empty else 0


def sees_kernels() -> bool:
    """Say whether the profiler of this process may see kernels: not two sessions saw none."""
    return _SESSIONS.empty < _EMPTY_IF_BLIND


def passes(model: nn.Module) -> int:
    """Return how often a network may be profiled: on a GPU, sessions lose kernels."""
    return _PASSES if parts.device_type(model) == "cuda" and sees_kernels() else 1


def calls(events: Iterable[Any], mark: str) -> list[Call]:
    """Return the marked calls, in the order in which their ranges were numbered."""
    by_number: dict[int, Call] = {}
    for event in events:
        if is_range(event, mark):
            _, number, wants, layer = event.name.split("|", 3)
            new = Call(layer, frozenset(map(Direction, wants.split())))
            by_number.setdefault(int(number), new).events.append(event)
    return [by_number[number] for number in sorted(by_number)]


def is_range(event: Any, mark: str) -> bool:  # noqa: ANN401 - the profiler's own record
    """Say whether an event is a range; its copy on the GPU's time line is none."""
    return event.name.startswith(mark) and is_on_host(event)


def is_operator(event: Any) -> bool:  # noqa: ANN401
    """Say whether an event is an operator: no range, no function of autograd by a user's name."""
    return "::" in event.name and event.scope != _RANGE


def is_on_host(event: Any) -> bool:  # noqa: ANN401
    """Say whether an event is on the host's time line."""
    return bool(event.device_type == torch.autograd.DeviceType.CPU)


def pair(picked: Iterable[LayerChoice], ran_calls: Iterable[Call]) -> list[Call | None]:
    """Give each choice the next call of its layer; other calls of the pass may lie between."""
    waiting: dict[str, deque[Call]] = defaultdict(deque)
    for call in ran_calls:
        waiting[call.layer].append(call)
    paired: list[Call | None] = []
    for choice in picked:
        of_layer = waiting[choice.layer]
        paired.append(of_layer.popleft() if of_layer else None)
    return paired


def look_into(
    events: Iterable[Any], *, themselves: bool = False, apart: bool = False
) -> Observation:
    """Return what ran inside of events.

    Of an operator that runs more than once, `telling` has one run of each size.
    The profiler attaches kernels to the innermost operator, never to a range. So for events that
    are operators, `themselves` includes their own kernels. `apart` leaves out what ran in ranges of
    other calls.
    """
    events = list(events)
    inside = list(events) if themselves else []
    for event in events:
        inside += descendants(event, apart=apart)
    ranges = {inner.name for inner in inside}  # a GPU's time line has copies of them
    operators = []
    library_calls = []
    kernels = []
    microseconds = 0.0
    telling = []
    for event in events:
        telling += _telling(event)
    for inner in inside:
        if is_operator(inner):
            operators.append(inner.name)
        if _kind(inner.name).is_library_call:
            library_calls.append(inner.name)
        for kernel in inner.kernels:
            if kernel.name not in ranges:
                kernels.append(kernel.name)
                microseconds += kernel.duration
    kernel_ms = microseconds / 1000 if kernels else None
    return Observation(operators, library_calls, kernels, list(dict.fromkeys(telling)), kernel_ms)


def descendants(event: Any, *, apart: bool = False) -> Iterator[Any]:  # noqa: ANN401
    """Yield all operators inside an event, in order; not those of other calls, if `apart`."""
    todo = event.cpu_children[::-1]
    while todo:
        inner = todo.pop()
        if not (apart and inner.name.startswith(_OF_CALLS)):
            yield inner
            todo += inner.cpu_children[::-1]


def _telling(event: Any) -> list[Operation]:  # noqa: ANN401
    """Return what tells algorithms apart in an event: what is innermost, but products whole.

    Torch may run one product by others: `addmm_` for each image of a `baddbmm_`.
    """
    kind = _kind(event.name)
    if kind.is_whole and is_operator(event):
        return [_operation(event)]
    inside = []
    for inner in event.cpu_children:
        inside += _telling(inner)
    if inside:
        return inside
    tells = kind.tells and is_operator(event)
    return [_operation(event)] if tells or kind.is_library_call else []


class _Kind(NamedTuple):
    """What a name says of an event, if it is an operator's; `is_whole` is not looked into."""

    is_whole: bool
    tells: bool
    is_library_call: bool


# by the name alone: to look up patterns for each event takes a third of the time of a proof
@lru_cache(maxsize=10_000)
def _kind(name: str) -> _Kind:
    return _Kind(matches(name, _WHOLE), matches(name, TELLING), matches(name, LIBRARY_CALLS))


def _operation(event: Any) -> Operation:  # noqa: ANN401
    size: tuple[int, ...] | None = product_size(event)
    if size is None and matches(event.name, TRANSFORMS) and event.input_shapes:
        size = tuple(event.input_shapes[0][-2:])
    return Operation(event.name, size or ())


def product_size(event: Any) -> tuple[int, int, int, int] | None:  # noqa: ANN401
    """Return (batch, m, k, n) of a matrix product whose operand sizes were recorded."""
    if not matches(event.name, PRODUCTS):
        return None
    first = 1 if event.name.startswith(ADDING) else 0
    operands = list(event.input_shapes or ())[first : first + 2]
    if len(operands) < 2:
        return None
    left, right = operands
    if len(left) < 2 or len(right) < 2:
        return None
    return prod(left[:-2]), left[-2], left[-1], right[-1]
