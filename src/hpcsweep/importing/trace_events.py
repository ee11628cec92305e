"""Finds the convolution calls of a PyTorch profiler's trace, and the kernels that each launched.

A kernel belongs to the operator in which it was launched, by the launch's `correlation`, or else by
the operator's `External id`. Wrappers such as `aten::conv2d` have the arguments, and the innermost
operator has the kernels. Both gradients of a convolution are one call.

A document is read piece by piece, so that its large list is never in memory.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from hpcsweep import files
from hpcsweep.errors import ResultsError, UsageError

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
class TracedCall:
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
        before = reversed(self.operators[max(place - _DEEP, 0) : place])
        return next((op for op in before if op.end >= at), self.operators[0])

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
        self._nodes: list[Operator] = []
        self._threads: dict[tuple[str, str], int] = {}
        self._names: dict[str, int] = {}
        self._shared: dict[Any, Any] = {}
        # launches and kernels are too many for objects
        self._launches = array("q"), array("d"), array("l")  # correlation, start, thread
        # correlation, external id, start, duration, place of the name
        self._kernels = array("q"), array("q"), array("d"), array("d"), array("l")

    def add(self, event: Any) -> None:  # noqa: ANN401 - any JSON
        """Take an event; what is no complete one, or not needed, is left out."""
        self.events += 1
        if not isinstance(event, dict) or event.get("ph") != "X":
            return
        kind = str(event.get("cat")).lower()
        name = event.get("name")
        args = event.get("args")
        at = _number(event.get("ts"))
        took = _number(event.get("dur"))
        if not isinstance(name, str) or at is None or took is None:
            return
        args = args if isinstance(args, dict) else {}
        thread = str(event.get("pid")), str(event.get("tid"))
        if kind == "kernel":
            self._add_kernel(name, at, took, args)
        elif kind in _LAUNCHES:
            if (number := _whole(args.get("correlation"))) is not None:
                place = self._threads.setdefault(thread, len(self._threads))
                _append(self._launches, number, at, place)
        elif _STEP.fullmatch(name) and kind != "gpu_user_annotation":
            self.steps.append(at)
        elif kind in _OPERATORS and _OPERATOR.fullmatch(name):
            self._operators[thread].append(self._operator(name, at, took, args))
        elif kind in _OPERATORS and _NODE.fullmatch(name):
            self._nodes.append(self._operator(name, at, took, args))

    def _add_kernel(self, name: str, at: float, took: float, args: dict[str, Any]) -> None:
        self.kernels += 1
        short = name[:_LONGEST]
        if short not in self._names and len(self._names) >= _MOST_NAMES:
            short = ""
        place = self._names.setdefault(short, len(self._names))
        ids = (_whole(args.get("correlation")), _external(args))
        known = (-1 if number is None else number for number in ids)
        _append(self._kernels, *known, at, took, place)
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

    def calls(self) -> list[TracedCall]:
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
        launches = {*self._launches[0]}
        for number, external, at, took, name in zip(*self._kernels, strict=True):
            owner = launched.get(number)
            if owner is None and number not in launches:
                owner = by_external.get(external)
            if owner is not None:
                owner[0].kernels.append((at, took, names[name], owner[1]))
        for call in every:
            call.kernels.sort()
        return sorted(every, key=attrgetter("start"))

    def _launched(
        self, of_thread: dict[tuple[str, str], list[TracedCall]]
    ) -> dict[int, tuple[TracedCall, str]]:
        """Return the call and its innermost operator that made each launch, of those in calls."""
        calls: dict[int, list[TracedCall]] = {
            self._threads[thread]: calls
            for thread, calls in of_thread.items() if thread in self._threads
        }  # fmt: skip
        starts = {thread: [call.start for call in of] for thread, of in calls.items()}
        launched = {}
        for number, at, thread in zip(*self._launches, strict=True):
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
            node.sequence: node.arguments.dims[0] for node in self._nodes
            if node.sequence is not None and node.arguments.dims
        }  # fmt: skip


def _append(columns: Iterable[array[Any]], *values: float) -> None:
    for column, value in zip(columns, values, strict=True):
        column.append(value)


def _nested(operators: Iterable[Operator]) -> list[TracedCall]:
    """Return the calls of a thread: operators inside another one belong to its call."""
    calls: list[TracedCall] = []
    for operator in sorted(operators, key=lambda op: (op.start, -op.end)):
        if calls and operator.start < calls[-1].operators[0].end:
            calls[-1].operators.append(operator)
        else:
            calls.append(TracedCall([operator]))
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


_MOST: Final = 1 << 36  # bytes of a file
_BLOCK: Final = 1 << 20  # characters that are read at once
_LARGEST: Final = 1 << 25  # characters of a value: the largest events have some thousand
_CUT: Final = 16  # characters at the end in which a value that was cut may seem to be wrong
_BLANK: Final = re.compile(r"[\s,:]*")
_DECODE: Final = json.JSONDecoder(strict=False).raw_decode
_GZIP: Final = b"\x1f\x8b"
_CUT_OFF: Final = "it ends there: the file was cut"


@contextmanager
def opened(path: Path) -> Iterator[io.TextIOWrapper]:
    """Open a file as text, packed by gzip or not; `ResultsError` where it cannot be read."""
    with files.opened(path, most=_MOST) as file:
        packed = file.read(2) == _GZIP
        file.seek(0)
        try:
            plain = gzip.GzipFile(fileobj=file) if packed else file
            yield io.TextIOWrapper(plain, encoding="utf-8-sig", errors="replace")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ResultsError(f"{path}: cannot be read ({error}): export it again") from error


class StreamedJson:
    """An object with a large list under one key, or the list alone.

    `head` has the other values, as far as they were read. `RecursionError`-deep, endless or wrong
    values are a `ResultsError` that says where.
    """

    def __init__(self, path: Path, file: io.TextIOWrapper, key: str) -> None:
        self._path = path
        self._file = file
        self._key = key
        self._text = ""
        self._at = 0
        self._before = 0
        self.head: dict[str, Any] = {}
        self.elements = 0

    def __iter__(self) -> Iterator[Any]:
        """Yield the elements of the list; `UsageError` where there is none."""
        first = self._next()
        if first == "[":
            yield from self._list()
            return
        has_list = False
        if first == "{":
            self._at += 1
            while (char := self._next()) != "}":
                name = self._value() if char == '"' else self._refuse("a key is missing")
                if name == self._key and self._next() == "[":
                    has_list = True
                    yield from self._list()
                else:
                    self.head[name] = self._value()
        if not has_list:
            raise UsageError(f"{self._path}: has no list '{self._key}', so it is no profiler trace")

    def _list(self) -> Iterator[Any]:
        self._at += 1
        while self._next() != "]":
            yield self._value()
            self.elements += 1
        self._at += 1

    def _next(self) -> str:
        """Return the next character that is no blank, comma or colon."""
        while True:
            self._at = _BLANK.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                self._refuse(_CUT_OFF)

    def _value(self) -> Any:  # noqa: ANN401 - any JSON
        self._next()
        while True:
            try:
                value, end = _DECODE(self._text, self._at)
                if end < len(self._text) or self._text[end - 1] in '}]"':
                    self._at = end
                    return value
            except RecursionError:
                self._refuse("nested too deep")
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated") or error.pos > len(self._text) - _CUT
                if not cut:
                    self._at = error.pos
                    self._refuse(error.msg)
            except ValueError:  # Python reads no number of more than some thousand digits
                self._refuse("a number of too many digits")
            if len(self._text) - self._at > _LARGEST:
                self._refuse(f"a value of more than {_LARGEST:,} characters")
            if not self._more():
                self._refuse(_CUT_OFF)

    def _more(self) -> bool:
        """Read as much again as there is of a value, so that a large one is not tried too often."""
        block = self._file.read(max(_BLOCK, len(self._text) - self._at))
        self._before += self._at
        self._text = self._text[self._at :] + block
        self._at = 0
        return bool(block)

    def _refuse(self, why: str) -> Any:  # noqa: ANN401 - never returns
        where = f"character {self._before + self._at:,}"
        raise ResultsError(
            f"{self._path}: no JSON at {where}, after {self.elements:,} elements: {why}"
        )
