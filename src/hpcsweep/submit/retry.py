"""`hpcsweep retry`: measures points again that failed, or that are named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from hpcsweep import messages
from hpcsweep.catalog.columns import FLAGS
from hpcsweep.errors import EXIT_INTERRUPTED, ProfileError, UsageError, suggest
from hpcsweep.spec import lookup, profile, sweep_file
from hpcsweep.spec.profile import Profile
from hpcsweep.store import outcomes, runs
from hpcsweep.store.collect.collector import tables_of
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.manifest import Manifest
from hpcsweep.store.outcomes import doubts_of
from hpcsweep.store.row_reader import read_rows, table_rows
from hpcsweep.store.state import PointStatus, reached_limit
from hpcsweep.submit import comparison, steps
from hpcsweep.submit.request import DEFAULT, Options, Request, make, points_of
from hpcsweep.text import count, tally

_UNREAD: Final = {"status": "", "status_reason": ""}


def measure_again(  # noqa: PLR0913 - the options of a command
    sweep_dir: SweepDir,
    statuses: Sequence[str],
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
    status_of = runs.statuses(sweep_dir)
    if point and status_of:
        wanted = _named(sweep_dir, status_of, point)
    elif changed or invalid:
        wanted = frozenset(status_of)
    else:
        wanted = _of_status(status_of, statuses)
    if changed or invalid:
        some = _changed(sweep_dir, wanted, cluster) if changed else frozenset()
        wanted &= some | (_invalid(sweep_dir) if invalid else frozenset())
    if not wanted:
        whys = {"was measured with other own files than now": changed, "is not valid": invalid}
        why = " or ".join(words for words, is_asked in whys.items() if is_asked)
        why = why or f"is {' or '.join(statuses)}"
        there = tally(Counter(status_of.values()), PointStatus) or "no point has a row"
        others = ""
        if options.time is not None or options.mem is not None:  # its job was killed with it
            others = f"; `{sweep_dir.command('submit')}` takes both, for points without a row"
        nothing = f"no point {why} ({there}); nothing to measure again{others}"
        messages.progress(f"{sweep_dir.name}: {nothing}")
        return 0
    requests = [
        request
        for request in _requests(sweep_dir, wanted, cluster, options)
        if next(iter(request.expansion), None)  # else another profile's
    ]
    _tell_vain(sweep_dir, requests, options)
    if not requests:
        where = f" on {', '.join(cluster)}" if cluster else ""
        gone = f"the sweep no longer has these points{where} ({len(wanted):,})"
        messages.warning(f"{sweep_dir.name}: {gone}")
    if dry_run:
        _tell_dry(sweep_dir, requests)
        return 0
    codes = [steps.submit(sweep_dir.path.parent, request) for request in requests]
    in_queue = any(request.profile.in_slurm for request in requests)
    is_done = requests and not in_queue and EXIT_INTERRUPTED not in codes
    if invalid and is_done and wanted <= _invalid(sweep_dir):
        messages.note(
            f"{sweep_dir.name}: measured again, still not valid; a further retry may change little",
            "what can be done: take min_ms, the least time, which others disturb least "
            "(report --metric min_ms); measure on a node of your own (sbatch_options: "
            "[--exclusive] in the profile); or take the times as they are (best --unreliable)",
        )
    return max(codes, default=0)


def _tell_dry(sweep_dir: SweepDir, requests: Sequence[Request]) -> None:
    for request in requests:
        points = count(len(request.expansion), "point")
        again = f"{points} to measure again on {request.profile.name} (--dry-run: none was)"
        messages.progress(f"{sweep_dir.name}: {again}{request.asks}")


def _tell_vain(sweep_dir: SweepDir, requests: Sequence[Request], options: Options) -> None:
    """Say how many points died of something that more time or memory of a job does not change."""
    if options.time is None and options.mem is None:
        return
    rows = outcomes.rows_of(sweep_dir.shards(), ("status_reason",))
    by_own_limit = 0
    on_gpu = 0
    for request in requests:
        for point in request.expansion:
            row = rows.get(point.point_id, _UNREAD)  # its shard may be damaged
            limit = request.sweep.point_timeout * int(point.axes.get("epochs") or 1)
            by_own_limit += row["status_reason"] == reached_limit(limit)
            on_gpu += row["status"] is PointStatus.OOM and request.device != "cpu"
    if options.time is not None and by_own_limit:
        messages.warning(
            f"{sweep_dir.name}: {count(by_own_limit, 'point')} reached the sweep's own limit, "
            "`point_timeout`, which --time does not change",
            f"raise `point_timeout` in the sweep file, then {sweep_dir.command('submit')}, and "
            "retry again",
        )
    if options.mem is not None and on_gpu:
        messages.warning(
            f"{sweep_dir.name}: {count(on_gpu, 'point')} ran out of the GPU's memory, and --mem is "
            "that of the host",
        )


def _changed(
    sweep_dir: SweepDir, wanted: frozenset[str], clusters: Sequence[str]
) -> frozenset[str]:
    found = set[str]()
    for request in _requests(sweep_dir, wanted, clusters):
        found |= comparison.changed(sweep_dir, request).keys()
    return frozenset(found)


def _invalid(sweep_dir: SweepDir) -> frozenset[str]:
    """Return the points whose rows are not valid, in tables of all rows that there are."""
    collected, _notes = tables_of(sweep_dir)
    if not collected.overall.exists():
        return frozenset()
    rows = table_rows(collected.overall, ("point_id", "status", "valid", "flags"))
    ok = (row for row in rows if row["status"] == PointStatus.OK)
    return frozenset(row["point_id"] for row in ok if doubts_of(row))


def _named(
    sweep_dir: SweepDir, status_of: Mapping[str, str], prefixes: Sequence[str]
) -> frozenset[str]:
    wanted: set[str] = set()
    for prefix in prefixes:
        matches = {point_id for point_id in status_of if point_id.startswith(prefix)}
        if not matches:
            raise UsageError(f"{sweep_dir.name}: no measured point has the id '{prefix}'")
        wanted |= matches
    return frozenset(wanted)


def _of_status(status_of: Mapping[str, str], statuses: Sequence[str]) -> frozenset[str]:
    for name in statuses:
        if name not in list(PointStatus):
            hint = suggest(name, PointStatus)
            if name in FLAGS:
                hint = "; it is a flag: --invalid takes all that is measured, but not valid"
            raise UsageError(f"no status '{name}'{hint} ({', '.join(PointStatus)})")
    return frozenset(point_id for point_id, status in status_of.items() if status in statuses)


def _requests(
    sweep_dir: SweepDir,
    wanted: frozenset[str],
    clusters: Sequence[str],
    options: Options = DEFAULT,
) -> Iterator[Request]:
    """Yield a request for each profile that the sweep was sent to, as in its last submission.

    A point goes to the profile of its last row; those of others to each that is named.
    """
    sweep = sweep_file.load(sweep_dir.sweep_file, name=sweep_dir.name)
    # failed points are measured again, not profiled again; imported ones are another machine's
    measuring = [manifest for manifest in sweep_dir.manifests() if not manifest.is_profiled]
    sent = {each.profile: each for each in sorted(measuring, key=lambda one: not one.source)}
    files: dict[str, str] = {}  # what names a profile, by its name
    for named in clusters:
        files[Path(named).stem if lookup.is_path(named) else named] = named
    for name in [name for name in files if name not in sent]:
        device = make(sweep, profile.load(files[name])).device
        same = [each for each in sent.values() if each.gpu == device]
        if not same:
            raise UsageError(
                f"{sweep_dir.name}: nothing was sent to profile '{name}'{suggest(name, sent)} "
                f"(profiles used: {', '.join(sent)}), nor to another one of its GPU"
            )
        sent[name] = same[-1]  # it was renamed
    last = _profile_of_points(sweep_dir)
    names = (files or sent).keys()
    for name in names:
        here = {point for point in wanted if last.get(point) not in names - {name}}
        if not here:
            continue
        before = sent[name]
        request = make(sweep, _profile(files.get(name, name), before), options)
        points = points_of(sweep, before.gpu, None, rehearsal=before.rehearsal)
        points = points.on_nodes(runs.nodes_of(sweep_dir))
        yield replace(
            request,
            device=before.gpu,
            rehearsal=before.rehearsal,
            expansion=points.only(frozenset(here)),
            search_path=before.run.search_path or request.search_path,
            again=frozenset(PointStatus),
        )


def _profile_of_points(sweep_dir: SweepDir) -> dict[str, str]:
    """Return the profile of the last row of each point, profiled rows left out."""
    last = {}
    for manifest in sweep_dir.manifests():
        if not manifest.is_profiled:
            for row in read_rows(sweep_dir.shards_of(manifest.id)):
                last[row["point_id"]] = manifest.profile
    return last


def _profile(name: str, manifest: Manifest) -> Profile:
    """Return a profile by its name, else from the file that the submission used."""
    try:
        return profile.load(name)
    except ProfileError:
        before = Path(manifest.profile_path)
        if before.stem != name or not before.is_file():
            raise
        return profile.load(before)
