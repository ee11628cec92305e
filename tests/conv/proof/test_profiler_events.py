"""Reading a profiler's events: what is marked, what ran inside, what belongs together."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from hpcsweep.conv.backend import Direction, Operation, comparable, product
from hpcsweep.conv.choice import LayerChoice
from hpcsweep.conv.proof import profiler_events
from hpcsweep.conv.proof.profiler_events import Call, look_into, title
from hpcsweep.conv.shape import ConvShape

SHAPE = ConvShape(1, 3, 8, 8, 4, 3, 3)


@dataclass
class Event:
    """An event as the profiler has them."""

    name: str
    cpu_children: list[Event] = field(default_factory=list)
    input_shapes: list[list[int]] = field(default_factory=list)
    kernels: list[Event] = field(default_factory=list)
    device_type: object = torch.autograd.DeviceType.CPU
    cpu_parent: Event | None = None
    duration: float = 0.0
    scope: int = 0

    def __post_init__(self) -> None:
        """Be the parent of the children."""
        for child in self.cpu_children:
            child.cpu_parent = self


def profiled(run) -> list:
    """Return the events of a run."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        run()
    return list(seen.events())


def test_a_session_is_read_as_torch_reads_it() -> None:
    """Names, sizes, and what lies inside of what; of a pass, and of its gradients."""
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(144, 2),
    )

    def told(events) -> list:
        return [
            (
                event.name,
                event.input_shapes,
                event.cpu_parent and event.cpu_parent.name,
                [child.name for child in event.cpu_children],
                event.kernels,
                event.device_type,
            )
            for event in events
        ]

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        with record_function("outside"), record_function("outside"):
            layers(torch.ones(2, 3, 8, 8)).sum().backward()
        torch.ones(2, dtype=torch.float64).to(torch.float32).contiguous()
    assert told(profiler_events.events_of(seen)) == told(seen.events())


@pytest.mark.gpu
def test_a_session_on_a_gpu_is_read_as_torch_reads_it() -> None:
    """Each operator has the kernels that it launched; calls of the runtime are left out."""
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).cuda()
    x = torch.ones(2, 3, 8, 8, device="cuda")
    layers(x).sum().backward()

    def told(events) -> list:
        own = [e for e in events if e.device_type == torch.autograd.DeviceType.CPU]
        return [
            (event.name, event.input_shapes, [kernel.name for kernel in event.kernels])
            for event in own
            if not event.name.startswith("cu")
        ]

    with profiler_events.session(x.device) as seen:
        layers(x).sum().backward()
        x.cpu()
        torch.cuda.synchronize()
    events = profiler_events.events_of(seen)
    assert told(events) == told(seen.events())
    durations = [kernel.duration for event in events for kernel in event.kernels]
    of_torch = [kernel.duration for event in seen.events() for kernel in event.kernels]
    assert len(durations) > profiler_events.SACRIFICE
    assert durations == pytest.approx(of_torch, abs=0.001)


def test_the_ranges_of_a_call_are_put_together_in_order() -> None:
    """By their number, whatever the order in which they were opened; names may hold the mark."""

    def run() -> None:
        both = (Direction.DATA, Direction.FILTER)
        for number, layer, wants in ((1, "b|x", both), (0, "a", ()), (1, "b|x", both)):
            with record_function(title("mark", number, layer, wants)):
                torch.ones(1).add(1)

    found = profiler_events.calls(profiled(run), "mark")
    assert [(call.layer, len(call.wants), len(call.events)) for call in found] == [
        ("a", 0, 1),
        ("b|x", 2, 2),
    ]
    assert found[0].ran("aten::add")
    assert not found[0].ran("aten::bmm")


def test_the_copy_of_a_range_on_a_gpus_time_line_does_not_count() -> None:
    """The profiler draws ranges twice."""
    assert profiler_events.is_range(Event("mark|0"), "mark")
    on_gpu = Event("mark|0", device_type=torch.autograd.DeviceType.CUDA)
    assert not profiler_events.is_range(on_gpu, "mark")


def test_calls_are_paired_with_choices_by_layer_and_order() -> None:
    """Calls of layers that nobody asks for lie between; a call that is missing is None."""
    calls = [Call(layer) for layer in "axba"]
    asked = [LayerChoice(layer, SHAPE, "gemm", "gemm", "reference") for layer in "aba"]
    assert profiler_events.pair(asked, calls) == [calls[0], calls[2], calls[3]]
    assert profiler_events.pair([*asked, asked[0]], calls)[3] is None


def test_the_kernels_of_a_call_have_a_time_together() -> None:
    """Kernels and copies of all operators, not a range's copy; without any it is unknown."""
    copies = [Event("Memcpy DtoD", duration=1.5), Event("hpcsweep.conv|0|1|a", duration=99.0)]
    operators = [Event("aten::mm", kernels=[Event("sgemm", duration=20.0)]), Event("aten::view")]
    operators.append(Event("aten::copy_", kernels=copies))
    seen = look_into([Event("range", [Event("hpcsweep.conv|0|1|a", operators)])])
    assert seen.kernel_ms == pytest.approx(0.0215)
    assert look_into([Event("range", [Event("aten::view")])]).kernel_ms is None


def test_the_kernels_of_a_call_around_others_are_its_own() -> None:
    """Those of layers and convolutions inside it are theirs."""
    own, *others = [Event("aten::mul", kernels=[Event("k", duration=ms)]) for ms in (3.0, 5.0, 7.0)]
    inner = Event("hpcsweep.layer|0||", [others[0]])
    convolution = Event("hpcsweep.conv|0||a", [others[1]])
    outer = Event("hpcsweep.layer|1||", [inner, convolution, own])
    calls = profiler_events.calls([outer, inner], profiler_events.LAYER)
    assert [look_into(call.events, apart=True).kernel_ms for call in calls] == [0.005, 0.003]


def test_operators_library_calls_and_kernels_are_told_apart() -> None:
    """A range around a library's call is no operator, and its name is no kernel's."""
    call = Event("cudnnConvolutionForward:fft", kernels=[])
    operator = Event("hpcsweep::convolution", [call], kernels=[Event("fft2d_r2c")])
    seen = look_into([Event("range", [operator, Event("aten::add")])])
    assert seen.operators == ["hpcsweep::convolution", "aten::add"]
    assert seen.library_calls == ["cudnnConvolutionForward:fft"]
    assert seen.kernels == ["fft2d_r2c"]
    assert [str(one) for one in seen.telling] == ["cudnnConvolutionForward:fft"]


def test_an_operator_is_shown_once_per_size() -> None:
    """Really profiled; the sizes are batch, rows, inner and columns."""
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)

    def run() -> None:
        with record_function("range"):
            product = torch.bmm(a, b)
            torch.bmm(a, b)
            torch.bmm(product, b.transpose(1, 2))

    (marked,) = [event for event in profiled(run) if event.name == "range"]
    seen = look_into([marked])
    assert [str(one) for one in seen.telling] == ["aten::bmm[2,3,4,5]", "aten::bmm[2,3,5,4]"]


def test_sizes_of_a_product_that_adds_are_those_of_its_operands() -> None:
    """The first argument is what is added to; a transform shows its last two dimensions."""
    adds = Event("aten::baddbmm_", input_shapes=[[2, 3, 5], [2, 3, 4], [2, 4, 5]])
    transform = Event("aten::_fft_r2c", input_shapes=[[1, 2, 24, 13]])
    unknown = Event("aten::mm")
    seen = look_into([Event("range", [adds, transform, unknown])])
    shown = ["aten::baddbmm_[2,3,4,5]", "aten::_fft_r2c[24,13]", "aten::mm"]
    assert [str(one) for one in seen.telling] == shown
    work = [comparable(one) for one in seen.telling]
    of_transform = Operation("aten::_fft_r2c", (24, 13))
    assert work == [product(2, 3, 4, 5, adds=True), of_transform, Operation("product")]
