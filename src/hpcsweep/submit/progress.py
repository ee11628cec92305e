"""Shows the progress of a local run: a bar on a terminal, else a line every ten seconds."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.store.state import FAILED

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINE_SECONDS: Final = 10.0


class Counts:
    """Counts the points of a run; shows nothing."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._failed = total, 0, 0
        self._began = time.monotonic()
        self._label = ""

    def point(self, status: str) -> None:
        """Count one more row."""
        self._done += 1
        self._failed += status in FAILED

    def begins(self, label: str) -> None:
        """Note the point in work."""
        self._label = label

    def tick(self) -> None:
        """Refresh what is shown; called a few times a second."""

    @property
    def _rate(self) -> float:
        """Return points per second since the beginning."""
        return self._done / max(time.monotonic() - self._began, 1e-9)


class Lines(Counts):
    """Prints a line at most every ten seconds."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self._last = time.monotonic()

    def tick(self) -> None:
        """Print a line if the last one is long ago."""
        if self._done and time.monotonic() - self._last >= _LINE_SECONDS:
            self._last = time.monotonic()
            left = f"{(self._total - self._done) / self._rate:.0f} s left"
            done = f"{self._done}/{self._total} points, {self._failed} failed"
            print(f"  {done}, {self._rate:.2f}/s, {left}", file=sys.stderr, flush=True)  # noqa: T201


class Bar(Counts):
    """A live bar on a terminal."""

    def __init__(self, total: int, progress: Any) -> None:  # noqa: ANN401 - rich's
        super().__init__(total)
        self._progress = progress
        self._task = progress.add_task("points", total=total, failed=0, rate="0")

    def point(self, status: str) -> None:
        """Move the bar by one row."""
        super().point(status)
        told = {"failed": self._failed, "rate": f"{self._rate:.2f}"}
        self._progress.update(self._task, advance=1, **told)

    def tick(self) -> None:
        """Let the bar's clock run."""
        self._progress.refresh()


@contextmanager
def shown(total: int) -> Iterator[Counts]:
    """Show the progress of a run of `total` points."""
    if not sys.stderr.isatty():
        yield Lines(total)
        return
    from rich.console import Console  # noqa: PLC0415 - 0.1 s, only for terminals
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TextColumn("{task.fields[rate]}/s"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as progress:
        yield Bar(total, progress)
