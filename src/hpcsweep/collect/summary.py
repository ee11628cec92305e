"""The result of a collect, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.catalog.columns import MUST_AGREE
from hpcsweep.errors import DamagedResults
from hpcsweep.store.state import PointStatus
from hpcsweep.text import count, tally

if TYPE_CHECKING:
    from hpcsweep.collect.merge import Mix

_SHOWN: Final = 20
_FEW: Final = 5


@dataclass(frozen=True)
class Report:
    """What a collect read, found and wrote."""

    sweep: str
    points: int
    statuses: dict[str, int]
    layer_rows: int
    shards: int
    duplicates: int  # points with more than one row
    orphans: int  # points that the sweep no longer has
    missing: int  # points that were submitted, are still in the sweep and have no row
    left_out: list[str]  # a message per row or line that is damaged
    unreadable: list[str]  # shards that could not be read at all
    version_mixes: list[dict[str, Any]]  # per GPU type: rows counted by library versions
    lost: list[str] = field(default_factory=list)  # points whose rows are all damaged
    remedy: str = ""  # the command that measures them again
    notes: list[str] = field(default_factory=list)
    shards_read: int = 0
    written: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)  # tables that have a header and no row
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the record that ``collect --json`` prints."""
        return asdict(self)

    def text(self) -> str:
        """Return the text that `collect` prints."""
        return "\n".join([self._head(), *(f"  {line}" for line in self._details())])

    def error(self) -> DamagedResults | None:
        """Return the error to raise where rows are lost; the tables hold all others."""
        if not self.unreadable and not self.lost:
            return None
        what = f"measured points are missing from the tables: {len(self.lost):,}"
        if self.unreadable:
            names = ", ".join(self.unreadable[:3])
            what = f"{count(len(self.unreadable), 'shard')} could not be read: {names}"
        again = f"measure the points again: {self.remedy}"
        if not self.lost:
            again = "delete the damaged files and submit again: only lost points are measured"
        return DamagedResults(
            f"{what}; all other rows were merged. Restore the files from a copy, or {again}"
        )

    def _head(self) -> str:
        tail = f" ({tally(self.statuses, PointStatus)})" if self.statuses else ""
        return f"{self.sweep}: {count(self.points, 'point')}{tail}, {self.layer_rows:,} layer rows"

    def _details(self) -> list[str]:
        lines = []
        if self.missing:
            lines.append(
                f"{count(self.missing, 'submitted point')} without a row yet; "
                f"`hpcsweep status {self.sweep}` says why"
            )
        if self.lost:
            lines.append(
                f"{count(len(self.lost), 'measured point')} left out, because all rows are "
                f"damaged: {', '.join(self.lost[:_FEW])}{', ...' * (len(self.lost) > _FEW)}"
            )
        if self.duplicates:
            lines.append(
                f"{count(self.duplicates, 'point')} with several rows: "
                "kept the latest ok row, or the latest row if none is ok"
            )
        if self.orphans:
            lines.append(
                f"{count(self.orphans, 'point')} no longer in the sweep (column orphan is true)"
            )
        lines += [_mix_text(mix) for mix in self.version_mixes]
        lines += self.notes
        lines += self.left_out[:_SHOWN]
        if len(self.left_out) > _SHOWN:
            lines.append(f"and {len(self.left_out) - _SHOWN:,} more like these (--json has all)")
        done = "nothing new: the tables are up to date"
        if self.written:
            names = ", ".join(
                name + " (0 rows)" * (name in self.empty)
                for name in (Path(path).name for path in self.written)
            )
            done = f"wrote {names} in {Path(self.written[0]).parent}"
        return [*lines, f"{done} ({self.seconds:.2f} s)"]


def mix_to_json(mix: Mix) -> dict[str, Any]:
    """Return a version mix as JSON: the GPU type, and per group its versions and rows."""
    groups = [
        {**dict(zip(MUST_AGREE, versions, strict=True)), "rows": rows}
        for versions, rows in mix.groups
    ]
    return {"gpu": mix.gpu, "groups": groups}


def _mix_text(mix: dict[str, Any]) -> str:
    differing = [name for name in MUST_AGREE if len({group[name] for group in mix["groups"]}) > 1]
    groups = (
        f"{count(group['rows'], 'row')} with "
        + ", ".join(f"{name} {group[name] or 'unknown'}" for name in differing)
        for group in mix["groups"]
    )
    return f"version_mix on {mix['gpu'] or 'unknown'}: {'; '.join(groups)}"
