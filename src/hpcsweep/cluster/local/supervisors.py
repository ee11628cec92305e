"""Runs the chunks of a submission on this machine, each under its own supervisor; shows how far.

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
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Final

from hpcsweep import environment, files, processes
from hpcsweep.errors import EXIT_REQUEUE
from hpcsweep.spec.profile import Profile
from hpcsweep.store.folders import SubmissionDir
from hpcsweep.store.outcomes import PointTally
from hpcsweep.store.state import FAILED
from hpcsweep.text import cut, duration, shown
from hpcsweep.version import revision

_LOGGER: Final = logging.getLogger(__name__)

# A chunk is given up after so many starts without a new row: what the first two met may be an
# accident, and the supervisor gives up a point that two attempts died of.
_VAIN_STARTS: Final = 3
# Between two looks at what the supervisors say: each look takes time from what is measured.
_REST_SECONDS: Final = 0.01
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# What a supervisor has to end its worker, for which it needs two at most, and itself
_END_SECONDS: Final = 5.0
# Between two lines: the log of a night stays short, and nobody takes the silence for a hang
_LINE_SECONDS: Final = 10.0
# From fewer points nothing is said of the others, of which they may be no example
_FEW: Final = 3
# Characters, so that the counts fit 80 columns beside it.
_BAR: Final = 12
# What a terminal does (ECMA-48): clear from the start of this line on, and go up one line.
_CLEAR: Final = "\r\x1b[J"
_UP: Final = "\x1b[F"


@dataclass
class LaunchResult:
    """How a run on this machine ended."""

    tally: PointTally = field(default_factory=PointTally)  # rows that were written
    interrupted: bool = False
    refusals: dict[str, int] = field(default_factory=dict)  # why a supervisor ended: its exit code

    @property
    def exit_code(self) -> int:
        """Return the worst exit code of a supervisor that refused, else 0."""
        return max(self.refusals.values(), default=0)


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
    if workers <= 1:
        return {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {environment.THREADS: str(max(1, (cores or 1) // workers))}


class _LocalRun:
    """Follows the supervisors of a submission: their rows, their ends, and signals from outside."""

    def __init__(
        self, submission: SubmissionDir, env: Mapping[str, str], progress: Counts, kill_wait: float
    ) -> None:
        self._submission = submission
        self._progress = progress
        self._kill_wait = kill_wait
        self._killed_at = math.inf
        own = {
            environment.PROGRESS: "json",
            environment.LIFELINE: "stdin",
            environment.REVISION: revision(),
        }
        self._env = {**os.environ, **env, **own}
        folders = self._env.get("PYTHONPATH")
        if folders:  # an empty entry is the working directory
            named = [folder for folder in folders.split(os.pathsep) if folder]
            self._env["PYTHONPATH"] = os.pathsep.join(named)
        self._selector = selectors.DefaultSelector()
        self._live: dict[int, _Running] = {}
        self._stops = 0
        self._heard = False
        self._result = LaunchResult()

    def to_the_end(self, chunks: range) -> LaunchResult:
        """Start all chunks, and follow them until each has ended."""
        handlers = {}
        if threading.current_thread() is threading.main_thread():  # others hear no signals
            for number in _SIGNALS:
                handlers[number] = signal.signal(number, self._on_signal)
        try:
            for chunk in chunks:
                self._start(chunk, vain=0)
            while self._live:
                time.sleep(_REST_SECONDS)  # before a look: none follows the last one
                for key, _ in self._selector.select(0.2):
                    self._read(key.data)
                if self._heard:  # not in the handler: a print may have been interrupted by it
                    self._progress.stopping(self._kill_wait)
                    self._heard = False
                self._progress.tick()
                if time.monotonic() > self._killed_at:
                    break
        finally:
            self._drop(*self._live.values())
            for number, handler in handlers.items():
                signal.signal(number, handler)
        self._result.interrupted = self._stops > 0
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
            news = json.loads(line)
            for status, doubts in news["ended"]:
                self._result.tally.add(status, doubts)
                running.vain = 0
                self._progress.point(status)
            if news["begins"]:
                self._progress.begins(news["begins"])

    def _finished(self, running: _Running) -> None:
        code = running.process.wait()
        lines = [line for line in files.last_lines(running.errors) if line.strip()]
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
        is_first = self._stops == 1
        self._heard = self._heard or is_first
        patience = _END_SECONDS
        if is_first:
            patience += self._kill_wait
        self._killed_at = min(self._killed_at, time.monotonic() + patience)
        for running in self._live.values():
            if is_first:
                running.process.terminate()
            else:
                running.stdin.close()


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait so many seconds for the end of a process; say whether it came."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(seconds, 0.0))
    return process.returncode is not None


def time_left(took: Sequence[float], current: float, points: int, expected: float = 0.0) -> str:
    """Return about how long so many points take.

    `took` are the seconds of those that are done, `current` those of the point in work, which
    counts at once where it takes longer than any. While few are done it is what is left of the
    estimate: `expected`.
    """
    seconds = expected
    if len(took) >= _FEW:
        known = [*took, current] if current > max(took) else took
        seconds = max(points * sum(known) / len(known) - current, 0.0)
    elif expected <= 0:
        return "not known yet"
    return f"about {duration(seconds)}"


class Counts:
    """Counts the points of a run, which should take `expected` seconds; shows nothing."""

    def __init__(
        self, total: int, expected: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total
        self._failed = 0
        self._now = "starting"
        self._expected = expected
        self._took: list[float] = []
        self._clock = clock
        self._began = self._last = self._printed = clock()

    def begins(self, label: str) -> None:
        """Note the point in work."""
        self._now = shown(label)

    def point(self, status: str) -> None:
        """Count one more row."""
        now = self._clock()
        self._took.append(now - self._last)
        self._last = now
        self._failed += status in FAILED

    def tick(self) -> None:
        """Refresh what is shown; called a few times a second."""

    def stopping(self, limit: float) -> None:
        """Say that the first Ctrl-C was heard: the current point has `limit` seconds more."""

    def text(self) -> str:
        """Return how many points are done, how long that took, and what the rest may take."""
        now = self._clock()
        done = len(self._took)
        counted = f"{done}/{self._total} points, {self._failed} failed"
        elapsed = now - self._began
        expected = self._expected - elapsed
        left = time_left(self._took, now - self._last, self._total - done, expected)
        return f"{counted}, elapsed {duration(elapsed)}, left {left}"


class Lines(Counts):
    """Prints a line at most every ten seconds."""

    def tick(self) -> None:
        """Print a line if the last one is long ago."""
        if self._clock() - self._printed >= _LINE_SECONDS:
            self._printed = self._clock()
            _print(f"  {self.text()}; now {self._now}\n")

    def stopping(self, limit: float) -> None:
        """Print it at once."""
        _print(f"  {_stopping(limit)}\n")


class Bar(Counts):
    """A live bar on a terminal, and the point in work below it."""

    def tick(self) -> None:
        """Show the counts and the clock of now."""
        columns = shutil.get_terminal_size().columns - 1
        bar = "#" * (_BAR * len(self._took) // self._total)
        lines = (f"[{bar:-<{_BAR}}] {self.text()}", f"  now {self._now}")
        _print(_CLEAR + "\n".join(cut(line, columns) for line in lines) + _UP)

    def stopping(self, limit: float) -> None:
        """Say it in place of the point in work."""
        self._now = _stopping(limit)
        self.tick()


def _stopping(limit: float) -> str:
    return f"finishing the current point, {limit:g} s at most; Ctrl-C again stops now"


def _print(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def shown_progress(total: int, expected: float, *, quiet: bool = False) -> Iterator[Counts]:
    """Show the progress of points that should take so many seconds, unless it has to be quiet."""
    is_live = not quiet and sys.stderr.isatty()
    kind = Counts if quiet else Bar if is_live else Lines
    try:
        yield kind(total, expected)
    finally:
        if is_live:
            _print(_CLEAR)
