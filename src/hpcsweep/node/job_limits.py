"""What bounds an attempt from outside: signals to stop, the time of its job, and suspensions.

It measures nothing and starts no worker; the supervisor asks it between points and while it waits.
Standard library only.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from hpcsweep import environment
from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    from hpcsweep.store.chunk_file import Chunk
    from hpcsweep.store.manifest import RunSettings

# Slurm sends USR1 or USR2 ahead of the time limit, TERM for `scancel`, a preemption and the limit
# itself; a local launcher passes Ctrl-C on as TERM. INT is for who starts a supervisor by hand.
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
        return time.time() - max(since, self.worker_ready_at)

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
