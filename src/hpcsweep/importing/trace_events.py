"""Finds the convolution calls of a PyTorch profiler's trace, and the kernels that each launched.

A kernel belongs to the operator in which it was launched, by the launch's `correlation`, or else by
the operator's `External id`. All that was launched inside of the outermost operator, such as
`aten::conv2d`, is the call's: transposes and the bias, too, whatever the library. Memory that is
set or copied by no kernel is not. What the operators around the innermost one launched themselves
tells nothing of the algorithm. Both gradients of a convolution are one call.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.importing import unpacking

_OPERATOR: Final = re.compile(r"aten::\w*conv(?!ert)\w*")
_BACKWARD: Final = re.compile(r"backward\w*$")
_STEP: Final = re.compile(r"ProfilerStep#\d+")
_NODE: Final = re.compile(r"\w*Conv\w*Backward\w*")  # autograd's, with the number of its forward
_LAUNCHES: Final = {"runtime", "cuda_runtime", "cuda_driver", "hip_runtime"}
_OPERATORS: Final = {"operator", "cpu_op"}
_OTHER: Final = "other"  # a kind of our own: an operator that does not convolve
_MOST: Final = 1 << 30  # bytes of a trace, unpacked: it is read at once, which takes thrice that

Thread = tuple[str, str]


class Argument(NamedTuple):
    """What a trace recorded of an argument; empty where it did not."""

    sizes: tuple[int, ...] = ()
    type: str = ""
    strides: tuple[int, ...] = ()
    value: str = ""


class Operator(NamedTuple):
    """An operator that convolves, or a node of autograd that does."""

    start: float
    end: float
    name: str
    arguments: tuple[Argument, ...]
    external: int | None
    sequence: int | None


class Kernel(NamedTuple):
    """A kernel, by the operator that launched it, if that convolves; times are microseconds."""

    start: float
    duration: float
    name: str
    operator: str


@dataclass
class TracedCall:
    """A convolution call: its operators, the outermost first, and their kernels in time."""

    operators: list[Operator]
    kernels: list[Kernel] = field(default_factory=list)

    @property
    def start(self) -> float:
        return self.operators[0].start

    def operator(self, at: float) -> str:
        """Return the operator that ran at a time; "" for one that calls another to convolve."""
        ends = [*(inner.end for inner in self.operators[1:]), math.inf]
        pairs = zip(reversed(self.operators), reversed(ends), strict=True)
        running = (op.name if op.end < end else "" for op, end in pairs if op.start <= at <= op.end)
        return next(running, "")

    @property
    def telling(self) -> list[Kernel]:
        """The kernels of the operators that convolved; all, where none is known."""
        return [kernel for kernel in self.kernels if kernel.operator] or self.kernels

    @property
    def backward(self) -> bool:
        return _BACKWARD.search(self.operators[0].name) is not None

    @property
    def milliseconds(self) -> float:
        return sum(kernel.duration for kernel in self.kernels) / 1000


def read(path: Path) -> tuple[list[Any], dict[str, Any]]:
    """Return the events of a trace, packed by gzip or not, and what else its document has.

    Events that `Trace` does not need are None. `ResultsError` where it cannot be read, `UsageError`
    where it is no trace.
    """
    with unpacking.opened(path, _MOST, "profile fewer steps") as file:
        try:
            data = file.read()
            text = data.decode(json.detect_encoding(data), "replace")
            document = json.loads(text, strict=False, object_hook=_if_needed)
        except (ValueError, RecursionError) as error:
            text = f"{path}: is no JSON ({error}); if the file was cut, export it again"
            raise ResultsError(text) from error
    head = document if isinstance(document, dict) else {"traceEvents": document}
    events = head.pop("traceEvents", None)
    if not isinstance(events, list):
        raise UsageError(f"{path}: has no list 'traceEvents', so it is no profiler trace")
    return events, head


def _if_needed(found: dict[str, Any]) -> dict[str, Any] | None:
    """Leave out an event that says nothing of kernels, launches, operators or steps.

    Of an operator that does not convolve, its place is kept: it may launch for one that does.
    """
    if "ph" not in found:
        return found
    name = found.get("name")
    if found["ph"] != "X" or not isinstance(name, str):
        return None
    kind = str(found.get("cat")).lower()
    operator = kind in _OPERATORS and (_OPERATOR.fullmatch(name) or _NODE.fullmatch(name))
    if operator or kind in {"kernel", *_LAUNCHES} or _STEP.fullmatch(name):
        return found
    args = found.get("args")
    external = args.get("External id") if isinstance(args, dict) else None
    if kind not in _OPERATORS or external is None:
        return None
    place = {key: found.get(key) for key in ("pid", "tid", "ts")}
    return {**place, "cat": _OTHER, "dur": 0, "args": {"External id": external}}


class Trace:
    """What the events of a trace say of its convolutions."""

    def __init__(self, events: Iterable[Any]) -> None:
        self.steps: list[float] = []
        self.devices: set[int | None] = set()  # that ran kernels
        self.graphs = 0  # launches of whole graphs
        # correlation, external id, start, duration, name
        self.kernels: list[tuple[int | None, int | None, float, float, str]] = []
        # where a kernel was launched, by its correlation, or by its operator's external id
        self._launches: dict[int | None, tuple[Thread, float]] = {}
        self._places: dict[int | None, tuple[Thread, float]] = {}
        self._operators: dict[Thread, list[Operator]] = defaultdict(list)
        self._nodes: list[Operator] = []
        for event in filter(None, events):
            self._add(event)

    def _add(self, event: Any) -> None:  # noqa: ANN401 - any JSON
        if not isinstance(event, dict):
            return
        at = _number(event.get("ts"))
        took = _number(event.get("dur"))
        if at is None or took is None or took < 0:
            return
        kind = str(event.get("cat")).lower()
        name = str(event.get("name"))
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        thread = str(event.get("pid")), str(event.get("tid"))
        correlation = _whole(args.get("correlation"))
        external = _whole(args.get("External id", args.get("external id")))
        if kind == "kernel":
            self.kernels.append((correlation, external, at, took, name))
            self.devices.add(_whole(args.get("device")))
        elif kind in _LAUNCHES:
            self.graphs += "GraphLaunch" in name
            before = self._launches.setdefault(correlation, (thread, at))
            if correlation is not None and before[0][0] != thread[0]:
                raise UsageError("events of several processes: import the trace of each rank alone")
        elif kind == _OTHER:
            self._places[external] = thread, at
        elif kind in _OPERATORS and not _STEP.fullmatch(name):
            self._places[external] = thread, at
            sequence = _whole(args.get("Sequence number"))
            operator = Operator(at, at + took, name, _arguments(args), external, sequence)
            is_node = _NODE.fullmatch(name)
            (self._nodes if is_node else self._operators[thread]).append(operator)
        elif kind != "gpu_user_annotation":
            self.steps.append(at)

    def calls(self) -> list[TracedCall]:
        """Return the convolution calls in time, each with its kernels."""
        of_thread = {thread: _nested(ops) for thread, ops in self._operators.items()}
        every = [call for calls in of_thread.values() for call in calls]
        for correlation, external, at, took, name in self.kernels:
            place = None if external is None else self._places.get(external)
            if correlation is not None:
                place = self._launches.get(correlation, place)
            call = _running(of_thread.get(place[0], ()), place[1]) if place else None
            if place and call:
                call.kernels.append(Kernel(at, took, name, call.operator(place[1])))
        for call in every:
            call.kernels.sort()
        return sorted(every, key=attrgetter("start"))

    def output_sizes(self) -> dict[int | None, tuple[int, ...]]:
        """Return the output's sizes of forward calls, by their sequence numbers.

        The gradient that a node of autograd takes is of the size of the output.
        """
        return {
            node.sequence: node.arguments[0].sizes for node in self._nodes
            if node.sequence is not None and node.arguments
        }  # fmt: skip


def _nested(operators: Iterable[Operator]) -> list[TracedCall]:
    """Return the calls of a thread: operators inside another one belong to its call."""
    calls: list[TracedCall] = []
    for operator in sorted(operators, key=lambda op: (op.start, -op.end)):
        if calls and operator.start < calls[-1].operators[0].end:
            calls[-1].operators.append(operator)
        else:
            calls.append(TracedCall([operator]))
    return calls


def _running(calls: Sequence[TracedCall], at: float) -> TracedCall | None:
    """Return the call that ran at a time."""
    place = bisect_right(calls, at, key=attrgetter("start")) - 1
    return None if place < 0 or at > calls[place].operators[0].end else calls[place]


def _arguments(args: dict[str, Any]) -> tuple[Argument, ...]:
    columns: tuple[Iterable[Any], ...] = (
        map(_sizes, as_list(args.get("Input Dims", args.get("Input dims")))),
        map(str, as_list(args.get("Input type"))),
        map(_sizes, as_list(args.get("Input Strides"))),
        map(str, as_list(args.get("Concrete Inputs"))),
    )
    return tuple(Argument(*each) for each in zip_longest(*columns, fillvalue=""))


def as_list(value: object) -> list[Any]:
    """Return a list of any JSON; an empty one for anything else."""
    return value if isinstance(value, list) else []


def _sizes(value: object) -> tuple[int, ...]:
    """Return the sizes of an operand; one without sizes, or a list of operands, has none."""
    sizes = as_list(value)
    return tuple(sizes) if all(type(size) is int for size in sizes) else ()


def _number(value: Any) -> float | None:  # noqa: ANN401 - any JSON
    return value if type(value) in {int, float} and abs(value) < 1e300 else None


def _whole(value: Any) -> int | None:  # noqa: ANN401 - any JSON
    return value if type(value) is int else None
