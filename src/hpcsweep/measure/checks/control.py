"""The control check: a fixed piece of work after the point, and the switches of the process.

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
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from hpcsweep.catalog.checks.control import (
    CONTENDED,
    MACHINE_SHIFT,
    RUNS,
    SHARED_CPU,
    SHIFT_PCT,
    STOLEN_PCT,
    SWITCHED,
    SWITCHED_BACK,
    TWICE,
    WAITED_PCT,
    ControlCells,
)
from hpcsweep.catalog.record import Flag
from hpcsweep.measure import switches
from hpcsweep.measure.checks import Finding, PointCheck
from hpcsweep.measure.machine.rig import Rig
from hpcsweep.measure.network import Choices, Network, Times
from hpcsweep.sources import FACTORIES

# About a millisecond of Python.
_LOOP: Final = 20_000
# 29 million multiply-adds an image: a millisecond of two CPU cores.
_CHANNELS: Final = 32
_SIDE: Final = 56
# So that a GPU is busy for some time, too.
_IMAGES: Final = {"cpu": 1, "cuda": 64, "mps": 16}
# Earlier controls that a shift needs: fewer do not tell what is usual.
_KNOWN: Final = 5
# They go out with each request to a worker, whose size stays small.
_KEPT: Final = 200
_STAT: Final = Path("/proc/stat")
# Its fields by proc(5): cpu user nice system idle iowait irq softirq steal
_BUSY: Final = (1, 2, 3, 6, 7)
_STEAL: Final = 8
# Four standard deviations; of normal times one is 1.4826 median deviations.
_USUAL: Final = 4 * 1.4826


class _Usage(NamedTuple):
    """A moment, and what of this process was counted until then.

    Stolen seconds are the mean over CPUs, busy ones over those that this process may use, waited
    ones the sum over threads; `switches` are involuntary.
    """

    at_s: float
    switches: float
    stolen_s: float
    waited_s: float
    busy_s: float


class ControlCheck(PointCheck):
    """Times the control, and compares it with those of earlier points.

    `history` are the controls of earlier points in ms, also those of other workers.
    """

    history: list[float]

    def __init__(self, rig: Rig) -> None:
        """Convolve once, so that no point loads the libraries of the control."""
        super().__init__(rig)
        self.history = []
        self._device = rig.device.torch_device
        self._convolution()()
        self._begun = _used()

    def begin(self, network: Network) -> None:
        """Begin to count what is taken away from the process."""
        self._begun = _used()

    def after(self, network: Network, choices: Choices, times: Times) -> Finding:
        """Run the control; look which switches of its point the network turned."""
        turned = switches.turned()
        set_back = switches.turned_by(map(network.point.axes.get, FACTORIES))
        named = [f"{switch} (set back)" for switch in set_back]
        named += turned
        cells, flags = self.measured()
        cells |= ControlCells(
            threads=torch.get_num_threads(), switches_turned="; ".join(named) or None
        )
        flags[SHARED_CPU] = self.rig.device.type == "cpu" and switches.shares_cpu()
        flags[SWITCHED] = bool(turned)
        flags[SWITCHED_BACK] = bool(set_back)
        return Finding(cells=cells, flags=flags)

    def measured(self) -> tuple[ControlCells, dict[Flag, bool]]:
        """Run the control; return what it tells, and what was taken away since `begin`."""
        begun = self._begun
        used = _used()
        seconds = max(used.at_s - begun.at_s, 1e-9)
        stolen = (used.stolen_s - begun.stolen_s) / seconds
        host_ms, waited = _host()
        # the loop tells it where the kernel does not count it
        waited = max(waited, (used.waited_s - begun.waited_s) / seconds)
        convolve = self._convolution()
        # the first one may wait for memory
        convolve()
        ms = _median_ms(convolve)
        shift, is_far = self._shift(math.log(ms))
        slow = ms > TWICE * min(self.history, default=math.inf)
        self.history = [*self.history, ms][-_KEPT:]
        cells = ControlCells(
            control_ms=ms,
            control_host_ms=host_ms,
            control_shift_pct=shift,
            switches_per_s=(used.switches - begun.switches) / seconds,
            stolen_pct=100 * stolen,
            waited_pct=100 * waited,
            cpu_util_pct=100 * (used.busy_s - begun.busy_s) / seconds or None,  # 0: not counted
        )
        contended = waited > WAITED_PCT / 100 or stolen > STOLEN_PCT / 100 or slow
        return cells, {CONTENDED: contended, MACHINE_SHIFT: is_far}

    def _shift(self, log: float) -> tuple[float | None, bool]:
        """Return the percent by which earlier controls were exceeded, and if that is much."""
        before = [math.log(ms) for ms in self.history]
        if len(before) < _KNOWN:
            return None, False
        middle = statistics.median(before)
        usual = statistics.median(abs(earlier - middle) for earlier in before)
        shift = log - middle
        is_far = abs(shift) > max(math.log1p(SHIFT_PCT / 100), _USUAL * usual)
        return 100 * math.expm1(shift), is_far

    def _convolution(self) -> Callable[[], None]:
        """Return the convolution with operands of its own, which are no memory of a point."""
        images = _IMAGES.get(self._device.type, 1)
        x = torch.ones(images, _CHANNELS, _SIDE, _SIDE, device=self._device)
        weight = torch.ones(_CHANNELS, _CHANNELS, 3, 3, device=self._device)

        def convolve() -> None:
            threads = torch.get_num_threads()
            torch.set_num_threads(switches.default_threads())
            try:
                with torch.inference_mode(), torch.backends.cudnn.flags(
                    enabled=True, benchmark=False, deterministic=False, allow_tf32=False
                ):  # fmt: skip
                    F.conv2d(x, weight, padding=1)[0, 0, 0, 0].item()  # waits
            finally:
                torch.set_num_threads(threads)

        return convolve


def _used() -> _Usage:
    """Return what is counted until now; 0 for what is unknown, as without Linux."""
    stolen = 0.0
    busy = 0.0
    with suppress(OSError, AttributeError, IndexError, ValueError):
        own = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        a_second = os.sysconf("SC_CLK_TCK")
        for line in _STAT.read_text(encoding="ascii").splitlines():
            fields = line.split()
            if fields[0] == "cpu":  # the sum of all
                stolen = int(fields[_STEAL]) / a_second / (os.cpu_count() or 1)
            if fields[0] in own:
                busy += sum(int(fields[place]) for place in _BUSY) / a_second / len(own)
    waited = 0.0
    for schedstat in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, IndexError, ValueError):  # the thread ended meanwhile
            # ready, but without a CPU, in nanoseconds
            waited += int(schedstat.read_text(encoding="ascii").split()[1]) / 1e9
    involuntary = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    return _Usage(time.monotonic(), involuntary, stolen, waited, busy)


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


CHECK: Final = ControlCheck
