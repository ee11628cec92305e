"""Which points the sweep has, as it was last submitted: what is missing, and what is an orphan.

The chunk files of the submissions know the points of their own sweep file, so the file itself is
read and expanded only where it was edited between submissions, and rows or older plans are in
doubt.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcsweep.errors import HpcsweepError, ResultsError
from hpcsweep.store import chunk_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from hpcsweep.store.manifest import Manifest
    from hpcsweep.store.rundir import RunDir


@dataclass
class Membership:
    """Planned points that the sweep still has; of the measured ones, who is not, or unknown."""

    planned: set[str] = field(default_factory=set)
    orphans: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def membership(
    run: RunDir, manifests: Sequence[Manifest], measured: AbstractSet[str]
) -> Membership:
    """Compare the measured points with what was submitted."""
    if not manifests:
        return Membership(unknown=set(measured))
    result = Membership()
    latest = sweep_sha(run)
    current: set[str] = set()
    earlier: set[str] = set()
    for manifest in manifests:
        ids = current if manifest.spec_sha256 == latest else earlier
        try:
            for _chunk, found in chunk_file.read_ids(run.submission(manifest.id).chunks):
                ids.update(found)
        except ResultsError as error:
            result.notes.append(str(error))
    doubtful = (earlier | measured) - current
    wanted = current
    if doubtful:
        try:
            wanted = current | _in_sweep(run, manifests, doubtful)
        except HpcsweepError as error:
            result.notes.append(f"which rows are orphans is unknown: {error}")
            result.unknown = doubtful & measured
            wanted = current | doubtful
    result.orphans = set(measured - wanted)
    result.planned = (current | earlier) & wanted
    return result


def sweep_sha(run: RunDir) -> str:
    """Return what tells the sweep file apart from earlier ones, as manifests record it."""
    try:
        return hashlib.sha256(run.sweep_file.read_bytes()).hexdigest()
    except OSError:
        return ""


def _in_sweep(run: RunDir, manifests: Iterable[Manifest], doubtful: set[str]) -> set[str]:
    """Return which points the sweep file still has, on any device that it was submitted to."""
    from hpcsweep.spec import expansion, sweep_file  # noqa: PLC0415 - spec takes a quarter of a second

    sweep = sweep_file.load(run.sweep_file, name=run.name)
    found: set[str] = set()
    for device, rehearsal in sorted({(m.gpu, m.rehearsal) for m in manifests}):
        gpu, rehearse = (None, device) if rehearsal else (device, None)
        for point in expansion.expand(sweep, gpu=gpu, rehearse=rehearse):
            if point.point_id in doubtful:
                found.add(point.point_id)
                if len(found) == len(doubtful):
                    return found
    return found
