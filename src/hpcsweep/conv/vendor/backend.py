"""What the back-ends of vendors' libraries share: support asked first, memory of torch, no copies.

A library's *driver* turns a problem (direction, algorithm, shape, layout, TF32) into a *plan*, or
into the reason why it has none. Plans hold descriptors and are kept, so that asking again and
running cost little. Everything a plan touches is torch's: tensors by address, the current stream,
scratch memory from the caching allocator. Nothing is copied, allocated from the driver, or waited
for.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd.profiler import record_function

from hpcsweep.conv.backend import Expected, Gradient, choose
from hpcsweep.conv.proof.profiler_events import LIBRARY_CALLS
from hpcsweep.conv.shape import NCHW, NHWC, ConvShape
from hpcsweep.conv.vendor import operator
from hpcsweep.conv.vendor.driver import NotSupported, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from hpcsweep.conv.vendor.driver import Driver, Plan, Way

_GRADIENTS: Final[tuple[Way, ...]] = ("data", "filter")
_WHOSE: Final[dict[Way, str]] = {"data": "the input", "filter": "the filters"}
_OPERATORS: Final[dict[Way, str]] = {
    "data": "hpcsweep::convolution_data_gradient",
    "filter": "hpcsweep::convolution_filter_gradient",
}
_FRAMEWORK_CALLS: Final = (
    "aten::cudnn_convolution*",
    "aten::miopen_convolution*",
    "aten::convolution_backward",
)
_FRAMEWORK_GRADIENT: Final = Expected(
    must=(("aten::convolution_backward",),), must_not=LIBRARY_CALLS
)
_UNTOLD: Final = nullcontext()
_MOST_PLANS: Final = 4096
_LAYOUTS: Final = {NCHW: torch.contiguous_format, NHWC: torch.channels_last}


class VendorBackend:
    """A back-end on top of a driver; also the engine of torch's operators."""

    def __init__(self, driver: Driver, device_type: str = "cuda") -> None:
        """Serve a kind of device, and the operators under the driver's name."""
        self._driver, self._device_type = driver, device_type
        self._answers: OrderedDict[tuple[Problem, int], Plan | str] = OrderedDict()
        operator.ENGINES[driver.name] = self

    def __deepcopy__(self, _memo: object) -> VendorBackend:
        """Be shared by copies of a network: plans and handles belong to the process."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Be found again by a process that unpickles a network."""
        return choose, (self._device_type,)

    @property
    def name(self) -> str:
        """Return what the column `backend` says."""
        return self._driver.name

    def unsupported(self, algorithm: str, shape: ConvShape) -> str | None:
        """Return None if the library can do the shape, else its reason. Runs it once to be sure."""
        answer = self._answer(_problem("forward", algorithm, shape))
        return answer if isinstance(answer, str) else None

    def workspace_bytes(self, algorithm: str, shape: ConvShape) -> int | None:
        """Return the scratch memory of a forward call."""
        answer = self._answer(_problem("forward", algorithm, shape))
        return None if isinstance(answer, str) else answer.workspace_bytes

    def forward(
        self,
        algorithm: str,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        shape: ConvShape,
    ) -> Tensor:
        """Convolve; the call was found supported before."""
        out = torch.ops.hpcsweep.convolution(
            x,
            weight,
            self.name,
            algorithm,
            (shape.stride_h, shape.stride_w),
            (shape.pad_h, shape.pad_w),
            (shape.dilation_h, shape.dilation_w),
            shape.groups,
            shape.layout == NHWC,
        )
        if bias is None:
            return out
        bias = bias.view(-1, 1, 1)
        return out + bias if out.requires_grad else out.add_(bias)

    def expected(self, algorithm: str, shape: ConvShape) -> Expected:
        """Return the operator, the library's call and the kernels that prove an algorithm."""
        answer = self._answer(_problem("forward", algorithm, shape))
        found = Expected() if isinstance(answer, str) else self._called(answer, algorithm)
        return replace(found, must=((operator.CONVOLUTION,), *found.must))

    def gradients(self, algorithm: str, shape: ConvShape) -> tuple[Gradient, ...]:
        """Return what the gradients of input and filters run; asked here, not in the first step."""
        return tuple(self._gradient(way, algorithm, shape) for way in _GRADIENTS)

    def _gradient(self, way: Way, algorithm: str, shape: ConvShape) -> Gradient:
        name, inside = self._driver.backward_name(way, algorithm), _OPERATORS[way]
        if name is None:
            reason = f"{self.name} has no {algorithm} for the gradient of {_WHOSE[way]}"
            return Gradient(way, None, _FRAMEWORK_GRADIENT, reason, inside)
        answer = self._answer(_problem(way, name, shape))
        if isinstance(answer, str):
            reason = f"gradient of {_WHOSE[way]}: {answer}"
            return Gradient(way, None, _FRAMEWORK_GRADIENT, reason, inside)
        return Gradient(way, name, self._called(answer, name), None, inside, answer.workspace_bytes)

    def _called(self, plan: Plan, algorithm: str) -> Expected:
        """Return the library's call and the kernels that prove an algorithm."""
        of_driver = self._driver.expected(algorithm)
        return replace(
            of_driver,
            must=((plan.call,), *of_driver.must),
            must_not=(*_FRAMEWORK_CALLS, *of_driver.must_not),
        )

    def forward_of(self, x: Tensor, weight: Tensor, *geometry: Any) -> Tensor:  # noqa: ANN401
        """Return the output of a layer; see `operator.Engine`."""
        algorithm, shape = _shape_of(x, x.shape, weight.shape, geometry)
        out = operator.empty(
            x, (shape.n, shape.out_c, shape.out_h, shape.out_w), nhwc=shape.layout == NHWC
        )
        return self._run(_problem("forward", algorithm, shape), x, weight, out)

    def data_gradient(
        self,
        grad: Tensor,
        weight: Tensor,
        size: Sequence[int],
        *geometry: Any,  # noqa: ANN401
    ) -> Tensor:
        """Return the gradient of the input; by the framework where the library cannot."""
        algorithm, shape = _shape_of(grad, size, weight.shape, geometry)
        name = self._gradient_name("data", algorithm, shape)
        out = operator.empty(grad, size, nhwc=shape.layout == NHWC)
        if name is None:
            return _framework_gradients(grad, out, weight, shape, (True, False))[0]
        return self._run(_problem("data", name, shape), grad, weight, out)

    def filter_gradient(
        self,
        grad: Tensor,
        x: Tensor,
        size: Sequence[int],
        *geometry: Any,  # noqa: ANN401
    ) -> Tensor:
        """Return the gradient of the filters; by the framework where the library cannot."""
        algorithm, shape = _shape_of(x, x.shape, size, geometry)
        name = self._gradient_name("filter", algorithm, shape)
        out = operator.empty(grad, size, nhwc=shape.layout == NHWC)
        if name is None:
            return _framework_gradients(grad, x, out, shape, (False, True))[1]
        return self._run(_problem("filter", name, shape), grad, x, out)

    def _gradient_name(self, way: Way, algorithm: str, shape: ConvShape) -> str | None:
        name = self._driver.backward_name(way, algorithm)
        if name is None or isinstance(self._answer(_problem(way, name, shape)), str):
            return None
        return name

    def _run(self, problem: Problem, first: Tensor, second: Tensor, out: Tensor) -> Tensor:
        """Run a plan; `out` is of the problem's layout already."""
        plan = self._answer(problem)
        if isinstance(plan, str):
            raise NotSupported(f"{self.name} {problem.algorithm} ({problem.way}): {plan}")
        layout = _LAYOUTS[problem.layout]
        first, second = _checked(first, out, layout), _checked(second, out, layout)
        workspace = out.new_empty(plan.workspace_bytes, dtype=torch.uint8)
        _queue(plan, (first, second, out, workspace))
        return out

    def _answer(self, problem: Problem) -> Plan | str:
        """Return the plan of a problem, or why there is none; asked once."""
        key = problem, torch.cuda.current_device() if self._device_type == "cuda" else 0
        if key in self._answers:
            self._answers.move_to_end(key)
            return self._answers[key]
        answer = self._ask(*key)
        self._answers[key] = answer
        if len(self._answers) > _MOST_PLANS:
            self._answers.popitem(last=False)
        return answer

    def _ask(self, problem: Problem, device: int) -> Plan | str:
        try:
            plan = self._driver.plan(problem, device)
            self._try(plan, problem)
        except NotSupported as error:
            return str(error)
        return plan

    def _try(self, plan: Plan, problem: Problem) -> None:
        """Run a plan once: some libraries take a problem and then do not do it.

        Where there is no memory for that, the real run will say so.
        """
        shape, layout = problem.shape, _LAYOUTS[problem.layout]
        x = (shape.n, shape.in_c, shape.in_h, shape.in_w)
        out = (shape.n, shape.out_c, shape.out_h, shape.out_w)
        weight = (shape.out_c, shape.group_in, shape.kernel_h, shape.kernel_w)
        sizes = {"forward": (x, weight, out), "data": (out, weight, x), "filter": (out, x, weight)}
        dtype = getattr(torch, shape.dtype)
        try:
            tensors = [
                torch.zeros(size, dtype=dtype, device=self._device_type).to(memory_format=layout)
                for size in sizes[problem.way]
            ]
            workspace = tensors[0].new_empty(plan.workspace_bytes, dtype=torch.uint8)
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            return
        self._attempt(plan, (*tensors, workspace))

    def _attempt(self, plan: Plan, tensors: tuple[Tensor, ...]) -> None:
        """Run a plan and wait for it: a failure here is an answer, unless it broke the device.

        TensorFlow and XLA, too, leave out an algorithm that fails where they try it.
        """
        try:
            _queue(plan, tensors)
        except NotSupported:
            raise
        except RuntimeError as error:
            self._wait()
            if "ALLOC" in str(error):
                return
            raise NotSupported(f"failed when tried: {error}") from error
        self._wait()

    def _wait(self) -> None:
        """Wait until the device is idle; its error where it is beyond repair."""
        if self._device_type == "cuda" and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()


def _problem(way: Way, algorithm: str, shape: ConvShape) -> Problem:
    # the bias is added by torch; a copy costs a tenth of a call
    without_bias = replace(shape, bias=False) if shape.bias else shape
    tf32 = shape.dtype == "float32" and tf32_allowed()
    return Problem(way, algorithm, without_bias, shape.layout, tf32)


def tf32_allowed() -> bool:
    """Say whether torch lets convolutions use TF32, by the switch that this torch has."""
    cudnn = torch.backends.cudnn
    precision = getattr(getattr(cudnn, "conv", None), "fp32_precision", None)
    return bool(cudnn.allow_tf32) if precision is None else precision == "tf32"


def _shape_of(
    like: Tensor, x: Sequence[int], weight: Sequence[int], geometry: tuple[Any, ...]
) -> tuple[str, ConvShape]:
    """Return the algorithm and the shape of an operator's arguments."""
    algorithm, stride, padding, dilation, groups, nhwc = geometry
    return algorithm, ConvShape(
        n=x[0],
        in_c=x[1],
        in_h=x[2],
        in_w=x[3],
        out_c=weight[0],
        kernel_h=weight[2],
        kernel_w=weight[3],
        stride_h=stride[0],
        stride_w=stride[1],
        pad_h=padding[0],
        pad_w=padding[1],
        dilation_h=dilation[0],
        dilation_w=dilation[1],
        groups=groups,
        dtype=str(like.dtype).removeprefix("torch."),
        layout=NHWC if nhwc else NCHW,
    )


def _checked(tensor: Tensor, out: Tensor, layout: torch.memory_format) -> Tensor:
    """Return a tensor in the layout of the problem; the framework would convert it, too."""
    if tensor.device != out.device or tensor.dtype != out.dtype:
        raise TypeError(
            f"a convolution of {out.dtype} on {out.device} got {tensor.dtype} on {tensor.device}"
        )
    return tensor.contiguous(memory_format=layout)


def _queue(plan: Plan, tensors: tuple[Tensor, ...]) -> None:
    """Run a plan on operands, result and workspace, on the current stream."""
    first, second, out, workspace = (tensor.data_ptr() for tensor in tensors)
    profiled = torch.autograd._profiler_enabled()  # noqa: SLF001 - a range costs, and asking nothing
    with record_function(plan.call) if profiled else _UNTOLD:
        plan.run(first, second, out, workspace, _stream(tensors[0].device))


def _stream(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    return int(torch.cuda.current_stream(device).cuda_stream)


def _framework_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, shape: ConvShape, mask: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    """Return the framework's own gradients."""
    of_x, of_weight, _ = torch.ops.aten.convolution_backward(
        grad,
        x,
        weight,
        None,
        (shape.stride_h, shape.stride_w),
        (shape.pad_h, shape.pad_w),
        (shape.dilation_h, shape.dilation_w),
        False,  # noqa: FBT003 - not transposed
        (0, 0),
        shape.groups,
        (*mask, False),
    )
    return of_x, of_weight
