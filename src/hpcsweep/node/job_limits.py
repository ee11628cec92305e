"""What an attempt has to measure, and what bounds it: signals, the time of its job, suspensions.

It measures nothing and starts no worker. The supervisor asks it which points are left to the
attempt, in what order, how many at a time, and which to skip; between points and while it waits,
whether to go on. Standard library only.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hpcsweep import environment
from hpcsweep.catalog import sizes_of_inputs, worker_key
from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.store import attempt, chunk_file
from hpcsweep.store.row_reader import read_rows
from hpcsweep.store.state import AttemptState, PointStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from hpcsweep.node.protocol import Outcome
    from hpcsweep.point import Point
    from hpcsweep.store.attempt import AttemptRecord
    from hpcsweep.store.chunk_file import Chunk
    from hpcsweep.store.folders import ShardPath, SubmissionDir
    from hpcsweep.store.manifest import RunSettings

# Slurm sends USR1 or USR2 ahead of the time limit, TERM for `scancel`, a preemption and the limit
# itself; a local launcher passes Ctrl-C on as TERM. INT is for who starts a supervisor by hand, or
# tells a job by `scancel --signal=INT`.
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
# More than a point is thought to need, since the times of one point differ by some per cent.
_MARGIN: Final = 1.1
# Slurm's signal ahead of the limit may come a minute early (sbatch(1), --signal).
_SIGNAL_EARLY_SECONDS: Final = 60
# A worker that is killed at the end of the time says so a moment before.
_END_SECONDS: Final = 1
# A suspension is noticed this much late at most; ten wake-ups a second are no load to measure.
_BEAT_SECONDS: Final = 0.1
# A beat that comes later than this is a pause. On two cores with ten busy processes the latest of
# 700 beats came 0.03 s late; Slurm gives a suspended job 2 s before it stops what ignores SIGTSTP.
_LEAST_PAUSE_SECONDS: Final = 1.0
TIME_IS_UP: Final = "the time of the job is up"
# Why an attempt stops as its job ends; SIGTERM also stands for a preemption.
_ENDS_OF_JOBS: Final = frozenset({TIME_IS_UP, "SIGUSR1", "SIGUSR2"})
# Attempts that ended at a point, after which it is not tried again: one may be an accident of the
# node, and each costs a whole job.
_DEATHS: Final = 2
# A point that takes longer does not feel a message, which takes 0.3 ms.
_SHORT_SECONDS: Final = 0.01
# Points of a message: a crash costs half a second of points, and a message nearly nothing.
_TOGETHER: Final = 50
# Seconds for such a message, ten times what it should take; a point that hangs is then found alone.
TOGETHER_LIMIT: Final = 5.0
# In the order in which a reason names them.
_GROWING: Final = tuple(sorted(sizes_of_inputs()))


def sorted_by_worker(points: Iterable[Point]) -> list[Point]:
    """Return points in the order in which they need fewest workers."""
    groups: dict[object, list[Point]] = {}
    for point in points:
        groups.setdefault(worker_key(point), []).append(point)
    return [point for group in groups.values() for point in group]


def ids_of_others(submission: SubmissionDir) -> set[str]:
    """Return the ids of points that other submissions of the same kind measure.

    Newer ones do: this attempt's file exists by now. `submit` looks for such files after it has
    written its manifest, and stops their attempts: the later of the two sees the earlier. Of
    equal rounds, neither `submit` saw the other's folder; the one that came first measures.
    """
    mine = submission.read_manifest()
    ids = set[str]()
    sweep_dir = submission.sweep_dir
    for manifest in sweep_dir.manifests():
        comes_before = (manifest.round, mine.id) > (mine.round, manifest.id)
        if not comes_before or manifest.is_profiled is not mine.is_profiled:
            continue
        with suppress(ResultsError):  # an unreadable submission may not stop this one
            if manifest.source:  # no job of an imported one measures what it lacks
                for row in read_rows(sweep_dir.shards_of(manifest.id)):
                    ids.add(row["point_id"])
                continue
            for _, ids_of_chunk in chunk_file.read_ids(sweep_dir.submission(manifest.id).chunks):
                ids.update(ids_of_chunk)
    return ids


def first_is_deadly(attempts: Iterable[ShardPath], mine: ShardPath) -> bool:
    """Say whether the last attempts before this one died while they measured its first point.

    Attempts whose job ended before they had any row count, too: its limit may be unknown here.
    """
    deaths = 0
    for shard in reversed([*attempts]):
        record = attempt.read_record(shard)
        if shard == mine or record is None:  # None: it was fenced off before it began
            continue
        has_rows = any(read_rows([shard]))
        if not _was_ended_by_its_point(record, has_rows=has_rows):
            break
        deaths += 1
        if has_rows:
            break  # those before it died at another point
    return deaths >= _DEATHS


def _was_ended_by_its_point(record: AttemptRecord, *, has_rows: bool) -> bool:
    if not record.row:  # no worker was ready, so no point had begun
        return False
    if record.state is AttemptState.RUNNING:  # it was killed: it wrote no end
        return True
    its_job_ended = record.state is AttemptState.STOPPED and record.reason in _ENDS_OF_JOBS
    return its_job_ended and not has_rows


@dataclass
class OutOfMemoryPoints:
    """The points that ran out of memory (`submit --skip-dominated`)."""

    axes_of_points: list[Mapping[str, Any]]

    def add(self, axes: Mapping[str, Any]) -> None:
        """Add a point that ran out of memory."""
        self.axes_of_points.append(axes)

    def why_skip(self, axes: Mapping[str, Any]) -> str | None:
        """Return why a point is skipped (a smaller one ran out of memory); None if it is not."""
        for known in self.axes_of_points:
            others = {*axes, *known}.difference(_GROWING)
            is_same_network = all(axes.get(name) == known.get(name) for name in others)
            if is_same_network and all(_size(axes, n) >= _size(known, n) for n in _GROWING):
                tried = ", ".join(f"{name} {_size(known, name)}" for name in _GROWING)
                why = "ran out of memory already; submit without --skip-dominated to try it"
                return f"{tried} {why}"
        return None


def _size(axes: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - of an axis, any number
    return axes.get(name) or 0


@dataclass(kw_only=True)
class ShortPoints:
    """How many points the next message has, by those of the last one.

    Points that take a few milliseconds each travel together, since a message costs as much.
    """

    one_by_one: bool  # each must have its row before it is known whether the next is skipped
    _were_short: bool = field(default=False, init=False)
    # points that go one by one, since one of them stopped a worker
    _alone: int = field(default=0, init=False)

    def next_message(self, points: Sequence[Point], at: int) -> list[Point]:
        """Return the next point, with those after it that go into the same message."""
        if self.one_by_one or self._alone or not self._were_short:
            return [points[at]]
        key = worker_key(points[at])
        if worker_key(points[at - 1]) != key:  # of another network nothing is known
            return [points[at]]
        return [point for point in points[at : at + _TOGETHER] if worker_key(point) == key]

    def sent(self, points: Sequence[Point]) -> None:
        """Note a message of several points, which go alone until they have been answered."""
        self._alone = len(points)

    def answered(self, outcomes: Sequence[Outcome]) -> None:
        """Note the outcomes of a message; one that failed at once says nothing of the next."""
        self._alone = max(0, self._alone - len(outcomes))
        self._were_short = bool(outcomes)
        for outcome in outcomes:
            if outcome.status is not PointStatus.OK or outcome.seconds >= _SHORT_SECONDS:
                self._were_short = False


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
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)
        if self._lifeline:
            threading.Thread(target=self._watch_stdin, daemon=True).start()

    def wanted(self) -> bool:
        """Say whether to stop."""
        return bool(self.reason)

    def because(self, why: str) -> None:
        """Want a stop; the first reason stands."""
        self.reason = self.reason or why

    def launcher_is_gone(self) -> bool:
        """Say whether the launcher is gone; signals that came meanwhile are forgotten."""
        with suppress(BlockingIOError):
            while os.read(self.fd, 64):
                pass
        return self.orphaned

    def _on_signal(self, number: int, _frame: object) -> None:
        self.because(signal.Signals(number).name)
        self._wake()

    def _watch_stdin(self) -> None:
        while os.read(0, 64):
            pass
        self.orphaned = True
        self.reason = "the launcher is gone"
        self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # the pipe is full: who waits is awake already
            os.write(self._write, b"x")


class JobTime:
    """The time of a job, without its last `kill_wait` seconds; infinite where it has no deadline.

    Raises:
        UsageError: the deadline in the environment is no time.
    """

    def __init__(self, settings: RunSettings, chunk: Chunk) -> None:
        self._settings = settings
        self._usual = chunk.seconds / max(len(chunk.points), 1)
        self._slowest = 0.0
        self.began = time.time()
        self.worker_ready_at = math.inf  # since then a point has the time
        self.end = _deadline() - settings.kill_wait  # of measuring
        self.rows = 0

    def has_row(self, wall: float) -> None:
        """Note a point that took `wall` seconds."""
        self.rows += 1
        self._slowest = max(self._slowest, wall)

    @property
    def seconds_left(self) -> float:
        """What is left to measure."""
        return self.end - time.time()

    @property
    def seconds_needed(self) -> float:
        """What the next point may need."""
        return _MARGIN * max(self._usual, self._slowest)

    def fits(self) -> bool:
        """Say whether the next point fits; the first does: its estimate may be far too long."""
        seconds = self.seconds_left
        return self.seconds_needed <= seconds or (not self.rows and seconds > 0)

    def taken(self, since: float) -> float:
        """Return the seconds that a point had since a moment, without the start of its worker."""
        return max(time.time() - max(since, self.worker_ready_at), 0.0)

    def cut(self, *, warned: bool) -> float:
        """Return from when on a point that has no result was cut short by the job's end.

        `warned`: by a signal ahead of its limit.
        """
        if not warned:
            return self.end - _END_SECONDS
        lead = self._settings.signal_lead + _SIGNAL_EARLY_SECONDS
        return self.end + self._settings.kill_wait - lead


def _deadline() -> float:
    """Return when the job's time is up, in seconds since the epoch; without one, infinity."""
    text = os.environ.get(environment.DEADLINE) or "inf"
    with suppress(ValueError):
        deadline = float(text)
        if not math.isnan(deadline):
            return deadline
    remedy = "needs seconds since the epoch. Job scripts set it: unset it, and submit again"
    raise UsageError(f"{environment.DEADLINE}={text!r:.80}: {remedy}")


class SuspensionWatch:
    """Adds up the pauses of this process and so of its job, of which Slurm suspends all at once.

    Slurm suspends jobs for others (`PreemptMode=SUSPEND`, gang scheduling), and people do with
    `scontrol suspend`. Whatever the job measures at that moment contains the pause.

    No clock of a process tells. Measured on Linux 6.18, a process stopped for 2 s by SIGSTOP or by
    the cgroup freezer: CLOCK_MONOTONIC, CLOCK_BOOTTIME and the wall clock all run on, its CPU time
    and the run delay of /proc/self/schedstat stand still, as they do in a sleep. SIGCONT is not
    sent by the freezer. What tells in every case is a thread that wakes up ten times a second, and
    finds that two seconds are missing.
    """

    def __init__(self) -> None:
        """Watch from now on, for as long as the process lives."""
        self._lock = threading.Lock()
        self._last_beat = time.monotonic()
        self._paused = 0.0
        threading.Thread(target=self._beat, daemon=True).start()

    def seconds(self) -> float:
        """Return the seconds that this process was suspended so far, in pauses of a second or more.

        A pause that has just ended counts, even where the thread has not woken up yet.
        """
        with self._lock:
            now = time.monotonic()
            late = now - self._last_beat - _BEAT_SECONDS
            if late >= _LEAST_PAUSE_SECONDS:
                self._paused += late
            self._last_beat = now
            return self._paused

    def _beat(self) -> None:
        while True:
            time.sleep(_BEAT_SECONDS)
            self.seconds()
