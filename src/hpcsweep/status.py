"""What is measured, running, pending and failed: rows first, then attempts, then who still lives.

Only the two leading cells of each row are read, so a hundred thousand points cost well under a
second. Nothing here waits for a lock or writes anything.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import jobs, ledger, rundir, shards
from hpcsweep.errors import ResultsError
from hpcsweep.records import OK, STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from hpcsweep.rundir import RunDir, ShardPath, SubmissionDir

_WATCH_SECONDS: Final = 2.0
_PACE_SECONDS: Final = 300.0  # rows older than this say nothing about the pace of now


@dataclass
class ProfileStatus:
    """The points of one sweep that went to one profile."""

    profile: str
    planned: set[str] = field(default_factory=set)
    status: dict[str, str] = field(default_factory=dict)
    live: int = 0
    running: int = 0
    pace: float = 0.0
    refusals: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """Return points by status, in the order of the statuses' table."""
        found = Counter(self.status[i] for i in self.planned if i in self.status)
        return {name: found[name] for name in STATUSES if found[name]}

    @property
    def pending(self) -> int:
        """Return how many points have no row yet."""
        return len(self.planned - self.status.keys())

    @property
    def seconds_left(self) -> float | None:
        """Return when the live chunks will be through, at the pace of the last minutes."""
        return self.live / self.pace if self.pace and self.live else None

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        return {
            "profile": self.profile,
            "points": len(self.planned),
            "by_status": self.counts(),
            "pending": self.pending,
            "live": self.live,
            "running_chunks": self.running,
            "points_per_second": round(self.pace, 4),
            "seconds_left": self.seconds_left,
            "refusals": self.refusals,
        }


@dataclass
class SweepStatus:
    """One sweep, profile by profile, and what could not be read."""

    sweep: str
    profiles: list[ProfileStatus]
    problems: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        return {
            "sweep": self.sweep,
            "profiles": [profile.to_json() for profile in self.profiles],
            "problems": self.problems,
        }


def read(root: Path, names: Sequence[str]) -> list[SweepStatus]:
    """Return the status of some sweeps below `root`, of all by default.

    Raises:
        UsageError: a name that has no results.

    """
    runs = [rundir.open_run(root, name) for name in names] if names else rundir.all_runs(root)
    return [_sweep(run) for run in runs]


def text(found: Sequence[SweepStatus]) -> str:
    """Return a table for a terminal."""
    if not found:
        return "no results yet; `hpcsweep submit SPEC` makes some"
    head = ("sweep", "profile", "points", "done", "pending", "running", "left", "not ok")
    rows = [head, *(_cells(one.sweep, p) for one in found for p in one.profiles)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    for one in found:
        lines += [f"{one.sweep}: {problem}" for problem in one.problems]
        lines += [f"{one.sweep}: {words}" for p in one.profiles for words in p.refusals]
    return "\n".join(lines)


def to_json(found: Sequence[SweepStatus]) -> dict[str, Any]:
    """Return the plain record of all."""
    return {"sweeps": [one.to_json() for one in found]}


def watch(root: Path, names: Sequence[str]) -> None:
    """Show the table again and again until nothing is live."""
    from rich.live import Live  # noqa: PLC0415 - 0.1 s, only for who watches
    from rich.text import Text  # noqa: PLC0415

    found = read(root, names)
    with Live(Text(text(found)), auto_refresh=False) as shown:
        while any(profile.live for one in found for profile in one.profiles):
            time.sleep(_WATCH_SECONDS)
            found = read(root, names)
            shown.update(Text(text(found)), refresh=True)
    sys.stdout.flush()


def _sweep(run: RunDir) -> SweepStatus:
    profiles: dict[str, ProfileStatus] = {}
    problems: list[str] = []
    for submission in run.submissions():
        try:
            manifest = submission.read_manifest()
        except ResultsError as error:
            problems.append(str(error))
            continue
        name = str(manifest["profile"])
        profile = profiles.setdefault(name, ProfileStatus(name))
        _add(profile, submission, manifest)
    return SweepStatus(run.name, list(profiles.values()), problems)


def _add(profile: ProfileStatus, submission: SubmissionDir, manifest: dict[str, Any]) -> None:
    """Add one submission's points, rows and live chunks."""
    live = ledger.live_chunks(submission, manifest, None)
    done: set[str] = set()
    attempts = submission.run.shards_of(submission.id)
    for shard in attempts:
        for key in shards.read_keys(shard.overall):
            done.add(key.point_id)
            if profile.status.get(key.point_id) != OK:
                profile.status[key.point_id] = key.status
    for index, ids in jobs.read_ids(submission.chunks):
        profile.planned.update(ids)
        if index in live:
            profile.live += len(set(ids) - done)
    newest = {shard.chunk: shard for shard in attempts}
    for shard in newest.values():
        state = _attempt_state(shard)
        profile.running += state.get("state") == "running" and shard.chunk in live
        if state.get("state") == "refused" and not done:
            profile.refusals.append(str(state.get("reason")))
    if live:
        profile.pace += _pace(submission, newest.values(), len(done))


def _attempt_state(shard: ShardPath) -> dict[str, Any]:
    try:
        return dict(json.loads(shard.env.read_bytes()))
    except (OSError, ValueError):
        return {}


def _pace(submission: SubmissionDir, attempts: Iterable[ShardPath], done: int) -> float:
    """Return points per second since the submission was made; 0 where nothing moves."""
    newest = max((_modified(shard.overall) for shard in attempts), default=0.0)
    if time.time() - newest > _PACE_SECONDS:
        return 0.0
    return done / max(newest - _modified(submission.manifest), 1.0)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _cells(sweep: str, profile: ProfileStatus) -> tuple[str, ...]:
    counts = profile.counts()
    left = profile.seconds_left
    bad = ", ".join(f"{count} {name}" for name, count in counts.items() if name != OK)
    return (
        sweep,
        profile.profile,
        str(len(profile.planned)),
        str(sum(counts.values())),
        str(profile.pending),
        f"{profile.running} chunks" if profile.running else "-",
        f"{left:.0f} s" if left is not None else "-",
        bad or "-",
    )
