"""Runs the chunks of a submission on this machine, each under its own supervisor.

The command and the shards are those of a Slurm job. This process holds the stdin of the
supervisors: when it dies, they read end-of-file and end with their workers. A supervisor that dies
is started again as the next attempt of its chunk, as Slurm would requeue a job. One that does not
end within `kill_wait` after it was told to is killed, as Slurm would. Progress is a bar on a
terminal, else a line every ten seconds.
"""

from __future__ import annotations

import json
import logging
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

from hpcsweep import environment, processes
from hpcsweep.cluster.launchers import LaunchResult
from hpcsweep.errors import EXIT_REQUEUE
from hpcsweep.records import dataclass
from hpcsweep.spec.profile import Profile
from hpcsweep.store.rundir import SubmissionDir
from hpcsweep.store.state import FAILED
from hpcsweep.text import duration

_LOGGER: Final = logging.getLogger(__name__)

# A chunk is given up after so many starts without a new row.
_VAIN_STARTS: Final = 3
# Between two looks at what the supervisors say: each look takes time from what is measured.
_REST_SECONDS: Final = 0.01
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_END_SECONDS: Final = 5.0  # that a supervisor has to end its worker and itself
_LINE_SECONDS: Final = 10.0
_FEW: Final = 3  # points that say too little about the others
_STOPPING: Final = "finishing the current point; Ctrl-C again stops now"


@dataclass
class _Running:
    """A supervisor process, and the start of a line that it has not finished."""

    chunk: int
    process: subprocess.Popen[bytes]
    stdin: IO[bytes]
    stdout: IO[bytes]
    errors: IO[bytes]
    vain: int
    buffer: bytes = b""


def run(submission: SubmissionDir, profile: Profile, progress: Counts) -> LaunchResult:
    """Run every chunk; the first Ctrl-C finishes the current points, the second drops them."""
    manifest = submission.read_manifest()
    env = {**profile.env, **_threads(manifest.run.workers)}
    followed = _LocalRun(submission, env, progress, manifest.run.kill_wait)
    return followed.to_the_end(range(manifest.chunks))


def _threads(workers: int) -> dict[str, str]:
    """Give each of several workers its share of the cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {environment.THREADS: str(max(1, (cores or 1) // workers))} if workers > 1 else {}


class _LocalRun:
    """Follows the supervisors of a submission: their rows, their ends, and signals from outside."""

    def __init__(
        self, submission: SubmissionDir, env: Mapping[str, str], progress: Counts, kill_wait: float
    ) -> None:
        self._submission, self._progress = submission, progress
        self._kill_wait, self._killed_at = kill_wait, math.inf
        own = {environment.PROGRESS: "json", environment.LIFELINE: "stdin"}
        self._env = {**os.environ, **env, **own}
        if folders := self._env.get("PYTHONPATH"):  # an empty entry is the working directory
            self._env["PYTHONPATH"] = os.pathsep.join(filter(None, folders.split(os.pathsep)))
        self._selector = selectors.DefaultSelector()
        self._live: dict[int, _Running] = {}
        self._stops, self._heard = 0, False
        self._result = LaunchResult()

    def to_the_end(self, chunks: range) -> LaunchResult:
        """Start all chunks, and follow them until each has ended."""
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            for chunk in chunks:
                self._start(chunk, vain=0)
            while self._live:
                for key, _ in self._selector.select(0.2):
                    self._read(key.data)
                time.sleep(_REST_SECONDS)
                if self._heard:  # not in the handler: a print may have been interrupted by it
                    self._progress.stopping()
                    self._heard = False
                self._progress.tick()
                if self._progress.time_is_over() and not self._stops:
                    self._result.out_of_time = True
                    self._on_signal(signal.SIGTERM, None)
                    self._heard = False
                if time.monotonic() > self._killed_at:
                    break
        finally:
            self._drop(*self._live.values())
            for number, handler in before.items():
                signal.signal(number, handler)
        self._result.interrupted = self._stops > self._result.out_of_time
        return self._result

    def _start(self, chunk: int, vain: int) -> None:
        errors = (self._submission.logs / f"{chunk}.supervisor.log").open("ab+")
        _LOGGER.debug("starts the supervisor of chunk %s of %s", chunk, self._submission.path)
        child = subprocess.Popen(
            processes.python("hpcsweep.node.supervisor", self._submission.path, chunk),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=self._env,
            start_new_session=True,  # a terminal's Ctrl-C reaches this process only
        )
        assert child.stdin and child.stdout  # noqa: S101, PT018 - for the type checker
        running = _Running(chunk, child, child.stdin, child.stdout, errors, vain)
        self._live[chunk] = running
        self._selector.register(child.stdout, selectors.EVENT_READ, running)

    def _read(self, running: _Running) -> None:
        data = os.read(running.stdout.fileno(), 1 << 16)
        if not data:
            self._finished(running)
            return
        *lines, running.buffer = (running.buffer + data).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "status" in told:
                self._result.tally.add(told["status"], told["doubts"])
                running.vain = 0
                self._progress.point(told["status"])
            if "begins" in told:
                self._progress.begins(told["begins"])

    def _finished(self, running: _Running) -> None:
        code = running.process.wait()
        running.errors.seek(0)
        lines = running.errors.read().decode("utf-8", "replace").strip().splitlines()
        self._drop(running)
        if code == 0 or self._stops:
            return
        if (code < 0 or code == EXIT_REQUEUE) and running.vain + 1 < _VAIN_STARTS:
            self._start(running.chunk, running.vain + 1)
            return
        last = lines[-1] if lines else f"the supervisor ended with exit code {code}"
        self._result.refusals[last.removeprefix("hpcsweep: ")] = abs(code)

    def _drop(self, *dropped: _Running) -> None:
        """Close the stdin of supervisors, which ends them and their workers, and see to that."""
        for running in dropped:
            running.stdin.close()
        until = min(time.monotonic() + _END_SECONDS, self._killed_at)
        for running in dropped:
            if not _ends(running.process, until - time.monotonic()):
                with suppress(ProcessLookupError):  # its worker dies with it
                    os.killpg(running.process.pid, signal.SIGKILL)
                _ends(running.process, _END_SECONDS)  # a file system that hangs holds it for longer
            del self._live[running.chunk]
            self._selector.unregister(running.stdout)
            running.stdout.close()
            if not os.fstat(running.errors.fileno()).st_size:
                Path(running.errors.name).unlink(missing_ok=True)
            running.errors.close()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stops += 1
        if self._stops == 1:
            self._heard = True
        wait = _END_SECONDS + self._kill_wait * (self._stops == 1)
        self._killed_at = min(self._killed_at, time.monotonic() + wait)
        for running in self._live.values():
            if self._stops == 1:
                running.process.terminate()
            else:
                running.stdin.close()


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait so many seconds for the end of a process; say whether it came."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(seconds, 0.0))
    return process.returncode is not None


def left(took: Sequence[float], current: float, points: int, expected: float = 0.0) -> str:
    """Return the time that so many points need, as a range.

    `took` are the seconds of those that are done, `current` those of the point in work. The range
    is between the mean and the slowest third, to which a point that takes long belongs at once.
    While few are done it is what is left of the estimate: `expected`.
    """
    if len(took) < _FEW:
        return f"about {duration(expected)}" if expected > 0 else "not known yet"
    known = [*took, current] if current > max(took) else [*took]
    slowest = sorted(known)[-max(1, len(known) // 3) :]
    low = max(points * sum(took) / len(took) - current, 0.0)
    high = max(points * sum(slowest) / len(slowest) - current, low)
    first, last = duration(low), duration(high)
    return f"about {last}" if first == last else f"{first} to {last}"


class Counts:
    """Counts the points of a run, which should take `expected` seconds; shows nothing."""

    def __init__(
        self, total: int, expected: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._failed, self._label, self._expected = total, 0, "", expected
        self._took: list[float] = []
        self._clock = clock
        self._began = self._last = self._told = clock()
        self._first: float | None = None
        self.stop_after = math.inf  # seconds since the first point began

    def begins(self, label: str) -> None:
        """Note the point in work."""
        self._label = label
        if self._first is None:
            self._first = self._clock()

    def time_is_over(self) -> bool:
        """Say whether points have been measured for longer than `stop_after`."""
        return self._first is not None and self._clock() - self._first > self.stop_after

    def point(self, status: str) -> None:
        """Count one more row."""
        now = self._clock()
        self._took.append(now - self._last)
        self._last = now
        self._failed += status in FAILED

    def tick(self) -> None:
        """Refresh what is shown; called a few times a second."""

    def stopping(self) -> None:
        """Say that the first Ctrl-C was heard."""

    def text(self) -> str:
        """Return how many points are done, how long that took, and what the rest may take."""
        now, done = self._clock(), len(self._took)
        counted = f"{done}/{self._total} points, {self._failed} failed"
        elapsed = now - self._began
        rest = left(self._took, now - self._last, self._total - done, self._expected - elapsed)
        return f"{counted}, elapsed {duration(elapsed)}, left {rest}"


class Lines(Counts):
    """Prints a line at most every ten seconds."""

    def tick(self) -> None:
        """Print a line if the last one is long ago."""
        if self._clock() - self._told >= _LINE_SECONDS:
            self._told = self._clock()
            self._print(f"{self.text()}; now {self._label or 'starting'}")

    def stopping(self) -> None:
        """Print it at once."""
        self._print(_STOPPING)

    @staticmethod
    def _print(text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)  # noqa: T201


class Bar(Counts):
    """A live bar on a terminal, and the point in work below it."""

    def __init__(self, total: int, expected: float, progress: Any) -> None:  # noqa: ANN401 - rich's
        super().__init__(total, expected)
        self._progress, self._note = progress, ""
        self._task = progress.add_task("points", total=total, told="")

    def tick(self) -> None:
        """Show the counts and the clock of now."""
        now = f"now {self._label or 'starting'}{self._note}"
        self._progress.update(self._task, completed=len(self._took), told=f"{self.text()}\n{now}")
        self._progress.refresh()

    def stopping(self) -> None:
        """Say it behind the point in work."""
        self._note = f" ({_STOPPING})"
        self.tick()


@contextmanager
def shown(total: int, expected: float, *, quiet: bool = False) -> Iterator[Counts]:
    """Show the progress of points that should take so many seconds, unless it has to be quiet."""
    if quiet:
        yield Counts(total)
        return
    if not sys.stderr.isatty():
        yield Lines(total, expected)
        return
    from rich.console import Console  # noqa: PLC0415 - 0.1 s, only for terminals
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (BarColumn(bar_width=12), TextColumn("{task.fields[told]}", markup=False))
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as progress:
        yield Bar(total, expected, progress)
