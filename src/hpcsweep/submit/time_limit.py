"""The time limit of jobs: what their longest chunk needs, where measured points say so.

A shorter limit than the profile's lets Slurm start a job in gaps. It is a convenience, so it must
not cost a point: it covers the estimate with a margin, and in any case a slow start and one point
of the longest time that the sweep allows, so a requeued job always gets on. While points that a job
of such a limit had lack a row, the profile's limit holds.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from hpcsweep import units
from hpcsweep.catalog import WORKLOADS
from hpcsweep.forecast.estimate import Estimates
from hpcsweep.spec.profile import Profile
from hpcsweep.store import chunk_file, ledger
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.manifest import Manifest
from hpcsweep.submit.request import Request

_MARGIN: Final = 1.5  # on top of what holds nine times in ten
_START_SECONDS: Final = 300.0  # setup lines, and a cold import of torch
_SIGNAL_EARLY: Final = 60.0  # Slurm may send its signal so much before `signal_lead`


def limit_of(sweep_dir: SweepDir, request: Request, longest: float, estimates: Estimates) -> str:
    """Return the limit of jobs whose longest chunk takes so many seconds, as Slurm writes it.

    It is empty where it is the profile's.
    """
    profile = request.profile
    sweep = request.sweep
    may = profile.in_slurm and profile.shorten_time and profile.wrapper == "none"
    if not may or profile.time_seconds is None or not estimates.is_firm or _left(sweep_dir):
        return ""
    epochs = sweep.values("epochs") if WORKLOADS[sweep.workload].learns else []
    one_point = sweep.point_timeout * max((int(value or 1) for value in epochs), default=1)
    work = max(_MARGIN * estimates.width * longest, one_point)
    ends = profile.signal_lead + _SIGNAL_EARLY + profile.kill_wait
    limit = 60 * ceil((_START_SECONDS + work + ends) / 60)
    return units.written(limit) if limit < profile.time_seconds else ""


def applied(profile: Profile, manifest: Manifest) -> Profile:
    """Return the profile with the limit of a submission's jobs."""
    if not manifest.time_limit:
        return profile
    return profile.model_copy(update={"time": manifest.time_limit})


def _left(sweep_dir: SweepDir) -> set[str]:
    """Return the points without a row that a job of a shorter limit than the profile's had."""
    shorter = [sweep_dir.submission(one.id) for one in sweep_dir.manifests() if one.time_limit]
    tried = {i for one in shorter for _, ids in chunk_file.read_ids(one.chunks) for i in ids}
    return tried - ledger.statuses(sweep_dir).keys() if tried else tried
