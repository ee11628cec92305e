"""Cheap facts: what an event costs, how much the queue holds, and what is in the cache."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn import functional as F  # noqa: N812 - its own habit

from benchmarks.gpu import machine as machines
from benchmarks.gpu.machine import BATCH, bare_loop, in_turns, microseconds, resolution
from hpcsweep.measure import caches
from hpcsweep.measure.timing import clocks, stats

if TYPE_CHECKING:
    from benchmarks.gpu.lab import Lab
    from benchmarks.gpu.machine import Gpu

_QUEUE_MOST: Final = 6000
_SIDE: Final = 2048
_QUEUE_DELAY_MS: Final = 400.0
_STALL_MS: Final = 5.0
READ: Final = "cache: a read of a quarter"
COLD: Final = "bandwidth: cold"
NOTHING: Final = "floor: nothing"
QUEUES: Final[Mapping[str, tuple[int, bool]]] = {
    "queue: kernel": (1, False),
    "queue: event, kernel, event": (3, True),
}
_GPU: Final = torch.device("cuda")


def device(lab: Lab) -> None:
    """Find cheap facts: delays, what events add, what the queue holds, bandwidth, caches."""
    gpu = lab.machine
    passes = lab.options.iterations
    few = torch.zeros(8, device=_GPU)
    quarter = caches.cache_bytes(_GPU) // 4 // 4  # numbers of four bytes
    asked: dict[str, Callable[[], dict[str, Any]]] = {
        "delay": lambda: _delay(gpu),
        "torch": _torch,
        COLD: lambda: bandwidth(gpu, caches.preparation("cold", _GPU), passes),
        "bandwidth: hot": lambda: bandwidth(gpu, clocks.nothing, passes),
        READ: lambda: _states(gpu, (quarter,), passes),
        "cache: conv 3x3 256x14x14": lambda: _states(gpu, (1, 256, 14, 14), passes),
    }
    for name, call in small_cases().items():
        asked[f"floor: {name}"] = partial(floor, gpu, call, passes)
    for name, (entries, marked) in QUEUES.items():
        asked[name] = partial(depth, gpu, lambda: few.add_(1), entries=entries, marked=marked)
    with torch.inference_mode():
        for key, ask in lab.each(asked):
            with lab.entry(key) as found:
                found.update(ask())


def _delay(machine: Gpu) -> dict[str, Any]:
    """Ask for delays, and see how long they are."""
    runtime = machine.runtime
    found = {}
    begin = runtime.event()
    end = runtime.event()
    for asked in (1.0, 10.0, 50.0):
        for _ in range(3):
            begin.record()
            runtime.delay(asked)
            end.record()
            runtime.synchronize()
        found[f"asked_{asked:g}_ms"] = begin.elapsed_time(end)
    return found


def _torch() -> dict[str, Any]:
    return {
        "events_in_graphs": clocks.external_event() is not None,
        "conv_precision": str(
            getattr(getattr(torch.backends.cudnn, "conv", None), "fp32_precision", None)
        ),
        "tf32_at_start": bool(torch.backends.cudnn.allow_tf32),
        "cache_bytes": caches.cache_bytes(_GPU),
    }


def bandwidth(machine: Gpu, prepare: Callable[[], object], passes: int) -> dict[str, Any]:
    """Read a whole cache's worth: cold it is no faster than memory, and hot it may be."""
    numbers = torch.randn(caches.cache_bytes(_GPU) // 4, device=_GPU)
    ms = stats.median(in_turns(machine, {"": numbers.sum}, passes, prepare)[""])
    return {"bytes": numbers.nbytes, "ms": ms, "gbs": numbers.nbytes / ms / 1e6}


def small_cases() -> dict[str, Callable[[], object]]:
    """Return calls from nothing at all to a matrix product that takes a while."""
    few = torch.zeros(8, device=_GPU)
    some = torch.randn(1, 64, 56, 56, device=_GPU)
    deep = torch.randn(1, 256, 14, 14, device=_GPU)
    wide = torch.randn(64, 64, 3, 3, device=_GPU)
    narrow = torch.randn(1024, 256, 1, 1, device=_GPU)
    square = torch.randn(_SIDE, _SIDE, device=_GPU)
    return {
        "nothing": clocks.nothing,
        "add 8 numbers": lambda: few.add_(1),
        "relu 64x56x56": some.relu_,
        "conv 3x3 64x56x56": lambda: F.conv2d(some, wide, padding=1),
        "conv 1x1 256x14x14 to 1024": lambda: F.conv2d(deep, narrow),
        f"matrix product {_SIDE}": lambda: square @ square,
    }


def floor(machine: Gpu, call: Callable[[], object], passes: int) -> dict[str, Any]:
    """Time a call alone, in a bare loop, in a batch, and with an event before and after each."""
    alone = in_turns(machine, {"": call}, passes)[""]
    marked, read = _marked(machine, call)
    whole = in_turns(machine, {"": marked}, passes)[""]
    each = read()
    bare = 1000 * stats.median(bare_loop(machine.runtime, call, BATCH, passes))
    found = {
        "pair_us": 1000 * stats.median(alone),
        "bare_us": bare,
        "event_us": 1000 * stats.median(each),
        "two_events_add_us": 1000 * stats.median(whole) / BATCH - bare,
    }
    if call is not clocks.nothing:  # an empty graph cannot be captured
        run = machine.batch(call, BATCH)
        found["batch_us"] = microseconds(in_turns(machine, {"": run}, passes)[""], BATCH)["us"]
    step = resolution([*alone, *each])
    return found if step is None else {**found, "resolution_us": 1000 * step}


def _marked(
    machine: Gpu, call: Callable[[], object]
) -> tuple[Callable[[], object], Callable[[], list[float]]]:
    """Return a batch with an event before and after each call, and what reads the last one."""
    pairs = [(machine.runtime.event(), machine.runtime.event()) for _ in range(BATCH)]

    def run() -> None:
        for begin, end in pairs:
            begin.record()
            call()
            end.record()

    return run, lambda: [begin.elapsed_time(end) for begin, end in pairs]


def depth(
    machine: Gpu, launch: Callable[[], object], *, entries: int, marked: bool
) -> dict[str, Any]:
    """Queue launches behind a long delay until the host has to wait for one.

    `holds` counts queue entries, of which a launch with its events takes three; None: the host
    never waited, and more than `tried` fit.
    """
    runtime = machine.runtime
    pairs = [(runtime.event(), runtime.event()) for _ in range(_QUEUE_MOST // entries)]
    runtime.synchronize()
    runtime.delay(_QUEUE_DELAY_MS)
    gaps = []
    before = runtime.host_now()
    for begin, end in pairs:
        if marked:
            begin.record()
        launch()
        if marked:
            end.record()
        now = runtime.host_now()
        gaps.append(now - before)
        before = now
    runtime.synchronize()
    stalled = first_stall(gaps, _QUEUE_DELAY_MS / 2)
    return {
        "holds": None if stalled is None else stalled * entries,
        "tried": len(pairs) * entries,
        "host_us_each": 1000 * stats.median(gaps[: stalled or len(gaps)] or gaps),
    }


def first_stall(gaps: list[float], until_ms: float) -> int | None:
    """Return the place of the first launch that made the host wait, from their milliseconds.

    A full queue makes it wait until the delay is over, at `until_ms` or later. A pause before that
    is the system's, which gave the processor to somebody else.
    """
    ends = itertools.accumulate(gaps)
    waits = (gap > _STALL_MS and end >= until_ms for gap, end in zip(gaps, ends, strict=True))
    return next((place for place, waited in enumerate(waits) if waited), None)


def _states(machine: Gpu, shape: tuple[int, ...], passes: int) -> dict[str, Any]:
    """Time a read or a convolution with a hot, a rewritten and a rotated cache."""
    one = torch.randn(shape, device=_GPU)
    count = caches.input_count("rotated", _GPU, one.numel() * one.element_size())
    inputs = [one.clone() for _ in range(count)]
    weight = torch.randn(256, 256, 3, 3, device=_GPU)

    def work(x: torch.Tensor) -> object:
        return x.sum() if x.dim() == 1 else F.conv2d(x, weight, padding=1)

    turn = iter(range(10**9))
    hot = in_turns(machine, {"": lambda: work(one)}, passes)[""]
    flush = caches.preparation("cold", _GPU)
    cold = in_turns(machine, {"": lambda: work(one)}, passes, flush)[""]
    rotated = in_turns(machine, {"": lambda: work(inputs[next(turn) % count])}, passes)[""]
    times = {"hot": hot, "cold": cold, "rotated": rotated}
    return {f"{name}_us": machines.microseconds(found)["us"] for name, found in times.items()}
