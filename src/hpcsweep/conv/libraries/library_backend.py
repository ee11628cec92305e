"""The back-ends of vendors' libraries: they ask for support first, and copy nothing.

A library turns a problem (direction, algorithm, shape, layout, TF32) into a *plan*, or into the
reason why it has none. Plans hold descriptors and are kept, so that asking again and
running cost little. A plan works with torch's own memory: tensors by address, the current stream,
scratch memory from the caching allocator. It copies nothing, allocates nothing from the driver, and
does not wait for the device.

A library is called with addresses, so torch's profiler, autograd and fake tensors know nothing of
the call. So it stands in an operator `hpcsweep::convolution*`, which has a name in traces, so that
kernels can be attributed to a layer; a shape function; and a gradient. Its operands are input and
filters, or a gradient of the output and the other of these two; `size` is that of the result.
"""

from __future__ import annotations

import ctypes
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from hpcsweep.conv.backend import (
    FRAMEWORK_BACKWARD,
    LIBRARY_CALLS,
    Convolve,
    Direction,
    Expected,
    Gradient,
    choose,
)
from hpcsweep.conv.libraries import (
    MEMORY_FORMATS,
    Handles,
    Library,
    LibraryError,
    NotSupported,
    Plan,
    Problem,
    determinism_wanted,
    is_deterministic,
    is_deterministic_everywhere,
    is_profiled,
    is_tracing,
    modes,
    no_gpu,
    tf32_switch,
)
from hpcsweep.conv.shape import NCHW, NHWC, ConvShape

# what must not run in a call that claims a library's algorithm: the framework's own choice
_FRAMEWORK_CALLS: Final = (
    "aten::cudnn_convolution*",
    "aten::miopen_convolution*",
    FRAMEWORK_BACKWARD,
)
_FRAMEWORK_GRADIENT: Final = Expected(must=((FRAMEWORK_BACKWARD,),), must_not=LIBRARY_CALLS)
_MIB: Final = 1 << 20
# the operators: their names by direction, and the back-ends by the name that one is given
NAMES: Final = {
    Direction.FORWARD: "hpcsweep::convolution",
    Direction.DATA: "hpcsweep::convolution_data_gradient",
    Direction.FILTER: "hpcsweep::convolution_filter_gradient",
}
_SCHEMA: Final = (
    "(Tensor first, Tensor second, SymInt[] size, str backend, str algorithm, int[2] stride, "
    "int[2] padding, int[2] dilation, int groups, bool nhwc) -> Tensor"
)
# classes of filters that hide nothing
_PLAIN: Final = frozenset({Tensor, torch.nn.Parameter})
# an operator takes no Python object, so it is given a name; the last back-end of a name counts
ENGINES: Final[dict[str, Any]] = {}


class VendorBackend(ABC):
    """A back-end by a library, loaded when it is first needed; the engine of torch's operators."""

    name: ClassVar[str]  # what the column `backend` says; the operators are given it
    gpus: ClassVar[str]  # whose the library serves
    creates: ClassVar[tuple[Any, ...]]  # the function that makes a handle, and what it takes

    def __init__(self, find: Callable[[], Library], device_type: str = "cuda") -> None:
        """Serve a kind of device by the library that is found."""
        self._find = find
        self._device_type = device_type
        self.handles = Handles(self._new_handle, self._set_stream)
        self._answers: dict[tuple[Problem, int], Plan | str] = {}
        self._tried: set[tuple[Problem, int]] = set()
        self.most_workspace = math.inf
        ENGINES[self.name] = self

    @cached_property
    def library(self) -> Library:
        """The library.

        Raises:
            LibraryUnusable: it cannot be loaded.
        """
        return self._find()

    def _new_handle(self) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        function, *more = self.creates
        try:
            self.library.call(function, ctypes.byref(handle), *more)
        except LibraryError as error:
            raise no_gpu(self.library.vendor, self.gpus, error) from error
        return handle

    def _set_stream(self, handle: ctypes.c_void_p, stream: int) -> None:
        self.library.call(f"{self.name}SetStream", handle, stream)

    @abstractmethod
    def plan(self, problem: Problem, device: int) -> Plan:
        """Return how a problem is done on a device; raise `NotSupported`, or its error."""

    @abstractmethod
    def plans(self, shape: ConvShape, most: int) -> list[str]:
        """Return the names of plans: at most so many of the heuristic's, then those left out."""

    @abstractmethod
    def backward_name(self, way: Direction, algorithm: str) -> str | None:
        """Return what a gradient runs when its layer runs an algorithm; None: the framework's."""

    @abstractmethod
    def _kernels(self, algorithm: str) -> Expected:
        """Return the kernels that prove an algorithm, or disprove it."""

    def __deepcopy__(self, _memo: object) -> VendorBackend:
        return self  # shared by copies of a network: plans and handles belong to the process

    def __reduce__(self) -> tuple[Any, ...]:
        return choose, (self._device_type,)  # found again by a process that unpickles a network

    def unsupported(self, algorithm: str, shape: ConvShape) -> str | None:
        """Return None if the library can do the shape, else its reason. Runs it once to be sure."""
        answer = self._forward_answer(algorithm, shape)
        return answer if isinstance(answer, str) else None

    def about(self, algorithm: str, shape: ConvShape) -> tuple[int | None, str | None, str | None]:
        """Return the scratch memory of a plan, its name and its notes."""
        answer = self._forward_answer(algorithm, shape)
        if isinstance(answer, str):
            return None, None, None
        return answer.workspace_bytes, answer.name, answer.notes

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
        problem = Problem.of(Direction.FORWARD, algorithm, shape)
        plan = self._answer(problem, most_workspace=math.inf)
        if isinstance(plan, str):
            return partial(self.forward, algorithm, shape=shape)
        queued = plan.queued
        dtype = getattr(torch, shape.dtype)
        device = self.device if self._device_type == "cuda" else -1  # as tensors number it
        tf32 = tf32_switch()
        deterministic = determinism_wanted()

        def convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            # one expression: a function for each part would take longer than what it asks
            if (
                x.get_device() == device == weight.get_device()
                and x.dtype is dtype is weight.dtype
                # what a plan depends on beside its shape
                and tf32_switch() == tf32
                and (is_deterministic() or is_deterministic_everywhere()) is deterministic
                # what needs an operator
                and not (is_profiled() or is_tracing() or modes())
                and not (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad))
                and type(x) is Tensor
                and type(weight) in _PLAIN
            ):
                out = queued(x, weight)
                return out if bias is None else out.add_(bias.view(-1, 1, 1))
            return self.forward(algorithm, x, weight, bias, shape)

        return convolve

    def expected(self, algorithm: str, shape: ConvShape) -> Expected:
        """Return the operator, the library's call and the kernels that prove an algorithm."""
        name = NAMES[Direction.FORWARD]
        answer = self._forward_answer(algorithm, shape)
        if isinstance(answer, str):
            return Expected(must=((name,),))
        called = self._called(answer, algorithm)
        return replace(called, must=((name,), *called.must))

    def gradients(self, algorithm: str, shape: ConvShape) -> tuple[Gradient, ...]:
        """Return what the gradients of input and filters run; asked here, not in the first step."""
        ways = (Direction.DATA, Direction.FILTER)
        return tuple(self._gradient(way, algorithm, shape) for way in ways)

    def _gradient(self, way: Direction, algorithm: str, shape: ConvShape) -> Gradient:
        operand = "the input" if way is Direction.DATA else "the filters"
        name = self.backward_name(way, algorithm)
        if name is None:
            reason = f"{self.name} has no {algorithm} for the gradient of {operand}"
        else:
            answer = self._answer(Problem.of(way, name, shape))
            if not isinstance(answer, str):
                expected = replace(self._called(answer, name), inside=NAMES[way])
                return Gradient(way, name, expected, None, answer.workspace_bytes)
            reason = f"gradient of {operand}: {answer}"
        return Gradient(way, None, replace(_FRAMEWORK_GRADIENT, inside=NAMES[way]), reason)

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
        if way is Direction.FORWARD:
            shape = _shape_of(first.dtype, first.shape, second.shape, steps)
            problem = Problem.of(way, algorithm, shape)
            plan = self._answer(problem, most_workspace=math.inf)  # the limit counts in decisions
            if isinstance(plan, str):
                raise NotSupported(f"{self.name} {algorithm} ({way.value}): {plan}")
        else:
            x, weight = (size, second.shape) if way is Direction.DATA else (second.shape, size)
            shape = _shape_of(first.dtype, x, weight, steps)
            counterpart = self.backward_name(way, algorithm)
            plan = self._answer(Problem.of(way, counterpart, shape)) if counterpart else ""
            if isinstance(plan, str):
                return _framework_gradient(way, first, second, size, shape)
        return plan.compute(first, second)

    def _forward_answer(self, algorithm: str, shape: ConvShape) -> Plan | str:
        return self._answer(Problem.of(Direction.FORWARD, algorithm, shape))

    def _answer(self, problem: Problem, most_workspace: float | None = None) -> Plan | str:
        """Return the plan of a problem, or why there is none; asked and tried once."""
        most = self.most_workspace if most_workspace is None else most_workspace
        key = problem, self.device
        answer = self._answers.get(key)
        if answer is None:
            answer = self._ask(*key)
            self._answers[key] = answer
        if isinstance(answer, str):
            return answer
        if answer.workspace_bytes > most:
            needed = answer.workspace_bytes / _MIB
            return f"a workspace of {needed:.1f} MiB; {most / _MIB:g} MiB are allowed"
        if key not in self._tried:
            answer = self._try(answer, problem)
            self._answers[key] = answer
            self._tried.add(key)
        return answer

    @property
    def device(self) -> int:
        """The number of the current device."""
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
        first_size, second_size, _ = problem.sizes
        dtype = getattr(torch, problem.shape.dtype)
        try:
            first = torch.zeros(first_size, dtype=dtype, device=self._device_type)
            second = torch.zeros(second_size, dtype=dtype, device=self._device_type)
            plan.compute(first, second)
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


def _framework_gradient(
    way: Direction, grad: Tensor, second: Tensor, size: Sequence[int], shape: ConvShape
) -> Tensor:
    """Return the framework's gradient; an empty tensor stands in for the operand not needed."""
    form = MEMORY_FORMATS[shape.layout]
    absent = torch.empty(size, dtype=grad.dtype, device=grad.device, memory_format=form)
    x, weight = second, absent
    wants = (False, True, False)  # the gradient of the input, of the filters, of the bias
    if way is Direction.DATA:
        x, weight = absent, second
        wants = (True, False, False)
    steps = (shape.stride, shape.padding, shape.dilation)
    transposed = False
    gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        grad, x, weight, None, *steps, transposed, (0, 0), shape.groups, wants
    )
    return gradients[wants.index(True)]


def _shape_of(
    dtype: torch.dtype, x: Sequence[int], weight: Sequence[int], steps: tuple[Any, ...]
) -> ConvShape:
    """Return the shape of an operator's arguments, without its bias, which torch adds."""
    (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w), groups, nhwc = steps
    n, in_c, in_h, in_w = x
    out_c, _, kernel_h, kernel_w = weight
    return ConvShape(
        *(n, in_c, in_h, in_w, out_c, kernel_h, kernel_w),
        *(stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w),
        groups,
        dtype=str(dtype).removeprefix("torch."),
        layout=NHWC if nhwc else NCHW,
    )


def _compute(
    way: Direction,
    first: Tensor,
    second: Tensor,
    size: Sequence[int],
    backend: str,
    *how: Any,  # noqa: ANN401
) -> Tensor:
    result: Tensor = ENGINES[backend].compute(way, first, second, size, *how)
    return result


def _fake(first: Tensor, _second: Tensor, size: Sequence[int], *how: Any) -> Tensor:  # noqa: ANN401
    form = MEMORY_FORMATS[NHWC if how[-1] else NCHW]
    return torch.empty(size, dtype=first.dtype, device=first.device, memory_format=form)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ANN401, ARG001
    x, weight, _, *ctx.how = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    x, weight = ctx.saved_tensors
    ops = torch.ops.hpcsweep
    wants_x, wants_weight = ctx.needs_input_grad[:2]
    gradients: list[Tensor | None] = [None] * (3 + len(ctx.how))  # one for each argument
    if wants_x:
        gradients[0] = ops.convolution_data_gradient(grad, weight, x.shape, *ctx.how)
    if wants_weight:
        gradients[1] = ops.convolution_filter_gradient(grad, x, weight.shape, *ctx.how)
    return tuple(gradients)


_operators: Final = torch.library.Library("hpcsweep", "DEF")
for _way, _name in NAMES.items():
    _operators.define(_name.partition("::")[2] + _SCHEMA)
    for _device in ("CPU", "CUDA"):
        _operators.impl(_name, partial(_compute, _way), _device)
    torch.library.register_fake(_name, _fake, lib=_operators)
torch.library.register_autograd(
    NAMES[Direction.FORWARD], _backward, setup_context=_keep, lib=_operators
)
