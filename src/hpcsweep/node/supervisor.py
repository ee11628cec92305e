"""Runs one attempt of one chunk on the node.

Started as ``python -m hpcsweep.node.supervisor SUBMISSION CHUNK``.

It keeps one worker alive, feeds it points, and is the only writer of the attempt's shard. A worker
that dies, hangs or reports a sticky error costs its own point alone: the supervisor writes that
point's row and starts a new worker for the next. It never imports torch, so nothing that a point
does can take it down.

Stopping. SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 mean: finish the current point if `kill_wait`
allows, drop it otherwise, and leave. In a scheduler job no point starts that does not fit into the
time left before HPCSWEEP_DEADLINE (seconds since the epoch, exported by the job script). When
points remain it exits with 75, on which the script requeues. With HPCSWEEP_LIFELINE=stdin,
end-of-file on its stdin means that whoever started it is gone: it leaves at once.

HPCSWEEP_WRAPPER in the environment names the profiler that it runs under: its rows hold no times.

A newer attempt of the same chunk fences an older one off: before each commit the supervisor looks
for the next attempt's file, so a node that was declared dead but lives on writes nothing more. An
attempt that begins when its points were sent again (its job was cancelled and requeued by hand, or
Slurm had lost sight of it) leaves them to the newer submission.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import environment
from hpcsweep.errors import EXIT_REQUEUE, HpcsweepError, Incomplete, Refused
from hpcsweep.node import point_row
from hpcsweep.node.dominance import OutOfMemoryPoints
from hpcsweep.node.stop import Stop
from hpcsweep.node.worker_process import Died, Interrupted, TimedOut, Worker
from hpcsweep.store import attempt, chunk_file, rundir, shards
from hpcsweep.store.attempt import AttemptRecord
from hpcsweep.store.state import AttemptState, PointStatus
from hpcsweep.text import count

if TYPE_CHECKING:
    from hpcsweep.catalog.columns import Row
    from hpcsweep.node.worker_process import Reply
    from hpcsweep.point import Point
    from hpcsweep.store.chunk_file import Chunk
    from hpcsweep.store.manifest import Manifest
    from hpcsweep.store.rundir import ShardPath, SubmissionDir

# Signals that nobody sends to himself: the point is tried once more before it is blamed.
_FROM_OUTSIDE: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP})
_START_TRIES: Final = 3
_START_SECONDS: Final = 300.0  # a cold torch import from a loaded network file system
_STOP_SECONDS: Final = 2.0
_REPORT_SECONDS: Final = 60.0  # a profiler writes what it has when the worker ends


def main(argv: list[str]) -> int:
    """Run the attempt; return the exit code that the job script acts on."""
    submission = rundir.RunDir(Path(argv[0]).parent.parent).submission(Path(argv[0]).name)
    with Stop(lifeline=os.environ.get(environment.LIFELINE) == "stdin") as stop:
        try:
            return Attempt(submission, int(argv[1]), stop).run()
        except HpcsweepError as error:
            print(f"hpcsweep: {error}", file=sys.stderr)  # noqa: T201 - the job's log
            return error.exit_code


@dataclass
class Attempt:
    """One run of one chunk."""

    submission: SubmissionDir
    chunk_index: int
    stop: Stop
    manifest: Manifest = field(init=False)
    shard: ShardPath = field(init=False)
    worker: Worker | None = field(default=None, init=False)
    env: dict[str, Any] = field(default_factory=dict, init=False)
    slowest: float = field(default=0.0, init=False)
    measured: int = field(default=0, init=False)
    wrapper: str = field(default="", init=False)
    fenced_off: bool = field(default=False, init=False)
    too_large: OutOfMemoryPoints = field(default_factory=OutOfMemoryPoints, init=False)

    def run(self) -> int:
        """Measure what the earlier attempts left; return 0, or 75 when points remain for a requeue.

        Of an attempt that was fenced off nothing remains: a requeue would end the newer one.
        """
        self.manifest = self.submission.read_manifest()
        self.wrapper = os.environ.get(environment.WRAPPER, "")
        chunk = chunk_file.read_chunk(self.submission.chunks, self.chunk_index)
        self.shard, writer = self._open_shard()
        with writer:
            self._write_env(AttemptState.RUNNING, "")
            try:
                left = self._measure_all(chunk, self._todo(chunk), writer)
            except HpcsweepError as error:
                self._write_env(AttemptState.REFUSED, str(error))
                raise
            finally:
                self._stop_worker()
        ended = AttemptState.STOPPED if left else AttemptState.DONE
        self._write_env(ended, self.stop.reason)
        self._say(f"{ended}: {self.measured} measured, {left} left {self.stop.reason}".rstrip())
        return EXIT_REQUEUE if left and not self.fenced_off else 0

    def _todo(self, chunk: Chunk) -> list[Point]:
        """Return the points without a row; by now this attempt fences off those that write rows."""
        attempts = self.submission.attempts(self.chunk_index)
        keys = (key for shard in attempts for key in shards.read_keys(shard.overall))
        done = {key.point_id: key.status for key in keys}
        self._know_what_is_too_large(chunk, done)
        todo = [point for point in chunk.points if point.point_id not in done]
        if todo and (newer := self._sent_again()):
            before = len(todo)
            todo = [point for point in todo if point.point_id not in newer]
            self._say(f"{count(before - len(todo), 'point')} sent again in a newer submission")
        self._say(f"chunk {chunk.index}, attempt {self.shard.attempt}: {count(len(todo), 'point')}")
        return todo

    def _sent_again(self) -> set[str]:
        """Return the points that newer submissions of the same kind hold.

        This attempt's file is there by now. `submit` looks for such files after it has written its
        manifest, and stops their attempts: whoever comes second sees the other.
        """
        found: set[str] = set()
        for other in self.submission.run.submissions():
            manifest = other.read_manifest()
            newer = manifest.round > self.manifest.round
            if newer and manifest.is_profiled is self.manifest.is_profiled:
                found.update(i for _, ids in chunk_file.read_ids(other.chunks) for i in ids)
        return found

    def _know_what_is_too_large(self, chunk: Chunk, done: dict[str, PointStatus]) -> None:
        """Take note of what ran out of memory before: in this sweep, or earlier in this chunk."""
        self.too_large = OutOfMemoryPoints(self.manifest.run.known_oom)
        for point in chunk.points:
            if done.get(point.point_id) == PointStatus.OOM:
                self.too_large.add(point.axes)

    def _open_shard(self) -> tuple[ShardPath, shards.ShardWriter]:
        """Take the next free attempt number; whoever creates the file first has it."""
        earlier = self.submission.attempts(self.chunk_index)
        number = earlier[-1].attempt + 1 if earlier else 0
        while True:
            shard = rundir.ShardPath(self.submission.shards, self.chunk_index, number)
            try:
                return shard, shards.ShardWriter(shard)
            except FileExistsError:
                number += 1

    def _measure_all(self, chunk: Chunk, todo: list[Point], writer: shards.ShardWriter) -> int:
        """Measure point by point; return how many are left."""
        usual = chunk.seconds / max(len(chunk.points), 1)
        for number, point in enumerate(todo):
            if self.stop.wanted() or not self._fits(usual, point):
                return len(todo) - number
            began = time.monotonic()
            started_at = _now()
            outcome = self._skip(point) or self._measure(point)
            if outcome is None or self._fenced():
                return len(todo) - number
            wall = time.monotonic() - began
            self.slowest = max(self.slowest, wall)
            if outcome["status"] == PointStatus.OOM:
                self.too_large.add(point.axes)
            common = point_row.of_attempt(self.manifest, self.shard, self.env.get("row", {}))
            row = common | point_row.of_point(point, outcome, started_at, wall)
            if self.wrapper:
                row, outcome = point_row.without_times(row, self.wrapper), {}
            writer.commit(row, outcome.get("layers", ()), outcome.get("samples", ()))
            self.measured += 1
            self._report(number + 1, len(todo), point, row)
        return 0

    def _fits(self, usual: float, point: Point) -> bool:
        """Say whether a point fits the time left; refuse where it can never fit."""
        deadline = float(os.environ.get(environment.DEADLINE) or "inf")
        left = deadline - time.time() - self.manifest.run.kill_wait
        need = 1.1 * max(usual, self.slowest)
        if need <= left:
            return True
        if not self.measured and self.shard.attempt:
            raise Incomplete(
                f"{point.label()}: needs about {need:.0f} s, and a fresh job of profile "
                f"'{self.manifest.profile}' has only {left:.0f} s; give the profile more `time`"
            )
        self.stop.reason = self.stop.reason or f"{left:.0f} s left, the next point needs {need:.0f}"
        return False

    def _skip(self, point: Point) -> dict[str, Any] | None:
        """Return the outcome of a point that need not be tried, if that is wanted."""
        if not self.manifest.run.skip_dominated:
            return None
        reason = self.too_large.why_skip(point.axes)
        return {"status": PointStatus.SKIPPED, "reason": reason} if reason else None

    def _measure(self, point: Point) -> dict[str, Any] | None:
        """Return a point's outcome, or None when it was dropped."""
        for last_try in (False, True):
            worker = self._ready_worker()
            if worker is None:
                return None
            worker.ask({"point": point.to_json(), "tries": self._tries()})
            limit = self._limit(point)
            reply = worker.wait(limit, self.stop.wanted)
            if isinstance(reply, Interrupted):
                reply = self._grace(worker)
            outcome = self._outcome(reply, limit, last_try=last_try)
            if outcome is not None or self.stop.wanted():
                return outcome
        return None

    def _grace(self, worker: Worker) -> Reply:
        """Let the current point end after a stop was asked for, if it does so soon."""
        if self.stop.orphaned:
            return Interrupted()
        return worker.wait(self.manifest.run.kill_wait, self.stop.left_alone)

    def _limit(self, point: Point) -> float:
        """Return the seconds that a point may take: those of the sweep, for each epoch."""
        return self.manifest.run.point_timeout * int(point.axes.get("epochs") or 1)

    def _outcome(self, reply: Reply, limit: float, *, last_try: bool) -> dict[str, Any] | None:
        """Turn a reply, or the lack of one, into a row's content; None: try again or drop."""
        if isinstance(reply, dict):
            if reply.pop("fatal", False):
                self._stop_worker()
            return reply
        worker, self.worker = self.worker, None
        if isinstance(reply, Died):
            outside = reply.by_signal in _FROM_OUTSIDE
            if self.stop.wanted() or (outside and not last_try):
                return None
            return {"status": PointStatus.CRASHED, "reason": str(reply)}
        if worker:
            worker.kill()
        if isinstance(reply, TimedOut) and not self.stop.wanted():
            return {"status": PointStatus.TIMEOUT, "reason": f"no result within {limit:g} s"}
        return None

    def _ready_worker(self) -> Worker | None:
        """Return a worker that has said hello; refuse when the machine is not fit."""
        if self.worker is not None:
            return self.worker
        for number in range(1, _START_TRIES + 1):
            worker = Worker(self._log, self._worker_env(), self.stop.fd)
            reply = worker.wait(_START_SECONDS, self.stop.wanted)
            if isinstance(reply, dict):
                return self._greet(worker, reply)
            if not isinstance(reply, Died):
                worker.kill()
            if isinstance(reply, Interrupted):
                return None
            if number == _START_TRIES:
                raise Refused(f"{socket.gethostname()}: the worker does not start: {reply}")
        return None

    def _greet(self, worker: Worker, hello: dict[str, Any]) -> Worker:
        """Take note of the machine; refuse where the worker did."""
        self.worker = worker
        if hello.get("refused"):
            raise Refused(str(hello["refused"]))
        self.env = hello["env"]
        self._write_env(AttemptState.RUNNING, "")
        return worker

    def _stop_worker(self) -> None:
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.stop(_REPORT_SECONDS if self.wrapper else _STOP_SECONDS)

    def _fenced(self) -> bool:
        """Say whether a newer attempt of this chunk has begun."""
        newer = rundir.ShardPath(self.shard.folder, self.shard.chunk, self.shard.attempt + 1)
        if newer.overall.exists():
            self.stop.reason = "a newer attempt of this chunk has begun"
            self.fenced_off = True
        return self.fenced_off

    def _tries(self) -> int:
        """Return how often this chunk's points may have been tried before, for injections."""
        return self.manifest.round + self.shard.attempt

    def _worker_env(self) -> dict[str, str]:
        return {
            environment.WORKLOAD: self.manifest.workload,
            environment.RUN: json.dumps(self.manifest.run.to_json()),
            environment.ARTIFACTS: str(self.shard.folder.absolute()),
            "PYTHONUNBUFFERED": "1",
            "KINETO_LOG_LEVEL": "99",  # torch's profiler chats on stderr, where last words are read
        }

    @property
    def _log(self) -> Path:
        return self.submission.log(self.chunk_index, self.shard.attempt)

    def _write_env(self, state: AttemptState, reason: str) -> None:
        record = AttemptRecord(
            state=state,
            reason=reason,
            pid=os.getpid(),
            node=point_row.node(),
            updated_at=_now(),
            slurm={k: v for k, v in os.environ.items() if k.startswith("SLURM")},
        )
        attempt.write(self.shard, record, self.env)

    def _report(self, number: int, total: int, point: Point, row: Row) -> None:
        """Tell whoever started this: a line for people, or JSON for the local launcher."""
        if os.environ.get(environment.PROGRESS) == "json":
            line = json.dumps({"status": row["status"], "wall_s": row["wall_s"]})
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        else:
            took = f"{row['median_ms']:.3f} ms" if row.get("median_ms") is not None else ""
            reason = f"({row['status_reason']})" if row["status_reason"] else ""
            self._say(f"{number}/{total} {row['status']} {point.label()} {took} {reason}")

    def _say(self, text: str) -> None:
        line = f"{_now()} {' '.join(text.split())}\n"
        with self._log.open("a", encoding="utf-8") as file:
            file.write(line)
        if os.environ.get(environment.PROGRESS) != "json":
            sys.stdout.write(line)
            sys.stdout.flush()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:
        os._exit(1)
    except Exception:  # noqa: BLE001 - whatever it is belongs into the job's log
        traceback.print_exc()
        sys.exit(1)
