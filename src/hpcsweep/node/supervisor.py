"""Runs one attempt of one chunk on the node.

Its arguments are SUBMISSION CHUNK; `processes.RUN_MODULE` starts it.

It gives the points without a row to a worker (`node.worker_care`), one by one, or together where
they take a few milliseconds each, and is the only writer of the attempt's shard. It never imports
torch, so a point cannot crash it.

Stopping: on SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 it finishes the current point if `kill_wait`
allows, drops it otherwise, and ends. In a scheduler job a point starts only if it is the first, or
fits into the time left before the deadline, which the job script exports; no point may take longer.
If points remain it exits with 75, on which the script requeues. A local launcher holds its stdin:
end-of-file means that the launcher is gone, and it ends at once. The variables are in
`hpcsweep.environment`.

A newer attempt of the same chunk fences an older one off: before each commit the supervisor looks
for the next attempt's file, so a node that was declared dead but still runs writes no more rows. An
attempt that begins after its points were sent again (a person requeued its cancelled job, or Slurm
had lost it) leaves them to the newer submission.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import environment, files, processes, sources
from hpcsweep.catalog import COMMAND, workload_of
from hpcsweep.catalog.sharing import worker_key
from hpcsweep.errors import EXIT_REQUEUE, HpcsweepError, Incomplete, ResultsError, UsageError
from hpcsweep.node import dominated, point_row
from hpcsweep.node.point_row import Reports
from hpcsweep.node.protocol import Outcome
from hpcsweep.node.suspension import SuspensionWatch
from hpcsweep.node.worker_care import Stop, WorkerCare
from hpcsweep.point import varying
from hpcsweep.revision import revision
from hpcsweep.store import attempt, chunk_file, folders, shards, typed_json
from hpcsweep.store.attempt import AttemptRecord
from hpcsweep.store.outcomes import doubts_of
from hpcsweep.store.state import AttemptState, PointStatus
from hpcsweep.text import count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcsweep.catalog.columns import Row
    from hpcsweep.point import Point
    from hpcsweep.store.folders import ShardPath, SubmissionDir


_DEATHS: Final = 2  # attempts that ended at a point, after which it is not tried again
_DEADLY: Final = "two attempts in a row died or were stopped while they measured it; see their logs"
_TIME_IS_UP: Final = "the time of the job is up"
# why an attempt stops as its job ends; SIGTERM also stands for a preemption
_ENDS_OF_JOBS: Final = frozenset({_TIME_IS_UP, "SIGUSR1", "SIGUSR2"})
# what a pause spoils: a time, and a limit that was reached
_TIMED: Final = frozenset({PointStatus.OK, PointStatus.TIMEOUT})
_SHORT_SECONDS: Final = 0.01  # points that take less travel together
_TOGETHER_SECONDS: Final = 0.05  # of points in one message: a crash costs no more
_TOGETHER_LIMIT: Final = 5.0  # for such a message; the point that hangs is then found alone
_END_SECONDS: Final = 2.0
_REPORT_SECONDS: Final = 60.0  # a profiler writes what it has when the worker ends


def main(argv: list[str]) -> int:
    """Run the attempt; return the exit code for the job script."""
    processes.raise_gc_threshold()
    environment.keep_miopen_apart()
    if not os.environ.get(environment.WRAPPER):  # a profiler's own processes must not be adopted
        processes.adopt_orphans()
    submission = folders.SweepDir(Path(argv[0]).parent.parent).submission(Path(argv[0]).name)
    stop = Stop(lifeline=os.environ.get(environment.LIFELINE) == "stdin")
    stop.listen()
    try:
        with files.errors_named():
            return Attempt(submission, int(argv[1]), stop).run()
    except HpcsweepError as error:
        point_row.show(f"hpcsweep: {error}\n", sys.stderr)
        return error.exit_code


def _deadline() -> float:
    """Return when the job's time is up, in seconds since the epoch; without one, infinity."""
    text = os.environ.get(environment.DEADLINE) or "inf"
    with suppress(ValueError):
        if not math.isnan(deadline := float(text)):
            return deadline
    asked = "needs seconds since the epoch. Job scripts set it: unset it, and submit again"
    raise UsageError(f"{environment.DEADLINE}={text!r:.80}: {asked}")


class Attempt:
    """One run of one chunk: measures the points without a row, and writes their rows."""

    def __init__(self, submission: SubmissionDir, chunk_index: int, stop: Stop) -> None:
        self._submission = submission
        self._stop = stop
        self._manifest = submission.read_manifest()
        self._chunk = chunk_file.read_chunk(submission.chunks, chunk_index)
        if not self._manifest.is_profiled:  # left over from another job
            os.environ.pop(environment.WRAPPER, None)
        self._wrapper = os.environ.get(environment.WRAPPER, "")
        self._too_large = dominated.OutOfMemoryPoints(self._manifest.run.known_oom)
        self._places = {point.point_id: at for at, point in enumerate(self._chunk.points)}
        self._telling = varying(self._chunk.points)
        self._pace = math.inf  # seconds of a point in the last message, with its row
        self._alone = 0  # points that must not travel together, since one of them stopped a worker
        self._slowest = 0.0
        self._measured = 0
        self._fenced_off = False
        self._left_to_others = False
        self._deadly: Point | None = None  # took earlier attempts down
        # when a worker was ready
        self._began = time.time()
        self._ready = float("inf")
        self._end = _deadline() - self._manifest.run.kill_wait  # of measuring
        self._shard, self._writer = self._open_shard()
        self._next = str(self._shard.next_attempt().overall)
        self._log = submission.log(chunk_index, self._shard.attempt)
        self._reports = Reports(self._log)
        self._tries = self._manifest.round + self._shard.attempt
        self._suspension = SuspensionWatch()
        self._sources = sources.Sources(self._manifest.run.search_path)
        self._set_machine({})

    def run(self) -> int:
        """Measure the points without a row; return 0, or 75 if points remain for a requeue.

        A fenced-off attempt returns 0, since a requeue would end the newer attempt.
        """
        care = self._care()
        attempt.start_beating(self._shard)
        with self._writer:
            self._write_env(AttemptState.RUNNING, "")
            try:
                with files.errors_named():
                    left = self._measure_all(self._todo(), care)
                    self._writer.sync()  # some file systems report a full disk only here
            except HpcsweepError as error:
                self._write_env(AttemptState.REFUSED, str(error))
                raise
            finally:
                care.end()
                self._reports.flush()
        ended = AttemptState.STOPPED if left else AttemptState.DONE
        only_others = self._left_to_others and not left
        self._write_env(ended, attempt.LEFT_TO_OTHERS if only_others else self._stop.reason)
        text = f"{ended}: {self._measured} measured, {left} left {self._stop.reason}"
        self._reports.say(text)
        return EXIT_REQUEUE if left and not self._fenced_off else 0

    def _open_shard(self) -> tuple[ShardPath, shards.ShardWriter]:
        """Take the next free attempt number: the process that creates the file has it."""
        earlier = self._submission.attempts(self._chunk.index)
        number = earlier[-1].attempt + 1 if earlier else 0
        while True:
            shard = folders.ShardPath(self._submission.shards, self._chunk.index, number)
            try:
                return shard, shards.ShardWriter(shard)
            except FileExistsError:
                number += 1

    def _care(self) -> WorkerCare:
        settings = self._manifest.run
        return WorkerCare(
            log=self._log,
            variables={
                environment.WORKLOAD: self._manifest.workload,
                environment.RUN: json.dumps(
                    {
                        **typed_json.to_plain(replace(settings, known_oom=())),
                        "gpu": self._manifest.gpu,
                    }
                ),
                environment.LOG: str(self._log.absolute()),
                environment.ARTIFACTS: str(self._shard.folder.absolute()),
                "PYTHONUNBUFFERED": "1",
                "KINETO_LOG_LEVEL": "99",  # else its lines would be taken for last words
            },
            stop=self._stop,
            kill_wait=settings.kill_wait,
            end_seconds=_REPORT_SECONDS if self._wrapper else _END_SECONDS,
            on_hello=self._note_machine,
            forks=workload_of(self._manifest.workload).runs_network and processes.adopts(),
        )

    def _todo(self) -> list[Point]:
        """Return the points without a row, in the order in which they need fewest workers.

        Called once this attempt's file fences off older attempts, which may still write rows.
        """
        done = dict(shards.keys_of(self._submission.attempts(self._chunk.index)))
        for point in self._chunk.points:
            if done.get(point.point_id) is PointStatus.OOM:
                self._too_large.add(point.axes)
        todo = [point for point in self._chunk.points if point.point_id not in done]
        order = {key: i for i, key in enumerate(dict.fromkeys(map(worker_key, todo)))}
        todo.sort(key=lambda point: order[worker_key(point)])
        if todo and (others := self._others()):
            again = sum(point.point_id in others for point in todo)
            todo = [point for point in todo if point.point_id not in others]
            if again:
                self._left_to_others = True
                self._reports.say(f"{count(again, 'point')} left to another submission")
        if todo and self._deaths() >= _DEATHS:
            self._deadly = todo[0]
        left = count(len(todo), "point")
        self._reports.say(f"chunk {self._chunk.index}, attempt {self._shard.attempt}: {left}")
        return todo

    def _deaths(self) -> int:
        """Return how many attempts in a row died while they measured a point.

        Those whose job ended before they had any row count, too: its limit may be unknown here.
        """
        deaths = 0
        for shard in reversed(self._submission.attempts(self._chunk.index)):
            record = attempt.read_record(shard)
            if shard == self._shard or record is None:  # None: it was fenced off before it began
                continue
            died = record.state is AttemptState.RUNNING
            stopped = record.state is AttemptState.STOPPED and record.reason in _ENDS_OF_JOBS
            progressed = bool(shards.read_keys(shard.overall))
            if not record.row or not (died or (stopped and not progressed)):
                break
            deaths += 1
            if progressed:
                break  # those before it died at another point
        return deaths

    def _others(self) -> set[str]:
        """Return the points that other submissions of the same kind measure.

        Newer ones do: this attempt's file exists by now. `submit` looks for such files after it has
        written its manifest, and stops their attempts: the later of the two sees the earlier. Of
        equal rounds, neither `submit` saw the other's folder; the one that came first measures.
        """
        mine = self._manifest
        points = set[str]()
        sweep_dir = self._submission.sweep_dir
        for manifest in sweep_dir.manifests():
            comes_before = (manifest.round, mine.id) > (mine.round, manifest.id)
            if not comes_before or manifest.is_profiled is not mine.is_profiled:
                continue
            with suppress(ResultsError):  # an unreadable submission may not stop this one
                if manifest.source:  # no job of an imported one measures what it lacks
                    keys = shards.keys_of(sweep_dir.shards_of(manifest.id))
                    points.update(key.point_id for key in keys)
                else:
                    chunks = sweep_dir.submission(manifest.id).chunks
                    points.update(i for _, ids in chunk_file.read_ids(chunks) for i in ids)
        return points

    def _measure_all(self, todo: list[Point], care: WorkerCare) -> int:
        """Measure point by point; return how many are left."""
        at = 0
        while at < len(todo) and not self._stop.wanted() and self._fits(todo[at]):
            at += self._measure(todo, at, care)
        return len(todo) - at

    def _measure(self, todo: list[Point], at: int, care: WorkerCare) -> int:
        """Measure the next point, or several short ones; return how many have their row."""
        points = self._together(todo, at)
        began = time.monotonic()
        moment = time.time()
        labels = list(map(self._label, points))
        self._begins(points[0], labels[0], f"{at + 1}/{len(todo)}")
        self._reports.flush()
        skipped = self._skip(points[0])
        outcomes = [skipped] if skipped else self._without_pause(points, care)
        # the start of the worker, and the message, belong to the first point
        wait = time.monotonic() - began - sum(outcome.seconds for outcome in outcomes)
        for number, outcome in enumerate(outcomes):
            if self._fenced():
                return number
            point = points[number]
            place = f"{at + number + 1}/{len(todo)}"
            if number:
                self._begins(point, labels[number], place)
            wall = outcome.seconds + (0.0 if number else wait)
            row = self._commit(point, outcome, point_row.utc(moment), wall)
            moment += wall
            self._reports.ended(
                outcome.trace,
                f"{place} {row['status']} {labels[number]} {point.point_id} {_result(row)}",
                row["status"],
                doubts_of(row),
            )
        self._alone = max(0, self._alone - len(outcomes))
        if outcomes:
            took = time.monotonic() - began - wait
            self._pace = max(took / len(outcomes), *(outcome.seconds for outcome in outcomes), 0.0)
            if any(outcome.status is not PointStatus.OK for outcome in outcomes):
                self._pace = math.inf  # one that failed at once says nothing of the next
        return len(outcomes)

    def _together(self, todo: list[Point], at: int) -> list[Point]:
        """Return the next point, with those after it that go into the same message."""
        key = worker_key(todo[at])
        is_first = not at or worker_key(todo[at - 1]) != key
        # of points that may be skipped, each must have its row before the next one is looked at
        alone = is_first or self._alone or self._manifest.run.skip_dominated
        if alone or self._pace >= _SHORT_SECONDS:
            return [todo[at]]
        points = todo[at : at + int(_TOGETHER_SECONDS / self._pace)]
        return [point for point in points if worker_key(point) == key]

    def _begins(self, point: Point, label: str, place: str) -> None:
        self._reports.begins(f"{place} begins {label} {point.point_id}", label)

    def _fits(self, point: Point) -> bool:
        """Say whether a point fits the time left; `Incomplete` if no job of the profile fits it.

        The first one of a job starts in any case, since its estimate may be far too long.
        """
        left = self._end - time.time()
        usual = self._chunk.seconds / max(len(self._chunk.points), 1)
        need = 1.1 * max(usual, self._slowest)
        if need <= left or (not self._measured and left > 0):
            return True
        if not self._measured and self._shard.attempt:
            name = self._label(point) or point.point_id
            raise Incomplete(
                f"{name}: needs about {need:.0f} s, and a fresh job of profile "
                f"'{self._manifest.profile}' has only {max(left, 0):.0f} s; give the profile more "
                "`time`"
            )
        why = f"{left:.0f} s left, the next point needs {need:.0f}"
        self._stop.reason = self._stop.reason or why
        return False

    def _skip(self, point: Point) -> Outcome | None:
        """Return the outcome of a point that is not tried: deadly, or too large; else None."""
        if point is self._deadly:
            return Outcome(status=PointStatus.TIMEOUT, reason=_DEADLY)
        if not self._manifest.run.skip_dominated:
            return None
        reason = self._too_large.why_skip(point.axes)
        return Outcome(status=PointStatus.SKIPPED, reason=reason) if reason else None

    def _without_pause(self, points: Sequence[Point], care: WorkerCare) -> Sequence[Outcome]:
        """Measure points; once more if the job was suspended meanwhile, since times hold the pause.

        What was suspended twice stands, and is flagged. So does a command at once: a person knows
        whether it may run again. Nothing is returned where another job has to measure the points.
        """
        outcomes, paused = self._outcomes_and_pause(points, care)
        timed = any(outcome.status in _TIMED for outcome in outcomes)
        if not paused or not timed:
            return outcomes
        if self._manifest.workload != COMMAND.name:
            self._reports.say(f"suspended for {paused:.1f} s: measured again")
            if self._stop.wanted() or not self._fits(points[0]):
                return []
            outcomes, paused = self._outcomes_and_pause(points, care)
        return [point_row.suspended(outcome, paused) for outcome in outcomes]

    def _outcomes_and_pause(
        self, points: Sequence[Point], care: WorkerCare
    ) -> tuple[Sequence[Outcome], float]:
        """Measure points; return the seconds that the job was suspended meanwhile, too."""
        before = self._suspension.seconds()
        outcomes = self._outcomes_of(points, care)
        return outcomes, self._suspension.seconds() - before

    def _outcomes_of(self, points: Sequence[Point], care: WorkerCare) -> Sequence[Outcome]:
        """Measure points within the time that is left; nothing if another try must follow.

        If a worker fails with several, each of them is measured alone.
        """
        if len(points) > 1:
            self._alone = len(points)
            left = (self._end - time.time()) / 2  # the rest is for each of them alone
            limit = min(self._manifest.run.point_timeout, _TOGETHER_LIMIT, left)
            return care.outcomes_of(points, self._tries, limit)
        outcome = self._outcome_of(points[0], care)
        return [outcome] if outcome else []

    def _outcome_of(self, point: Point, care: WorkerCare) -> Outcome | None:
        """Measure a point within the time that is left; None if another job should try it.

        A point that had a whole job without a result is not tried again.
        """
        settings = self._manifest.run
        began = time.time()
        limit = settings.point_timeout * int(point.axes.get("epochs") or 1)
        outcome = care.outcome_of(point, self._tries, limit, self._end)
        took = time.time() - max(began, self._ready)
        warned = "USR" in self._stop.reason  # Slurm's signal may come a minute early
        end = self._end - (settings.signal_lead + 60 - settings.kill_wait if warned else 1)
        done = outcome and (outcome.status is not PointStatus.TIMEOUT or took >= limit)
        if done or self._stop.orphaned or time.time() < end:
            return outcome
        if self._measured or took < (end - self._began) / 2:  # others, or its start, took the time
            self._stop.reason = self._stop.reason or _TIME_IS_UP
            return None
        why = f"no result within {took:.0f} s, which is all that a job of profile"
        why = f"{why} '{self._manifest.profile}' has for it; give the profile more `time`"
        return care.with_times(point, why) or Outcome(status=PointStatus.TIMEOUT, reason=why)

    def _fenced(self) -> bool:
        """Say whether a newer attempt of this chunk has begun."""
        with suppress(FileNotFoundError):
            os.stat(self._next)  # noqa: PTH116 - asked for each point
            self._stop.reason = "a newer attempt of this chunk has begun"
            self._fenced_off = True
        return self._fenced_off

    def _commit(self, point: Point, outcome: Outcome, started_at: str, wall: float) -> Row:
        """Write the row of a point, which took `wall` seconds, and return it."""
        self._slowest = max(self._slowest, wall)
        if outcome.status is PointStatus.OOM:
            self._too_large.add(point.axes)
        row = {
            **point_row.of_point(point, outcome, started_at, wall),
            "place": self._places[point.point_id],
            "order_seed": self._chunk.order_seed,
        }
        if "own_files" not in row:  # the worker, which fills it, is gone
            row["own_files"] = self._sources.cell(point)
        if self._wrapper:
            row = point_row.without_times(row, self._wrapper)
            self._writer.commit(row)
        else:
            self._writer.commit(row, outcome.layers, outcome.samples)
        self._measured += 1
        return row

    def _note_machine(self, machine: Mapping[str, Any]) -> None:
        self._ready = time.time()
        if not self._machine:  # all workers of an attempt have the same
            self._set_machine(machine)
            self._write_env(AttemptState.RUNNING, "")

    def _set_machine(self, machine: Mapping[str, Any]) -> None:
        """Keep the worker's report on its machine, and set the cells that every row has."""
        self._machine = machine
        common = point_row.of_attempt(self._manifest, self._shard, machine.get("row", {}))
        self._writer.set_common(common)

    def _write_env(self, state: AttemptState, reason: str) -> None:
        record = AttemptRecord(
            state=state,
            reason=reason,
            pid=os.getpid(),
            node=point_row.node(),
            updated_at=point_row.now(),
            slurm=environment.of_slurm(os.environ),
        )
        machine = {"hpcsweep_version": revision(), **self._machine}
        attempt.write_record(self._shard, record, machine)

    def _label(self, point: Point) -> str:
        return point.label(self._manifest.maps, self._telling)


def _result(row: Row) -> str:
    """Return the time of a point, or why it was not measured, for the log."""
    took = f"{row['median_ms']:.3f} ms" if row.get("median_ms") is not None else ""
    reason = f"({row['status_reason']})" if row["status_reason"] else ""
    missing = f"(without {row['checks_missing']})" if row.get("checks_missing") else ""
    return f"{took} {reason} {missing}"


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:
        os._exit(1)
    except Exception:  # noqa: BLE001 - any error goes into the job's log
        import traceback

        traceback.print_exc()
        sys.exit(1)
