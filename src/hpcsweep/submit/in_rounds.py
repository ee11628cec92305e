"""Submits a sweep in rounds: what is measured next depends on what was measured so far.

A strategy decides that, and this module only sends what it wants, as ordinary submissions. It keeps
nothing between rounds: a strategy writes down what it has to know again. So a kill at any moment
costs nothing, and the same command goes on.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from typing import Final, Protocol

from hpcsweep import messages
from hpcsweep.cluster.slurm import journal
from hpcsweep.errors import EXIT_INTERRUPTED, Incomplete, PointsFailed
from hpcsweep.store import ledger
from hpcsweep.store.folders import SweepDir
from hpcsweep.submit import steps
from hpcsweep.submit.request import Request

_ASK_SECONDS: Final = 10.0  # slurmctld has better things to do
# Rounds in a row that bring no row until nothing is sent any more: one may have met a bad node.
_IN_VAIN: Final = 2


class Strategy(Protocol):
    """Says what to measure next, and when that is enough."""

    def next_points(self) -> Collection[str]:
        """Return the ids of the points of the next round; none when it is over."""

    def progress(self) -> str:
        """Say in a line how far it is."""

    def finish(self) -> int:
        """Tell what came of it, and why it is over; return the exit code."""


def submit_in_rounds(
    sweep_dir: SweepDir, asked: Request, strategy: Strategy, *, watch: bool
) -> int:
    """Submit rounds until the strategy wants no more; return the exit code.

    Where jobs wait in a queue, each call sends one round, unless it is to `watch`.
    """
    # the strategy keeps the budget, and tells what comes next
    options = replace(asked.options, max_gpu_hours=None, suppress_next_hint=True)
    in_slurm = asked.profile.in_slurm
    worst = 0
    in_vain = 0
    while True:
        points = frozenset(strategy.next_points())
        if not points:
            return max(worst, strategy.finish())
        messages.progress(f"{sweep_dir.name}: {strategy.progress()}")
        of_round = replace(asked, expansion=asked.expansion.only(points), options=options)
        code = steps.submit(sweep_dir.path.parent, of_round)
        if in_slurm and watch and not code:
            in_vain = 0 if _has_rows(sweep_dir, points) else in_vain + 1
            code = Incomplete.exit_code if in_vain == _IN_VAIN else 0
            is_through = not code
        else:
            is_through = not in_slurm and code in {0, PointsFailed.exit_code}
        if not is_through:
            return _unfinished(sweep_dir, code, in_slurm=in_slurm)
        worst = max(worst, code)


def _has_rows(sweep_dir: SweepDir, points: Collection[str]) -> bool:
    """Wait until none of a round's points is queued or running; say whether some have rows."""
    while True:
        queue = journal.ask_slurm(sweep_dir.submissions())
        found = ledger.read_ledger(sweep_dir, queue.live_chunks_of)
        if found.live.keys().isdisjoint(points):
            return not found.status.keys().isdisjoint(points)
        time.sleep(_ASK_SECONDS)


def _unfinished(sweep_dir: SweepDir, code: int, *, in_slurm: bool) -> int:
    """Say how a round that is not through goes on; return its exit code."""
    how = "the same command again goes on"
    if in_slurm:
        how = "the same command again judges this round and sends the next; --watch does it alone"
    if code != EXIT_INTERRUPTED:
        messages.progress(f"{sweep_dir.name}: {how}")
    return code
