"""What Slurm last said of a sweep's chunks, for `status` to show where squeue does not answer.

It lies in the user's cache: `status` writes nothing below `results/`, which may be read-only or
somebody else's. It is shown with its age and decides nothing: where squeue is silent, each chunk
that was sent and lacks rows counts as live (`slurm.journal`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcsweep import environment, files
from hpcsweep.cluster import slurm
from hpcsweep.cluster.sweep_status import LastKnown
from hpcsweep.errors import ResultsError
from hpcsweep.store import typed_json
from hpcsweep.store.folders import SweepDir


@dataclass(frozen=True, kw_only=True)
class _File:
    sweep: str  # its folder, for people
    told: tuple[LastKnown, ...]


def keep(sweep_dir: SweepDir, told: Sequence[LastKnown]) -> None:
    """Keep what Slurm said now; where the cache cannot be written, nothing is kept."""
    path = _path(sweep_dir)
    record = _File(sweep=str(sweep_dir.path.absolute()), told=tuple(told))
    with suppress(OSError, ResultsError):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(path, typed_json.to_plain(record))


def recall(sweep_dir: SweepDir) -> dict[str, dict[int, LastKnown]]:
    """Return what was kept, by submission and chunk; nothing where it cannot be read."""
    found: dict[str, dict[int, LastKnown]] = {}
    with suppress(ResultsError, ValueError):
        kept = typed_json.from_plain(_File, files.read_json(_path(sweep_dir)))
        for told in kept.told:
            if slurm.moment(told.at) is not None:
                chunks = dict.fromkeys(slurm.numbers(told.chunks), told)
                found.setdefault(told.submission, {}).update(chunks)
    return found


def _path(sweep_dir: SweepDir) -> Path:
    # one file for each folder of this user's, whatever its name: a path may be longer than a name
    name = hashlib.sha256(str(sweep_dir.path.resolve()).encode()).hexdigest()[:24]
    return environment.cache_folder() / "last_known" / f"{name}.json"
