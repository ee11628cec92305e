"""Finds the convolution calls of a PyTorch profiler's trace, and the kernels that each launched.

A kernel belongs to the operator in which it was launched, by the launch's `correlation`, or else by
the operator's `External id`. Wrappers such as `aten::conv2d` have the arguments, and the innermost
operator has the kernels. Both gradients of a convolution are one call.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, NamedTuple

from hpcsweep.records import dataclass, field

_OPERATOR: Final = re.compile(r"aten::\w*conv(?!ert)\w*")
_BACKWARD: Final = re.compile(r"backward\w*$")
_STEP: Final = re.compile(r"ProfilerStep#\d+")
_NODE: Final = re.compile(r"\w*Conv\w*Backward\w*")  # autograd's, with the number of its forward
_LAUNCHES: Final = {"runtime", "cuda_runtime", "cuda_driver", "hip_runtime"}
_OPERATORS: Final = {"operator", "cpu_op"}
_DEEP: Final = 64  # operators inside each other
_MOST_NAMES: Final = 50_000  # of kernels; a trace has some hundred
_LONGEST: Final = 2_000  # characters of a kernel's name


class Arguments(NamedTuple):
    """What a trace recorded of an operator's arguments; empty where it did not."""

    dims: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()
    strides: tuple[tuple[int, ...], ...] = ()
    values: tuple[str, ...] = ()


class Operator(NamedTuple):
    """An operator that convolves, or a node of autograd that does."""

    start: float
    end: float
    name: str
    arguments: Arguments
    external: int | None
    sequence: int | None


@dataclass
class Call:
    """A convolution call: its operators, the outermost first, and their kernels in time."""

    operators: list[Operator]
    kernels: list[tuple[float, float, str, str]] = field(default_factory=list)  # with operator

    @property
    def start(self) -> float:
        return self.operators[0].start

    @cached_property
    def wrappers(self) -> frozenset[str]:
        """The operators that call others to convolve: what they launch adds the bias."""
        pairs = pairwise(self.operators)
        return frozenset(outer.name for outer, inner in pairs if inner.end <= outer.end)

    def innermost(self, at: float) -> Operator:
        """Return the operator that ran at a time."""
        place = bisect_right(self.operators, at, key=attrgetter("start"))
        inside = (
            op for op in reversed(self.operators[max(place - _DEEP, 0) : place]) if op.end >= at
        )
        return next(inside, self.operators[0])

    @property
    def backward(self) -> bool:
        return _BACKWARD.search(self.operators[0].name) is not None

    @property
    def milliseconds(self) -> float:
        return sum(duration for _, duration, *_ in self.kernels) / 1000


class Trace:
    """What the events of a trace say of its convolutions."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.events = 0
        self.kernels = 0
        self.device: int = 0
        self._operators: dict[tuple[str, str], list[Operator]] = defaultdict(list)
        self._nodes: dict[tuple[str, str], list[Operator]] = defaultdict(list)
        self._threads: dict[tuple[str, str], int] = {}
        self._names: dict[str, int] = {}
        self._shared: dict[Any, Any] = {}
        # launches and kernels are too many for objects
        self._launch_id, self._launch_at, self._launch_on = array("q"), array("d"), array("l")
        self._kernel_id, self._kernel_of = array("q"), array("q")
        self._kernel_at, self._kernel_took, self._kernel_name = array("d"), array("d"), array("l")

    def add(self, event: Any) -> None:  # noqa: ANN401 - any JSON
        """Take an event; what is no complete one, or not needed, is left out."""
        self.events += 1
        if not isinstance(event, dict) or event.get("ph") != "X":
            return
        kind, name, args = str(event.get("cat")).lower(), event.get("name"), event.get("args")
        at, took = _number(event.get("ts")), _number(event.get("dur"))
        if not isinstance(name, str) or at is None or took is None:
            return
        args = args if isinstance(args, dict) else {}
        thread = str(event.get("pid")), str(event.get("tid"))
        if kind == "kernel":
            self._add_kernel(name, at, took, args)
        elif kind in _LAUNCHES:
            if (number := _whole(args.get("correlation"))) is not None:
                self._launch_id.append(number)
                self._launch_at.append(at)
                self._launch_on.append(self._threads.setdefault(thread, len(self._threads)))
        elif _STEP.fullmatch(name) and kind != "gpu_user_annotation":
            self.steps.append(at)
        elif kind in _OPERATORS and _OPERATOR.fullmatch(name):
            self._operators[thread].append(self._operator(name, at, took, args))
        elif kind in _OPERATORS and _NODE.fullmatch(name):
            self._nodes[thread].append(self._operator(name, at, took, args))

    def _add_kernel(self, name: str, at: float, took: float, args: dict[str, Any]) -> None:
        self.kernels += 1
        short = name[:_LONGEST]
        if short not in self._names and len(self._names) >= _MOST_NAMES:
            short = ""
        self._kernel_name.append(self._names.setdefault(short, len(self._names)))
        self._kernel_at.append(at)
        self._kernel_took.append(took)
        for column, number in (
            (self._kernel_id, _whole(args.get("correlation"))), (self._kernel_of, _external(args)),
        ):  # fmt: skip
            column.append(-1 if number is None else number)
        self.device = _whole(args.get("device")) or 0

    def _operator(self, name: str, at: float, took: float, args: dict[str, Any]) -> Operator:
        arguments = Arguments(
            _lists(args.get("Input Dims", args.get("Input dims"))),
            _texts(args.get("Input type")), _lists(args.get("Input Strides")),
            _texts(args.get("Concrete Inputs")),
        )  # fmt: skip
        arguments = self._shared.setdefault(arguments, arguments)
        return Operator(
            at, at + took, self._shared.setdefault(name, name), arguments, _external(args),
            _whole(args.get("Sequence number")),
        )  # fmt: skip

    def calls(self) -> list[Call]:
        """Return the convolution calls in time, each with its kernels."""
        of_thread = {thread: _nested(ops) for thread, ops in self._operators.items()}
        every = [call for calls in of_thread.values() for call in calls]
        launched = self._launched(of_thread)
        by_external = {
            op.external: (call, op.name)
            for call in every for op in call.operators
            if op.external is not None and op.name not in call.wrappers
        }  # fmt: skip
        names = [*self._names]
        launches = {*self._launch_id}
        columns = (self._kernel_id, self._kernel_of, self._kernel_at, self._kernel_took)
        for number, external, at, took, name in zip(*columns, self._kernel_name, strict=True):
            owner = launched.get(number)
            if owner is None and number not in launches:
                owner = by_external.get(external)
            if owner is not None:
                owner[0].kernels.append((at, took, names[name], owner[1]))
        for call in every:
            call.kernels.sort()
        return sorted(every, key=attrgetter("start"))

    def _launched(
        self, of_thread: dict[tuple[str, str], list[Call]]
    ) -> dict[int, tuple[Call, str]]:
        """Return the call and its innermost operator that made each launch, of those in calls."""
        calls: dict[int, list[Call]] = {
            self._threads[thread]: calls
            for thread, calls in of_thread.items() if thread in self._threads
        }  # fmt: skip
        starts = {thread: [call.start for call in of] for thread, of in calls.items()}
        launched = {}
        columns = (self._launch_id, self._launch_at, self._launch_on)
        for number, at, thread in zip(*columns, strict=True):
            place = bisect_right(starts.get(thread, ()), at) - 1
            if place >= 0 and at <= calls[thread][place].operators[0].end:
                call = calls[thread][place]
                operator = call.innermost(at)
                if operator.name not in call.wrappers:
                    launched[number] = call, operator.name
        return launched

    def output_dims(self) -> dict[int, tuple[int, ...]]:
        """Return the output's sizes of forward calls, by their sequence numbers.

        The gradient that a node of autograd takes is of the size of the output.
        """
        return {
            node.sequence: node.arguments.dims[0]
            for nodes in self._nodes.values() for node in nodes
            if node.sequence is not None and node.arguments.dims
        }  # fmt: skip


def _nested(operators: Iterable[Operator]) -> list[Call]:
    """Return the calls of a thread: operators inside another one belong to its call."""
    calls: list[Call] = []
    for operator in sorted(operators, key=lambda op: (op.start, -op.end)):
        if calls and operator.start < calls[-1].operators[0].end:
            calls[-1].operators.append(operator)
        else:
            calls.append(Call([operator]))
    return calls


def _number(value: Any) -> float | None:  # noqa: ANN401 - any JSON
    return value if type(value) in {int, float} and abs(value) < 1e300 else None


def _whole(value: Any) -> int | None:  # noqa: ANN401 - any JSON
    return value if type(value) is int and abs(value) < 1 << 62 else None


def _external(args: dict[str, Any]) -> int | None:
    return _whole(args.get("External id", args.get("external id")))


def _lists(value: Any) -> tuple[tuple[int, ...], ...]:  # noqa: ANN401 - any JSON
    """Return sizes of operands; an operand without sizes, or a list of such, has none."""
    if not isinstance(value, list):
        return ()
    return tuple(
        tuple(sizes) if isinstance(sizes, list) and all(type(n) is int for n in sizes) else ()
        for sizes in value
    )


def _texts(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - any JSON
    return tuple(map(str, value)) if isinstance(value, list) else ()
