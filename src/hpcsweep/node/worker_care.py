"""Keeps the worker of a point ready, and returns its outcome, even if the worker dies.

A worker measures the points that share visit, network and process key, and ends: what a network
does to its process ends with it. One that dies, hangs, garbles its replies or reports a fatal error
costs its current point alone; the next point gets another worker. If it had told the times of that
point (`protocol.Timed`), they have their row, and later points of the same network leave out the
check in which it ended. Standard library only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.catalog import worker_key
from hpcsweep.errors import Refused, refusal
from hpcsweep.node.protocol import Hello, MeasureRequest, Outcome, Reply, Timed
from hpcsweep.node.worker_process import (
    Died,
    Garbled,
    Interrupted,
    NoReply,
    Template,
    TimedOut,
    Worker,
)
from hpcsweep.store import typed_json
from hpcsweep.store.state import PointStatus, reached_limit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcsweep.node.job_limits import Stop
    from hpcsweep.point import Point


# Signals that come from outside the process, as of the kernel where memory runs out, or a person:
# the point is tried once more before it is blamed.
_FROM_OUTSIDE: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP})
# By the template, then by itself, and once more: file systems hiccup.
_START_TRIES: Final = 3
# A cold import of torch from a loaded network file system takes minutes.
_START_SECONDS: Final = 300.0


@dataclass
class WorkerCare:
    """One worker at a time: started when a point needs it, ended when it cannot be reused."""

    log: Path
    variables: Mapping[str, str]  # of the worker's environment
    stop: Stop
    kill_wait: float  # seconds that a point may still take once a stop is wanted
    end_seconds: float  # seconds for the worker to end before it is killed
    on_hello: Callable[[Mapping[str, Any]], None]  # receives the worker's report on its machine
    forks: bool  # a template makes the workers
    _worker: Worker | None = field(default=None, init=False)
    _template: Template | None = field(default=None, init=False)
    _key: tuple[object, ...] = field(default=(None,), init=False)  # of the worker's points
    _used: bool = field(default=False, init=False)  # it measured another point before
    _history: dict[str, Any] = field(default_factory=dict, init=False)  # see `Request`
    _timed: Mapping[str, Any] | None = field(default=None, init=False)  # the last `Timed`
    # the checks that ended workers, by the network and process key of their points
    _killers: dict[tuple[object, ...], set[str]] = field(default_factory=dict, init=False)

    def outcome_of(self, point: Point, tries: int, limit: float, until: float) -> Outcome | None:
        """Measure a point in `limit` seconds at most, by the time `until`; None if it was dropped.

        A point whose worker ended in a check is ok, with its times. If the time `until` came
        first, it timed out: another job may measure it with all of its checks.

        Raises:
            Refused: the machine is not fit, or no worker starts.
        """
        self._timed = None
        for last_try in (False, True):
            job_seconds = until - time.time()
            reply = self._ask((point,), tries, min(limit, job_seconds))
            if isinstance(reply, Reply):
                self._note_killer(point, reply.outcomes[0])
                return reply.outcomes[0]
            if self.stop.wanted() or isinstance(reply, Interrupted):
                return None
            if isinstance(reply, TimedOut):
                why = reached_limit(limit)
                timed = self.with_times(point, why) if limit <= job_seconds else None
                return timed or Outcome(status=PointStatus.TIMEOUT, reason=why)
            by_others = isinstance(reply, Died) and reply.by_signal in _FROM_OUTSIDE
            if last_try or not (by_others or self._used):  # an earlier point may have caused it
                why = str(reply)
                crashed = Outcome(status=PointStatus.CRASHED, reason=why)
                return self.with_times(point, why) or crashed
        return None

    def with_times(self, point: Point, why: str) -> Outcome | None:
        """Return the outcome of a point whose worker ended in a check; None if it has no times."""
        if self._timed is None:
            return None
        try:
            timed = typed_json.from_plain(Timed, self._timed)
        except ValueError:  # a network wrote it
            return None
        if timed.so_far.point_id != point.point_id:
            return None
        outcome = timed.ended(why)
        self._note_killer(point, outcome)
        return outcome

    def _note_killer(self, point: Point, outcome: Outcome) -> None:
        if outcome.killer:
            self._killers.setdefault(worker_key(point)[1:], set()).add(outcome.killer)

    def outcomes_of(self, points: Sequence[Point], tries: int, limit: float) -> Sequence[Outcome]:
        """Measure points that share a worker; return what it answered, nothing where it failed."""
        reply = self._ask(tuple(points), tries, limit)
        return reply.outcomes if isinstance(reply, Reply) else ()

    def end(self) -> None:
        """Let the worker end, if there is one, and the template."""
        self.end_worker()
        self._end_template()

    def _ask(self, points: tuple[Point, ...], tries: int, seconds: float) -> Reply | NoReply:
        """Return a worker's reply; one that gave none that can be trusted is gone."""
        worker = self._ready(worker_key(points[0]))
        if worker is None:
            return Interrupted()
        skipped = sorted(self._killers.get(worker_key(points[0])[1:], ()))
        request = MeasureRequest(
            points=points, tries=tries, skipped=tuple(skipped), history=self._history
        )
        worker.ask(request.to_plain())
        reply = self._wait(worker, seconds, self.stop.wanted)
        if isinstance(reply, Interrupted) and not self.stop.orphaned:
            reply = self._wait(worker, self.kill_wait, self.stop.launcher_is_gone)
        answer = _answer(request, reply)
        if isinstance(answer, Reply):
            self._history = answer.history
            if answer.outcomes[-1].fatal:
                self.end_worker()
        else:
            self._worker = None
            worker.kill()
        return answer

    def _wait(
        self, worker: Worker, seconds: float, stopping: Callable[[], bool]
    ) -> dict[str, Any] | NoReply:
        """Return what a worker answers in the end; keep what it says before of its point."""
        until = time.monotonic() + seconds
        while True:
            reply = worker.wait(until - time.monotonic(), stopping)
            if not (isinstance(reply, dict) and "so_far" in reply):
                return reply
            self._timed = reply

    def _ready(self, key: tuple[object, ...]) -> Worker | None:
        """Return a worker that is ready; None if a stop is wanted before it is."""
        if self._worker is not None and not (key == self._key and self._worker.is_idle()):
            self.end_worker()
        if key[0] != self._key[0]:  # effects of a process, which forks share, vary between visits
            self._end_template()
        self._key = key
        self._used = self._worker is not None
        return self._start() if self._worker is None else self._worker

    def _start(self) -> Worker | None:
        """Return a new worker that has said hello; None if a stop is wanted before it has."""
        for number in range(1, _START_TRIES + 1):
            if self.forks and self._template is None:
                self._template = Template(self.log, self.variables)
            worker = Worker(self.log, self.variables, self.stop.fd, self._template)
            reply = worker.wait(_START_SECONDS, self.stop.wanted)
            if isinstance(reply, dict):
                self._worker = worker
                hello = typed_json.from_plain(Hello, reply)
                if hello.refused:
                    raise refusal(hello.refused, hello.exit_code)
                self.on_hello(hello.env)
                return worker
            worker.kill()
            if isinstance(reply, Interrupted):
                return None
            self._end_template()
            self.forks = False  # the next try tells what is wrong with a process of its own
            if number == _START_TRIES:
                raise Refused(f"{os.uname().nodename}: the worker does not start: {reply}")
        return None

    def end_worker(self) -> None:
        """Let the worker end, if there is one: the next point has another one."""
        worker = self._worker
        self._worker = None
        if worker is not None:
            worker.stop(self.end_seconds)

    def _end_template(self) -> None:
        if self._template is not None:
            self._template.end()
        self._template = None


def _answer(request: MeasureRequest, reply: dict[str, Any] | NoReply) -> Reply | NoReply:
    """Return what a worker answered; a reply to something else is garbled."""
    if not isinstance(reply, dict):
        return reply
    try:
        answer = typed_json.from_plain(Reply, reply)
    except ValueError as error:
        return Garbled(str(error))
    answered = [outcome.point_id for outcome in answer.outcomes]
    if answered and answered == [point.point_id for point in request.points][: len(answered)]:
        return answer
    return Garbled(f"it answers {answered[0] if answered else 'no point'}, not this request")
