"""Measures points on the node: a worker, or the template that forks workers.

Its first argument is the number of a socket. A worker gets points through it and sends outcomes,
one JSON object a line. An exception of a point becomes its status, and the next point is measured.
No child has the socket; the output of other code goes to the attempt's log.

A hang-up means that the supervisor is gone; a thread waits for it, so that even a worker in the
middle of a long pass ends at once. Under a profiler (HPCSWEEP_WRAPPER) it ends after the pass,
since profilers write their reports in exit handlers.

With the second argument `template` it imports once what all need, torch where networks run, and
forks a worker for each socket that comes through its own. Until it forks, it runs no operator,
starts no thread, and does not ask torch for a GPU: a copy of a process that did could hang, or find
no GPU. Its environment, which libraries read when they are loaded, is complete before it starts. If
it cannot import torch it ends, and workers are started without it. A worker is forked twice: as an
orphan it becomes a child of the supervisor, which adopts them, and sees how it ends.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import environment, extras, processes, sources
from hpcsweep.catalog import COMMAND, NOOP, WORKLOADS
from hpcsweep.catalog.checks.memory import MemoryCells
from hpcsweep.catalog.record import row_of
from hpcsweep.catalog.row_records import OriginCells
from hpcsweep.errors import HpcsweepError
from hpcsweep.measure.bench_api import CannotMeasure, OutOfMemory
from hpcsweep.measure.workloads.command import Command
from hpcsweep.measure.workloads.noop import Noop
from hpcsweep.node.protocol import TEMPLATE, Hello, MeasureRequest, Outcome, Reply, Timed
from hpcsweep.store import typed_json
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hpcsweep.measure.bench_api import Bench, Measurement
    from hpcsweep.point import Point

# Characters of a trace that go into the log: a message may hold a whole tensor.
_MOST_TRACE: Final = 1 << 16
# Characters of an exception's message in a cell of the table; the log has the trace.
_MOST_REASON: Final = 1000

# Messages of a CUDA or HIP context that is beyond repair: only a new process helps.
_STICKY: Final = (
    "CUDA error",
    "HIP error",
    "device-side assert",
    "illegal memory access",
    "CUDNN_STATUS_MAPPING_ERROR",
    "CUDNN_STATUS_EXECUTION_FAILED",
)
# Slurm, and who signals a job by hand, signal every process of a step: when to stop is for the
# supervisor, which lets the point come to its end.
_IGNORED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
# Between two looks whether the parent is gone: it ends at once, and a point waits for it.
_LOOK_SECONDS: Final = 0.001


def main(argv: list[str]) -> int:
    """Measure, or fork workers; return the exit code of this process, or of a forked one."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    gc.disable()  # nothing of torch is garbage: a tenth of its import would be searches for some
    if TEMPLATE in argv:
        return _fork_workers(int(argv[0]))
    return _work(int(argv[0]), {})


def _fork_workers(fd: int) -> int:
    """Fork workers until the supervisor hangs up; in a worker, return its exit code."""
    processes.die_with_parent()
    if WORKLOADS[os.environ[environment.WORKLOAD]].runs_network:
        import_all()
    gc.freeze()  # or a worker's first search for garbage would copy all that it shares
    requests = socket.socket(fileno=fd)
    while True:
        _, sockets, *_ = socket.recv_fds(requests, 1, 1)
        if not sockets:
            return 0
        between = processes.fork()
        if between == 0:
            requests.close()
            parent = os.getpid()
            if processes.fork():
                os._exit(0)
            os.setsid()
            while os.getppid() == parent:  # until the supervisor has adopted this process
                time.sleep(_LOOK_SECONDS)
            return _work(sockets[0], {"pid": os.getpid()})
        os.close(sockets[0])
        os.waitpid(between, 0)


def import_all() -> None:
    """Import what every worker of a network needs."""
    # ruff: noqa: F401, PLC0415 - all of it is slow
    import torch._dynamo  # 2 s: torch's profiler takes it, and each optimizer
    import torchvision

    from hpcsweep.measure import measure_point  # with the workloads, the checks and the rig


def _work(fd: int, forked: Mapping[str, int]) -> int:
    """Say hello, then answer requests until the supervisor hangs up.

    A `forked` worker first says its process id, which the supervisor does not know.
    """
    faulthandler.enable()
    atexit.register(processes.end_without_search)
    workload = os.environ[environment.WORKLOAD]
    if workload != COMMAND.name:  # whose whole process group ends, which takes a hang-up
        processes.die_with_parent()
    line = _SupervisorSocket(fd)
    if forked:
        line.send(forked)
    if not os.environ.get(environment.WRAPPER):
        threading.Thread(target=line.leave_on_hang_up, daemon=True).start()
    try:
        bench = bench_of(workload, json.loads(os.environ[environment.RUN]))
        line.send(typed_json.to_plain(Hello(env=bench.environment())))
        gc.enable()  # all is imported, and points are measured as programs run
    except HpcsweepError as error:
        refused = Hello(refused=str(error), exit_code=error.exit_code)
        line.send(typed_json.to_plain(refused))
        return error.exit_code
    except ModuleNotFoundError as error:
        missing = extras.missing(error, f"{sys.executable} on {os.uname().nodename}")
        if missing is None:
            raise
        line.send(typed_json.to_plain(Hello(refused=str(missing))))
        return missing.exit_code
    for text in line.requests:
        request = MeasureRequest.from_plain(json.loads(text))
        bench.history = request.history
        found = tuple(outcomes(bench, request, line.send))
        reply = Reply(outcomes=found, history=bench.history)
        line.send(reply.to_plain())
    return 0


def bench_of(workload: str, run: Mapping[str, Any]) -> Bench:
    """Return the bench of a workload; torch is loaded only where it is needed.

    Raises:
        Refused: as `torch_bench` does.
    """
    if workload == COMMAND.name:
        return Command(run)
    if workload == NOOP.name:
        return Noop()
    from hpcsweep.measure.measure_point import torch_bench

    return torch_bench(workload, run)


def outcomes(
    bench: Bench, request: MeasureRequest, send: Callable[[Mapping[str, Any]], object]
) -> Iterator[Outcome]:
    """Measure the points of a request until one is fatal; `send` says how far one is."""
    for point in request.points:
        began = time.monotonic()
        before = sources.own_files_here(point)
        progress = _Progress(point.point_id, frozenset(request.skipped), send)
        found = _outcome(bench, point, request.tries, progress)
        after = sources.own_files_here(point)
        origin = OriginCells(own_files=before if before == after else _both(before, after))
        row = {**found.row, **row_of(origin)}
        told = {"row": row, "point_id": point.point_id, "seconds": time.monotonic() - began}
        yield Outcome(**{**vars(found), **told})  # `replace` takes three times as long
        if found.fatal:
            return


def _both(before: str, after: str) -> str:
    """Return the digests of files of which one was replaced meanwhile: that one has both."""
    old = sources.parts(before)
    new = sources.parts(after)
    digests = []
    for axis in {**old, **new}:
        digest = old.get(axis, "")
        if new.get(axis, "") != digest:
            digest = f"{digest}-{new.get(axis, '')}"
        digests.append(f"{axis}={digest}")
    return ";".join(digests)


@dataclass
class _Progress:
    """Tells the supervisor that a point has its times, and which check begins."""

    point_id: str
    skipped: frozenset[str]
    send: Callable[[Mapping[str, Any]], object]
    last: Timed | None = None

    def begins(self, check: str, so_far: Measurement, rest: Sequence[str]) -> None:
        """Send the point as it is before a check."""
        outcome = replace(_ok(so_far), point_id=self.point_id)
        self.last = Timed(so_far=outcome, check=check, rest=[*rest])
        self.send(typed_json.to_plain(self.last))


def _outcome(bench: Bench, point: Point, tries: int, progress: _Progress) -> Outcome:
    try:
        measured = bench.measure(point, tries, progress)
    except CannotMeasure as error:
        return Outcome(status=PointStatus.UNSUPPORTED, reason=str(error), fatal=error.spoiled)
    except (OutOfMemory, MemoryError) as error:
        memory = MemoryCells(
            mem_peak_bytes=getattr(error, "peak", None),
            mem_limit_bytes=getattr(error, "limit", None),
        )
        return Outcome(status=PointStatus.OOM, reason=str(error), row=row_of(memory))
    except Exception as error:  # noqa: BLE001 - one bad point is one row
        text = f"{type(error).__name__}: {_words(error)}"
        reason = text[:_MOST_REASON]
        trace = traceback.format_exc()[-_MOST_TRACE:]
        fatal = any(mark in text for mark in _STICKY)
        if fatal and progress.last:  # as if the process had ended
            return replace(progress.last.ended(reason), trace=trace, fatal=True)
        return Outcome(status=PointStatus.ERROR, reason=reason, trace=trace, fatal=fatal)
    return _ok(measured)


def _ok(measured: Measurement) -> Outcome:
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

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; a forked copy of this process ends here instead."""
        if os.getpid() != self._pid:
            os._exit(0)
        text = json.dumps(message, ensure_ascii=False)
        self._socket.sendall(text.encode(errors="replace") + b"\n")  # names of files are any bytes

    def leave_on_hang_up(self) -> None:
        """End the process when the supervisor closes the connection; ignore data to read."""
        poll = select.poll()
        poll.register(self._socket, 0)  # poll always reports a hang-up
        while not poll.poll():
            pass
        if os.environ[environment.WORKLOAD] == COMMAND.name:
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(0)

    def _before_fork(self) -> None:
        self._by_main = threading.current_thread() is threading.main_thread()

    def _in_child(self) -> None:
        os.dup2(self._null, self._socket.fileno(), inheritable=False)
        if self._by_main:  # else it would die with the thread
            processes.die_with_parent()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
