"""Merges all shards of a sweep into `overall.csv`, `layers.csv` and `samples.csv`.

The tables have one row per point, sorted by axis values; neither the order of the shards nor
earlier collects change them. Damaged rows are left out and reported; all complete rows are kept.
Where nothing changed since the last collect, by a memory in `SweepDir.collect_index`, nothing is
read; else everything is, since the tables are rewritten whole in any case. Where the memory is
gone, damaged or of another version, nothing is known. Nothing here imports pandas or pydantic: both
load slowly.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import time
from collections import abc
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from hpcsweep import files
from hpcsweep.errors import HpcsweepError, ResultsError, Unread
from hpcsweep.files import errors_named, remove_leftovers
from hpcsweep.store import chunk_file, locks, manifest, outcomes, runs, typed_json
from hpcsweep.store.collect import merge
from hpcsweep.store.collect.merge import Pool, TablePlan, TableRow, Written
from hpcsweep.store.collect.summary import CollectReport, mixes_to_json
from hpcsweep.store.folders import ShardPath, SubmissionOrder, SweepDir
from hpcsweep.store.manifest import IMPORT, Manifest
from hpcsweep.store.outcomes import PointTally
from hpcsweep.store.row_reader import Blocks, Shard, read_rows, scan_shard, table_rows
from hpcsweep.store.state import PointStatus
from hpcsweep.text import count
from hpcsweep.version import __version__

_FORMAT: Final = f"13 {__version__}"  # of the memory: another version reads everything again
# Points in the command that measures destroyed ones again: a line that can still be copied. After
# it has run, collect names the next ones.
_NAMED: Final = 20
# A reader waits as long for another collect: most take less, and with tables in a temporary folder
# it can go on without.
_SECONDS: Final = 1.0


def collect(sweep_dir: SweepDir, timeout: float = 10.0) -> CollectReport:
    """Merge the shards of a sweep into its tables.

    The tables stay as they were: `Busy` where a submit or collect held the lock for `timeout`
    seconds, `ResultsError` where the folder cannot be written or has a newer layout.
    """
    began = time.perf_counter()
    with errors_named():
        manifest.check_layout(sweep_dir.path)
        sweep_dir.see_anew()
        report = _remembered(sweep_dir)
        if report is None:
            with locks.held(sweep_dir, "collect", timeout):
                mine = *sweep_dir.merged(), sweep_dir.collect_index
                # safe: nobody else writes them without the lock
                remove_leftovers(sweep_dir.path, mine)
                report = _collect(sweep_dir)
    return replace(report, seconds=round(time.perf_counter() - began, 3))  # to milliseconds


def is_up_to_date(sweep_dir: SweepDir) -> bool:
    """Say whether neither shards nor tables changed since the last collect."""
    return _remembered(sweep_dir) is not None


def tables_of(sweep_dir: SweepDir) -> tuple[SweepDir, list[str]]:
    """Return a sweep's results with tables of all its rows, and messages for the reader.

    Where the folder cannot be written, or another process holds its lock, the tables are made in a
    temporary folder. Tables with rows whose shards are gone stay as they are.
    """
    if sweep_dir.only is not None:
        return _made_aside(sweep_dir)
    if not sweep_dir.shards() or is_up_to_date(sweep_dir):
        return sweep_dir, []
    # a table that somebody kept without its shards holds the only rows that there are
    gone = _in_tables_only(sweep_dir)
    if gone:
        what = f"the shards of {count(len(gone), 'attempt')} are gone ({min(gone)})"
        again = f"{sweep_dir.command('collect')} makes them from the shards that are there"
        return sweep_dir, [f"{sweep_dir.overall}: {what}, so the tables were not renewed: {again}"]
    try:
        report = collect(sweep_dir, _SECONDS)
    except ResultsError as why:
        sweep_dir, lines = _made_aside(sweep_dir)
        news = f"its newest rows are shown, but its tables could not be renewed: {why}"
        return sweep_dir, [news, *lines]
    error = report.error()
    parquet = sweep_dir.overall.with_suffix(".parquet")
    again = f"{sweep_dir.command('collect', '--parquet')} renews it"
    old = [f"{parquet} is older than the tables: {again}"] if parquet.exists() else []
    return sweep_dir, [str(error), *old] if error else old


def superseded(sweep_dir: SweepDir) -> tuple[list[ShardPath], list[str]]:
    """Return the attempts that may go, and messages about those that cannot be read in whole.

    Another attempt followed each, and none of its rows is the one of its point that counts. The
    shards decide, not the tables, which may be old. A row that cannot be read may count.
    """
    imported = {record.id for record in sweep_dir.manifests() if record.source}
    reading = _Reading(sweep_dir, imported)
    counting = {row.shard for row in reading.pool.winners()}
    old = list[ShardPath]()
    unread = list[str]()
    for shard in reading.shards:
        if shard.path in counting or not shard.path.next_attempt().overall.exists():
            continue
        problems = [*shard.unread, *shard.problems]
        if problems:
            unread.append(f"{shard.path.overall} stays, since it cannot be read: {problems[0]}")
        else:
            old.append(shard.path)
    return old, unread


def _made_aside(sweep_dir: SweepDir) -> tuple[SweepDir, list[str]]:
    """Return a sweep with tables in a temporary folder for this process alone, and messages."""
    folder = Path(tempfile.mkdtemp(prefix="hpcsweep-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sweep_dir = replace(sweep_dir, tables=folder / sweep_dir.name)  # messages name the tables
    (folder / sweep_dir.name).mkdir()
    error = collect(sweep_dir).error()
    return sweep_dir, [str(error)] if error else []


def _in_tables_only(sweep_dir: SweepDir) -> set[str]:
    """Return the attempts that have rows in the table, and whose shards are gone."""
    path = sweep_dir.details if sweep_dir.details.exists() else sweep_dir.overall
    named = set()
    try:
        for row in table_rows(path, ("submission", "chunk", "attempt")):
            named.add(f"{row['submission']}/{row['chunk']}.{row['attempt']}")
    except ResultsError:
        return set()  # no table yet, or a damaged one: collect writes it anew
    for shard in sweep_dir.shards():
        named.discard(f"{shard.submission}/{shard.chunk}.{shard.attempt}")
    return named


def _collect(sweep_dir: SweepDir) -> CollectReport:
    state = _state_of(sweep_dir)  # first: shards may grow while they are read
    manifests = sweep_dir.manifests()
    sources = {record.id: record.source for record in manifests if record.source}
    reading = _Reading(sweep_dir, sources.keys())
    measured = {record.id for record in manifests if record.profile != IMPORT}
    plan = TablePlan(sources, measured & sources.keys())
    _look(plan, sweep_dir, manifests, reading.pool.rows.keys())
    has_rows = any(shard.taken or shard.left_out for shard in reading.shards)
    if not has_rows and not sweep_dir.overall.exists():
        return replace(_report(sweep_dir, reading, plan, Written()), nothing=True)
    report = _report(sweep_dir, reading, plan, merge.write_all(sweep_dir, reading.pool, plan))
    if report.unread or report.damaged:  # the next collect must try to read these files again
        with suppress(OSError):
            sweep_dir.collect_index.unlink(missing_ok=True)
    else:
        _save(sweep_dir, state, report)
    tables = [*map(str, sweep_dir.merged())]
    return replace(report, shards_read=len(reading.shards), written=tables)


class _Reading:
    """The intact rows of all points, and what was left out of each shard."""

    def __init__(self, sweep_dir: SweepDir, imported: abc.Set[str]) -> None:
        self.pool = merge.Pool(imported)
        self.shards: list[Shard] = []
        self.points_unread: set[str] = set()
        # rows of one shard follow each other, so its files are opened once
        with Blocks() as blocks:
            for name, age in sweep_dir.ages().items():
                for shard in sweep_dir.shards_of(name):
                    self._read(shard, age, blocks)

    def _read(self, shard: ShardPath, age: SubmissionOrder, blocks: Blocks) -> None:
        """Take the rows of a shard, and note what was left out."""
        try:
            content, rows = scan_shard(shard)
        except ResultsError as error:
            self.shards.append(Shard(shard, unread=[str(error)]))
            return
        self.shards.append(content)
        for row in rows:
            try:
                entry = merge.table_row(row, content, age)
                entry.blocks_of(row.line, blocks)  # they are intact
                self.pool.add(entry)
                content.taken += 1
            except ResultsError as error:  # noqa: PERF203 - a negligible cost
                point = row.cells[0]
                # a row is worth nothing without its blocks; the others stay as they are
                what = f"{shard.overall}:{row.at}: row of point {point} left out: {error}"
                if isinstance(error, Unread):
                    content.unread.append(what)
                    self.points_unread.add(point)
                else:
                    content.left_out += 1
                    content.problems.append(what)


def _report(
    sweep_dir: SweepDir, reading: _Reading, plan: TablePlan, written: Written
) -> CollectReport:
    winners = written.rows
    measured = reading.pool.rows.keys()
    missing = plan.planned - measured - reading.points_unread
    destroyed = _destroyed(reading, missing)
    damage = sweep_dir.damage()
    counted = PointTally()
    for entry in winners:
        counted.add(entry.status, entry.doubts)
    unread = []
    problems = []
    torn = []
    lost = []
    for shard in reading.shards:
        unread += shard.unread
        problems += shard.problems
        if shard.torn:
            torn.append(f"{shard.path.overall}: torn last line left out")
        if shard.unread or (shard.left_out and not shard.taken):
            lost.append(str(shard.path.overall))
    return CollectReport(
        sweep=sweep_dir.name,
        points=len(winners),
        statuses=counted.counts(),
        **counted.to_json(),
        layer_rows=written.layer_rows,
        shards=len(reading.shards),
        duplicates=sum(len(rows) > 1 for rows in reading.pool.rows.values()),
        orphans=len(plan.orphans & measured),
        missing=len(missing) - len(destroyed),
        destroyed=destroyed,
        remedy=_remedy(sweep_dir, destroyed) or (sweep_dir.command("collect") if unread else ""),
        left_out=[*unread, *problems, *torn],
        unreadable=lost,
        unread=sum(bool(shard.unread) for shard in reading.shards),
        version_mixes=mixes_to_json(written.mixes),
        notes=[*damage, *plan.notes, *_old_files(sweep_dir, reading.pool, winners)],
        disturbed=outcomes.disturbance(sweep_dir, written.for_messages),
        damaged=damage,
    )


def _old_files(sweep_dir: SweepDir, pool: Pool, winners: Iterable[TableRow]) -> list[str]:
    """Return a line on rows that were measured with earlier versions of the user's files."""
    points = 0
    names: dict[str, None] = {}  # each once, in their order
    for row in winners:
        old = pool.old_files(row)
        points += bool(old)
        names.update(dict.fromkeys(old))
    if not points:
        return []
    again = sweep_dir.command("retry", "--changed")
    what = f"measured with an earlier version of {', '.join(names)} (flag {merge.OLD_FILES})"
    return [f"{count(points, 'point')} {what}; to measure them again: {again}"]


def _destroyed(reading: _Reading, missing: set[str]) -> list[str]:
    """Return the missing points that damaged lines are of."""
    damaged = [shard.path for shard in reading.shards if shard.left_out]
    try:
        rows = [*read_rows(damaged)] if missing else []
    except Unread:  # it was readable a moment ago; the next collect reports it
        return []
    measured = {row["point_id"] for row in rows if row["status"] is not PointStatus.PROFILED}
    return sorted(missing & measured)


def _remedy(sweep_dir: SweepDir, destroyed: list[str]) -> str:
    named = []
    for point_id in destroyed[:_NAMED]:
        named += ["--point", point_id]
    return sweep_dir.command("retry", *named) if named else ""


def _look(
    plan: TablePlan, sweep_dir: SweepDir, manifests: list[Manifest], measured: abc.Set[str]
) -> None:
    """Note in the plan which points are planned, and which left the sweep file as it is now."""
    if not manifests:
        plan.unknown = set(measured)
        return
    sha_of = {manifest.id: manifest.spec_sha256 for manifest in manifests}
    sent: list[tuple[str, abc.Set[str]]] = [("", measured)]
    for submission in sweep_dir.submissions():
        with suppress(ResultsError):  # `SweepDir.damage` reports it
            ids = set[str]()
            for _chunk, own in chunk_file.read_ids(submission.chunks):
                ids.update(own)
            sent.append((sha_of.get(submission.id, ""), ids))
            plan.planned |= ids
    try:
        gone = runs.orphans(sweep_dir, sent)
    except HpcsweepError as error:
        plan.notes.append(f"which rows are orphans is unknown: {error}")
        latest = runs.sha_of_file(sweep_dir)
        plan.unknown = set(measured)
        for sha, known in sent:
            if sha == latest:
                plan.unknown.difference_update(known)
        return
    plan.orphans = gone.intersection(measured)
    plan.planned -= gone


def _remembered(sweep_dir: SweepDir) -> CollectReport | None:
    """Return the report of the last collect, if neither shards nor tables changed since."""
    try:
        record = files.read_json(sweep_dir.collect_index)
        typed_json.prove(record)
        known = record["format"], record["state"], record["tables"]
        report = CollectReport(**record["report"])
    except (ResultsError, ValueError, KeyError, TypeError):
        return None
    if known != (_FORMAT, _state_of(sweep_dir), _stamps(sweep_dir.merged())):
        return None
    return replace(report, remedy=_remedy(sweep_dir, report.destroyed))


def _state_of(sweep_dir: SweepDir) -> str:
    """Return a checksum of what collect reads: what is planned, and the stamps of every shard.

    Those of layer rows and samples count, too: on a slow network disk they may come late.
    """
    parts = [runs.sha_of_file(sweep_dir)]
    for name in sweep_dir.names():
        parts += _stamps((sweep_dir.submission(name).manifest,))
        for shard in sweep_dir.shards_of(name):
            parts += _stamps((shard.overall, shard.layers, shard.samples))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _save(sweep_dir: SweepDir, state: str, report: CollectReport) -> None:
    """Write the memory; if the disk is full, the next collect reads everything again."""
    tables = _stamps(sweep_dir.merged())
    record = {"format": _FORMAT, "state": state, "tables": tables, "report": vars(report)}
    with suppress(ResultsError):
        # it has a checksum, and without it the next collect reads everything again
        files.write_json(sweep_dir.collect_index, typed_json.sealed(record), lasting=False)


def _stamps(paths: Iterable[Path]) -> list[str]:
    """Return the names, inodes, sizes and times of files, which change with a file."""
    stamps = []
    for path in paths:
        with suppress(OSError):
            status = os.stat(path)  # noqa: PTH116 - thousands of them
            name = f"{path.parent.name}/{path.name}"  # the same from any working directory
            stamps.append(f"{name} {status.st_ino} {status.st_size} {status.st_mtime_ns}")
    return stamps
