"""`hpcsweep retry`: measures points again that failed, or that are named."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hpcsweep.catalog.columns import FLAGS
from hpcsweep.collect.workflow import tables_of
from hpcsweep.errors import ProfileError, UsageError, suggest
from hpcsweep.records import replace
from hpcsweep.spec import lookup, profile, sweep_file
from hpcsweep.spec.profile import Profile
from hpcsweep.store import runs
from hpcsweep.store.manifest import Manifest
from hpcsweep.store.outcomes import doubts_of
from hpcsweep.store.rundir import RunDir
from hpcsweep.store.state import PointStatus
from hpcsweep.submit import check_inputs, request, workflow
from hpcsweep.submit.request import DEFAULT, Options, Request, Say
from hpcsweep.text import count, tally


def measure_again(  # noqa: PLR0913 - the options of a command
    run: RunDir,
    statuses: Sequence[str],
    say: Say,
    *,
    point: Sequence[str] = (),
    changed: bool = False,
    invalid: bool = False,
    dry_run: bool = False,
    cluster: Sequence[str] = (),
    options: Options = DEFAULT,
) -> int:
    """Measure points again, on the profiles that they were sent to; return the exit code.

    `point` (ids, or their beginnings) replaces `statuses`, and so do `changed`, the points measured
    with other own files than there are now, and `invalid`, those whose newest times are in doubt.
    It is no error if there is nothing to measure again. A `dry_run` says how many there are.

    Raises:
        UsageError: an unknown status, no such point, or no submission to one of `cluster`.
    """
    known = runs.statuses(run)
    if (changed or invalid) and not point:
        point = ("",)
    wanted = _named(run, known, point) if point and known else _of_status(known, statuses)
    if changed or invalid:
        some = _changed(run, wanted, cluster) if changed else frozenset()
        wanted &= some | (_invalid(run) if invalid else frozenset())
    if not wanted:
        whys = {"was measured with other own files than now": changed, "is not valid": invalid}
        why = " or ".join(words for words, is_asked in whys.items() if is_asked)
        there = tally(Counter(known.values()), PointStatus) or "no point has a row"
        told = f"no point {why or 'is ' + ' or '.join(statuses)} ({there})"
        say(f"{run.name}: {told}; nothing to measure again")
        return 0
    requests = [
        replace(asked, options=options)
        for asked in _requests(run, wanted, cluster)
        if any(True for _ in asked.points())  # else another profile's
    ]
    if not requests:
        where = f" on {', '.join(cluster)}" if cluster else ""
        say(f"{run.name}: the sweep no longer has these points{where} ({len(wanted):,})")
    for asked in requests if dry_run else ():
        points = count(sum(1 for _ in asked.points()), "point")
        say(f"{run.name}: {points} to measure again on {asked.profile.name} (--dry-run: none was)")
    if dry_run:
        return 0
    return max((workflow.submit(run.path.parent, one, say) for one in requests), default=0)


def _changed(run: RunDir, wanted: frozenset[str], clusters: Sequence[str]) -> frozenset[str]:
    every = (check_inputs.changed(run, asked) for asked in _requests(run, wanted, clusters))
    return frozenset(point_id for found in every for point_id in found)


def _invalid(run: RunDir) -> frozenset[str]:
    """Return the points whose rows are not valid, in tables of all rows that there are."""
    found, _notes = tables_of(run)
    if not found.overall.exists():
        return frozenset()
    with found.overall.open(newline="", encoding="utf-8") as file:
        ok = (row for row in csv.DictReader(file) if row["status"] == PointStatus.OK)
        return frozenset(row["point_id"] for row in ok if doubts_of(row))


def _named(run: RunDir, known: Mapping[str, str], prefixes: Sequence[str]) -> frozenset[str]:
    wanted: set[str] = set()
    for prefix in prefixes:
        found = {point_id for point_id in known if point_id.startswith(prefix)}
        if not found:
            raise UsageError(f"{run.name}: no measured point has the id '{prefix}'")
        wanted |= found
    return frozenset(wanted)


def _of_status(known: Mapping[str, str], statuses: Sequence[str]) -> frozenset[str]:
    for name in statuses:
        if name not in list(PointStatus):
            hint = suggest(name, PointStatus)
            if name in FLAGS:
                hint = "; it is a flag: --invalid takes all that is measured, but not valid"
            raise UsageError(f"no status '{name}'{hint} ({', '.join(PointStatus)})")
    return frozenset(point_id for point_id, status in known.items() if status in statuses)


def _requests(run: RunDir, wanted: frozenset[str], clusters: Sequence[str]) -> Iterator[Request]:
    """Yield a request for each profile that the sweep was sent to, as in its last submission."""
    sweep = sweep_file.load(run.sweep_file, name=run.name)
    # failed points are measured again, not profiled again
    sent = {one.profile: one for one in run.manifests() if not one.is_profiled}
    files = {Path(name).stem if lookup.is_path(name) else name: name for name in clusters}
    for name in files:
        if name not in sent:
            raise UsageError(
                f"{run.name}: nothing was sent to profile '{name}'{suggest(name, sent)} "
                f"(profiles used: {', '.join(sent)})"
            )
    for name in files or sent:
        before = sent[name]
        asked = request.make(sweep, _profile(files.get(name, name), before))
        yield replace(
            asked,
            device=before.gpu,
            rehearsal=before.rehearsal,
            search_path=before.run.search_path or asked.search_path,
            again=frozenset(PointStatus),
            only=wanted,
        )


def _profile(name: str, manifest: Manifest) -> Profile:
    """Return a profile by its name, else from the file that the submission used."""
    try:
        return profile.load(name)
    except ProfileError:
        before = Path(manifest.profile_path)
        if before.stem != name or not before.is_file():
            raise
        return profile.load(before)
