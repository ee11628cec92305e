"""The time of a job: until when an attempt may measure, and what the next point may need."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from hpcsweep import environment
from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    from hpcsweep.store.chunk_file import Chunk
    from hpcsweep.store.manifest import RunSettings

# of what a point is thought to need: times of one point differ by some per cent
_MARGIN: Final = 1.1
# Slurm's signal ahead of the limit may come a minute early (sbatch(1), --signal)
_SIGNAL_EARLY_SECONDS: Final = 60
_END_SECONDS: Final = 1  # a worker that is killed at the end of the time says so a moment before


class JobTime:
    """The time of a job, without its last `kill_wait` seconds; infinite where it has no deadline.

    Raises:
        UsageError: the deadline in the environment is no time.
    """

    def __init__(self, settings: RunSettings, chunk: Chunk) -> None:
        self._settings = settings
        self._usual = chunk.seconds / max(len(chunk.points), 1)
        self._slowest = 0.0
        self._began = time.time()
        self._ready = math.inf  # when a worker was ready
        self.end = _deadline() - settings.kill_wait  # of measuring
        self.rows = 0

    def worker_is_ready(self) -> None:
        """Note the start of a worker, which is no time of a point."""
        self._ready = time.time()

    def has_row(self, wall: float) -> None:
        """Note a point that took `wall` seconds."""
        self.rows += 1
        self._slowest = max(self._slowest, wall)

    @property
    def left(self) -> float:
        """Seconds that are left to measure."""
        return self.end - time.time()

    @property
    def need(self) -> float:
        """Seconds that the next point may need."""
        return _MARGIN * max(self._usual, self._slowest)

    def fits(self) -> bool:
        """Say whether the next point fits; the first does: its estimate may be far too long."""
        left = self.left
        return self.need <= left or (not self.rows and left > 0)

    def taken(self, since: float) -> float:
        """Return the seconds that a point had since a moment, without the start of its worker."""
        return time.time() - max(since, self._ready)

    def is_up(self, *, warned: bool) -> bool:
        """Say whether the job ends now; `warned`: by a signal ahead of its limit."""
        return time.time() >= self._cut(warned=warned)

    def was_whole(self, seconds: float, *, warned: bool) -> bool:
        """Say whether a point had a job for itself, and not others, or the start of a worker."""
        return not self.rows and seconds >= (self._cut(warned=warned) - self._began) / 2

    def _cut(self, *, warned: bool) -> float:
        early = self._settings.signal_lead + _SIGNAL_EARLY_SECONDS - self._settings.kill_wait
        return self.end - (early if warned else _END_SECONDS)


def _deadline() -> float:
    """Return when the job's time is up, in seconds since the epoch; without one, infinity."""
    text = os.environ.get(environment.DEADLINE) or "inf"
    with suppress(ValueError):
        deadline = float(text)
        if not math.isnan(deadline):
            return deadline
    asked = "needs seconds since the epoch. Job scripts set it: unset it, and submit again"
    raise UsageError(f"{environment.DEADLINE}={text!r:.80}: {asked}")
