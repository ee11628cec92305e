"""CUDA without hardware: torch.cuda on the host's memory, a queue in real time, graphs that replay.

Tensors that are asked for on `cuda` lie on the CPU and operators compute there; each takes its turn
in a queue with a time line of its own, which events read and synchronisation waits for. A captured
graph notes operators and runs them again into the tensors that they wrote. So what is timed,
replayed, compared and caught is real; the times are those of a device that never was.
"""

from __future__ import annotations

import contextlib
import sys
import time
import types
import weakref
from collections import Counter
from typing import Any, Final

import torch
from torch.autograd.profiler_util import Kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME: Final = "NVIDIA H100 80GB HBM3"
UUID: Final = "00000000-0000-0000-0000-000000000000"
MEMORY: Final = 1 << 30
_OF_OPERATOR_MS: Final = 0.004
_OF_EVENT_MS: Final = 0.0005
_BYTES_PER_MS: Final = 3e9
_CYCLES_PER_MS: Final = 1e6


class Queue:
    """The device's time line, in milliseconds of the host's clock."""

    def __init__(self) -> None:
        """Begin idle."""
        self.device = 0.0
        self.captured: list[Any] | None = None

    def issue(self, ms: float) -> float:
        """Queue a piece of work; return when it will be done."""
        self.device = max(self.device, time.perf_counter_ns() / 1e6) + ms
        return self.device

    def synchronize(self, *_: object) -> None:
        """Wait for the device."""
        time.sleep(max(0.0, self.device - time.perf_counter_ns() / 1e6) / 1000)


QUEUE: Final = Queue()


class Event:
    """A moment on the queue's time line."""

    def __init__(self, **_: object) -> None:
        """Be no moment yet."""
        self.at = 0.0

    def record(self, *_: object) -> None:
        """Queue it, or note it in the graph that is captured."""
        if QUEUE.captured is not None:
            QUEUE.captured.append(self.record)
        self.at = QUEUE.issue(_OF_EVENT_MS)

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds to a later event."""
        return end.at - self.at

    def synchronize(self) -> None:
        """Wait for the device."""
        QUEUE.synchronize()

    def query(self) -> bool:
        """Say whether it has come."""
        return self.at <= time.perf_counter_ns() / 1e6


class Stream:
    """The only stream that there is."""

    cuda_stream = 0

    def __init__(self, *_: object) -> None:
        """Be like every other."""

    def wait_stream(self, _other: object) -> None:
        """Be in order already."""

    synchronize = QUEUE.synchronize


class Graph:
    """Operators in their order, with the tensors that they wrote."""

    def __init__(self, *_: object, **__: object) -> None:
        """Be empty."""
        self.steps: list[Any] = []

    def replay(self) -> None:
        """Run them again, into the same tensors."""
        for step in self.steps:
            step()


@contextlib.contextmanager
def graph(captured: Graph, **_: object) -> Any:
    """Note what runs meanwhile."""
    QUEUE.captured = captured.steps
    try:
        yield
    finally:
        QUEUE.captured = None


class Memory:
    """The bytes of the tensors that are alive, by address: views hold what they are views of."""

    def __init__(self) -> None:
        """Hold nothing."""
        self.holders: Counter[int] = Counter()
        self.now = self.peak = 0

    def drop(self, address: int, size: int) -> None:
        """Forget a tensor."""
        self.holders[address] -= 1
        if not self.holders[address]:
            self.now -= size


HELD: Final = Memory()


def _hold(tensor: torch.Tensor) -> int:
    """Count a tensor's memory; return its bytes, 0 where it is a view."""
    if tensor.device.type != "cpu":
        return 0
    address, size = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
    is_new = not HELD.holders[address]
    if is_new and HELD.now + size > MEMORY:
        raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes")
    HELD.holders[address] += 1
    weakref.finalize(tensor, HELD.drop, address, size)
    HELD.now += size * is_new
    HELD.peak = max(HELD.peak, HELD.now)
    return size * is_new


class Profile(torch.profiler.profile):
    """A profiler whose operators have kernels: one each, of the names that cuDNN's would have."""

    def __init__(self, *, activities: Any = None, **more: Any) -> None:
        """Profile the host alone."""
        super().__init__(activities=[torch.profiler.ProfilerActivity.CPU], **more)

    def events(self) -> Any:
        """Return the operators with their kernels."""
        found: Any = super().events()
        for event in found:
            if "::" in event.name and not event.cpu_children:
                name = next((k for part, k in _KERNELS.items() if part in event.name), event.name)
                event.kernels = [Kernel(name, 0, 1000 * _OF_OPERATOR_MS)]
        return found


_KERNELS: Final = {
    "mkldnn_convolution": "sm90_xmma_fprop_implicit_gemm_f32f32_f32_f32",
    "im2col": "im2col4d_kernel<float, int>",
    "_fft_": "fft2d_r2c_32x32<float>",
    "mm": "ampere_sgemm_128x64_nn",
    "hpcsweep::convolution": "implicit_convolve_sgemm<float, float, 1024>",
}


class _Operators(TorchDispatchMode):
    """Lets every operator take its turn in the queue, and a captured graph know it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        written = [one for one in tree_leaves(found) if isinstance(one, torch.Tensor)]
        size = sum(map(_hold, written))
        QUEUE.issue(_OF_OPERATOR_MS + size / _BYTES_PER_MS)
        if QUEUE.captured is not None:
            QUEUE.captured.append(lambda: self._again(func, args, kwargs, written))
        return found

    def _again(self, func: Any, args: Any, kwargs: Any, written: list[torch.Tensor]) -> None:
        found = self.__torch_dispatch__(func, (), args, kwargs)
        for new, old in zip(tree_leaves(found), written, strict=False):
            if isinstance(new, torch.Tensor) and new.data_ptr() != old.data_ptr():
                old.copy_(new)


class _OnTheHost(TorchFunctionMode):
    """Puts on the CPU what is asked for on the GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.device:
            return func(*args, **kwargs or {})
        return func(*tree_map(_host, args), **tree_map(_host, kwargs or {}))


def _host(value: Any) -> Any:
    is_device = isinstance(value, torch.device) and value.type == "cuda"
    is_text = isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))
    return torch.device("cpu") if is_device or is_text else value


def _nvml() -> types.ModuleType:
    """Return a pynvml of one GPU that runs as it should."""
    module = types.ModuleType("pynvml")
    began = time.monotonic()

    class NVMLError(Exception):
        """What nobody meets here."""

    told: dict[str, Any] = {
        "nvmlInit": None,
        "nvmlDeviceGetHandleByUUID": 0,
        "nvmlDeviceGetHandleByIndex": 0,
        "nvmlDeviceGetClockInfo": 1755,
        "nvmlDeviceGetMaxClockInfo": 1980,
        "nvmlDeviceGetDefaultApplicationsClock": 1980,
        "nvmlDeviceGetApplicationsClock": 1980,
        "nvmlDeviceGetTemperature": 41,
        "nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=97, memory=40),
        "nvmlDeviceGetCurrentClocksEventReasons": 0,
        "nvmlDeviceGetEnforcedPowerLimit": 700_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
        "nvmlDeviceGetComputeRunningProcesses": [],
        "nvmlDeviceGetUUID": f"GPU-{UUID}",
        "nvmlSystemGetDriverVersion": "580.00",
        "nvmlDeviceGetEccMode": (1, 1),
        "nvmlDeviceGetMigMode": (0, 0),
        "nvmlDeviceGetPersistenceMode": 1,
        "nvmlDeviceGetComputeMode": 0,
        "nvmlDeviceGetPowerUsage": 300_000,
    }
    for name, value in told.items():
        setattr(module, name, lambda *_, value=value: value)
    vars(module).update(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetTotalEnergyConsumption=lambda _: int(3e5 * (time.monotonic() - began)),
    )
    return module


def install() -> None:
    """Let this process have the device, for good."""
    properties = types.SimpleNamespace(
        name=NAME,
        major=9,
        minor=0,
        multi_processor_count=132,
        total_memory=MEMORY,
        L2_cache_size=1 << 20,
        uuid=UUID,
        clock_rate=_CYCLES_PER_MS,
        gcnArchName="",
    )
    nothing: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "current_device": 0,
        "device_count": 1,
        "set_device": None,
        "get_device_properties": properties,
        "get_device_name": NAME,
        "get_device_capability": (9, 0),
        "get_arch_list": ["sm_90"],
        "graph_pool_handle": (0, 0),
        "empty_cache": None,
        "reset_accumulated_memory_stats": None,
        "current_stream": Stream(),
        "_get_nvml_device_index": 0,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
        "manual_seed": None,
        "manual_seed_all": None,
    }
    cuda: Any = torch.cuda
    for name, value in nothing.items():
        setattr(cuda, name, lambda *_, value=value, **__: value)
    cuda.is_current_stream_capturing = lambda: QUEUE.captured is not None
    cuda.reset_peak_memory_stats = lambda *_: setattr(HELD, "peak", HELD.now)
    cuda.max_memory_allocated = lambda *_: HELD.peak
    cuda.memory_allocated = lambda *_: HELD.now
    cuda.mem_get_info = lambda *_: (MEMORY - HELD.now, MEMORY)
    cuda.memory_stats = lambda *_: {
        "allocated_bytes.all.peak": HELD.peak,
        "reserved_bytes.all.peak": HELD.peak,
    }
    cuda.synchronize = QUEUE.synchronize
    cuda._sleep = lambda cycles: QUEUE.issue(cycles / _CYCLES_PER_MS)
    cuda.stream = lambda _stream: contextlib.nullcontext()
    cuda.Event, cuda.Stream, cuda.CUDAGraph, cuda.graph = Event, Stream, Graph, graph
    torch.profiler.profile = Profile
    sys.modules["pynvml"] = _nvml()
    _OnTheHost().__enter__()
    _Operators().__enter__()
