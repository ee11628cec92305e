"""The report of a collect, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from hpcsweep.catalog.columns import MUST_AGREE
from hpcsweep.errors import DamagedResults
from hpcsweep.store.collect.merge import Mixes
from hpcsweep.store.outcomes import PointTally
from hpcsweep.text import count

_SHOWN: Final = 20  # messages on damage: a screen shows them all; --json has the rest
_NAMED_SHARDS: Final = 3  # in the error; `left_out` names all
_FEW: Final = 5  # points in a line: as many as fit into one of 100 characters


@dataclass(frozen=True)
class CollectReport:
    """Counts of points, rows and shards, messages about damage, and the files written."""

    sweep: str
    points: int
    statuses: dict[str, int]
    layer_rows: int
    shards: int
    duplicates: int  # points with more than one row
    orphans: int  # points that the sweep no longer has
    missing: int  # points that were submitted, are still in the sweep and have no row
    left_out: list[str]  # a message per row or line that is damaged
    unreadable: list[str]  # shards of which nothing, or not everything (`unread`), could be read
    version_mixes: list[dict[str, Any]]  # per GPU type: rows counted by library versions
    destroyed: list[str] = field(default_factory=list)  # points whose rows are all damaged
    remedy: str = ""  # the command that measures `destroyed` again, or reads `unread` again
    notes: list[str] = field(default_factory=list)
    shards_read: int = 0
    written: list[str] = field(default_factory=list)
    seconds: float = 0.0
    damaged: list[str] = field(default_factory=list)  # messages about files of submissions
    not_valid: int = 0  # ok points that are not valid
    doubts: dict[str, int] = field(default_factory=dict)  # not valid points by flag
    disturbed: str = ""  # a line on what disturbed points, and how to measure them again
    nothing: bool = False  # no point has a row yet, and there are no tables
    unread: int = 0  # shards with files that cannot be read now, but perhaps later

    def to_json(self) -> dict[str, Any]:
        """Return the record that ``collect --json`` prints."""
        record = asdict(self)
        record["lost"] = record.pop("destroyed")
        return record

    def text(self) -> str:
        """Return the text that `collect` prints."""
        more = len(self.left_out) - _SHOWN
        others = f"and {more:,} more like these (--json has all)" if more > 0 else ""
        parts = [self._head(), self.disturbed, *self._findings(), *self.left_out[:_SHOWN], others]
        return "\n  ".join(filter(None, [*parts, self._done()]))

    def error(self) -> DamagedResults | None:
        """Return the error to raise if measured points are missing from the tables, else None."""
        if not self.unreadable and not self.destroyed:
            return DamagedResults("\n".join(self.damaged)) if self.damaged else None
        what = f"measured points are missing from the tables: {len(self.destroyed):,}"
        if self.unreadable:
            names = ", ".join(self.unreadable[:_NAMED_SHARDS])
            what = f"{count(len(self.unreadable), 'shard')} could not be read: {names}"
        return DamagedResults(f"{what}; all other rows were merged. {self._advice()}")

    def _advice(self) -> str:
        """Say what to do about missing rows; never advise to delete a file that may be intact."""
        if self.unread and not self.destroyed:
            return f"Collect again when they can be read: {self.remedy}"
        if self.destroyed:
            again = f"measure the points again: {self.remedy}"
        else:
            again = "delete the damaged files and submit again, which measures only missing points"
        return f"Restore the files from a copy, or {again}"

    def _head(self) -> str:
        counted = PointTally(Counter(self.statuses), self.not_valid, Counter(self.doubts))
        tail = f" ({counted})" if self.statuses else ""
        return f"{self.sweep}: {count(self.points, 'point')}{tail}, {self.layer_rows:,} layer rows"

    def _findings(self) -> list[str]:
        names = ", ".join(self.destroyed[:_FEW]) + ", ..." * (len(self.destroyed) > _FEW)
        damaged = f"left out, because all rows are damaged: {names}"
        several = "with several rows: kept the latest ok row, or the latest row if none is ok"
        unmeasured = f"without a row yet; see `hpcsweep status {self.sweep}`"
        findings = (
            (self.missing, "submitted point", unmeasured),
            (len(self.destroyed), "measured point", damaged),
            (self.duplicates, "point", several),
            (self.orphans, "point", "no longer in the sweep (column orphan is true)"),
        )
        lines = [f"{count(number, noun)} {words}" for number, noun, words in findings if number]
        return [*lines, *map(_mix_text, self.version_mixes), *self.notes]

    def _done(self) -> str:
        if self.nothing:
            return "no table was written: no point has a row yet"
        done = "nothing new: the tables are up to date"
        if self.written:
            paths = [Path(path) for path in self.written]
            done = f"wrote {', '.join(path.name for path in paths)} in {paths[0].parent}"
        return f"{done} ({self.seconds:.2f} s)"


def mixes_to_json(mixes: Mixes) -> list[dict[str, Any]]:
    """Return version mixes as JSON: the GPU type, and per group its versions and rows."""
    records = []
    for gpu, found in mixes.items():
        groups = []
        for versions, rows in found:
            groups.append({**dict(zip(MUST_AGREE, versions, strict=True)), "rows": rows})
        records.append({"gpu": gpu, "groups": groups})
    return records


def _mix_text(mix: dict[str, Any]) -> str:
    groups = mix["groups"]
    differing = []
    for name in MUST_AGREE:
        versions = {group[name] for group in groups}
        if len(versions) > 1:
            differing.append(name)
    texts = []
    for group in groups:
        named = ", ".join(f"{name} {group[name] or 'unknown'}" for name in differing)
        texts.append(f"{count(group['rows'], 'row')} with {named}")
    return f"version_mix on {mix['gpu'] or 'unknown'}: {'; '.join(texts)}"
