"""Merges all shards of a sweep into `overall.csv`, `layers.csv` and `samples.csv`.

The tables have one row per point, sorted by axis values; neither the order of the shards nor
earlier collects change them. Damaged rows are left out and reported; all complete rows are kept.
Where nothing changed, nothing is read. Nothing here imports pandas or pydantic: both load slowly.
"""

from __future__ import annotations

import atexit
import csv
import hashlib
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final

from hpcsweep.errors import HpcsweepError, ResultsError, Unread
from hpcsweep.files import errors_named, regular_bytes, remove_leftovers
from hpcsweep.store import chunk_file, locks, outcomes, runs, shards
from hpcsweep.store.collect import incremental, merge, merged_tables
from hpcsweep.store.collect.merge import TableRow
from hpcsweep.store.collect.merged_tables import TablePlan, Written
from hpcsweep.store.collect.summary import CollectReport, mixes_to_json
from hpcsweep.store.folders import ShardPath, SubmissionOrder, SweepDir
from hpcsweep.store.manifest import Manifest
from hpcsweep.store.outcomes import PointTally
from hpcsweep.store.shards import Shard
from hpcsweep.store.state import PointStatus
from hpcsweep.text import count

_NAMED: Final = 20  # points in the command that measures destroyed ones again
_SECONDS: Final = 1.0  # that a reader waits for another collect


def collect(sweep_dir: SweepDir, timeout: float = 10.0) -> CollectReport:
    """Merge the shards of a sweep into its tables.

    The tables stay as they were: `Busy` where a submit or collect held the lock for `timeout`
    seconds, `ResultsError` where the folder cannot be written or has a newer layout.
    """
    began = time.perf_counter()
    with errors_named(), locks.held(sweep_dir, "collect", timeout):
        mine = *sweep_dir.merged(), sweep_dir.collect_index
        remove_leftovers(sweep_dir.path, mine)  # safe: nobody else writes them without the lock
        report = _collect(sweep_dir)
    return replace(report, seconds=round(time.perf_counter() - began, 3))


def is_up_to_date(sweep_dir: SweepDir) -> bool:
    """Say whether neither shards nor tables changed since the last collect."""
    state = incremental.state_of(sweep_dir, _planned(sweep_dir, sweep_dir.manifests()))
    return incremental.report_of(sweep_dir, state) is not None


def tables_of(sweep_dir: SweepDir) -> tuple[SweepDir, list[str]]:
    """Return a sweep's results with tables of all its rows, and messages for the reader.

    Where the folder cannot be written, or another process holds its lock, the tables are made in a
    temporary folder. Tables with rows whose shards are gone stay as they are.
    """
    if sweep_dir.only is not None:
        return _made_aside(sweep_dir)
    if not sweep_dir.shards() or is_up_to_date(sweep_dir):
        return sweep_dir, []
    if gone := _in_tables_only(sweep_dir):
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
    return sweep_dir, [*([str(error)] if error else []), *old]


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
    try:
        path = sweep_dir.details if sweep_dir.details.exists() else sweep_dir.overall
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            submission, *numbers = map(header.index, ("submission", "chunk", "attempt"))
            named = {f"{row[submission]}/{'.'.join(row[at] for at in numbers)}" for row in rows}
    except (OSError, ValueError, IndexError, csv.Error):
        return set()  # no table yet, or a damaged one: collect writes it anew
    return named - {incremental.name_of(shard) for shard in sweep_dir.shards()}


def _collect(sweep_dir: SweepDir) -> CollectReport:
    manifests = sweep_dir.manifests()
    planned = _planned(sweep_dir, manifests)
    state = incremental.state_of(sweep_dir, planned)  # first: shards may grow while they are read
    if before := incremental.report_of(sweep_dir, state):
        report = CollectReport(**before)
        return replace(report, remedy=_remedy(sweep_dir, report.destroyed))
    reading = _Reading(sweep_dir, manifests)
    return _Writing(reading, manifests, planned[0]).report(state)


class _Reading:
    """All rows of all points."""

    def __init__(self, sweep_dir: SweepDir, manifests: Sequence[Manifest]) -> None:
        self.run = sweep_dir
        self.pool = merge.Pool({record.id for record in manifests if record.source})
        self.seen: dict[str, Shard] = {}  # by name of the shard
        self.taken: Counter[str] = Counter()  # rows of a shard
        self.unread: dict[str, list[str]] = {}  # by shard: what could not be read this time
        self.points_unread: set[str] = set()
        ages = sweep_dir.ages()
        for shard in (shard for name in ages for shard in sweep_dir.shards_of(name)):
            self._read(shard, ages.get(shard.submission, (0, shard.submission)))

    def drop(self, damaged: list[tuple[TableRow, ResultsError]]) -> None:
        """Remove rows whose blocks are damaged or cannot be read now, and note why."""
        self.pool.drop(entry for entry, _reason in damaged)
        for entry, reason in damaged:
            name = incremental.name_of(entry.shard)
            at = f"{entry.shard.overall}:{entry.origin.at}"
            what = f"{at}: row of point {entry.point_id} left out: {reason}"
            if isinstance(reason, Unread):
                self.unread.setdefault(name, []).append(what)
                self.points_unread.add(entry.point_id)
            else:
                self.taken[name] -= 1
                self.seen[name].left_out += 1
                self.seen[name].problems.append(what)

    def _read(self, shard: ShardPath, age: SubmissionOrder) -> None:
        """Take the rows of a shard, and note what was left out."""
        name = incremental.name_of(shard)
        try:
            seen = shards.read_shard(shard)
        except ResultsError as error:
            self.seen[name] = Shard(shard)
            self.unread[name] = [str(error)]
            return
        for row in seen.rows:
            try:
                self.pool.add(merge.table_row(row, seen, age))
                self.taken[name] += 1
            except ResultsError as error:  # noqa: PERF203 - a negligible cost
                what = f"row of point {row['point_id']} left out: {error}"
                seen.problems.append(f"{shard.overall}:{row['_at']}: {what}")
                seen.left_out += 1
        seen.rows = []  # the pool has what is needed of them
        self.seen[name] = seen


class _Writing:
    """Writes the best row of every point into the tables, then the memory; makes the report."""

    def __init__(self, reading: _Reading, manifests: list[Manifest], latest: str) -> None:
        self._reading = reading
        self._run = reading.run
        self._plan = TablePlan()
        self._plan.sources = {record.id: record.source for record in manifests if record.source}
        _look(self._plan, self._run, manifests, latest, reading.pool.rows.keys())
        self._damage = self._run.damage()
        self._nothing = not reading.pool.rows and not self._run.overall.exists()

    def report(self, state: str) -> CollectReport:
        """Write tables and memory, and return the report."""
        reading = self._reading
        run = self._run
        written = Written() if self._nothing else self._write()
        report = self._report(written)
        if self._nothing:
            return report
        if reading.unread or self._damage:  # the next collect must try to read these files again
            with suppress(OSError):
                run.collect_index.unlink(missing_ok=True)
        else:
            incremental.save(run, state, vars(report))
        files = [*map(str, run.merged())]
        return replace(report, shards_read=len(reading.seen), written=files)

    def _write(self) -> Written:
        """Write the tables; a point whose best row is damaged gets its next best one."""
        while True:
            try:
                return merged_tables.write_all(self._run, self._reading.pool, self._plan)
            except merged_tables.DamagedRows as damaged:  # noqa: PERF203 - a negligible cost
                self._reading.drop(damaged.rows)

    def _report(self, written: Written) -> CollectReport:
        reading = self._reading
        plan = self._plan
        winners = written.rows
        measured = reading.pool.rows.keys()
        missing = plan.planned - measured - reading.points_unread
        destroyed = self._destroyed(missing)
        counted = PointTally()
        for entry in winners:
            counted.add(entry.status, entry.doubts)
        again = self._run.command("collect") if reading.unread else ""
        damaged = (
            name for name, seen in reading.seen.items() if seen.left_out and not reading.taken[name]
        )
        unreadable = dict.fromkeys([*reading.unread, *damaged])
        torn = [seen.path.overall for seen in reading.seen.values() if seen.torn]
        return CollectReport(
            sweep=self._run.name,
            points=len(winners),
            statuses=counted.counts(),
            **counted.to_json(),
            layer_rows=written.layer_rows,
            shards=len(reading.seen),
            duplicates=sum(len(rows) > 1 for rows in reading.pool.rows.values()),
            orphans=len(plan.orphans & measured),
            missing=len(missing) - len(destroyed),
            destroyed=destroyed,
            remedy=_remedy(self._run, destroyed) or again,
            left_out=[
                *chain.from_iterable(reading.unread.values()),
                *chain.from_iterable(seen.problems for seen in reading.seen.values()),
                *(f"{path}: torn last line left out" for path in torn),
            ],
            unreadable=[str(reading.seen[name].path.overall) for name in unreadable],
            unread=len(reading.unread),
            version_mixes=mixes_to_json(written.mixes),
            notes=[*self._damage, *plan.notes, *self._old_files(winners)],
            disturbed=outcomes.disturbance(self._run, written.told),
            damaged=self._damage,
            empty=[path.name for path, rows in written.by_table(self._run) if not rows],
            nothing=self._nothing,
        )

    def _old_files(self, winners: list[TableRow]) -> list[str]:
        """Return a line on rows that were measured with earlier versions of the user's files."""
        old = [names for entry in winners if (names := self._reading.pool.old_files(entry))]
        if not old:
            return []
        files = ", ".join(dict.fromkeys(name for names in old for name in names))
        again = self._run.command("retry", "--changed")
        what = f"measured with an earlier version of {files} (flag {merge.OLD_FILES})"
        return [f"{count(len(old), 'point')} {what}; to measure them again: {again}"]

    def _destroyed(self, missing: set[str]) -> list[str]:
        reading = self._reading
        damaged = [seen.path for seen in reading.seen.values() if seen.left_out]
        try:
            keys = [*shards.keys_of(damaged)] if missing else []
        except Unread:  # it was readable a moment ago; the next collect reports it
            return []
        measured = {key.point_id for key in keys if key.status is not PointStatus.PROFILED}
        return sorted(missing & measured)


def _remedy(sweep_dir: SweepDir, destroyed: list[str]) -> str:
    named = [word for point_id in destroyed[:_NAMED] for word in ("--point", point_id)]
    return sweep_dir.command("retry", *named) if named else ""


def _planned(sweep_dir: SweepDir, manifests: Sequence[Manifest]) -> list[str]:
    """Return a fingerprint of the planned points: the sweep file, and submissions in order."""
    return [_sweep_sha(sweep_dir), *(f"{record.round} {record.id}" for record in manifests)]


def _look(
    plan: TablePlan,
    sweep_dir: SweepDir,
    manifests: list[Manifest],
    latest: str,
    measured: AbstractSet[str],
) -> None:
    """Note in the plan which points are planned, and which left the sweep file as it is now."""
    if not manifests:
        plan.unknown = set(measured)
        return
    current = set[str]()
    earlier = set[str]()
    sha_of = {manifest.id: manifest.spec_sha256 for manifest in manifests}
    for submission in sweep_dir.submissions():
        ids = current if sha_of.get(submission.id) == latest else earlier
        with suppress(ResultsError):  # `SweepDir.damage` reports it
            for _chunk, points in chunk_file.read_ids(submission.chunks):
                ids.update(points)
    doubtful = (earlier | measured) - current
    wanted = current
    if doubtful:
        try:
            wanted = current | doubtful.intersection(runs.points_of_file(sweep_dir))
        except HpcsweepError as error:
            plan.notes.append(f"which rows are orphans is unknown: {error}")
            plan.unknown = doubtful & measured
            wanted = current | doubtful
    plan.orphans = set(measured - wanted)
    plan.planned = (current | earlier) & wanted


def _sweep_sha(sweep_dir: SweepDir) -> str:
    """Return the checksum of the sweep file, as in manifests; empty where there is no file."""
    try:
        return hashlib.sha256(regular_bytes(sweep_dir.sweep_file)).hexdigest()
    except OSError:
        return ""
