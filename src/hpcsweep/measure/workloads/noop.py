"""No-op points, which sleep or fail as the sweep says. Standard library only."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from hpcsweep.catalog.record import Cells, row_of
from hpcsweep.catalog.row_records import LoadCells, MachineCells, OutcomeCells, TimeCells
from hpcsweep.measure.bench_api import CannotMeasure, Measurement, OutOfMemory, Progress
from hpcsweep.point import Point

_GIB: Final = 1 << 30


class Noop:
    """The `noop` workload: sleeps `measure.sleep_ms`, or fails as `measure.fail` says.

    With it a cluster, a profile and every failure of a real point can be tried without torch.
    """

    def __init__(self) -> None:
        self.history: dict[str, Any] = {}

    def environment(self) -> dict[str, Any]:
        """Return the provenance that needs no torch."""
        return {
            "row": MachineCells(device_name="none").filled(),
            "host": os.uname().nodename,
            "python": sys.version.split()[0],
            "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "rocr_visible_devices": os.environ.get("ROCR_VISIBLE_DEVICES"),
        }

    def measure(
        self,
        point: Point,
        tries: int = 0,
        progress: Progress | None = None,  # noqa: ARG002 - it has no checks
    ) -> Measurement:
        """Sleep once and report the time that it took."""
        rules = point.measure.get("fail") or ()
        wanted = [rule["how"] for rule in rules if _applies(rule, point, tries)]
        for how in wanted:
            if how != "contended":
                _fail(how)
        begin = time.perf_counter_ns()
        sleep_ms = point.measure.get("sleep_ms")
        if sleep_ms:
            time.sleep(float(sleep_ms) / 1000)
        ms = (time.perf_counter_ns() - begin) / 1e6
        cells: list[Cells] = [once(ms)]
        if "contended" in wanted:
            cells.append(OutcomeCells(flags="contended", valid=False))
            cells.append(LoadCells(load_avg_1min=os.getloadavg()[0]))
        return Measurement(row_of(*cells), [], [ms], timed_s=ms / 1000)


def once(ms: float) -> TimeCells:
    """Return the cells of what ran once, timed by the host's clock."""
    return TimeCells(
        n=1, mean_ms=ms, min_ms=ms, max_ms=ms, median_ms=ms, stop_reason="fixed", timer="host"
    )


def _applies(rule: Mapping[str, Any], point: Point, tries: int) -> bool:
    """Say whether a rule injects a failure now: its axes match, and its tries are not used up."""
    limit = rule.get("attempts")
    if limit is not None and tries >= limit:
        return False
    for axis, wanted in rule.get("when", {}).items():  # without any: every point
        values = wanted if isinstance(wanted, list) else [wanted]
        if point.axes.get(axis) not in values:
            return False
    return True


def _fail(how: str) -> None:
    """Fail as a real point would: by an exception, a signal, an exit or a hang."""
    if how == "error":
        raise RuntimeError("injected error")
    if how == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(1)
    if how == "oom":
        raise OutOfMemory(peak=5 * _GIB, limit=4 * _GIB)
    if how == "unsupported":
        raise CannotMeasure("injected: cannot be done here")
    # `hang`: nothing ends it but the supervisor
    while True:
        time.sleep(3600)
