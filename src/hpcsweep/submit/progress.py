"""The progress of a local run: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.store.state import FAILED

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINE_SECONDS: Final = 10.0


class Count:
    """Points done and failed so far."""

    def __init__(self, total: int) -> None:
        """Begin at zero of `total` points."""
        self.total, self.done, self.failed = total, 0, 0
        self._began = time.monotonic()

    def add(self, status: str) -> None:
        """Count one more point."""
        self.done += 1
        self.failed += status in FAILED

    @property
    def rate(self) -> float:
        """Return points per second since the beginning."""
        return self.done / max(time.monotonic() - self._began, 1e-9)

    def words(self) -> str:
        """Say it: done, failed, rate, time left."""
        rate = self.rate
        left = f"{(self.total - self.done) / rate:.0f} s left" if rate else "..."
        return f"{self.done}/{self.total} points, {self.failed} failed, {rate:.2f}/s, {left}"


class Lines:
    """Says a line at most every ten seconds."""

    def __init__(self, count: Count) -> None:
        """Take the count to speak of."""
        self._count, self._last = count, time.monotonic()

    def point(self, status: str) -> None:
        """Take note of one more row."""
        self._count.add(status)

    def tick(self) -> None:
        """Say a line if the last one is long ago."""
        if time.monotonic() - self._last >= _LINE_SECONDS and self._count.done:
            self._last = time.monotonic()
            print(f"  {self._count.words()}", file=sys.stderr, flush=True)  # noqa: T201


class Bar:
    """A live bar on a terminal."""

    def __init__(self, count: Count, progress: Any, task: Any) -> None:  # noqa: ANN401 - rich's
        """Take the count and rich's own objects."""
        self._count, self._progress, self._task = count, progress, task

    def point(self, status: str) -> None:
        """Move the bar by one row."""
        self._count.add(status)
        told = {"failed": self._count.failed, "rate": f"{self._count.rate:.2f}"}
        self._progress.update(self._task, advance=1, **told)

    def tick(self) -> None:
        """Let the bar's clock run."""
        self._progress.refresh()


@contextmanager
def bar(total: int) -> Iterator[Lines | Bar]:
    """Show how a run of `total` points goes on."""
    count = Count(total)
    if not sys.stderr.isatty():
        yield Lines(count)
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
        yield Bar(count, progress, progress.add_task("points", total=total, failed=0, rate="0"))
