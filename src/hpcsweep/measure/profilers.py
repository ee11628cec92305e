"""Profilers as an option of any sweep, in passes of their own: `measure: {profile: [torch]}`.

torch     operators as a table and as CSV, with memory and FLOPs; a Chrome trace
cprofile  Python's own profiler: where the host's time goes
nvtx      one pass in a range of NVTX or rocTX, after a warm-up, for `ncu`, `nsys` and `rocprofv3`
          around the worker (the profile's `wrapper`); such a point has no times

They run after the timed passes, so no timing column contains a profiled pass. Their files are
beside the shards, named by the point's id; the column `artifacts` lists them.

An NVTX range by push and pop belongs to one thread, but autograd runs the backward pass in another
one. So the range here is one by start and end, which holds the work of all threads.
"""

from __future__ import annotations

import cProfile
import csv
import ctypes
import inspect
import os
import pstats
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, schedule

from hpcsweep import environment
from hpcsweep.conv.proof import profiler_events
from hpcsweep.measure.bench_api import CannotMeasure
from hpcsweep.measure.checks import Finding, PointCheck
from hpcsweep.measure.network import Choices, Network, Times

NVTX: Final = "nvtx"
# what `ncu --nvtx --nvtx-include "hpcsweep step"` looks for
RANGE: Final = "hpcsweep step"
# lines of the tables for people, about a screen or two; files for tools have all
_SHOWN: Final = 60

# later versions of torch warn without this argument; earlier ones lack it
_ARGUMENTS: Final = inspect.signature(torch.profiler.profile).parameters
_KEEPING: Final = {"acc_events": True} if "acc_events" in _ARGUMENTS else {}

# heading, attribute of torch's FunctionEventAvg
_COLUMNS: Final = {
    "operator": "key",
    "calls": "count",
    "self_cpu_us": "self_cpu_time_total",
    "cpu_us": "cpu_time_total",
    "self_device_us": "self_device_time_total",
    "device_us": "device_time_total",
    "self_cpu_bytes": "self_cpu_memory_usage",
    "self_device_bytes": "self_device_memory_usage",
    "flops": "flops",
}


@dataclass(frozen=True)
class ProfiledStep:
    """The pass or step to profile, a function that waits for the device, and numbers of passes."""

    run: Callable[[], object]
    wait: Callable[[], object]
    device_type: str
    warmup: int
    timed: int = 1  # passes, of a training its steps

    def count(self, settings: dict[str, Any]) -> int:
        """Return how many passes a profiler inside sees."""
        return int(settings["profile_passes"] or self.timed)


def replaces_timing(names: Sequence[str]) -> bool:
    """Say whether a point is profiled from outside and therefore not timed."""
    return NVTX in names and bool(os.environ.get(environment.WRAPPER))


def refuse_early(names: Sequence[str], device_type: str) -> None:
    """Raise `CannotMeasure` if an outside profiler waits for a range that cannot be opened."""
    if replaces_timing(names) and not _marks(device_type):
        raise CannotMeasure(f"profile: nvtx needs an NVIDIA GPU or rocTX; this is {device_type}")


class ProfilerCheck(PointCheck):
    """Runs the sweep's profilers as a check does, on as many passes as were timed."""

    def after(self, network: Network, choices: Choices, times: Times) -> Finding:  # noqa: ARG002
        """Run them."""
        return Finding(artifacts=profile(network, len(times.samples)))


def profile(network: Network, timed: int = 1) -> str:
    """Run the sweep's profilers on further passes or steps; return the names of their files."""
    point = network.point
    rig = network.rig
    settings = dict(point.measure)
    step = ProfiledStep(network.step, rig.wait, rig.device.type, settings["warmup"], timed)
    return run(settings["profile"], step, point.point_id, settings)


def run(names: Sequence[str], step: ProfiledStep, point_id: str, settings: dict[str, Any]) -> str:
    """Profile a step with each of the profilers; return the names of files for `artifacts`.

    Without a folder for artifacts (there is no supervisor) nothing is profiled.
    """
    folder = os.environ.get(environment.ARTIFACTS)
    if not names or not folder:
        return ""
    written: list[str] = []
    for name in dict.fromkeys(names):
        written += _PROFILERS[name](step, settings, Path(folder, point_id))
    return ";".join(written)


def _torch(step: ProfiledStep, settings: dict[str, Any], stem: Path) -> list[str]:
    """Profile some passes; drop the first one, since the start of a session loses kernels.

    The names of all files begin with `stem`, as those of the other profilers do.
    """
    count = step.count(settings)
    running = profiler_events.threads()
    of_gpu = [ProfilerActivity.CUDA] if step.device_type == "cuda" else []
    with torch.profiler.profile(
        activities=[ProfilerActivity.CPU, *of_gpu],
        schedule=schedule(wait=0, warmup=1, active=count, repeat=1),
        record_shapes=True,
        profile_memory=True,
        with_flops=True,
        **_KEEPING,
    ) as profiler:
        for _ in range(1 + count):
            with torch.profiler.record_function(RANGE):
                step.run()
            step.wait()
            running = profiler_events.threads()
            profiler.step()  # the last one ends the session
    if of_gpu:
        profiler_events.let_cupti_go(running)
    operators = profiler.key_averages()
    order = "self_cuda_time_total" if step.device_type == "cuda" else "self_cpu_time_total"
    table = operators.table(sort_by=order, row_limit=_SHOWN, max_name_column_width=80)
    shown = Path(f"{stem}.torch.txt")
    shown.write_text(str(table), encoding="utf-8")
    cells = Path(f"{stem}.torch.csv")
    _write_operators(operators, cells)
    trace = Path(f"{stem}.trace.json.gz")
    profiler.export_chrome_trace(str(trace))
    written = [shown.name, cells.name]
    size_mb = trace.stat().st_size / 1e6
    if size_mb <= settings["artifact_mb"]:
        return [*written, trace.name]
    trace.unlink()
    return [*written, f"no trace ({size_mb:.0f} MB, artifact_mb is {settings['artifact_mb']:g})"]


def _write_operators(operators: Any, path: Path) -> None:  # noqa: ANN401
    slowest_first = attrgetter("self_device_time_total", "self_cpu_time_total")
    cells = attrgetter(*_COLUMNS.values())
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for operator in sorted(operators, key=slowest_first, reverse=True):
            writer.writerow(cells(operator))


def _cprofile(step: ProfiledStep, settings: dict[str, Any], stem: Path) -> list[str]:
    with cProfile.Profile() as profiler:
        for _ in range(step.count(settings)):
            step.run()
        step.wait()
    shown = Path(f"{stem}.cprofile.txt")
    stats = Path(f"{stem}.cprofile.pstats")
    profiler.dump_stats(stats)
    with shown.open("w", encoding="utf-8") as file:
        pstats.Stats(profiler, stream=file).sort_stats("tottime").print_stats(_SHOWN)
    return [shown.name, stats.name]


def _nvtx(step: ProfiledStep, settings: dict[str, Any], stem: Path) -> list[str]:  # noqa: ARG001
    """Mark exactly one pass, the `profile_iter`-th after the warm-up, for a profiler outside."""
    if not _marks(step.device_type):
        return [f"no nvtx range on {step.device_type}"]
    for _ in range(step.warmup + settings["profile_iter"] - 1):
        step.run()
    step.wait()
    with (
        marked(step.device_type),
        torch.autograd.profiler.emit_nvtx(enabled=_is_nvidia(step.device_type)),
    ):
        step.run()
        step.wait()
    return []


@contextmanager
def marked(device_type: str) -> Iterator[None]:
    """Open a range by start and end; on NVIDIA's GPUs the capture range, too."""
    with ExitStack() as marks:
        roctx = _roctx()
        if roctx:
            marks.callback(roctx.roctxRangeStop, roctx.roctxRangeStartA(RANGE.encode()))
        if _is_nvidia(device_type):
            torch.cuda.profiler.start()
            marks.callback(torch.cuda.profiler.stop)
            marks.callback(torch.cuda.nvtx.range_end, torch.cuda.nvtx.range_start(RANGE))
        yield


def _marks(device_type: str) -> bool:
    return _is_nvidia(device_type) or _roctx() is not None


def _is_nvidia(device_type: str) -> bool:
    return device_type == "cuda" and not torch.version.hip


def _roctx() -> ctypes.CDLL | None:
    """Return AMD's library of ranges, which needs no GPU: rocprofv3's own where it is loaded."""
    # in the process itself, then the newer library, then the older one
    for name in (None, "librocprofiler-sdk-roctx.so", "libroctx64.so"):
        try:
            library = ctypes.CDLL(name)
            library.roctxRangeStartA.restype = ctypes.c_uint64
            library.roctxRangeStop.argtypes = (ctypes.c_uint64,)
        except (OSError, AttributeError):
            continue
        return library
    return None


_PROFILERS: Final[dict[str, Callable[[ProfiledStep, dict[str, Any], Path], list[str]]]] = {
    "torch": _torch,
    "cprofile": _cprofile,
    NVTX: _nvtx,
}
