"""Shows how the points of a run on this machine come along: counts, lines, or a live bar."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from hpcsweep.store.state import FAILED
from hpcsweep.text import cut, duration, shown

# between two lines: the log of a night stays short, and nobody takes the silence for a hang
_LINE_SECONDS: Final = 10.0
# from fewer points nothing is said of the others, of which they may be no example
_FEW: Final = 3
_BAR: Final = 12  # characters, so that the counts fit 80 columns beside it
_CLEAR: Final = "\r\x1b[J"  # of a terminal: from the start of this line on
_UP: Final = "\x1b[F"


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
