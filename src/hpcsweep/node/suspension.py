"""Notices when the job was suspended while it measured, so that a pause is not taken for a time.

Slurm suspends jobs for others (`PreemptMode=SUSPEND`, gang scheduling), and people do with
`scontrol suspend`. Whatever the job measures at that moment contains the pause.

No clock of a process tells. Measured on Linux 6.18, a process stopped for 2 s by SIGSTOP or by the
cgroup freezer: CLOCK_MONOTONIC, CLOCK_BOOTTIME and the wall clock all run on, its CPU time and the
run delay of /proc/self/schedstat stand still, as they do in a sleep. SIGCONT is not sent by the
freezer. What tells in every case is a thread that wakes up ten times a second, and finds that two
seconds are missing.

Standard library only.
"""

from __future__ import annotations

import threading
import time
from typing import Final

_BEAT_SECONDS: Final = 0.1
# A beat that comes later than this is a pause. On two cores with ten busy processes the latest of
# 700 beats came 0.03 s late; Slurm gives a suspended job 2 s before it stops what ignores SIGTSTP.
_LEAST_SECONDS: Final = 1.0


class SuspensionWatch:
    """Adds up the pauses of this process and so of its job, of which Slurm suspends all at once."""

    def __init__(self) -> None:
        """Watch from now on, for as long as the process lives."""
        self._lock = threading.Lock()
        self._last = time.monotonic()
        self._paused = 0.0
        threading.Thread(target=self._beat, daemon=True).start()

    def seconds(self) -> float:
        """Return the seconds that this process was suspended so far, in pauses of a second or more.

        A pause that has just ended counts, even where the thread has not woken up yet.
        """
        with self._lock:
            now = time.monotonic()
            late = now - self._last - _BEAT_SECONDS
            if late >= _LEAST_SECONDS:
                self._paused += late
            self._last = now
            return self._paused

    def _beat(self) -> None:
        while True:
            time.sleep(_BEAT_SECONDS)
            self.seconds()
