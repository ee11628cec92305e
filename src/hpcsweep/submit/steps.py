"""What the steps of one `submit` share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hpcsweep.store import runs
from hpcsweep.store.state import PointStatus
from hpcsweep.submit import prepare
from hpcsweep.text import count, duration
from hpcsweep.text import tally as counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcsweep.store.rundir import RunDir, SubmissionDir
    from hpcsweep.submit.prepare import Prepared
    from hpcsweep.submit.request import Request, Say
    from hpcsweep.tracking.bad_nodes import BadNode
    from hpcsweep.tracking.journal import Answer

    Step = Callable[["Submit"], int | None]

LOCKED_BY: Final = "hpcsweep submit"


@dataclass
class Submit:
    """A request on its way: what is known of it so far."""

    run: RunDir
    asked: Request
    say: Say
    ready: Prepared = field(default_factory=lambda: prepare.NOTHING)
    answer: Answer | None = None  # what Slurm said of earlier submissions, if it was asked
    bad_nodes: Sequence[BadNode] = ()
    sweep_before: bytes | None = None  # the sweep file of the submission before

    @property
    def submission(self) -> SubmissionDir:
        assert self.ready.submission  # noqa: S101 - `_end_if_nothing_is_left` came before
        return self.ready.submission

    @property
    def counts(self) -> RunDir:
        """Return the sweep with the rows that count as measured: with --again the last run's."""
        return runs.of(self.run)[-1].dir if self.asked.options.again else self.run

    @property
    def seconds(self) -> float:
        """What the estimate gives the points, workers side by side."""
        return self.ready.seconds / max(self.asked.workers, 1)

    @property
    def headline(self) -> str:
        """How many points go where, how long they may take, and what is measured already."""
        asked, settled = self.asked, counted(self.ready.settled, PointStatus)
        where = f"{asked.device}, a rehearsal" if asked.rehearsal else asked.device
        before = f"; already measured or queued: {settled}" if settled else ""
        run = f", run {self.ready.again + 1}" if asked.options.again else ""
        return (
            f"{asked.sweep.name}{run}: {count(self.ready.points, 'point')} on {where}, about "
            f"{duration(self.seconds)}{before}"
        )
