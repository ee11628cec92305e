"""Merges all shards of a sweep into `overall.csv`, `layers.csv` and `samples.csv`.

The tables have one row per point, sorted by axis values; neither the order of the shards nor
earlier collects change them. Damaged rows are left out and reported; all complete rows are kept. A
second collect reads only new rows. Nothing here imports pandas or pydantic: both load slowly.
"""

from __future__ import annotations

import atexit
import csv
import hashlib
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from hpcsweep.errors import HpcsweepError, MissingDependency, ResultsError, Unread
from hpcsweep.files import errors_named, regular_bytes, remove_leftovers
from hpcsweep.store import chunk_file, locks, outcomes, runs, shards
from hpcsweep.store.collect import incremental, merge, merged_tables
from hpcsweep.store.collect.incremental import CollectMemory, ShardProgress, ShardStamps
from hpcsweep.store.collect.merge import TableRow
from hpcsweep.store.collect.merged_tables import TablePlan, Written
from hpcsweep.store.collect.summary import CollectReport, mixes_to_json
from hpcsweep.store.folders import ShardPath, SweepDir
from hpcsweep.store.manifest import Manifest
from hpcsweep.store.outcomes import PointTally
from hpcsweep.store.state import PointStatus
from hpcsweep.text import count

_NAMED: Final = 20  # points in the command that measures destroyed ones again
_SECONDS: Final = 1.0  # that a reader waits for another collect


def collect(sweep_dir: SweepDir, timeout: float = 10.0, *, raw: bool = False) -> CollectReport:
    """Merge the shards of a sweep into its tables.

    Cells that a spreadsheet would take for formulas get a quote first, unless `raw`. The tables
    stay as they were: `Busy` where a submit or collect held the lock for `timeout` seconds,
    `ResultsError` where the folder cannot be written or has a newer layout.
    """
    began = time.perf_counter()
    with errors_named(), locks.held(sweep_dir, "collect", timeout):
        mine = *sweep_dir.merged(), sweep_dir.collect_index
        remove_leftovers(sweep_dir.path, mine)  # safe: nobody else writes them without the lock
        report = _collect(sweep_dir, raw=raw)
    return replace(report, seconds=round(time.perf_counter() - began, 3))


def is_up_to_date(sweep_dir: SweepDir) -> bool:
    """Say whether neither shards nor tables changed since the last collect."""
    memory = incremental.load_memory(sweep_dir)
    if memory is None or memory.news(incremental.stamps(sweep_dir), sweep_dir.ages()) != {}:
        return False
    return memory.planned == _planned(sweep_dir, sweep_dir.manifests())


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
    memory = incremental.load_memory(sweep_dir)
    raw = bool(memory and memory.raw)
    try:
        report = collect(sweep_dir, _SECONDS, raw=raw)
    except ResultsError as why:
        sweep_dir, lines = _made_aside(sweep_dir, raw=raw)
        news = f"its newest rows are shown, but its tables could not be renewed: {why}"
        return sweep_dir, [news, *lines]
    error = report.error()
    return sweep_dir, [*([str(error)] if error else []), *_parquet(sweep_dir)]


def _made_aside(sweep_dir: SweepDir, *, raw: bool = False) -> tuple[SweepDir, list[str]]:
    """Return a sweep with tables in a temporary folder for this process alone, and messages."""
    folder = Path(tempfile.mkdtemp(prefix="hpcsweep-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sweep_dir = replace(sweep_dir, tables=folder / sweep_dir.name)  # messages name the tables
    (folder / sweep_dir.name).mkdir()
    error = collect(sweep_dir, raw=raw).error()
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


def _parquet(sweep_dir: SweepDir) -> list[str]:
    path = sweep_dir.overall.with_suffix(".parquet")
    if sweep_dir.tables or not path.exists():
        return []
    try:
        merged_tables.write_parquet(sweep_dir)
    except (MissingDependency, ResultsError) as error:
        return [f"{path} is older than the tables: {error}"]
    return []


def _collect(sweep_dir: SweepDir, *, raw: bool) -> CollectReport:
    manifests = sweep_dir.manifests()
    shards = incremental.stamps(sweep_dir)
    memory = incremental.load_memory(sweep_dir)
    news = memory.news(shards, sweep_dir.ages()) if memory and memory.raw is raw else None
    is_known = memory is not None and memory.planned == _planned(sweep_dir, manifests)
    if not is_known and any(record.source for record in manifests):
        news = None  # rows may be imported ones by now: the memory has one row of each point
    if memory and news is not None:
        if not news and is_known:
            before = CollectReport(**memory.report)
            return replace(before, remedy=_remedy(sweep_dir, before.destroyed))
        grown = _Reading(sweep_dir, shards, memory, manifests)
        if grown.read(news):
            with suppress(merged_tables.DamagedRows):
                return _Writing(grown, manifests, raw=raw).report(len(news))
    anew = _Reading(sweep_dir, shards, None, manifests)
    anew.read(dict.fromkeys(shards, 0))
    return _Writing(anew, manifests, raw=raw).report(len(shards))


class _Reading:
    """All rows of all points: from the last collect's `memory`, if given, and from shards."""

    def __init__(
        self,
        sweep_dir: SweepDir,
        shards: ShardStamps,
        memory: CollectMemory | None,
        manifests: Sequence[Manifest],
    ) -> None:
        self.run = sweep_dir
        self.shards = shards
        self._memory = memory
        self.ages = sweep_dir.ages()
        imported = {record.id for record in manifests if record.source}
        self.pool = merge.Pool(memory.latest if memory else {}, imported)
        self.rows: Counter[str] = Counter()  # per point
        self.seen: dict[str, ShardProgress] = dict(memory.shards) if memory else {}
        self.unread: dict[str, list[str]] = {}  # by shard: what could not be read this time
        self.points_unread: set[str] = set()
        self.layer_columns = memory.layer_columns if memory else ()

    def read(self, news: Mapping[str, int]) -> bool:
        """Read shards from offsets on; return False where the memory cannot be used."""
        added = [entry for name, begin in news.items() for entry in self._shard(name, begin)]
        before = self.layer_columns
        self.layer_columns = merged_tables.other_layer_columns(before, added)
        if self._memory:
            if self.layer_columns != before:  # every layer row gets another cell
                return False
            try:
                self._take(self._memory.entries(self.run), self._memory.repeated)
            except ResultsError:
                return False
            # the memory has one row of a point, and not which own and which imported one it beat
            if self.pool.imported and any(entry.point_id in self.pool.rows for entry in added):
                return False
        self._take(added, {})
        return True

    def drop(self, damaged: list[tuple[TableRow, ResultsError]]) -> None:
        """Remove rows whose blocks are damaged or cannot be read now, and note why."""
        self.pool.drop(entry for entry, _reason in damaged)
        self.rows.subtract(entry.point_id for entry, _reason in damaged)
        offsets: dict[ShardPath, list[int]] = {}
        in_shards = [(entry.shard, entry, reason) for entry, reason in damaged if entry.shard]
        for shard, entry, _reason in in_shards:
            offsets.setdefault(shard, []).append(entry.origin.at)
        where = {shard: shards.places(shard.overall, begins) for shard, begins in offsets.items()}
        for shard, entry, reason in in_shards:
            at = where[shard][entry.origin.at]
            name = incremental.name_of(shard)
            what = f"{at}: row of point {entry.point_id} left out: {reason}"
            if isinstance(reason, Unread):
                self.unread.setdefault(name, []).append(what)
                self.points_unread.add(entry.point_id)
            else:
                seen = self.seen[name]
                seen.rows = seen.rows - 1
                seen.left_out = seen.left_out + 1
                seen.problems.append(what)

    def _take(self, entries: list[TableRow], repeated: Mapping[str, int]) -> None:
        for entry in entries:
            self.pool.add(entry)
            self.rows[entry.point_id] += repeated.get(entry.point_id, 1)

    def _shard(self, name: str, begin: int) -> list[TableRow]:
        """Return the rows of a shard from an offset on, and note how far it was read."""
        shard, stamp = self.shards[name]
        try:
            part = shards.read_shard(shard, begin)
        except ResultsError as error:
            self.unread[name] = [str(error)]
            return []
        before = self.seen.get(name, ShardProgress(stamp)) if begin else ShardProgress(stamp)
        entries = []
        refused = dict[int, str]()
        age = self.ages.get(shard.submission, (0, shard.submission))
        for row in part.rows:
            try:
                entries.append(merge.shard_entry(row, part, age))
            except ResultsError as error:  # noqa: PERF203 - a negligible cost
                refused[row["_at"]] = f"row of point {row['point_id']} left out: {error}"
        where = shards.places(shard.overall, refused)
        messages = [f"{where[at]}: {what}" for at, what in refused.items()]
        left_out = before.left_out + part.left_out + len(refused)
        self.seen[name] = ShardProgress(
            stamp,
            read=part.size,
            tail=incremental.tail_of(shard.overall, part.size),
            rows=before.rows + len(entries),
            left_out=left_out,
            torn=part.torn,
            problems=[*before.problems, *part.problems, *messages],
        )
        return entries


class _Writing:
    """Writes the best row of every point into the tables, then the memory; makes the report."""

    def __init__(self, reading: _Reading, manifests: list[Manifest], *, raw: bool) -> None:
        self._reading = reading
        self._run = reading.run
        self._planned = _planned(self._run, manifests)
        self._plan = _plan(self._run, manifests, reading.pool.rows.keys(), raw=raw)
        self._damage = self._run.damage()
        self._nothing = not reading.pool.rows and not self._run.overall.exists()

    def report(self, shards_read: int) -> CollectReport:
        """Write tables and memory, and return the report."""
        reading = self._reading
        run = self._run
        written = Written() if self._nothing else self._write()
        for name, seen in reading.seen.items():
            shard, _stamp = reading.shards[name]
            seen.blocks = incremental.block_stamps(shard) if seen.left_out else []
        report = self._report(written)
        if self._nothing:
            return report
        if reading.unread or self._damage:  # the next collect must try to read these files again
            with suppress(OSError):
                run.collect_index.unlink(missing_ok=True)
        else:
            incremental.save(run, self._memory(written, report))
        return replace(report, shards_read=shards_read, written=[*map(str, run.merged())])

    def _memory(self, written: Written, report: CollectReport) -> CollectMemory:
        reading = self._reading
        memory = CollectMemory(
            planned=self._planned,
            shards=reading.seen,
            layer_columns=reading.layer_columns,
            rounds=incremental.rounds_of(reading.ages),
            repeated={point: rows for point, rows in reading.rows.items() if rows > 1},
            report=vars(report),
            latest=reading.pool.latest,
            raw=self._plan.raw,
        )
        memory.place(written)
        return memory

    def _write(self) -> Written:
        """Write the tables; a point whose best row is damaged gets its next best one."""
        reading = self._reading
        write = partial(merged_tables.write_all, self._run, plan=self._plan)
        while True:
            try:
                return write(reading.pool, other_columns=reading.layer_columns)
            except merged_tables.DamagedRows as damaged:  # noqa: PERF203 - a negligible cost
                if any(entry.shard is None for entry, _reason in damaged.rows):
                    raise  # the tables of the last collect are damaged: read all shards again
                reading.drop(damaged.rows)

    def _report(self, written: Written) -> CollectReport:
        reading = self._reading
        plan = self._plan
        winners = written.rows
        measured = {entry.point_id for entry in winners}
        missing = plan.planned - measured - reading.points_unread
        destroyed = self._destroyed(missing)
        counted = PointTally()
        for entry in winners:
            counted.add(entry.status, entry.doubts)
        again = self._run.command("collect") if reading.unread else ""
        damaged = (name for name, seen in reading.seen.items() if seen.left_out and not seen.rows)
        unreadable = dict.fromkeys([*reading.unread, *damaged])
        paths = {name: shard.overall for name, (shard, _stamp) in reading.shards.items()}
        torn = [name for name, seen in reading.seen.items() if seen.torn]
        return CollectReport(
            sweep=self._run.name,
            points=len(winners),
            statuses=counted.counts(),
            **counted.to_json(),
            layer_rows=written.layer_rows,
            shards=len(reading.shards),
            duplicates=sum(rows > 1 for rows in reading.rows.values()),
            orphans=len(plan.orphans & measured),
            missing=len(missing) - len(destroyed),
            destroyed=destroyed,
            remedy=_remedy(self._run, destroyed) or again,
            left_out=[
                *chain.from_iterable(reading.unread.values()),
                *chain.from_iterable(seen.problems for seen in reading.seen.values()),
                *(f"{paths[name]}: torn last line left out" for name in torn),
            ],
            unreadable=[str(paths[name]) for name in unreadable],
            unread=len(reading.unread),
            version_mixes=mixes_to_json(written.mixes),
            notes=[*self._damage, *plan.notes, *self._old_files(winners)],
            disturbed=outcomes.disturbance(self._run, map(_marked, winners)),
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
        damaged = [reading.shards[name][0] for name, seen in reading.seen.items() if seen.left_out]
        try:
            keys = [*shards.keys_of(damaged)] if missing else []
        except Unread:  # it was readable a moment ago; the next collect reports it
            return []
        measured = {key.point_id for key in keys if key.status is not PointStatus.PROFILED}
        return sorted(missing & measured)


def _remedy(sweep_dir: SweepDir, destroyed: list[str]) -> str:
    named = [word for point_id in destroyed[:_NAMED] for word in ("--point", point_id)]
    return sweep_dir.command("retry", *named) if named else ""


def _planned(sweep_dir: SweepDir, manifests: list[Manifest]) -> list[str]:
    """Return a fingerprint of the planned points: the sweep file and the submissions."""
    return [_sweep_sha(sweep_dir), *(manifest.id for manifest in manifests)]


def _marked(row: TableRow) -> Mapping[str, str]:
    """Return the cells of a row that messages tell, with the flags that the tables give it."""
    doubts = {"valid": "false", "flags": row.doubts} if row.doubts else {"valid": "true"}
    return outcomes.told_of({**(row.cells() if row.doubts else {}), **doubts, "status": row.status})


def _plan(
    sweep_dir: SweepDir, manifests: list[Manifest], measured: AbstractSet[str], *, raw: bool
) -> TablePlan:
    plan = TablePlan(raw=raw)
    plan.sources = {record.id: record.source for record in manifests if record.source}
    if not manifests:
        plan.unknown = set(measured)
        return plan
    latest = _sweep_sha(sweep_dir)
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
    return plan


def _sweep_sha(sweep_dir: SweepDir) -> str:
    """Return the checksum of the sweep file, as in manifests; empty where there is no file."""
    try:
        return hashlib.sha256(regular_bytes(sweep_dir.sweep_file)).hexdigest()
    except OSError:
        return ""
