"""Measures points on the node, started by the supervisor.

Its argument is the number of a socket, through which points come in and outcomes go out, one JSON
object a line. An exception of a point becomes its status, and the next point is measured. No child
has the socket; the output of other code goes to the attempt's log.

A hang-up means that the supervisor is gone; a thread waits for it, so that even a worker in the
middle of a long pass ends at once. Under a profiler (HPCSWEEP_WRAPPER) it ends after the pass,
since profilers write their reports in exit handlers.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hpcsweep import environment, extras, sources
from hpcsweep.catalog import WORKLOADS
from hpcsweep.errors import HpcsweepError
from hpcsweep.measure.bench import bench_of
from hpcsweep.measure.bench_api import CannotMeasure, OutOfMemory
from hpcsweep.measure.machine import remains
from hpcsweep.node.protocol import Hello, Outcome, PointRequest
from hpcsweep.processes import die_with_parent, end_without_search
from hpcsweep.store import typed_json
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from hpcsweep.measure.bench_api import Bench

# Messages of a CUDA or HIP context that is beyond repair: only a new process helps.
_STICKY: Final = (
    "CUDA error",
    "HIP error",
    "device-side assert",
    "illegal memory access",
    "CUDNN_STATUS_MAPPING_ERROR",
    "CUDNN_STATUS_EXECUTION_FAILED",
)


def main(argv: list[str]) -> int:
    """Say hello, then answer points until the supervisor hangs up."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        # Slurm signals every process of a step; only the supervisor decides to stop.
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    atexit.register(end_without_search)
    die_with_parent()
    line = _SupervisorSocket(int(argv[0]))
    if not os.environ.get(environment.WRAPPER):
        threading.Thread(target=line.leave_on_hang_up, daemon=True).start()
    workload = os.environ[environment.WORKLOAD]
    try:
        bench = bench_of(workload, json.loads(os.environ[environment.RUN]))
        line.send(Hello(env=bench.environment(), tunes=bench.tunes))
    except HpcsweepError as error:
        line.send(Hello(refused=str(error)))
        return error.exit_code
    except ModuleNotFoundError as error:
        missing = extras.missing(error, f"{sys.executable} on {os.uname().nodename}")
        if missing is None:
            raise
        line.send(Hello(refused=str(missing)))
        return missing.exit_code
    # without a network no code runs but ours: a look would find nothing, at more than a point costs
    before = remains.ProcessState() if WORKLOADS[workload].runs_network else None
    for text in line.requests:
        request = typed_json.from_plain(PointRequest, json.loads(text))
        done = outcome(bench, request)
        left = _left(bench, before) if before else []
        line.send(replace(done, left=left, point_id=request.point.point_id, nonce=request.nonce))
    return 0


def _left(bench: Bench, before: remains.ProcessState) -> list[str]:
    """Return what a point changed or left running."""
    try:
        bench.rest()
        return before.changes()
    except Exception as error:  # noqa: BLE001 - the measured values must not be lost
        return [f"its state cannot be told: {error}"[:200]]


def outcome(bench: Bench, request: PointRequest) -> Outcome:
    """Measure one point and return its outcome with the user's files; raise nothing."""
    before = sources.parts(sources.own_files_here(request.point))
    measured = _outcome(bench, request)
    after = sources.parts(sources.own_files_here(request.point))
    pairs = ((axis, before.get(axis, ""), after.get(axis, "")) for axis in {**before, **after})
    # a file that was replaced meanwhile has both digests
    made_of = (f"{axis}={a if a == b else f'{a}-{b}'}" for axis, a, b in pairs)
    return replace(measured, row={**measured.row, "own_files": ";".join(made_of)})


def _outcome(bench: Bench, request: PointRequest) -> Outcome:
    try:
        measured = bench.measure(request.point, request.tries)
    except CannotMeasure as error:
        return Outcome(status=PointStatus.UNSUPPORTED, reason=str(error))
    except (OutOfMemory, MemoryError) as error:
        row = {
            "mem_peak_bytes": getattr(error, "peak", None),
            "mem_limit_bytes": getattr(error, "limit", None),
        }
        return Outcome(status=PointStatus.OOM, reason=str(error), row=row)
    except Exception as error:  # noqa: BLE001 - one bad point is one row
        traceback.print_exc()
        text = f"{type(error).__name__}: {_words(error)}"
        fatal = any(mark in text for mark in _STICKY)
        return Outcome(status=PointStatus.ERROR, reason=text[:1000], fatal=fatal)
    return Outcome(
        status=PointStatus.OK,
        row=measured.row,
        layers=measured.layers,
        samples=measured.samples,
        timed_s=measured.timed_s,
    )


def _words(error: Exception) -> str:
    """Return an exception's message; for one from a loader process, its trace's last line."""
    text = str(error)
    if "in DataLoader worker process" in text:
        last = text.strip().splitlines()[-1]  # "package.module.SomeError: its message"
        return last.partition(": ")[2] or last
    return text


class _SupervisorSocket:
    """The connection to the supervisor, which no child may use."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._pid = os.getpid()
        self._socket.set_inheritable(False)
        self.requests = self._socket.makefile("rb")
        self._null = os.open(os.devnull, os.O_RDWR)
        self._by_main = True
        os.register_at_fork(before=self._before_fork, after_in_child=self._in_child)

    def send(self, message: Hello | Outcome) -> None:
        """Send a message; a forked copy of this process ends here instead."""
        if os.getpid() != self._pid:
            os._exit(0)
        text = json.dumps(typed_json.to_plain(message), ensure_ascii=False)
        self._socket.sendall(text.encode(errors="replace") + b"\n")  # names of files are any bytes

    def leave_on_hang_up(self) -> None:
        """End the process when the supervisor closes the connection; ignore data to read."""
        poll = select.poll()
        poll.register(self._socket, 0)  # poll always reports a hang-up
        while not poll.poll():
            pass
        os._exit(0)

    def _before_fork(self) -> None:
        self._by_main = threading.current_thread() is threading.main_thread()

    def _in_child(self) -> None:
        os.dup2(self._null, self._socket.fileno(), inheritable=False)
        if self._by_main:  # else it would die with the thread
            die_with_parent()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
