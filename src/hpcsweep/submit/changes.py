"""Tells which measured points were made of other versions of the user's own files than there are.

A row has digests of the files that its point was made of. `submit` and `estimate` tell; `submit`
takes points again whose network failed and was mended, `retry --changed` takes all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hpcsweep import messages, sources
from hpcsweep.catalog import WORKLOADS
from hpcsweep.store import outcomes, runs
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.state import FAILED, PointStatus
from hpcsweep.submit.factories import files_of, is_factory, named
from hpcsweep.submit.request import Request
from hpcsweep.text import count


def changed(sweep_dir: SweepDir, request: Request) -> dict[str, str]:
    """Return what of the user's own is other by now than when a point was measured, by its id.

    Nobody can tell of modules that only the job's Python has, nor of points that are not measured.
    """
    factories = (name for axis in sources.FACTORIES for name in named(request.sweep, axis))
    has_own = any(map(is_factory, factories)) or any(files_of(request.sweep).values())
    if not WORKLOADS[request.sweep.workload].runs_network or not has_own:
        return {}
    made_of = _made_of(sweep_dir)
    now = sources.Sources(request.search_path)
    found = dict[str, str]()
    for point in request.points():
        if point.point_id not in made_of:
            continue
        before = sources.parts(made_of[point.point_id])
        values = {**point.measure, **point.axes}
        other = []
        for axis, digest in sources.parts(now.cell(point)).items():
            if before.get(axis) != digest:
                other.append(str(values[axis]))
        if other:
            found[point.point_id] = ", ".join(other)
    return found


def other_than(made_of: Mapping[str, str], request: Request) -> list[str]:
    """Return the networks of a sweep whose own files are others by now than in these cells."""
    now = sources.Sources(request.search_path)
    other = []
    for model in named(request.sweep, "model"):
        before = sources.parts(made_of.get(model, "")).get("model", "")
        if model in made_of and before != now.digest("model", model):
            other.append(model)
    return other


def told_of_changes(sweep_dir: SweepDir, request: Request) -> Request:
    """Say which measured points were made of other files than there are now.

    A network that failed was mended: the request takes all its points again, since one table needs
    one version. Without a failure a row is kept until a person asks.
    """
    if request.only or request.options.again:
        return request
    found = changed(sweep_dir, request)
    statuses = runs.statuses(sweep_dir) if found else {}
    mended = {what for point_id, what in found.items() if statuses[point_id] in FAILED}
    anew = frozenset(point_id for point_id, what in found.items() if what in mended)
    again = Counter(found[point_id] for point_id in anew)
    kept = Counter(found.values()) - again
    if again:
        points = count(again.total(), "point")
        why = "since some failed and files changed"
        messages.note(f"{points} measured again, {why}: {_counted(again)}")
    if kept:
        points = f"{count(kept.total(), 'point')} of {sweep_dir.name}"
        versions = "another version, or an unknown one, of your own files"
        messages.note(
            f"{points} measured with {versions}: {_counted(kept)}; they keep their rows",
            f"to measure them again: {sweep_dir.command('retry', '--changed')}",
        )
    return replace(request, anew=anew)


def _counted(points: Counter[str]) -> str:
    return ", ".join(f"{name} ({number:,})" for name, number in points.items())


def _made_of(sweep_dir: SweepDir) -> dict[str, str]:
    """Return the cell `own_files` of the row that counts, of each point that has one."""

    def kept(row: Mapping[str, Any]) -> dict[str, str]:
        return {"status": row["status"], "own_files": row.get("own_files", "")}

    rows = outcomes.rows_of(sweep_dir.shards(), kept)
    profiled = PointStatus.PROFILED
    return {name: row["own_files"] for name, row in rows.items() if row["status"] != profiled}
