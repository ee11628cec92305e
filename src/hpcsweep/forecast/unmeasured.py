"""Points that were not measured, as rows of tables, and what is said of them; it predicts none."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd

from hpcsweep import files
from hpcsweep.catalog import columns
from hpcsweep.forecast import Basis
from hpcsweep.forecast.intervals import FEWEST, Widths
from hpcsweep.point import LABEL, Point
from hpcsweep.text import aligned, count

PREDICTED: Final = "predicted"
# what is left out to find out how wide an interval must be; of other bases nothing can be
TRIED: Final = {
    Basis.SIZES: "size", Basis.NETWORKS: "network", Basis.ALGORITHMS: "algorithm",
    Basis.GPUS: "gpu",
}  # fmt: skip
_ADDED: Final = ("predicted_lo_ms", "predicted_hi_ms", "interval_from", "basis", "source")
_OF_ENERGY: Final = ("predicted_lo_j", "predicted_hi_j")
_SHOWN: Final = 10  # points that fit on a screen; the table has all
# of these GPUs no pass was measured here: what would make the prediction an answer is told
_UNMEASURED_THERE: Final = (Basis.FOREIGN, Basis.GPUS)
_TOLD: Final = 0.02  # a shift of the machine below this is its usual noise


@dataclass(frozen=True)
class Predicted:
    """The points of a sweep and their layer calls, as rows of tables."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    layers: pd.DataFrame
    widths: Mapping[Basis, Widths]

    def write(self, folder: Path) -> list[Path]:
        """Write both tables beside those of measured points, and return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        overall = pd.DataFrame(self.rows, columns=[*columns.OVERALL_COLUMNS, *_ADDED, *_OF_ENERGY])
        layers = self.layers.reindex(columns=[*columns.LAYER_COLUMNS, "status", *_ADDED])
        paths = [folder / "predicted.csv", folder / "predicted_layers.csv"]
        for path, table in zip(paths, (overall, layers), strict=True):
            with files.replacing(path) as file:
                file.write(table.to_csv(index=False, float_format="%.7g").encode())
        return paths

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        shift = max((width.shift for width in self.widths.values()), default=0.0)
        return {
            "sweep": self.name,
            "interval_factors": {basis: width.total for basis, width in self.widths.items()},
            "interval_from": {basis: width.parts for basis, width in self.widths.items()},
            "machine_shift_pct": 100 * math.expm1(shift),
            "rows": list(self.rows),
        }

    def text(self) -> str:
        """Return how many points rest on what, and the first points."""
        lines = [f"{self.name}: {count(len(self.rows), 'point')}, {PREDICTED}"]
        for basis in Basis:
            rows = [row for row in self.rows if row["basis"] == basis]
            if rows:
                lines.append(f"  {len(rows):,} {self._says(basis, rows)}")
        joules = sum("predicted_lo_j" in row for row in self.rows)
        if joules:
            lines.append(f"  the energy of a pass, too, for {count(joules, 'point')}")
        table = [[*LABEL, "ms", "90 % interval", "from"]]
        for row in self.rows[:_SHOWN]:
            interval = f"{row['predicted_lo_ms']:.3f} to {row['predicted_hi_ms']:.3f}"
            label = [str(row[name]) for name in LABEL]
            table.append([*label, f"{row['median_ms']:.3f}", interval, row["basis"]])
        lines += ["", *aligned(table)]
        if len(self.rows) > _SHOWN:
            lines.append(f"... and {len(self.rows) - _SHOWN:,} more")
        return "\n".join(lines)

    def _says(self, basis: Basis, rows: Sequence[Mapping[str, Any]]) -> str:
        """Return what the points of `rows` rest on, and how wide their interval is."""
        if basis is Basis.MEASURED:
            return "measured"
        width = self.widths[basis]
        parts = count(width.parts, TRIED[basis]) if width.parts else "nothing"
        guess = "a guess: " if width.is_guess else ""
        factor = statistics.median(row["predicted_hi_ms"] / row["median_ms"] for row in rows)
        interval = f"interval: a factor of {factor:.2f}, {guess}from {parts}"
        if width.shift >= _TOLD:
            wider = f"wider by {100 * math.expm1(width.shift):.0f} %"
            interval += f"; {wider}, since the controls show another state of the machine"
        if basis in _UNMEASURED_THERE:
            interval += f"; one network measured there corrects it, {FEWEST} bound it"
        return f"from {basis}: {basis.says} ({interval})"


def row(point: Point, basis: Basis, ms: float, width: Widths, source: str) -> dict[str, Any]:
    """Return the row of a point, in the columns of measured ones."""
    is_measured = basis == Basis.MEASURED
    images = point.axes.get("batch_size")  # of a pass; a command need not tell
    return {
        **columns.axis_cells(point.axes),
        "point_id": point.point_id,
        "workload": point.workload,
        "status": "ok" if is_measured else PREDICTED,
        "median_ms": ms,
        "throughput_ips": None if images is None else 1000 * images / ms,
        "predicted_lo_ms": ms / width.total,
        "predicted_hi_ms": ms * width.total,
        "interval_from": None if is_measured else width.parts,
        "basis": str(basis),
        "source": source,
    }
