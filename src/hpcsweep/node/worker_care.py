"""Keeps a worker ready, and returns an outcome for each point, even if the worker dies.

A worker that dies, hangs, garbles its replies or reports a fatal error costs its current point
alone; the next point gets another worker. So does the point after one that left something behind,
and one for which torch would reuse the previous point's tuning. Standard library only.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.catalog import AUTOTUNE
from hpcsweep.errors import Refused
from hpcsweep.node.protocol import Hello, Outcome, answer_to
from hpcsweep.node.worker_process import Died, Garbled, Interrupted, TimedOut, Worker
from hpcsweep.store import typed_json
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcsweep.node.protocol import PointRequest
    from hpcsweep.node.worker_process import Reply
    from hpcsweep.point import Point


_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class Stop:
    """Whether and why to stop, once `listen` has installed the signal handlers.

    With `lifeline`, end-of-file on stdin means that the launcher is gone. `fd` becomes readable at
    each of these events.
    """

    def __init__(self, *, lifeline: bool) -> None:
        self._lifeline = lifeline
        self.reason = ""
        self.orphaned = False
        self.fd, self._write = os.pipe()
        os.set_blocking(self._write, False)
        os.set_blocking(self.fd, False)

    def listen(self) -> None:
        """Install the handlers, for as long as the process runs."""
        for number in _STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        if self._lifeline:
            threading.Thread(target=self._watch, daemon=True).start()

    def wanted(self) -> bool:
        """Say whether to stop."""
        return bool(self.reason)

    def launcher_is_gone(self) -> bool:
        """Say whether the launcher is gone; signals that came meanwhile are forgotten."""
        with suppress(BlockingIOError):
            while os.read(self.fd, 64):
                pass
        return self.orphaned

    def _on_signal(self, number: int, _frame: object) -> None:
        self.reason = self.reason or signal.Signals(number).name
        self._wake()

    def _watch(self) -> None:
        while os.read(0, 64):
            pass
        self.orphaned = True
        self.reason = "the launcher is gone"
        self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._write, b"x")


# Signals that come from outside the process: the point is tried once more before it is blamed.
_FROM_OUTSIDE: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP})
_START_TRIES: Final = 3
_START_SECONDS: Final = 300.0  # a cold torch import from a loaded network file system


def process_key(point: Point) -> str:
    """Return a key that differs between points that must not share a process on a tuning device.

    torch keeps one plan for each shape, and reuses it before it checks whether to tune. A map that
    tunes some layers mixes tuned and untuned plans in a way that depends on the point, so each of
    its points has a process of its own.
    """
    algorithm = point.axes.get("algorithm")
    if isinstance(algorithm, Mapping):
        return point.point_id if AUTOTUNE in algorithm.values() else ""
    return AUTOTUNE if algorithm == AUTOTUNE or point.axes.get("cudnn_benchmark") else ""


@dataclass
class WorkerCare:
    """One worker at a time: started when a point needs it, ended when it cannot be reused."""

    log: Path
    variables: Mapping[str, str]  # of the worker's environment
    stop: Stop
    kill_wait: float  # seconds that a point may still take once a stop is wanted
    end_seconds: float  # seconds for the worker to end before it is killed
    on_hello: Callable[[Mapping[str, Any]], None]  # receives the worker's report on its machine
    _worker: Worker | None = field(default=None, init=False)
    _tunes: bool = field(default=False, init=False)  # the worker's device
    _key: str = field(default="", init=False)  # process key of the worker's points
    _used: bool = field(default=False, init=False)  # it measured another point before

    def outcome_of(self, request: PointRequest, limit: float, until: float) -> Outcome | None:
        """Measure a point in `limit` seconds at most, by the time `until`; None if it was dropped.

        Raises:
            Refused: the machine is not fit, or no worker starts.
        """
        for last_try in (False, True):
            worker = self._ready(process_key(request.point))
            if worker is None:
                return None
            request = replace(request, nonce=os.urandom(8).hex())
            worker.ask(typed_json.to_plain(request))
            reply = worker.wait(min(limit, until - time.time()), self.stop.wanted)
            if isinstance(reply, Interrupted) and not self.stop.orphaned:
                reply = worker.wait(self.kill_wait, self.stop.launcher_is_gone)
            outcome = self._judge(_checked(worker, request, reply), limit, last_try=last_try)
            if outcome is not None or self.stop.wanted():
                return outcome
        return None

    def end(self) -> None:
        """Let the worker end, if there is one."""
        worker = self._worker
        self._worker = None
        if worker is not None:
            worker.stop(self.end_seconds)

    def _ready(self, key: str) -> Worker | None:
        """Return a worker that is ready; None if a stop is wanted before it is."""
        fits = key == self._key or not self._tunes
        self._key = key
        if self._worker is not None and not (fits and self._worker.is_idle()):
            self.end()
        self._used = self._worker is not None
        if self._worker is not None:
            return self._worker
        for number in range(1, _START_TRIES + 1):
            worker = Worker(self.log, self.variables, self.stop.fd)
            reply = worker.wait(_START_SECONDS, self.stop.wanted)
            if isinstance(reply, dict):
                return self._greet(worker, reply)
            worker.kill()
            if isinstance(reply, Interrupted):
                return None
            if number == _START_TRIES:
                raise Refused(f"{os.uname().nodename}: the worker does not start: {reply}")
        return None

    def _greet(self, worker: Worker, reply: Mapping[str, Any]) -> Worker:
        self._worker = worker
        hello = typed_json.from_plain(Hello, reply)
        if hello.refused:
            raise Refused(hello.refused)
        self._tunes = hello.tunes
        self.on_hello(hello.env)
        return worker

    def _judge(self, reply: Reply | Outcome, limit: float, *, last_try: bool) -> Outcome | None:
        """Turn a reply or its absence into an outcome; None: try again or drop the point."""
        if isinstance(reply, Outcome):
            if reply.fatal or reply.left:
                self.end()
            return reply
        worker = self._worker
        self._worker = None
        if worker:
            worker.kill()
        if self.stop.wanted() or isinstance(reply, Interrupted):
            return None
        if isinstance(reply, TimedOut):
            return Outcome(status=PointStatus.TIMEOUT, reason=f"no result within {limit:g} s")
        outside = isinstance(reply, Died) and reply.by_signal in _FROM_OUTSIDE
        if (outside or self._used) and not last_try:  # an earlier point may have caused it
            return None
        return Outcome(status=PointStatus.CRASHED, reason=str(reply))


def _checked(worker: Worker, request: PointRequest, reply: Reply) -> Reply | Outcome:
    """Return the outcome in a reply, with what its point left running; other replies unchanged."""
    if not isinstance(reply, dict):
        return reply
    try:
        outcome = answer_to(request, reply)
    except ValueError as error:
        return Garbled(str(error))
    if worker.has_said_more():
        return Garbled("it is not the only one")
    return replace(outcome, left=[*outcome.left, *worker.offspring()])
