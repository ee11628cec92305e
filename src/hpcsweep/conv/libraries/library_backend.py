"""What the back-ends of vendors' libraries share: they ask for support first, and copy nothing.

A library turns a problem (direction, algorithm, shape, layout, TF32) into a *plan*, or into the
reason why it has none. Plans hold descriptors and are kept, so that asking again and
running cost little. A plan works with torch's own memory: tensors by address, the current stream,
scratch memory from the caching allocator. It copies nothing, allocates nothing from the driver, and
does not wait for the device.
"""

from __future__ import annotations

import ctypes
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd.profiler import record_function

from hpcsweep import catalog
from hpcsweep.conv.backend import (
    FRAMEWORK_BACKWARD,
    LIBRARY_CALLS,
    Convolve,
    Direction,
    Expected,
    Gradient,
    choose,
)
from hpcsweep.conv.libraries import operator
from hpcsweep.conv.libraries.driver import (
    Library,
    LibraryError,
    NotSupported,
    Plan,
    Problem,
    no_gpu,
)
from hpcsweep.conv.shape import NCHW, NHWC, ConvShape

if TYPE_CHECKING:
    from typing_extensions import Self

L = TypeVar("L", bound=Library)
_GRADIENT_OF: Final[Mapping[Direction, str]] = {
    Direction.DATA: "the input",
    Direction.FILTER: "the filters",
}
_FRAMEWORK_CALLS: Final = (
    "aten::cudnn_convolution*",
    "aten::miopen_convolution*",
    FRAMEWORK_BACKWARD,
)
_FRAMEWORK_GRADIENT: Final = Expected(must=((FRAMEWORK_BACKWARD,),), must_not=LIBRARY_CALLS)
_NO_RANGE: Final = nullcontext()
_MIB: Final = 1 << 20
_LAYOUTS: Final = {NCHW: torch.contiguous_format, NHWC: torch.channels_last}


class VendorBackend(ABC, Generic[L]):
    """A back-end by a library, loaded when it is first needed; the engine of torch's operators."""

    name: ClassVar[str]  # what the column `backend` says; the operators are given it
    gpus: ClassVar[str]  # whose the library serves
    creates: ClassVar[tuple[Any, ...]]  # the function that makes a handle, and what it takes

    def __init__(self, find: Callable[[], L], device_type: str = "cuda") -> None:
        """Serve a kind of device by the library that is found."""
        self._find = find
        self._device_type = device_type
        self._handles = threading.local()  # for each thread and device
        self._answers: dict[tuple[Problem, int], Plan | str] = {}
        self._tried: set[tuple[Problem, int]] = set()
        self.most_workspace = math.inf
        operator.ENGINES[self.name] = self

    @cached_property
    def library(self) -> L:
        """The library.

        Raises:
            LibraryUnusable: it cannot be loaded.
        """
        return self._find()

    def handle(self, device: int, stream: int) -> ctypes.c_void_p:
        """Return this thread's handle of a device, set to a stream.

        Raises:
            LibraryUnusable: the library finds no GPU here.
        """
        handles: dict[int, ctypes.c_void_p] = self._handles.__dict__.setdefault("of", {})
        if device not in handles:
            made = ctypes.c_void_p()
            function, *more = self.creates
            try:
                self.library.call(function, ctypes.byref(made), *more)
            except LibraryError as error:
                raise no_gpu(self.library.vendor, self.gpus, error) from error
            handles[device] = made
        self.library.call(f"{self.name}SetStream", handles[device], stream)
        return handles[device]

    @abstractmethod
    def plan(self, problem: Problem, device: int) -> Plan:
        """Return how a problem is done on a device; raise `NotSupported`, or its error."""

    @abstractmethod
    def _names(self, problem: Problem, device: int, most: int) -> list[str]:
        """Return the names of plans: at most so many of the heuristic's, then those left out."""

    @abstractmethod
    def backward_name(self, way: Direction, algorithm: str) -> str | None:
        """Return what a gradient runs when its layer runs an algorithm; None: the framework's."""

    @abstractmethod
    def _kernels(self, algorithm: str) -> Expected:
        """Return the kernels that prove an algorithm, or disprove it."""

    def __deepcopy__(self, _memo: object) -> Self:
        return self  # shared by copies of a network: plans and handles belong to the process

    def __reduce__(self) -> tuple[Any, ...]:
        return choose, (self._device_type,)  # found again by a process that unpickles a network

    def unsupported(self, algorithm: str, shape: ConvShape) -> str | None:
        """Return None if the library can do the shape, else its reason. Runs it once to be sure."""
        answer = self._forward_answer(algorithm, shape)
        return answer if isinstance(answer, str) else None

    def plans(self, shape: ConvShape, most: int) -> list[str]:
        """Return the names of the library's plans for a forward call."""
        problem = _problem(Direction.FORWARD, catalog.HEURISTIC, shape)
        return self._names(problem, self._current(), most)

    def about(self, algorithm: str, shape: ConvShape) -> tuple[int | None, str | None, str | None]:
        """Return the scratch memory of a plan, its name and its notes."""
        answer = self._forward_answer(algorithm, shape)
        if isinstance(answer, str):
            return None, None, None
        return answer.workspace_bytes, *answer.name_and_notes

    def forward(
        self, algorithm: str, x: Tensor, weight: Tensor, bias: Tensor | None, shape: ConvShape
    ) -> Tensor:
        """Convolve; the call was found supported before."""
        steps = (shape.stride, shape.padding, shape.dilation, shape.groups, shape.layout == NHWC)
        out = torch.ops.hpcsweep.convolution(
            x, weight, shape.output_size, self.name, algorithm, *steps
        )
        if bias is None:
            return out
        bias = bias.view(-1, 1, 1)
        return out + bias if out.requires_grad else out.add_(bias)

    def prepared(self, algorithm: str, shape: ConvShape) -> Convolve:
        """Return calls that run the plan without torch's operator, unless somebody looks at it.

        The operator costs some tens of microseconds of Python. Autograd, the profiler, modes and
        subclasses of tensors need it, and so do switches that have changed since.
        """
        problem = _problem(Direction.FORWARD, algorithm, shape)
        plan = self._answer(problem, most_workspace=math.inf)
        switches = _switches()
        size = shape.output_size
        dtype = getattr(torch, shape.dtype)
        device = self._current() if self._device_type == "cuda" else -1  # as tensors number it

        def convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            elsewhere = x.get_device() != device or weight.get_device() != device
            other = x.dtype != dtype or weight.dtype != dtype or _switches() != switches
            if isinstance(plan, str) or elsewhere or other or _is_observed(x, weight):
                return self.forward(algorithm, x, weight, bias, shape)
            out = _queue(plan, x, weight, size, shape.layout)
            return out if bias is None else out.add_(bias.view(-1, 1, 1))

        return convolve

    def expected(self, algorithm: str, shape: ConvShape) -> Expected:
        """Return the operator, the library's call and the kernels that prove an algorithm."""
        answer = self._forward_answer(algorithm, shape)
        called = Expected() if isinstance(answer, str) else self._called(answer, algorithm)
        name = operator.NAMES[Direction.FORWARD]
        return replace(called, must=((name,), *called.must))

    def gradients(self, algorithm: str, shape: ConvShape) -> tuple[Gradient, ...]:
        """Return what the gradients of input and filters run; asked here, not in the first step."""
        return tuple(self._gradient(way, algorithm, shape) for way in _GRADIENT_OF)

    def _gradient(self, way: Direction, algorithm: str, shape: ConvShape) -> Gradient:
        name = self.backward_name(way, algorithm)
        inside = operator.NAMES[way]
        if name is None:
            reason = f"{self.name} has no {algorithm} for the gradient of {_GRADIENT_OF[way]}"
        else:
            answer = self._answer(_problem(way, name, shape))
            if not isinstance(answer, str):
                expected = replace(self._called(answer, name), inside=inside)
                return Gradient(way, name, expected, None, answer.workspace_bytes)
            reason = f"gradient of {_GRADIENT_OF[way]}: {answer}"
        return Gradient(way, None, replace(_FRAMEWORK_GRADIENT, inside=inside), reason)

    def _called(self, plan: Plan, algorithm: str) -> Expected:
        """Return the library's call and the kernels that prove an algorithm."""
        kernels = self._kernels(algorithm)
        return replace(kernels, must=((plan.call,),), must_not=_FRAMEWORK_CALLS)

    def compute(
        self,
        way: Direction,
        first: Tensor,
        second: Tensor,
        size: Sequence[int],
        algorithm: str,
        *steps: Any,  # noqa: ANN401 - stride, padding, dilation, groups, whether NHWC
    ) -> Tensor:
        """Return an output or a gradient; a gradient by the framework where the library cannot."""
        if first.device != second.device or first.dtype != second.dtype:
            raise TypeError(
                f"a convolution of {first.dtype} on {first.device} got {second.dtype} on "
                f"{second.device}"
            )
        x, weight = {
            Direction.FORWARD: (first.shape, second.shape),
            Direction.DATA: (size, second.shape),
            Direction.FILTER: (second.shape, size),
        }[way]
        shape = operator.shape_of(first.dtype, x, weight, steps)
        name = algorithm
        if way is not Direction.FORWARD:
            name = self.backward_name(way, algorithm) or ""  # empty: the library has none
            if not name or isinstance(self._answer(_problem(way, name, shape)), str):
                return _framework_gradient(way, first, second, size, shape)
        problem = _problem(way, name, shape)
        plan = self._answer(problem, most_workspace=math.inf)  # the limit counts in decisions
        if isinstance(plan, str):
            raise NotSupported(f"{self.name} {name} ({way.value}): {plan}")
        return _queue(plan, first, second, size, shape.layout)

    def _forward_answer(self, algorithm: str, shape: ConvShape) -> Plan | str:
        return self._answer(_problem(Direction.FORWARD, algorithm, shape))

    def _answer(self, problem: Problem, most_workspace: float | None = None) -> Plan | str:
        """Return the plan of a problem, or why there is none; asked and tried once."""
        most = self.most_workspace if most_workspace is None else most_workspace
        key = problem, self._current()
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = self._ask(*key)
        if isinstance(answer, str):
            return answer
        if answer.workspace_bytes > most:
            needed = answer.workspace_bytes / _MIB
            return f"a workspace of {needed:.1f} MiB; {most / _MIB:g} MiB are allowed"
        if key not in self._tried:
            answer = self._answers[key] = self._try(answer, problem)
            self._tried.add(key)
        return answer

    def _current(self) -> int:
        return torch.cuda.current_device() if self._device_type == "cuda" else 0

    def _ask(self, problem: Problem, device: int) -> Plan | str:
        """Plan a problem; any status of the library is an answer, unless it broke the device."""
        try:
            return self.plan(problem, device)
        except NotSupported as error:
            return str(error)
        except LibraryError as error:
            self._wait()
            return f"failed when planned: {error}"

    def _try(self, plan: Plan, problem: Problem) -> Plan | str:
        """Run a plan once: some libraries take a problem and then do not do it.

        Return the plan, or why it did not run, as TensorFlow and XLA, too, leave out an algorithm
        that fails when tried. Where there is no memory for that, the real run will say so.
        """
        *operands, size = problem.sizes
        dtype = getattr(torch, problem.shape.dtype)
        try:
            first, second = (
                torch.zeros(sizes, dtype=dtype, device=self._device_type) for sizes in operands
            )
            _queue(plan, first, second, size, problem.layout)
        except NotSupported as error:
            return str(error)
        except RuntimeError as error:
            self._wait()
            no_memory = "out of memory" in str(error) or "ALLOC" in str(error)
            return plan if no_memory else f"failed when tried: {error}"
        self._wait()
        return plan

    def _wait(self) -> None:
        """Wait until the device is idle; raise its error if an earlier call broke it."""
        if self._device_type == "cuda" and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()


def _problem(way: Direction, algorithm: str, shape: ConvShape) -> Problem:
    # the bias is added by torch; a copy costs a tenth of a call
    without_bias = replace(shape, bias=False) if shape.bias else shape
    tf32 = shape.dtype == "float32" and tf32_allowed()
    return Problem(way, algorithm, without_bias, shape.layout, tf32, determinism_wanted())


def determinism_wanted() -> bool:
    """Say whether a point asks for the same bits every time, by either switch of torch."""
    return torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()


def tf32_allowed() -> bool:
    """Say whether torch lets convolutions use TF32, by the switch that this torch has."""
    cudnn = torch.backends.cudnn
    precision = getattr(getattr(cudnn, "conv", None), "fp32_precision", None)
    return bool(cudnn.allow_tf32) if precision is None else precision == "tf32"


def _switches() -> tuple[bool, bool]:
    """Return what a plan depends on beside its shape; both may change between calls."""
    return tf32_allowed(), determinism_wanted()


def _is_observed(x: Tensor, weight: Tensor) -> bool:
    """Say whether autograd, a profiler, a tracer, a mode or a subclass needs an operator."""
    learns = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    of_torch = torch._C  # noqa: SLF001 - the public names cost ten times as much
    looked_at = torch.autograd._profiler_enabled() or of_torch._is_tracing()  # noqa: SLF001
    looked_at = looked_at or of_torch._len_torch_dispatch_stack()  # noqa: SLF001
    plain = type(x) is Tensor and type(weight) in {Tensor, torch.nn.Parameter}
    return bool(learns or looked_at or not plain)


def _stream(tensor: Tensor) -> int:
    """Return the current stream of a tensor's device, as libraries take it."""
    if tensor.device.type != "cuda":
        return 0
    return int(torch.cuda.current_stream(tensor.device).cuda_stream)


def _queue(plan: Plan, first: Tensor, second: Tensor, size: Sequence[int], layout: str) -> Tensor:
    """Run a plan on the current stream; return its result.

    Operands that are not in the layout of the problem are converted, as by the framework.
    """
    form = _LAYOUTS[layout]
    first = first.contiguous(memory_format=form)
    second = second.contiguous(memory_format=form)
    out = operator.empty(first, size, nhwc=layout == NHWC)
    scratch = out.new_empty(plan.workspace_bytes, dtype=torch.uint8)
    addresses = first.data_ptr(), second.data_ptr(), out.data_ptr(), scratch.data_ptr()
    profiled = torch.autograd._profiler_enabled()  # noqa: SLF001 - a range costs, and asking nothing
    with record_function(plan.call) if profiled else _NO_RANGE:
        plan.run(*addresses, _stream(first))
    return out


def _framework_gradient(
    way: Direction, grad: Tensor, second: Tensor, size: Sequence[int], shape: ConvShape
) -> Tensor:
    """Return the framework's gradient; an empty tensor stands in for the operand not needed."""
    wants_x = way is Direction.DATA
    absent = operator.empty(grad, size, nhwc=shape.layout == NHWC)
    x, weight = (absent, second) if wants_x else (second, absent)
    gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        *(grad, x, weight, None, shape.stride, shape.padding, shape.dilation),
        False,  # noqa: FBT003 - not transposed
        *((0, 0), shape.groups, (wants_x, not wants_x, False)),
    )
    return gradients[0 if wants_x else 1]
