"""The time limit of jobs: what their longest chunk needs, where measured points say so.

A shorter limit than the profile's lets Slurm start a job in gaps. It is a convenience, so it must
not cost a point: it covers the estimate with a margin, and in any case a slow start and one point
of the longest time that the sweep allows, so a requeued job always gets on. Points that a job of
such a limit left go with the profile's limit when they are submitted again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil
from typing import Final

from hpcsweep import units
from hpcsweep.catalog import WORKLOADS
from hpcsweep.forecast.estimate import Estimates
from hpcsweep.point import Point
from hpcsweep.spec.profile import Profile
from hpcsweep.store import chunk_file
from hpcsweep.store.chunk_file import Chunk
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.manifest import Manifest
from hpcsweep.submit.request import Request

_MARGIN: Final = 1.5  # on top of what holds nine times in ten
_START_SECONDS: Final = 300.0  # setup lines, and a cold import of torch
_SIGNAL_EARLY: Final = 60.0  # Slurm may send its signal so much before `signal_lead`


class TimeLimit:
    """The limit of a request's jobs; it sees the points and the chunks on their way."""

    def __init__(self, sweep_dir: SweepDir, request: Request) -> None:
        self._request = request
        self._tried_again = False
        self._longest = 0.0
        self._tried = _tried(sweep_dir) if request.profile.in_slurm else set()

    def watch(self, points: Iterator[Point]) -> Iterator[Point]:
        """Yield the points, and notice those that a job of a shorter limit had before."""
        for point in points:
            self._tried_again = self._tried_again or point.point_id in self._tried
            yield point

    def measure(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """Yield the chunks, and keep the seconds of the longest."""
        for chunk in chunks:
            self._longest = max(self._longest, chunk.seconds)
            yield chunk

    def of(self, estimates: Estimates) -> str:
        """Return the limit as Slurm writes it; empty where it is the profile's."""
        profile = self._request.profile
        sweep = self._request.sweep
        may = profile.in_slurm and profile.shorten_time and profile.wrapper == "none"
        if not may or profile.time_seconds is None or self._tried_again or not estimates.is_firm:
            return ""
        epochs = sweep.values("epochs") if WORKLOADS[sweep.workload].learns else []
        one_point = sweep.point_timeout * max((int(value or 1) for value in epochs), default=1)
        work = max(_MARGIN * estimates.width * self._longest, one_point)
        ends = profile.signal_lead + _SIGNAL_EARLY + profile.kill_wait
        limit = 60 * ceil((_START_SECONDS + work + ends) / 60)
        return units.written(limit) if limit < profile.time_seconds else ""


def applied(profile: Profile, manifest: Manifest) -> Profile:
    """Return the profile with the limit of a submission's jobs."""
    if not manifest.time_limit:
        return profile
    return profile.model_copy(update={"time": manifest.time_limit})


def _tried(sweep_dir: SweepDir) -> set[str]:
    """Return the points of all submissions whose jobs had a shorter limit than the profile's."""
    shorter = [sweep_dir.submission(one.id) for one in sweep_dir.manifests() if one.time_limit]
    return {
        point_id
        for submission in shorter
        for _, ids in chunk_file.read_ids(submission.chunks)
        for point_id in ids
    }
