"""Runs one attempt of one chunk on the node: gives its points to a worker, and writes their rows.

Its arguments are SUBMISSION CHUNK; `processes.RUN_MODULE` starts it. It is the only writer of the
attempt's shard. It never imports torch, so a point cannot crash it: `node.worker_care` has the
worker, a process of its own.

**The life of a point.** `_measure_all` takes the next one, if it fits into the time of the job;
`node.worker_care` starts a worker or keeps the last one, sends it the point, and returns the
outcome, whatever became of the worker; `_commit` writes the row, unless a newer attempt of the
chunk has begun: then this node was declared dead, and writes no more.

**A stop.** `job_limits.Stop` notes the first signal as the reason. Nothing is interrupted but the
wait for the worker, to which `node.worker_care` gives `kill_wait` seconds more. No point begins.
The record of the attempt says `stopped` and why; exit code 75, that points are left. What the other
processes do on Ctrl-C stands in docs/operations.md, "The life of a point, and of Ctrl-C".
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import environment, files, processes, sources, version
from hpcsweep.catalog import AXES, COMMAND, NOOP
from hpcsweep.catalog.columns import axis_cells
from hpcsweep.catalog.record import row_of
from hpcsweep.catalog.row_records import OriginCells, PointCells
from hpcsweep.errors import EXIT_REQUEUE, HpcsweepError, Incomplete
from hpcsweep.node import job_limits, neighbours, point_row
from hpcsweep.node.job_limits import JobTime, Stop, SuspensionWatch
from hpcsweep.node.point_row import Reports
from hpcsweep.node.protocol import Outcome
from hpcsweep.node.worker_care import WorkerCare
from hpcsweep.point import differing, varying
from hpcsweep.store import attempt, chunk_file, folders, shards, typed_json
from hpcsweep.store.attempt import AttemptRecord
from hpcsweep.store.outcomes import doubts_of
from hpcsweep.store.row_reader import read_rows
from hpcsweep.store.state import AttemptState, PointStatus
from hpcsweep.text import count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcsweep.catalog.columns import Row
    from hpcsweep.point import Point
    from hpcsweep.store.folders import ShardPath, SubmissionDir

_MORE_TIME: Final = "give the profile more `time`"
_DEADLY: Final = "two attempts in a row died or were stopped while they measured it; see their logs"
# What a pause spoils: a time, and a limit that was reached
_TIMED: Final = frozenset({PointStatus.OK, PointStatus.TIMEOUT})
# For a worker to end by itself; it is killed then, and has nothing to lose.
_END_SECONDS: Final = 2.0
# The same under a profiler, which writes its report when the worker ends.
_REPORT_SECONDS: Final = 60.0


def main(argv: list[str]) -> int:
    """Run the attempt; return the exit code for the job script."""
    processes.raise_gc_threshold()
    environment.keep_miopen_apart()
    # what this process starts may be of another version, and asks itself
    version.take_over(os.environ.pop(environment.REVISION, ""))
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
        settings = self._manifest.run
        self._time = JobTime(settings, self._chunk)
        self._short = job_limits.ShortPoints(one_by_one=settings.skip_dominated)
        self._too_large = job_limits.OutOfMemoryPoints([*settings.known_oom])
        self._deadly: Point | None = None  # took earlier attempts down
        self._fenced_off = False
        self._left_to_others = False
        self._places = {point.point_id: at for at, point in enumerate(self._chunk.points)}
        points = self._chunk.points
        self._in_labels = varying(points)
        self._differing = differing(points)
        self._own_axes = [name for name in points[0].axes if name not in AXES]
        self._sources = sources.Sources(settings.search_path)
        # from here on this attempt's file fences off older ones
        self._shard, self._writer = self._open_shard()
        self._next = str(self._shard.next_attempt().overall)
        self._tries = self._manifest.round + self._shard.attempt
        self._log = submission.log(chunk_index, self._shard.attempt)
        self._reports = Reports(self._log)
        self._suspension = SuspensionWatch()
        self._board = neighbours.board_of_job()
        self._beside = 0  # neighbours of the point under way
        self._waited = 0.0  # seconds for them, which belong to no point
        self._alone: neighbours.Alone | None = None
        self._care = self._worker_care()
        self._set_machine({})

    def run(self) -> int:
        """Measure the points without a row; return 0, or 75 if points remain for a requeue.

        A fenced-off attempt returns 0, since a requeue would end the newer attempt.
        """
        attempt.start_beating(self._shard)
        with self._writer:
            self._write_env(AttemptState.RUNNING, "")
            try:
                with files.errors_named():
                    left = self._measure_all(self._points_to_measure())
                    self._writer.sync()  # some file systems report a full disk only here
            except HpcsweepError as error:
                self._write_env(AttemptState.REFUSED, str(error))
                raise
            finally:
                self._care.end()
                self._reports.flush()
        ended = AttemptState.STOPPED if left else AttemptState.DONE
        only_others = self._left_to_others and not left
        self._write_env(ended, attempt.LEFT_TO_OTHERS if only_others else self._stop.reason)
        self._reports.say(f"{ended}: {self._time.rows} measured, {left} left {self._stop.reason}")
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

    def _worker_care(self) -> WorkerCare:
        settings = self._manifest.run
        for_worker = typed_json.to_plain(replace(settings, known_oom=()))
        return WorkerCare(
            log=self._log,
            variables={
                environment.WORKLOAD: self._manifest.workload,
                environment.RUN: json.dumps({**for_worker, "gpu": self._manifest.gpu}),
                environment.LOG: str(self._log.absolute()),
                environment.ARTIFACTS: str(self._shard.folder.absolute()),
                "PYTHONUNBUFFERED": "1",
                "KINETO_LOG_LEVEL": "99",  # else its lines would be taken for last words
            },
            stop=self._stop,
            kill_wait=settings.kill_wait,
            end_seconds=_REPORT_SECONDS if self._wrapper else _END_SECONDS,
            on_hello=self._note_machine,
            # points that do nothing share one worker
            forks=self._manifest.workload != NOOP.name and processes.adopts(),
        )

    def _points_to_measure(self) -> list[Point]:
        """Return the points without a row that no other submission measures."""
        attempts = self._submission.attempts(self._chunk.index)
        done = {row["point_id"]: row["status"] for row in read_rows(attempts)}
        without_row = []
        for point in self._chunk.points:
            status = done.get(point.point_id)
            if status is None:
                without_row.append(point)
            elif status is PointStatus.OOM:
                self._too_large.add(point.axes)
        others = job_limits.ids_of_others(self._submission) if without_row else set()
        points = [point for point in without_row if point.point_id not in others]
        again = len(without_row) - len(points)
        if again:
            self._left_to_others = True
            self._reports.say(f"{count(again, 'point')} left to another submission")
        points = job_limits.sorted_by_worker(points)
        if points and job_limits.first_is_deadly(attempts, self._shard):
            if self._manifest.run.shortened:
                raise self._too_short(points[0], "two attempts in a row ended at it")
            self._deadly = points[0]
        left = count(len(points), "point")
        self._reports.say(f"chunk {self._chunk.index}, attempt {self._shard.attempt}: {left}")
        return points

    def _measure_all(self, points: list[Point]) -> int:
        """Measure point by point; return how many are left."""
        if self._board and self._board.place == 0:
            if points:
                self._alone = self._measured_alone(points[0])
            self._board.let_all_begin()
        at = 0
        while at < len(points) and not self._stop.wanted() and self._fits(points[at]):
            at += self._measure_next(points, at)
        return len(points) - at

    def _measured_alone(self, point: Point) -> neighbours.Alone | None:
        """Measure the first point while the neighbours wait, not for its row; None if it fails."""
        assert self._board  # noqa: S101 - of a job with several GPUs
        expected = self._chunk.seconds / len(self._chunk.points)
        if point is self._deadly or not neighbours.has_control(self._manifest.workload, expected):
            return None
        limit = min(neighbours.ALONE_SECONDS, self._manifest.run.point_timeout)
        outcome = self._care.outcome_of(point, self._tries, limit, self._time.end)
        self._care.end_worker()  # so that the point meets no caches of its own
        if not (outcome and outcome.row.get("median_ms") and self._board.is_alone()):
            return None
        self._reports.say(f"alone on its node: {outcome.row['median_ms']:.3f} ms")
        return neighbours.Alone(point.point_id, outcome.row)

    def _measure_next(self, points: list[Point], at: int) -> int:
        """Measure the next point, or several short ones; return how many have their row."""
        message = self._short.next_message(points, at)
        self._waited = 0.0
        clock = time.monotonic()
        began = time.time()
        label = self._begins(message[0], at, len(points), point_row.utc(began))
        self._reports.flush()
        before = self._board.others() if self._board else 0
        skipped = self._skip(message[0])
        outcomes = [skipped] if skipped else self._without_pause(message)
        self._beside = max(before, self._board.others() if self._board else 0)
        # the start of the worker, and the message, belong to the first point
        seconds = self._waited + sum(outcome.seconds for outcome in outcomes)
        wait = time.monotonic() - clock - seconds
        began += self._waited
        when = point_row.utc(began)
        for number, outcome in enumerate(outcomes):
            if self._is_fenced():
                return number
            point = message[number]
            wall = outcome.seconds
            if number:
                label = self._begins(point, at + number, len(points), when)
            else:
                wall += wait
            row = self._commit(point, outcome, when, wall)
            began += wall
            when = point_row.utc(began)
            place = f"{at + number + 1}/{len(points)}"
            text = f"{place} {row['status']} {label} {point.point_id} {_result(row)}"
            self._reports.ended(when, outcome.trace, text, row["status"], doubts_of(row))
        self._short.answered(outcomes)
        return len(outcomes)

    def _begins(self, point: Point, at: int, total: int, when: str) -> str:
        """Report that a point begins, and return its label."""
        label = self._label(point)
        self._reports.begins(when, f"{at + 1}/{total} begins {label} {point.point_id}", label)
        return label

    def _fits(self, point: Point) -> bool:
        """Say whether a point fits the time left; `Incomplete` if no job like this one fits it."""
        if self._time.fits():
            return True
        left = self._time.seconds_left
        need = self._time.seconds_needed
        if not self._time.rows and (self._shard.attempt or self._manifest.run.shortened):
            has = f"a fresh {self._kind_of_job} has only {max(left, 0):.0f} s"
            raise self._too_short(point, f"needs about {need:.0f} s, and {has}")
        self._stop.because(f"{left:.0f} s left, the next point needs {need:.0f}")
        return False

    @property
    def _kind_of_job(self) -> str:
        shortened = "shortened " if self._manifest.run.shortened else ""
        return f"{shortened}job of profile '{self._manifest.profile}'"

    def _too_short(self, point: Point, why: str) -> Incomplete:
        remedy = attempt.TOO_SHORT if self._manifest.run.shortened else _MORE_TIME
        return Incomplete(f"{self._label(point) or point.point_id}: {why}; {remedy}")

    def _skip(self, point: Point) -> Outcome | None:
        """Return the outcome of a point that is not tried: deadly, or too large; else None."""
        if point is self._deadly:
            return Outcome(status=PointStatus.TIMEOUT, reason=_DEADLY)
        if not self._manifest.run.skip_dominated:
            return None
        reason = self._too_large.why_skip(point.axes)
        return Outcome(status=PointStatus.SKIPPED, reason=reason) if reason else None

    def _without_pause(self, points: Sequence[Point]) -> Sequence[Outcome]:
        """Measure points; once more if the job was suspended meanwhile, since times hold the pause.

        What was suspended twice stands, and is flagged. So does a command at once: a person knows
        whether it may run again. Nothing is returned where another job has to measure the points.
        """
        before = self._suspension.seconds()
        outcomes = self._outcomes_of(points)
        paused = self._suspension.seconds() - before
        timed = any(outcome.status in _TIMED for outcome in outcomes)
        if not paused or not timed:
            return outcomes
        if self._manifest.workload != COMMAND.name:
            self._reports.say(f"suspended for {paused:.1f} s: measured again")
            if self._stop.wanted() or not self._fits(points[0]):
                return []
            before = self._suspension.seconds()
            outcomes = self._outcomes_of(points)
            paused = self._suspension.seconds() - before
        return [point_row.suspended(outcome, paused) for outcome in outcomes]

    def _outcomes_of(self, points: Sequence[Point]) -> Sequence[Outcome]:
        """Measure points within the time that is left; nothing if another try must follow.

        If a worker fails with several, each of them is measured alone.
        """
        if len(points) > 1:
            self._short.sent(points)
            half = self._time.seconds_left / 2  # the rest is for each of them alone
            limit = min(self._manifest.run.point_timeout, job_limits.TOGETHER_LIMIT, half)
            return self._care.outcomes_of(points, self._tries, limit)
        outcome = self._outcome_of(points[0])
        return [outcome] if outcome else []

    def _outcome_of(self, point: Point) -> Outcome | None:
        """Measure a point within the time that is left; None if another job should try it.

        A point that had a whole job without a result is not tried again, unless that job asked for
        less than the profile's time: then `Incomplete`, and the next submission asks for all of it.
        """
        limit = self._manifest.run.point_timeout * int(point.axes.get("epochs") or 1)
        began = time.time()
        outcome = self._care.outcome_of(point, self._tries, limit, self._time.end)
        took = self._time.taken(began)
        done = outcome and (outcome.status is not PointStatus.TIMEOUT or took >= limit)
        cut = self._time.cut(warned="USR" in self._stop.reason)
        if done or self._stop.orphaned or time.time() < cut:
            return outcome
        # it had no job for itself if others had rows, or a worker took half of the time to start
        shortened = self._manifest.run.shortened
        had_no_job = self._time.rows or (not shortened and took < (cut - self._time.began) / 2)
        if had_no_job:
            self._stop.because(job_limits.TIME_IS_UP)
            return None
        why = f"no result within {took:.0f} s, which is all that a {self._kind_of_job} has for it"
        if shortened:
            raise self._too_short(point, why)
        why = f"{why}; {_MORE_TIME}"
        return self._care.with_times(point, why) or Outcome(status=PointStatus.TIMEOUT, reason=why)

    def _is_fenced(self) -> bool:
        """Say whether a newer attempt of this chunk has begun."""
        with suppress(FileNotFoundError):
            os.stat(self._next)  # noqa: PTH116 - asked for each point
            self._stop.reason = "a newer attempt of this chunk has begun"
            self._fenced_off = True
        return self._fenced_off

    def _commit(self, point: Point, outcome: Outcome, started_at: str, wall: float) -> Row:
        """Write the row of a point, which took `wall` seconds, and return it."""
        if outcome.status is PointStatus.OOM:
            self._too_large.add(point.axes)
        outcome, unknown = point_row.declared(outcome)
        if unknown:
            names = ", ".join(sorted(unknown))
            self._reports.say(f"{point.point_id}: left out what no record declares: {names}")
        row = point_row.of_point(point, outcome, started_at, wall, self._place_of(point))
        if "own_files" not in row:  # the worker, which fills it, is gone
            row |= row_of(OriginCells(own_files=self._sources.cell(point)))
        if self._board:
            row |= neighbours.cells_of(row, self._beside, self._alone)
        if self._wrapper:
            row = point_row.without_times(row, self._wrapper)
            self._writer.commit(row)
        else:
            self._writer.commit(row, outcome.layers, outcome.samples)
        self._time.has_row(wall)
        return row

    def _place_of(self, point: Point) -> Row:
        """Return the cells of a point's place in the chunk, and of axes that differ in it."""
        own = {name: point.axes[name] for name in self._own_axes}
        place = PointCells(place=self._places[point.point_id], own_axes=own or None)
        return {
            **axis_cells({name: point.axes[name] for name in self._differing}),
            **row_of(place),
        }

    def _note_machine(self, machine: Mapping[str, Any]) -> None:
        if not self._machine:  # all workers of an attempt have the same
            self._set_machine(machine)
            self._write_env(AttemptState.RUNNING, "")
            if self._board:
                self._waited = self._board.wait_for_turn(self._stop.wanted)
        self._time.worker_ready_at = time.time()

    def _set_machine(self, machine: Mapping[str, Any]) -> None:
        """Keep the worker's report on its machine, and set the cells that every row has."""
        self._machine = machine
        axes = self._chunk.points[0].axes
        same = {name: axes[name] for name in axes.keys() - {*self._differing}}
        of_attempt = point_row.of_attempt(self._manifest, self._shard, machine.get("row", {}))
        order = row_of(PointCells(order_seed=self._chunk.order_seed))
        self._writer.set_common({**axis_cells(same), **of_attempt, **order})

    def _write_env(self, state: AttemptState, reason: str) -> None:
        record = AttemptRecord(
            state=state,
            reason=reason,
            pid=os.getpid(),
            node=point_row.node(),
            updated_at=point_row.now(),
            slurm=environment.of_slurm(os.environ),
        )
        machine = {"hpcsweep_version": version.revision(), **self._machine}
        attempt.write_record(self._shard, record, machine)

    def _label(self, point: Point) -> str:
        return point.label(self._manifest.maps, self._in_labels)


def _result(row: Row) -> str:
    """Return the time of a point, or why it was not measured, for the log."""
    took = f"{row['median_ms']:.3f} ms" if row.get("median_ms") is not None else ""
    reason = f"({row['status_reason']})" if row.get("status_reason") else ""
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
