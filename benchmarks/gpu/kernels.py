"""What the profiler says: kernels and durations of every call, and what its sessions do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn import functional as F  # noqa: N812 - its own habit
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.gpu import convolutions, points
from hpcsweep.conv.proof import evidence, profiler_events
from hpcsweep.conv.proof.profiler_events import SACRIFICE, sacrifice
from hpcsweep.measure.timing import stats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from benchmarks.gpu.lab import Lab

_REPEATS: Final = 10
_TRIES: Final = 3
_MARK: Final = "hpcsweep.proof|"
_OPERATOR: Final = "aten::cudnn_convolution"
_CONVOLUTIONS: Final = 60
_SESSIONS: Final = 16
_IDLE_S: Final = 3.0  # the loss grows with the time that the GPU idled between sessions


def durations(lab: Lab) -> None:
    """Profile every distinct convolution with every algorithm: kernels by name and duration."""
    convolutions.full_precision()
    with torch.inference_mode():
        for key, shape in lab.each(convolutions.kinds(lab.options, lab.machine.kind)):
            with lab.entry(key) as facts:
                runs = dict(convolutions.calls(shape, lab.machine.kind))
                runs.pop(convolutions.AGAIN)
                facts.update(profiled(runs, lab.machine.kind))


def profiled(runs: Mapping[str, Callable[[], object]], kind: str) -> dict[str, Any]:
    """Return kernels and microseconds of each call; what shows no kernel is profiled again."""
    found: dict[str, Any] = {}
    for _ in range(_TRIES):
        lacking = {name: run for name, run in runs.items() if not found.get(name, {}).get("us")}
        if not lacking:
            break
        found |= read(_session(lacking, kind))
    return found


def _session(runs: Mapping[str, Callable[[], object]], kind: str) -> Iterable[Any]:
    for run in runs.values():
        run()
    few = torch.zeros(8, device=kind)
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if kind == "cuda" else []
    with profile(activities=activities) as profiler:
        if kind == "cuda":
            sacrifice(few)
        for name, run in runs.items():
            for _ in range(_REPEATS):
                with record_function(f"{_MARK}{name}"):
                    run()
    found: Iterable[Any] = profiler.events()
    return found


def names(run: Callable[[], object], kind: str) -> list[str]:
    """Return the full names of the kernels of a call; none on a host."""
    run()
    if kind != "cuda":
        return []
    found: list[str] = []
    for _ in range(_TRIES):
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            sacrifice(torch.zeros(8, device=kind))
            with record_function(f"{_MARK}call"):
                run()
            torch.cuda.synchronize()
        ranges = [one for one in profiler.events() if profiler_events.is_range(one, _MARK)]
        inside = (one for event in ranges for one in profiler_events.descendants(event))
        found = max(found, [kernel.name for one in inside for kernel in one.kernels], key=len)
    return found


def read(events: Iterable[Any]) -> dict[str, Any]:
    """Return of each marked call its kernels, and the median of their durations together.

    A repeat that shows fewer kernels than another lost some, and does not count.
    """
    seen: dict[str, list[list[Any]]] = {}
    for event in events:
        if profiler_events.is_range(event, _MARK):
            inside = [k for one in profiler_events.descendants(event) for k in one.kernels]
            seen.setdefault(event.name.removeprefix(_MARK), []).append(inside)
    return {name: _told(repeats) for name, repeats in seen.items()}


def _told(repeats: Sequence[list[Any]]) -> dict[str, Any]:
    most = max(map(len, repeats))
    whole = [kernels for kernels in repeats if len(kernels) == most]
    if not most:
        return {"kernels": [], "us": None, "lost": 0}
    return {
        "kernels": [evidence.kernel_word(kernel.name) for kernel in whole[-1]],
        "us": stats.median([sum(kernel.duration for kernel in kernels) for kernels in whole]),
        "lost": len(repeats) - len(whole),
    }


def sessions(lab: Lab) -> None:
    """Measure a point, open many profiler sessions, measure it again; see what sessions lose."""
    lab.need_gpu()
    # the order within one process is what is looked at, so a part of an earlier one is of no use
    lab.record.found.clear()
    lab.record.failed.clear()
    items: dict[str, bool | None] = {"first": None, "second": None}
    items |= {f"session {number}": number % 2 == 1 for number in range(_SESSIONS)}
    items |= {"after": None}
    bench = points.bench_of(lab)
    for key, sacrificed in lab.each(items):
        with lab.entry(key) as facts:
            if sacrificed is None:
                facts.update(points.pass_times(bench, lab.options))
            else:
                facts.update(_one_session(sacrificed=sacrificed))


def _one_session(*, sacrificed: bool) -> dict[str, Any]:
    x, weight = torch.randn(1, 64, 28, 28, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    few = torch.zeros(8, device="cuda")
    F.conv2d(x, weight, padding=1)
    torch.cuda.synchronize()
    time.sleep(_IDLE_S)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        if sacrificed:
            sacrifice(few)
        for _ in range(_CONVOLUTIONS):
            F.conv2d(x, weight, padding=1)
        torch.cuda.synchronize()
    return {"sacrificed": SACRIFICE if sacrificed else 0, **lost(seen.events())}


def lost(events: Iterable[Any], operator: str = _OPERATOR) -> dict[str, Any]:
    """Return how many of an operator's calls show no kernel, and where the first ones are."""
    calls = [event for event in events if event.name == operator]
    without = [place for place, event in enumerate(calls) if not event.kernels]
    return {"calls": len(calls), "lost": len(without), "which": without[:12]}
