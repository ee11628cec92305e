"""Keeps a worker ready, and finds an outcome for each point whatever becomes of the worker.

A worker that dies, hangs or reports an error that it cannot recover from costs its own point
alone; the next point gets a new worker. Standard library only.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.errors import Refused
from hpcsweep.node.protocol import Hello, Outcome
from hpcsweep.node.worker_process import Died, Interrupted, TimedOut, Worker
from hpcsweep.store import typed_json
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hpcsweep.node.protocol import Request
    from hpcsweep.node.stop import Stop
    from hpcsweep.node.worker_process import Reply

# Signals that nobody sends to himself: the point is tried once more before it is blamed.
_FROM_OUTSIDE: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP})
_START_TRIES: Final = 3
_START_SECONDS: Final = 300.0  # a cold torch import from a loaded network file system


@dataclass
class WorkerCare:
    """One worker at a time: started when a point needs it, ended when it is no good."""

    log: Path
    variables: Mapping[str, str]  # of the worker's environment
    stop: Stop
    kill_wait: float  # seconds that a point may still take once a stop is wanted
    end_seconds: float  # that the worker has to leave by itself
    on_hello: Callable[[Mapping[str, Any]], None]  # takes what a worker says of its machine
    _worker: Worker | None = field(default=None, init=False)

    def outcome_of(self, request: Request, limit: float, until: float) -> Outcome | None:
        """Return how a point ended within `limit` seconds, and by then; None where it was dropped.

        Raises:
            Refused: the machine is not fit, or no worker starts.

        """
        for last_try in (False, True):
            worker = self._ready()
            if worker is None:
                return None
            worker.ask(typed_json.write(request))
            reply = worker.wait(min(limit, until - time.time()), self.stop.wanted)
            if isinstance(reply, Interrupted):
                reply = self._grace(worker)
            outcome = self._judge(reply, limit, last_try=last_try)
            if outcome is not None or self.stop.wanted():
                return outcome
        return None

    def end(self) -> None:
        """Let the worker end, if there is one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop(self.end_seconds)

    def _ready(self) -> Worker | None:
        """Return a worker that has said hello; None where a stop is wanted before it has."""
        if self._worker is not None:
            return self._worker
        for number in range(1, _START_TRIES + 1):
            worker = Worker(self.log, self.variables, self.stop.fd)
            reply = worker.wait(_START_SECONDS, self.stop.wanted)
            if isinstance(reply, dict):
                return self._greet(worker, reply)
            if not isinstance(reply, Died):
                worker.kill()
            if isinstance(reply, Interrupted):
                return None
            if number == _START_TRIES:
                raise Refused(f"{os.uname().nodename}: the worker does not start: {reply}")
        return None

    def _greet(self, worker: Worker, reply: Mapping[str, Any]) -> Worker:
        self._worker = worker
        hello = typed_json.read(Hello, reply)
        if hello.refused:
            raise Refused(hello.refused)
        self.on_hello(hello.env)
        return worker

    def _grace(self, worker: Worker) -> Reply:
        """Let the current point end after a stop was asked for, if it does so soon."""
        if self.stop.orphaned:
            return Interrupted()
        return worker.wait(self.kill_wait, self.stop.launcher_is_gone)

    def _judge(self, reply: Reply, limit: float, *, last_try: bool) -> Outcome | None:
        """Turn a reply, or the lack of one, into an outcome; None: try again or drop the point."""
        if isinstance(reply, dict):
            outcome = typed_json.read(Outcome, reply)
            if outcome.fatal:
                self.end()
            return outcome
        worker, self._worker = self._worker, None
        if isinstance(reply, Died):
            outside = reply.by_signal in _FROM_OUTSIDE
            if self.stop.wanted() or (outside and not last_try):
                return None
            return Outcome(status=PointStatus.CRASHED, reason=str(reply))
        if worker:
            worker.kill()
        if isinstance(reply, TimedOut) and not self.stop.wanted():
            return Outcome(status=PointStatus.TIMEOUT, reason=f"no result within {limit:g} s")
        return None
