"""How many points ended how, and how many of the measured ones are not valid, and why.

Every headline that counts points is made here, so that none of them hides rows whose `valid` is
false.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import text
from hpcsweep.catalog.columns import DOUBTFUL
from hpcsweep.store import shards
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hpcsweep.store.rundir import ShardPath

VALID: Final = ""
_ID_AND_OK: Final = slice(16, 20)


@dataclass
class Tally:
    """Counts points by status; of those that are ok, the ones that are not valid, by flag."""

    statuses: Counter[str] = field(default_factory=Counter)
    not_valid: int = 0
    doubts: Counter[str] = field(default_factory=Counter)

    def add(self, status: str, doubts: str = VALID) -> None:
        """Count a point, with what `doubts_of` says of its row."""
        self.statuses[status] += 1
        if status == PointStatus.OK and doubts:
            self.doubt([doubts])

    def doubt(self, doubts: Iterable[str]) -> None:
        """Count ok points that are counted already as not valid, each with its doubts."""
        for flags in doubts:
            self.not_valid += 1
            self.doubts.update(flags.split(";"))

    def counts(self) -> dict[str, int]:
        """Return points by status, in the order of the statuses' table."""
        return {name: n for name in PointStatus if (n := self.statuses[name])}

    def __str__(self) -> str:
        """Return ``36 ok, 32 of them not valid: very_noisy 30, inaccurate 2; 1 error``."""
        if not self.not_valid:
            return text.tally(self.statuses, PointStatus)
        flags = sorted(self.doubts.items(), key=lambda item: (-item[1], item[0]))
        why = ", ".join(f"{flag} {points:,}" for flag, points in flags)
        measured = f"{self.statuses[PointStatus.OK]:,} ok, {self.not_valid:,} of them not valid"
        others = {name: n for name, n in self.statuses.items() if name != PointStatus.OK}
        return "; ".join(filter(None, (f"{measured}: {why}", text.tally(others, PointStatus))))

    def to_json(self) -> dict[str, Any]:
        """Return the counts of what is not valid, for the records that have `statuses`."""
        return {"not_valid": self.not_valid, "doubts": dict(self.doubts)}


def doubts_of(row: Mapping[str, Any]) -> str:
    """Return the flags that make a row not valid, joined by semicolons; `VALID` for none."""
    if row.get("valid") not in {False, "false"}:
        return VALID
    flags = [flag for flag in str(row.get("flags") or "").split(";") if flag in DOUBTFUL]
    return ";".join(flags) or "no flag"


def doubts_in(attempts: Iterable[ShardPath]) -> dict[str, str]:
    """Return what `doubts_of` says of the points that have an ok row; of several the last counts.

    Raises:
        ResultsError: a shard cannot be read.
    """
    found: dict[str, str] = {}
    for shard in attempts:
        found.update(doubts_in_lines(shards.complete_lines(shard.overall)))
    return found


def doubts_in_lines(lines: Sequence[bytes]) -> dict[str, str]:
    """Return the same for the complete lines of one shard, its header first.

    A quick look, as `shards.keys_in` takes: it parses the last cells only.
    """
    columns = lines[0].decode("utf-8", "replace").split(",") if lines else []
    if not {"valid", "flags"} <= {*columns}:
        return {}
    valid, flags = (columns.index(name) - len(columns) for name in ("valid", "flags"))
    depth, found = -min(valid, flags), dict[str, str]()
    for line in lines:
        if line[_ID_AND_OK] != b",ok,":
            continue
        cells = line.rsplit(b",", depth)
        if b'"' in line:  # a comma may be part of a cell
            cells = [cell.encode() for cell in next(csv.reader([line.decode("utf-8", "replace")]))]
        doubt = len(cells) >= depth and cells[valid] == b"false"
        found[line[: _ID_AND_OK.start].decode("ascii", "replace")] = (
            doubts_of({"valid": False, "flags": cells[flags].decode("utf-8", "replace")})
            if doubt
            else VALID
        )
    return found
