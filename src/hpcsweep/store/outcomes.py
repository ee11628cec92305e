"""Counts how points ended: valid, not valid and why, failed and why, disturbed and by what.

All headlines that count points are made here, so that none hides rows whose `valid` is false, and
each is followed by a line on how to measure these again.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import text
from hpcsweep.catalog import AXES, COMMAND, axis_defaults
from hpcsweep.catalog.columns import (
    DOUBTFUL,
    FIGURES,
    FOREIGN,
    IMPOSSIBLE,
    LASTING,
    NEIGHBOURS_DISTURB,
    TOLD_FLAGS,
    UNDECIDED,
)
from hpcsweep.point import LABEL, NO_MAPS, Point
from hpcsweep.store.row_reader import read_rows
from hpcsweep.store.state import PointStatus, rank
from hpcsweep.text import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hpcsweep.store.folders import ShardPath, SweepDir

    Row = Mapping[str, Any]

VALID: Final = ""
WELL: Final = frozenset({PointStatus.OK, PointStatus.PROFILED})
_DIGITS: Final = re.compile(r"\d[\d.,]*")
DOUBTS: Final = ("valid", "flags")  # the cells that say whether a row is valid
_NEIGHBOURS: Final = "neighbours"
_SLOWDOWN: Final = "neighbour_slowdown_pct"
NEIGHBOURS: Final = (_NEIGHBOURS, _SLOWDOWN)  # the cells of a control in a job with several GPUs
_EXCEPT: Final = {VALID, "old_files"}  # `old_files` has a line and a command of its own
# what `failures_in` and `disturbance` tell of a row
TOLD: Final = (
    "status", "status_reason", "valid", "flags", *LABEL, "input_width", "visit",
    "workload", "own_axes", "load_avg_1min", "threads", "checks_missing",
    *(figure.column for figure in FIGURES), *(flag.detail for flag in TOLD_FLAGS if flag.detail),
)  # fmt: skip
# axes of the catalogue that a command may have, beside its own
_OF_COMMANDS: Final = tuple(name for name in AXES if name not in axis_defaults(COMMAND.name))
_WELL_ROWS: Final = {status: {"status": str(status)} for status in WELL}
_NOT_HERE: Final = {FOREIGN, IMPOSSIBLE}  # a mistake of another program


@dataclass
class PointTally:
    """Counts points by status, and ok points that are not valid by flag."""

    statuses: Counter[str] = field(default_factory=Counter)
    not_valid: int = 0
    doubts: Counter[str] = field(default_factory=Counter)

    def add(self, status: str, doubts: str = VALID) -> None:
        """Count a point with the doubts of its row (`doubts_of`)."""
        self.statuses[status] += 1
        if status == PointStatus.OK and doubts:
            self.doubt([doubts])

    def doubt(self, doubts: Iterable[str]) -> None:
        """Count points as not valid, given the doubts of each; `add` has counted their statuses."""
        for flags in doubts:
            self.not_valid += 1
            self.doubts.update(flags.split(";"))

    def counts(self) -> dict[str, int]:
        """Return points by status, in the order of the statuses' table."""
        return {name: self.statuses[name] for name in PointStatus if self.statuses[name]}

    def __str__(self) -> str:
        """Return ``36 ok, 32 of them not valid: very_noisy 30, inaccurate 2; 1 error``."""
        if not self.not_valid:
            return text.tally(self.statuses, PointStatus)
        measured = f"{self.statuses[PointStatus.OK]:,} ok, {self.not_valid:,} of them not valid"
        others = text.tally({**self.statuses, PointStatus.OK: 0}, PointStatus)
        text_of_ok = f"{measured}: {self.flagged()}"
        return f"{text_of_ok}; {others}" if others else text_of_ok

    def flagged(self) -> str:
        """Return ``very_noisy 30, inaccurate 2``, the most frequent first."""
        flags = sorted(self.doubts.items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{flag} {points:,}" for flag, points in flags)

    def to_json(self) -> dict[str, Any]:
        """Return the counts of points that are not valid, without those by status."""
        return {"not_valid": self.not_valid, "doubts": dict(self.doubts)}


def doubts_of(row: Row) -> str:
    """Return the flags that make a row not valid, joined by semicolons; `VALID` for none."""
    if row.get("valid") not in {False, "false"}:
        return VALID
    flags = [flag for flag in str(row.get("flags") or "").split(";") if flag in DOUBTFUL]
    return ";".join(flags) or "no flag"


def doubts_in(rows: Iterable[Row]) -> dict[str, str]:
    """Return the doubts of the points that have an ok row; of several rows the last counts.

    Of rows the cells `DOUBTS` are needed.
    """
    return {row["point_id"]: doubts_of(row) for row in rows if row["status"] == PointStatus.OK}


@dataclass(frozen=True)
class FailureGroup:
    """The points that were not measured for one reason; `first` is the label of one of them."""

    status: str
    reason: str
    points: int
    first: str

    def __str__(self) -> str:
        others = f" and {count(self.points - 1, 'other')}" if self.points > 1 else ""
        return f"{self.points:,} {self.status}: {self.reason} ({self.first}{others})"


def failures_in(rows: Iterable[Row], maps: Mapping[str, str] = NO_MAPS) -> list[FailureGroup]:
    """Group rows of points that were not measured by reason, the most frequent first.

    Reasons that differ only in numbers are one. `maps` has the names of maps of algorithms.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        reason = _DIGITS.sub("#", row.get("status_reason") or "")
        groups.setdefault((row["status"], reason), []).append(row)
    found = []
    for alike in sorted(groups.values(), key=len, reverse=True):
        first = alike[0]
        reason = first.get("status_reason") or "no reason was given"
        found.append(FailureGroup(first["status"], reason, len(alike), _label(first, maps)))
    return found


def _label(row: Row, maps: Mapping[str, str]) -> str:
    """Return the label of a row's point; that of a command has all axes."""
    own = json.loads(row.get("own_axes") or "{}")
    named = [name for name in _axes_of_command(row) if name not in LABEL and row.get(name)]
    return Point("", {**row, **own}).label(maps, [*named, *own]).strip()


def _axes_of_command(row: Row) -> Sequence[str]:
    """Return the axes of the catalogue that a command may have chosen."""
    return _OF_COMMANDS if row.get("workload") == COMMAND.name else ()


def rows_of(
    attempts: Iterable[ShardPath],
    columns: Sequence[str] | None = None,
    kept: Callable[[Row], Row] = dict,
) -> dict[str, Row]:
    """Return by point the row that counts, with the asked cells and its shard as the key `_shard`.

    `kept` returns what of a row is kept: whole rows of a large sweep fill a login node's memory.
    """
    counting: dict[str, Row] = {}
    for shard in attempts:
        for row in read_rows([shard], columns):
            row["_shard"] = shard
            before = counting.get(row["point_id"], row)["status"]
            if rank(PointStatus(row["status"])) >= rank(PointStatus(before)):
                counting[row["point_id"]] = kept(row)
    return counting


def told_rows(attempts: Iterable[ShardPath]) -> dict[str, Row]:
    """Return by point what messages tell of the row that counts."""
    return rows_of(attempts, (*TOLD, *_OF_COMMANDS), told_of)


def told_of(row: Row) -> Row:
    """Return the cells of a row that messages tell: of a sound one the status alone.

    Equal texts share their memory.
    """
    if row["status"] in WELL and not doubts_of(row):
        return _WELL_ROWS[row["status"]]
    cells = dict[str, str]()
    for name in (*TOLD, *_axes_of_command(row)):
        if row.get(name):
            cells[name] = sys.intern(str(row[name]))
    return cells


def failures_of(
    attempts: Iterable[ShardPath], maps: Mapping[str, str] = NO_MAPS
) -> list[FailureGroup]:
    """Group the points of shards that were not measured by reason."""
    rows = told_rows(attempts).values()
    return failures_in((row for row in rows if row["status"] not in WELL), maps)


def disturbance(sweep_dir: SweepDir, rows: Iterable[Row]) -> str:
    """Return a line on the rows that are not valid and how to measure them again; empty without.

    Measuring again does not help rows with lasting flags, such as `algorithm_absent`.
    """
    doubted = []
    passing = []
    lasting = set[str]()
    for row in rows:
        doubts = doubts_of(row)
        if not doubts or row["status"] != PointStatus.OK:
            continue
        doubted.append(row)
        flags = {*doubts.split(";")} - _EXCEPT
        if flags <= LASTING:
            lasting |= flags - {FOREIGN}
        elif flags != _NOT_HERE:
            passing.append(row)
    parts = []
    if passing:
        these = "this point" if len(passing) == 1 else f"these {count(len(passing), 'point')}"
        again = f"to measure {these} again: {sweep_dir.command('retry', '--invalid')}"
        why = "; ".join(_causes(passing)) or "no column says what by"
        parts.append(f"disturbed ({why})")
        if sweep_dir.sweep_file.is_file():  # tables that were imported have none
            parts.append(again)
    if lasting:
        flags_told = ", ".join(sorted(lasting))
        if UNDECIDED in lasting:
            missing = _texts(doubted, "checks_missing")
            ended = ", ".join(sorted({text.partition(":")[0] for text in missing}))
            why = f"{UNDECIDED} (a process ended in the check {ended})"
            flags_told = flags_told.replace(UNDECIDED, why)
        parts.append(f"{flags_told}: would be so again (hpcsweep show {sweep_dir.name})")
    return "; ".join(parts)


def beside_neighbours(rows: Iterable[Row]) -> str:
    """Return a line on what the GPUs of a job cost each other; empty where no row was a control.

    Of rows the cells `NEIGHBOURS` and the flags are needed.
    """
    slower = []
    most = 0.0
    disturbed = 0
    for row in rows:
        percent = _number(row, _SLOWDOWN, math.nan)
        if math.isnan(percent):
            continue
        slower.append(percent)
        most = max(most, _number(row, _NEIGHBOURS))
        disturbed += NEIGHBOURS_DISTURB in str(row.get("flags") or "")
    if not slower:
        return ""
    middle = median(slower)
    than = "slower" if middle >= 0 else "faster"
    jobs = "one job" if len(slower) == 1 else f"median of {count(len(slower), 'job')}"
    told = f"beside {count(int(most), 'neighbour')} {abs(middle):.1f} % {than} than alone ({jobs})"
    if disturbed:
        told += f"; {NEIGHBOURS_DISTURB} in {disturbed}: `gpus_per_job: 1` measures without them"
    return told


def median(numbers: Iterable[float]) -> float:
    """Return the median: `statistics`, which has one, takes as long to load as half of a status."""
    ordered = sorted(numbers)
    half = len(ordered) // 2
    return (ordered[half] + ordered[~half]) / 2


def _texts(rows: Iterable[Row], name: str) -> list[str]:
    """Return the filled cells of a column; an empty one is a NaN in tables."""
    cells = (row.get(name) for row in rows)
    return [cell for cell in cells if isinstance(cell, str) and cell]


def _causes(rows: Sequence[Row]) -> list[str]:
    """Return the causes of disturbance: medians over rows above a threshold, and flags."""
    flags = set[str]()
    loads = []
    for row in rows:
        flags.update(doubts_of(row).split(";"))
        load = _number(row, "load_avg_1min")
        if load >= 1 + _number(row, "threads", 1):  # the point's own threads disturb nobody
            loads.append(load)
    causes = []
    # the median, as one busy point says little of a sweep
    if loads:
        causes.append(f"load {median(loads):.1f}")
    for figure in FIGURES:
        numbers = [_number(row, figure.column) for row in rows]
        large = [number for number in numbers if number > figure.above]
        if large:
            causes.append(figure.words(median(large)))
    for flag in TOLD_FLAGS:
        if flag.name in flags:
            details = ", ".join(dict.fromkeys(_texts(rows, flag.detail)))
            causes.append(f"{flag.words}: {details}" if details else flag.words)
    return causes


def _number(row: Row, name: str, missing: float = 0.0) -> float:
    """Return a cell as a number; shards hold texts, and tables NaN for an empty cell."""
    try:
        value = float(row.get(name) or math.nan)
    except ValueError:
        return missing
    return missing if math.isnan(value) else value
