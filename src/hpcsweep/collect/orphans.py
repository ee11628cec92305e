"""Finds the points that are missing, and the orphans: points that the sweep no longer has.

The sweep is the one that was submitted last. The chunk files of each submission list the points of
its own sweep file, so the file itself is read and expanded only if it was edited between
submissions and some points may be gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field

from hpcsweep.errors import HpcsweepError, ResultsError
from hpcsweep.store import chunk_file
from hpcsweep.store.manifest import Manifest
from hpcsweep.store.rundir import RunDir


@dataclass
class Membership:
    """Planned points of the sweep; measured ones that it no longer has or could not be checked."""

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
    sha_of = {manifest.id: manifest.spec_sha256 for manifest in manifests}
    for submission in run.submissions():
        ids = current if sha_of.get(submission.id) == latest else earlier
        with suppress(ResultsError):  # told by collect
            for _chunk, found in chunk_file.read_ids(submission.chunks):
                ids.update(found)
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
    """Return the checksum of the sweep file, as in manifests; empty where there is no file."""
    try:
        return hashlib.sha256(run.sweep_file.read_bytes()).hexdigest()
    except OSError:
        return ""


def _in_sweep(run: RunDir, manifests: Iterable[Manifest], doubtful: set[str]) -> set[str]:
    """Return those of the points that the sweep file has for a device it was submitted to."""
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
