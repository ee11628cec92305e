"""Which points an attempt has to measure: in what order, and which it skips.

It asks the files of the results, and measures nothing.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hpcsweep.catalog import sizes_of_inputs, worker_key
from hpcsweep.errors import ResultsError
from hpcsweep.store import attempt, chunk_file
from hpcsweep.store.row_reader import read_rows
from hpcsweep.store.state import AttemptState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from hpcsweep.point import Point
    from hpcsweep.store.attempt import AttemptRecord
    from hpcsweep.store.folders import ShardPath, SubmissionDir

TIME_IS_UP: Final = "the time of the job is up"
# why an attempt stops as its job ends; SIGTERM also stands for a preemption
_ENDS_OF_JOBS: Final = frozenset({TIME_IS_UP, "SIGUSR1", "SIGUSR2"})
# Attempts that ended at a point, after which it is not tried again: one may be an accident of the
# node, and each costs a whole job.
_DEATHS: Final = 2
# in the order in which a reason names them
_GROWING: Final = tuple(sorted(sizes_of_inputs()))


def sorted_by_worker(points: Iterable[Point]) -> list[Point]:
    """Return points in the order in which they need fewest workers."""
    groups: dict[object, list[Point]] = {}
    for point in points:
        groups.setdefault(worker_key(point), []).append(point)
    return [point for group in groups.values() for point in group]


def ids_of_others(submission: SubmissionDir) -> set[str]:
    """Return the ids of points that other submissions of the same kind measure.

    Newer ones do: this attempt's file exists by now. `submit` looks for such files after it has
    written its manifest, and stops their attempts: the later of the two sees the earlier. Of
    equal rounds, neither `submit` saw the other's folder; the one that came first measures.
    """
    mine = submission.read_manifest()
    ids = set[str]()
    sweep_dir = submission.sweep_dir
    for manifest in sweep_dir.manifests():
        comes_before = (manifest.round, mine.id) > (mine.round, manifest.id)
        if not comes_before or manifest.is_profiled is not mine.is_profiled:
            continue
        with suppress(ResultsError):  # an unreadable submission may not stop this one
            if manifest.source:  # no job of an imported one measures what it lacks
                for row in read_rows(sweep_dir.shards_of(manifest.id)):
                    ids.add(row["point_id"])
                continue
            for _, ids_of_chunk in chunk_file.read_ids(sweep_dir.submission(manifest.id).chunks):
                ids.update(ids_of_chunk)
    return ids


def first_is_deadly(attempts: Iterable[ShardPath], mine: ShardPath) -> bool:
    """Say whether the last attempts before this one died while they measured its first point.

    Attempts whose job ended before they had any row count, too: its limit may be unknown here.
    """
    deaths = 0
    for shard in reversed([*attempts]):
        record = attempt.read_record(shard)
        if shard == mine or record is None:  # None: it was fenced off before it began
            continue
        has_rows = any(read_rows([shard]))
        if not _was_ended_by_its_point(record, has_rows=has_rows):
            break
        deaths += 1
        if has_rows:
            break  # those before it died at another point
    return deaths >= _DEATHS


def _was_ended_by_its_point(record: AttemptRecord, *, has_rows: bool) -> bool:
    if not record.row:  # no worker was ready, so no point had begun
        return False
    if record.state is AttemptState.RUNNING:  # it was killed: it wrote no end
        return True
    its_job_ended = record.state is AttemptState.STOPPED and record.reason in _ENDS_OF_JOBS
    return its_job_ended and not has_rows


@dataclass
class OutOfMemoryPoints:
    """The points that ran out of memory (`submit --skip-dominated`)."""

    axes_of_points: list[Mapping[str, Any]]

    def add(self, axes: Mapping[str, Any]) -> None:
        """Add a point that ran out of memory."""
        self.axes_of_points.append(axes)

    def why_skip(self, axes: Mapping[str, Any]) -> str | None:
        """Return why a point is skipped (a smaller one ran out of memory); None if it is not."""
        for known in self.axes_of_points:
            others = {*axes, *known}.difference(_GROWING)
            is_same_network = all(axes.get(name) == known.get(name) for name in others)
            if is_same_network and all(_size(axes, n) >= _size(known, n) for n in _GROWING):
                tried = ", ".join(f"{name} {_size(known, name)}" for name in _GROWING)
                why = "ran out of memory already; submit without --skip-dominated to try it"
                return f"{tried} {why}"
        return None


def _size(axes: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - of an axis, any number
    return axes.get(name) or 0
