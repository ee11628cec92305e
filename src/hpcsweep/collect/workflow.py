"""Merges all shards of a sweep into `overall.csv`, `layers.csv` and `samples.csv`.

The tables have one row per point, sorted by axis values; neither the order of the shards nor
earlier collects change them. Damaged rows are left out and reported; all complete rows are kept. A
second collect reads only new rows, and writes nothing if there are none.

Nothing here imports pandas or pydantic, so that collecting a small sweep is as fast as starting
Python.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Final

from hpcsweep.collect import incremental, merge, tables
from hpcsweep.collect.incremental import CollectMemory, ShardProgress, ShardStamps
from hpcsweep.collect.merge import TableRow
from hpcsweep.collect.summary import CollectReport, mix_to_json
from hpcsweep.collect.tables import Extras, Written
from hpcsweep.errors import HpcsweepError, ResultsError, Unread
from hpcsweep.files import errors_named, remove_leftovers
from hpcsweep.records import dataclass, field, replace
from hpcsweep.store import chunk_file, locks, outcomes, runs, shards
from hpcsweep.store.manifest import Manifest
from hpcsweep.store.outcomes import PointTally
from hpcsweep.store.rundir import RunDir, ShardPath
from hpcsweep.store.state import PointStatus
from hpcsweep.text import count

__all__ = ["CollectReport", "collect"]

_NAMED: Final = 20  # points in the command that measures destroyed ones again


def collect(run: RunDir, timeout: float = 10.0, *, raw: bool = False) -> CollectReport:
    """Merge the shards of a sweep into its tables.

    Cells that a spreadsheet would take for formulas get a quote first, unless `raw`. Damaged rows
    are reported (`CollectReport.error`). `Busy` where a submit or collect held the lock for
    `timeout` seconds, `ResultsError` where the folder cannot be written or has a newer layout: then
    the tables stay as they were.
    """
    began = time.perf_counter()
    with errors_named(), locks.held(run, "collect", timeout):
        mine = run.overall, run.layers, run.samples, run.collect_index
        remove_leftovers(run.path, mine)  # safe: nobody else writes them without the lock
        report = _collect(run, raw=raw)
    return replace(report, seconds=round(time.perf_counter() - began, 3))


def is_up_to_date(run: RunDir) -> bool:
    """Say whether neither shards nor tables changed since the last collect."""
    memory = incremental.load(run)
    news = memory.news(incremental.stamps(run), run.ages()) if memory else None
    return bool(memory and news == {} and memory.planned == _planned(run, run.manifests()))


def _collect(run: RunDir, *, raw: bool) -> CollectReport:
    manifests = run.manifests()
    shards = incremental.stamps(run)
    memory = incremental.load(run)
    news = memory.news(shards, run.ages()) if memory and memory.raw is raw else None
    if memory and news is not None:
        if not news and memory.planned == _planned(run, manifests):
            before = CollectReport(**memory.report)
            return replace(before, remedy=_remedy(run, before.destroyed))
        grown = _Reading(run, shards, memory)
        if grown.read(news):
            with suppress(tables.DamagedRows):
                return _Writing(grown, manifests, raw=raw).report(len(news))
    anew = _Reading(run, shards, None)
    anew.read(dict.fromkeys(shards, 0))
    return _Writing(anew, manifests, raw=raw).report(len(shards))


class _Reading:
    """All rows of all points: from the last collect's `memory`, if given, and from shards."""

    def __init__(self, run: RunDir, shards: ShardStamps, memory: CollectMemory | None) -> None:
        self.run, self.shards, self._memory = run, shards, memory
        self.ages = run.ages()
        self.pool = merge.Pool(latest=dict(memory.latest) if memory else {})
        self.rows: Counter[str] = Counter()  # per point
        self.seen: dict[str, ShardProgress] = dict(memory.shards) if memory else {}
        self.unread: dict[str, list[str]] = {}  # by shard: what could not be read this time
        self.points_unread: set[str] = set()
        self.extras: Extras = memory.extras if memory else tables.Extras()

    def read(self, news: Mapping[str, int]) -> bool:
        """Read shards from offsets on; return False where the memory cannot be used."""
        added = [entry for name, begin in news.items() for entry in self._shard(name, begin)]
        before = self.extras
        self.extras = before.and_those_of(added)
        if self._memory:
            if self.extras.layers != before.layers:  # every layer row gets another cell
                return False
            try:
                self._take(self._memory.entries(self.run), self._memory.repeated)
            except ResultsError:
                return False
        self._take(added, {})
        return True

    def drop(self, damaged: list[tuple[TableRow, ResultsError]]) -> None:
        """Remove rows whose blocks are damaged or cannot be read now, and note why."""
        self.pool.drop(entry for entry, _reason in damaged)
        places: dict[ShardPath, list[int]] = {}
        for entry, _reason in damaged:
            if entry.shard:
                places.setdefault(entry.shard, []).append(entry.origin.at)
        where = {shard: shards.places(shard.overall, offsets) for shard, offsets in places.items()}
        for entry, reason in damaged:
            self.rows[entry.point_id] -= 1
            if entry.shard is None:
                continue
            at = where[entry.shard][entry.origin.at]
            what = f"{at}: row of point {entry.point_id} left out: {reason}"
            if isinstance(reason, Unread):
                self.unread.setdefault(incremental.name_of(entry.shard), []).append(what)
                self.points_unread.add(entry.point_id)
            else:
                seen = self.seen[incremental.name_of(entry.shard)]
                seen.rows, seen.left_out = seen.rows - 1, seen.left_out + 1
                seen.problems.append(what)

    def _take(self, entries: list[TableRow], repeated: Mapping[str, int]) -> None:
        for entry in entries:
            self.pool.add(entry)
            self.rows[entry.point_id] += repeated.get(entry.point_id, 1)

    def _shard(self, name: str, begin: int) -> list[TableRow]:
        """Return the rows of a shard from an offset on, and note how far it was read."""
        shard, stamp = self.shards[name]
        try:
            part = shards.read(shard, begin)
        except ResultsError as error:
            self.unread[name] = [str(error)]
            return []
        before = self.seen.get(name, ShardProgress(stamp)) if begin else ShardProgress(stamp)
        entries, refused = [], dict[int, str]()
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
        self._reading, self._run, self._raw = reading, reading.run, raw
        self._planned = _planned(self._run, manifests)
        self._sources = {record.id: record.source for record in manifests if record.source}
        self._members = _membership(self._run, manifests, reading.pool.rows.keys())
        self._damage = self._run.damage()
        self._nothing = not reading.pool.rows and not self._run.overall.exists()

    def report(self, shards_read: int) -> CollectReport:
        """Write tables and memory, and return the report."""
        written, mixes = self._write()
        reading, run = self._reading, self._run
        for name, seen in reading.seen.items():
            seen.note_blocks(reading.shards[name][0])
        report = self._report(written, mixes)
        if self._nothing:
            return report
        repeated = {point: rows for point, rows in reading.rows.items() if rows > 1}
        memory = CollectMemory(
            planned=self._planned,
            shards=reading.seen,
            extras=reading.extras,
            rounds=incremental.rounds_of(reading.ages),
            repeated=repeated,
            report=vars(report),
            latest=reading.pool.latest,
            raw=self._raw,
        )
        memory.place(written)
        if reading.unread or self._damage:  # the next collect must try to read these files again
            incremental.forget(run)
        else:
            incremental.save(run, memory)
        files = [str(path) for path in (run.overall, run.layers, run.samples)]
        return replace(report, shards_read=shards_read, written=files)

    def _write(self) -> tuple[Written, list[merge.Mix]]:
        """Write the tables; a point whose best row is damaged gets its next best one."""
        pool, members = self._reading.pool, self._members
        if self._nothing:
            return Written([]), []
        while True:
            mixes = merge.mixes(pool.winners())
            marks = tables.Marks(
                members.orphans, members.unknown, mixes, self._sources, raw=self._raw
            )
            try:
                return tables.write_all(self._run, pool, marks, self._reading.extras), mixes
            except tables.DamagedRows as damaged:
                if any(entry.shard is None for entry, _reason in damaged.rows):
                    raise  # the tables of the last collect are damaged: read all shards again
                self._reading.drop(damaged.rows)

    def _report(self, written: Written, mixes: list[merge.Mix]) -> CollectReport:
        reading, members, winners = self._reading, self._members, written.rows
        measured = {entry.point_id for entry in winners}
        missing = members.planned - measured - reading.points_unread
        destroyed, counted = self._destroyed(missing), _tally(winners)
        again = self._run.command("collect") if reading.unread else ""
        unreadable = [
            name
            for name, seen in reading.seen.items()
            if seen.left_out and not seen.rows and name not in reading.unread
        ]
        torn = [name for name, seen in reading.seen.items() if seen.torn]
        return CollectReport(
            sweep=self._run.name,
            points=len(winners),
            statuses=counted.counts(),
            **counted.to_json(),
            layer_rows=written.layer_rows,
            shards=len(reading.shards),
            duplicates=sum(rows > 1 for rows in reading.rows.values()),
            orphans=len(members.orphans & measured),
            missing=len(missing) - len(destroyed),
            destroyed=destroyed,
            remedy=_remedy(self._run, destroyed) or again,
            left_out=[
                *(problem for messages in reading.unread.values() for problem in messages),
                *(problem for seen in reading.seen.values() for problem in seen.problems),
                *(f"{reading.shards[name][0].overall}: torn last line left out" for name in torn),
            ],
            unreadable=[str(reading.shards[n][0].overall) for n in [*reading.unread, *unreadable]],
            unread=len(reading.unread),
            version_mixes=[mix_to_json(mix) for mix in mixes],
            notes=[*self._damage, *members.notes, *self._old_files(winners)],
            disturbed=outcomes.disturbance(self._run, map(_marked, winners)),
            damaged=self._damage,
            empty=_empty(self._run, written),
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
        """Return the points of which all rows are damaged."""
        reading = self._reading
        damaged = [reading.shards[name][0] for name, seen in reading.seen.items() if seen.left_out]
        try:
            keys = [*shards.keys_of(damaged)] if missing else []
        except Unread:  # it was readable a moment ago; the next collect reports it
            return []
        measured = {key.point_id for key in keys if key.status is not PointStatus.PROFILED}
        return sorted(missing & measured)


def _remedy(run: RunDir, destroyed: list[str]) -> str:
    """Return the command that measures points again, the first 20 of them."""
    named = [word for point_id in destroyed[:_NAMED] for word in ("--point", point_id)]
    return run.command("retry", *named) if named else ""


def _empty(run: RunDir, written: Written) -> list[str]:
    rows = {
        run.overall: len(written.rows),
        run.layers: written.layer_rows,
        run.samples: sum(written.samples),
    }
    return [path.name for path, count in rows.items() if not count]


def _planned(run: RunDir, manifests: list[Manifest]) -> list[str]:
    """Return a fingerprint of the planned points: the sweep file and the submissions."""
    return [_sweep_sha(run), *(manifest.id for manifest in manifests)]


def _tally(winners: list[TableRow]) -> PointTally:
    points = PointTally()
    for entry in winners:
        points.add(entry.status, entry.doubts)
    return points


def _marked(row: TableRow) -> dict[str, str]:
    """Return the cells of a row with the flags that the tables give it."""
    doubts = {"valid": "false", "flags": row.doubts} if row.doubts else {"valid": "true"}
    return {"status": row.status, **(row.cells() if row.doubts else {}), **doubts}


@dataclass
class _Membership:
    """The planned points; the measured points that left the sweep, or that could not be checked."""

    planned: set[str] = field(default_factory=set)
    orphans: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def _membership(
    run: RunDir, manifests: Sequence[Manifest], measured: AbstractSet[str]
) -> _Membership:
    if not manifests:
        return _Membership(unknown=set(measured))
    result = _Membership()
    latest = _sweep_sha(run)
    current: set[str] = set()
    earlier: set[str] = set()
    sha_of = {manifest.id: manifest.spec_sha256 for manifest in manifests}
    for submission in run.submissions():
        ids = current if sha_of.get(submission.id) == latest else earlier
        with suppress(ResultsError):  # `RunDir.damage` reports it
            for _chunk, points in chunk_file.read_ids(submission.chunks):
                ids.update(points)
    doubtful = (earlier | measured) - current
    wanted = current
    if doubtful:
        try:
            wanted = current | doubtful.intersection(runs.points_of_file(run))
        except HpcsweepError as error:
            result.notes.append(f"which rows are orphans is unknown: {error}")
            result.unknown = doubtful & measured
            wanted = current | doubtful
    result.orphans = set(measured - wanted)
    result.planned = (current | earlier) & wanted
    return result


def _sweep_sha(run: RunDir) -> str:
    """Return the checksum of the sweep file, as in manifests; empty where there is no file."""
    try:
        return hashlib.sha256(run.sweep_file.read_bytes()).hexdigest()
    except OSError:
        return ""
