"""Tells which points were measured with other own files of the user than there are now."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hpcsweep import sources
from hpcsweep.store import shards, state
from hpcsweep.submit.check_inputs import has_own_files
from hpcsweep.text import count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcsweep.store.rundir import RunDir
    from hpcsweep.submit.request import Request, Say


def changed(run: RunDir, asked: Request) -> dict[str, str]:
    """Return what of the user's own is other by now than when a point was measured, by its id.

    Nobody can tell of modules that only the job's Python has, nor of points that are not measured.
    """
    if not has_own_files(asked.sweep):
        return {}
    made_of, now, found = _made_of(run), sources.Sources(asked.search_path), dict[str, str]()
    for point in asked.points():
        if point.point_id in made_of:
            before = sources.parts(made_of[point.point_id])
            is_now = sources.parts(now.cell(point))
            if other := [axis for axis, digest in is_now.items() if before.get(axis) != digest]:
                values = (point.axes.get(axis, point.measure.get(axis)) for axis in other)
                found[point.point_id] = ", ".join(map(str, values))
    return found


def other_than(made_of: Mapping[str, str], asked: Request) -> list[str]:
    """Return the networks of a sweep whose own files are others by now than in these cells."""
    now, models = sources.Sources(asked.search_path), {p.axes["model"] for p in asked.points()}
    return [
        model
        for model in sorted(models)
        if model in made_of
        and sources.parts(made_of[model]).get("model", "") != now.digest("model", model)
    ]


def tell_changed(run: RunDir, asked: Request, say: Say) -> None:
    """Say which measured points were made of other files than there are now."""
    if found := changed(run, asked):
        what = ", ".join(f"{name} ({number:,})" for name, number in Counter(found.values()).items())
        say(
            f"note: {count(len(found), 'point')} of {run.name} measured with another version, or "
            f"an unknown one, of your own files: {what}; they keep their rows. To measure them "
            f"again: {run.command('retry', '--changed')}"
        )


def _made_of(run: RunDir) -> dict[str, str]:
    """Return the cell `own_files` of the row that counts, of each point that has one."""
    rows = [
        (row["point_id"], state.PointStatus(row["status"]), row.get("own_files", ""))
        for shard in run.shards()
        for row in shards.read(shard).rows
        if row["status"] != state.PointStatus.PROFILED
    ]
    statuses, found = state.best((row[0], row[1]) for row in rows), dict[str, str]()
    for point_id, status, cell in rows:  # of equal ones the last counts, as everywhere
        if statuses[point_id] is status:
            found[point_id] = cell
    return found
