"""What disturbed the points that are not valid, by their own rows, and how to measure them again.

Every headline that counts such points is followed by this line.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.catalog.columns import LASTING
from hpcsweep.store.state import PointStatus
from hpcsweep.store.tally import VALID, doubts_of
from hpcsweep.text import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hpcsweep.store.rundir import RunDir

    Row = Mapping[str, Any]

# columns, above what they tell of a disturbance (as `contended` and `machine_shift` do), and how
_FIGURES: Final = (
    ("waited_pct", 10.0, "{:.0f} % of the time waited for a CPU"),
    ("stolen_pct", 2.0, "{:.0f} % of the time stolen by the hypervisor"),
    ("control_shift_pct", 5.0, "the machine itself slower by {:.0f} %"),
)
_TOLD: Final = {VALID, "old_files"}  # these have a line and a command of their own
_WORDS: Final = {
    "shared_gpu": "another process on the GPU",
    "shared_cpu": "several workers at the same time",
    "throttled": "the GPU throttled",
    "clock_drift": "the GPU's clock moved",
    "lonely": "ten times as long as the neighbours",
}


def advice(run: RunDir, rows: Iterable[Row]) -> str:
    """Return the line for those of these rows that are not valid; nothing if all are.

    Flags of what a point is, such as `algorithm_absent`, would be there again.
    """
    measured = (row for row in rows if row["status"] == PointStatus.OK)
    flags = [({*doubts_of(row).split(";")} - _TOLD, row) for row in measured]
    passing = [row for names, row in flags if names - LASTING]
    lasting = {name for names, _ in flags if names <= LASTING for name in names}
    told = []
    if passing:
        again = f"to measure {_these(len(passing))} again: {run.command('retry', '--invalid')}"
        why = "; ".join(_causes(passing)) or "no column says what by"
        told = [f"disturbed ({why})", *([again] if run.sweep_file.is_file() else [])]
    if lasting:
        told.append(f"{', '.join(sorted(lasting))}: would be so again (hpcsweep show {run.name})")
    return "; ".join(told)


def _these(points: int) -> str:
    return "this point" if points == 1 else f"these {count(points, 'point')}"


def _causes(rows: Sequence[Row]) -> list[str]:
    """Return what columns and flags say: medians over the rows that tell of a disturbance."""
    flags = {flag for row in rows for flag in doubts_of(row).split(";")}
    found = []
    busy = [row for row in rows if _number(row, "load_avg_1min") >= 1 + _number(row, "threads", 1)]
    if busy:
        found.append(f"load {median(_number(row, 'load_avg_1min') for row in busy):.1f}")
    for name, above, words in _FIGURES:
        if values := [value for row in rows if (value := _number(row, name)) > above]:
            found.append(words.format(median(values)))
    reasons = dict.fromkeys(str(row.get("throttle_reasons") or "") for row in rows)
    for flag in [name for name in _WORDS if name in flags]:
        why = ", ".join(filter(None, reasons)) if flag == "throttled" else ""
        found.append(_WORDS[flag] + (f": {why}" if why else ""))
    return found


def _number(row: Row, name: str, missing: float = 0.0) -> float:
    """Return a cell as a number; shards hold texts, and tables NaN for an empty cell."""
    try:
        value = float(row.get(name) or math.nan)
    except ValueError:
        return missing
    return missing if math.isnan(value) else value
