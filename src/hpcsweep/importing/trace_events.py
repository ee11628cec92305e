"""Finds the convolution calls of a PyTorch profiler's trace, and the kernels that each launched.

A kernel belongs to the operator in which it was launched, by the launch's `correlation`. All that
was launched inside of the outermost operator, such as `aten::conv2d`, is the call's: transposes and
the bias, too, whatever the library. Memory that is set or copied by no kernel is not. What the
operators around the innermost one launched themselves tells nothing of the algorithm. Both
gradients of a convolution are one call.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.importing import unpacking
from hpcsweep.importing.delimited import TAKEN

_OPERATOR: Final = re.compile(r"aten::\w*conv(?!ert)\w*")
_BACKWARD: Final = re.compile(r"backward\w*$")
_STEP: Final = re.compile(r"ProfilerStep#\d+")
_NODE: Final = re.compile(r"\w*Conv\w*Backward\w*")  # autograd's, with the number of its forward
_LAUNCHES: Final = {"runtime", "cuda_runtime", "cuda_driver", "hip_runtime"}
_OPERATORS: Final = {"operator", "cpu_op"}
_STEP_ON_GPU: Final = "gpu_user_annotation"
_MOST: Final = 1 << 30  # bytes of a trace, unpacked: it is read at once, which takes thrice that
_LATEST: Final = 1e300  # a time beyond it is none, and its sums would be infinite

Thread = tuple[str, str]
Sizes = tuple[int, ...]


class Operator(NamedTuple):
    """An operator that convolves, with its arguments as they were recorded."""

    start: float
    end: float
    name: str
    args: dict[str, Any]


class Kernel(NamedTuple):
    """A kernel, by the operator that launched it, if that convolves; times are microseconds."""

    start: float
    duration: float
    name: str
    operator: str = ""


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
        running = ""
        for place, operator in enumerate(self.operators):
            if operator.start <= at <= operator.end:
                following = self.operators[place + 1 : place + 2]
                calls_another = any(other.end <= operator.end for other in following)
                running = "" if calls_another else operator.name
        return running

    @property
    def telling(self) -> list[Kernel]:
        """The kernels of the operators that convolved; all, where none is known."""
        return [kernel for kernel in self.kernels if kernel.operator] or self.kernels

    @property
    def backward(self) -> bool:
        return _BACKWARD.search(self.operators[0].name) is not None


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
    """Leave out an event that says nothing of convolutions, kernels, launches or steps."""
    return found if "ph" not in found or _kind(found) else None


def _kind(event: dict[str, Any]) -> str:
    """Return what an event is: a kernel, launch, operator, node or step; "" for any other."""
    name = event.get("name")
    if event.get("ph") != "X" or not isinstance(name, str):
        return ""
    category = str(event.get("cat")).lower()
    if category == "kernel":
        return "kernel"
    if category in _LAUNCHES:
        return "launch"
    if category in _OPERATORS and _OPERATOR.fullmatch(name):
        return "operator"
    if category in _OPERATORS and _NODE.fullmatch(name):
        return "node"
    return "step" if _STEP.fullmatch(name) and category != _STEP_ON_GPU else ""


class Trace:
    """What the events of a trace say of its convolutions; `counts` has what became of each."""

    def __init__(self, path: Path, events: Iterable[Any]) -> None:
        self._path = path
        self.counts = Counter[str]()
        self.steps: list[float] = []
        self.kernels: list[tuple[int | None, Kernel]] = []  # with the number of its launch
        # The gradient that a node of autograd takes is of the size of the output: by the number
        # that it has in common with the operator of the forward pass.
        self.outputs: dict[int | None, Sizes] = {}
        self._launches: dict[int, tuple[Thread, float]] = {}
        self._operators: dict[Thread, list[Operator]] = defaultdict(list)
        for event in events:
            self.counts[self._add(event)] += 1

    def _add(self, event: Any) -> str:  # noqa: ANN401 - any JSON
        """Take an event, or return why not."""
        kind = _kind(event) if isinstance(event, dict) else ""
        if not kind:
            return "of other kinds"
        at = event.get("ts")
        took = event.get("dur")
        if not (_is_time(at) and _is_time(took)):
            return "without a time"
        args = event.get("args")
        args = (
            {name.lower(): value for name, value in args.items()} if isinstance(args, dict) else {}
        )
        thread = str(event.get("pid")), str(event.get("tid"))
        number = whole(args.get("correlation"))
        if kind == "kernel":
            self.kernels.append((number, Kernel(at, took, event["name"])))
        elif kind == "launch" and number is not None:
            process = self._launches.setdefault(number, (thread, at))[0][0]
            if process != thread[0]:
                text = "events of several processes: import the trace of each rank alone"
                raise UsageError(f"{self._path}: {text}")
        elif kind == "operator":
            self._operators[thread].append(Operator(at, at + took, event["name"], args))
        elif kind == "node":
            gradient = next(iter(as_list(args.get("input dims"))), None)
            number = whole(args.get("sequence number"))
            if number is not None:
                self.outputs[number] = sizes(gradient)
        elif kind == "step":
            self.steps.append(at)
        return TAKEN

    def calls(self) -> list[TracedCall]:
        """Return the convolution calls in time, each with its kernels."""
        of_thread = {thread: _nested(ops) for thread, ops in self._operators.items()}
        for number, kernel in self.kernels:
            if number not in self._launches:
                continue
            thread, at = self._launches[number]
            call = _running(of_thread.get(thread, ()), at)
            if call:
                call.kernels.append(kernel._replace(operator=call.operator(at)))
        every = [call for calls in of_thread.values() for call in calls]
        for call in every:
            call.kernels.sort()
        return sorted(every, key=attrgetter("start"))


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


def as_list(value: object) -> list[Any]:
    """Return a list of any JSON; an empty one for anything else."""
    return value if isinstance(value, list) else []


def sizes(value: object) -> Sizes:
    """Return the sizes of an operand; one without sizes, or a list of operands, has none."""
    found = as_list(value)
    return tuple(found) if all(type(size) is int for size in found) else ()


def whole(value: Any) -> int | None:  # noqa: ANN401 - any JSON
    """Return a whole number of JSON; None for anything else."""
    return value if type(value) is int else None


def _is_time(value: Any) -> bool:  # noqa: ANN401 - any JSON
    return type(value) in {int, float} and 0 <= value < _LATEST
