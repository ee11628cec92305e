"""Times a fixed piece of work between points, the control, to detect changes of the machine.

The control is a convolution on the device and a loop of Python on the host, some milliseconds
together, with settings independent of points. A point's time may change with its algorithm; the
control's changes with the machine alone: its clock, its load, its neighbours.

Contention shows in the process, too: its threads wait for a CPU (Linux counts it in `schedstat`),
the loop takes longer than its CPU time, or the hypervisor takes CPUs away (stolen time).
Involuntary switches are counted, but raise no flag: a quiet machine may have 200 a second that cost
2 % of the time, and a busy one as many that cost half of it.
"""

from __future__ import annotations

import math
import os
import resource
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from hpcsweep.catalog.checks.control import (
    CONTENDED,
    MACHINE_SHIFT,
    RUNS,
    SHIFT_PCT,
    STOLEN_PCT,
    TWICE,
    WAITED_PCT,
)
from hpcsweep.catalog.columns import Row
from hpcsweep.measure import switches

_LOOP: Final = 20_000  # about a millisecond of Python
# 29 million multiply-adds an image: a millisecond of two CPU cores
_CHANNELS = 32
_SIDE = 56
_IMAGES: Final = {"cpu": 1, "cuda": 64, "mps": 16}
_KNOWN: Final = 5  # earlier controls that a shift needs
_KEPT: Final = 200  # they go out with each request
_TASKS: Final = Path("/proc/self/task")
_STEAL: Final = 8  # proc(5): cpu user nice system idle iowait irq softirq steal
_USUAL: Final = 4 * 1.4826  # four standard deviations, by the median deviation


class Control:
    """Measures the control on one device, and keeps its earlier times, also of other workers."""

    def __init__(self, device: torch.device) -> None:
        """Convolve once, so that no point loads the libraries of the control."""
        self._device = device
        self.earlier_ms: list[float] = []
        self._convolution()()
        self._begun = _taken_away()

    def begin(self) -> None:
        """Begin a point."""
        self._begun = _taken_away()

    def row(self) -> tuple[Row, list[str]]:
        """End a point; return the columns on contention and the control, and the flags."""
        gone = (b - a for a, b in zip(self._begun, _taken_away(), strict=True))
        seconds, switches, stolen, queued, busy = gone
        seconds = max(seconds, 1e-9)
        host_ms, waited = _host()
        waited = max(waited, queued / seconds)
        convolve = self._convolution()
        convolve()  # the first one may wait for memory
        ms = _median_ms(convolve)
        shift = self._shift(math.log(ms))
        cells: Row = {
            "control_ms": ms,
            "control_host_ms": host_ms,
            "control_shift_pct": None if shift is None else 100 * math.expm1(shift[0]),
            "switches_per_s": switches / seconds,
            "stolen_pct": 100 * stolen / seconds,
            "waited_pct": 100 * waited,
            "cpu_util_pct": 100 * busy / seconds or None,  # 0: not counted here
        }
        slow = ms > TWICE * min(self.earlier_ms, default=math.inf)
        is_stolen = stolen > STOLEN_PCT / 100 * seconds
        flags = []
        if waited > WAITED_PCT / 100 or is_stolen or slow:
            flags.append(CONTENDED.name)
        if shift is not None and shift[1]:
            flags.append(MACHINE_SHIFT.name)
        self.earlier_ms = [*self.earlier_ms, ms][-_KEPT:]
        return cells, flags

    def _shift(self, log: float) -> tuple[float, bool] | None:
        """Return the log ratio to the earlier controls, and if it is large."""
        before = [math.log(ms) for ms in self.earlier_ms]
        if len(before) < _KNOWN:
            return None
        middle = statistics.median(before)
        usual = statistics.median(abs(time_ - middle) for time_ in before)
        far = abs(log - middle) > max(math.log1p(SHIFT_PCT / 100), _USUAL * usual)
        return log - middle, far

    def _convolution(self) -> Callable[[], None]:
        """Return the convolution with operands of its own, which are no memory of a point."""
        images = _IMAGES.get(self._device.type, 1)
        x = torch.ones(images, _CHANNELS, _SIDE, _SIDE, device=self._device)
        weight = torch.ones(_CHANNELS, _CHANNELS, 3, 3, device=self._device)
        return partial(_convolve, x, weight)


def _convolve(x: Tensor, weight: Tensor) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(switches.default_threads())
    try:
        with torch.inference_mode(), torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=False, allow_tf32=False
        ):  # fmt: skip
            F.conv2d(x, weight, padding=1)[0, 0, 0, 0].item()  # waits
    finally:
        torch.set_num_threads(threads)


def _taken_away() -> tuple[float, ...]:
    """Return the time, involuntary switches of this process, and seconds stolen, waited and busy.

    Stolen seconds are the mean over CPUs, busy ones over those that this process may use, waited
    ones the sum over threads.
    """
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    stolen = 0.0
    with suppress(OSError, IndexError, ValueError):
        cells = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
        stolen = int(cells[_STEAL]) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
    waited = sum(map(_waited, _TASKS.glob("*/schedstat")))
    return time.monotonic(), float(switches), stolen, waited, _busy()


def _busy() -> float:
    """Return the seconds that a CPU of this process worked, for whomever; 0 if unknown."""
    with suppress(OSError, AttributeError, ValueError):
        own = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        lines = map(str.split, Path("/proc/stat").read_text(encoding="ascii").splitlines())
        # user, nice, system, irq, softirq
        ticks = [
            sum(map(int, (*one[1:4], *one[6:8]))) for one in lines if one[:1] and one[0] in own
        ]
        return sum(ticks) / len(own) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _waited(schedstat: Path) -> float:
    """Return the seconds that a thread was ready without a CPU; 0 if it ended, or if unknown."""
    with suppress(OSError, IndexError, ValueError):
        return int(schedstat.read_text(encoding="ascii").split()[1]) / 1e9
    return 0.0


def _host() -> tuple[float, float]:
    """Return the milliseconds of the loop, and the share in which it waited for a CPU."""
    began = time.perf_counter()
    used = time.thread_time()
    ms = _median_ms(_loop)
    used = time.thread_time() - used
    took = time.perf_counter() - began
    return ms, max(0.0, 1 - used / took)


def _loop() -> None:
    sum(range(_LOOP))
    for _ in range(_LOOP):
        pass


def _median_ms(work: Callable[[], None]) -> float:
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - begin)
    return statistics.median(times) / 1e6
