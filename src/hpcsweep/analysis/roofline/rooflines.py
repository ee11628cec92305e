"""Makes a roofline of a profiler's export or a collected sweep, as text, JSON and CSV records.

A piece of work above its roof is a mistake in the counters, the clock or the peak, and is reported
as a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Final

import pandas as pd

from hpcsweep.analysis import dataset
from hpcsweep.analysis.roofline import ncu, rocprof, roofs, sweep_work
from hpcsweep.analysis.roofline.roofs import (
    TOLERANCE,
    Export,
    Roofs,
    labels,
    roofs_of,
    shortened,
    summed,
)
from hpcsweep.catalog import gpus
from hpcsweep.errors import UsageError, suggest
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import aligned, count, plural

_SHOWN: Final = 15  # groups of the table, which is to fit a screen
_WORST: Final = 5  # pieces that a message about mistakes names
_NAME_WIDTH: Final = 56  # so that a row with its numbers fits 120 columns
_GIVEN: Final = "the command line"


@dataclass(frozen=True)
class Roofline:
    """Pieces of work below the roofs of the device that did them."""

    label: str
    export: Export
    roofs: Roofs

    @cached_property
    def pieces(self) -> pd.DataFrame:
        """A row per piece."""
        return self.roofs.held_against(self.export.work)

    @cached_property
    def groups(self) -> pd.DataFrame:
        """The pieces summed by name, the longest first."""
        return self.roofs.held_against(summed(self.export.work, self.export.work["name"]))

    @cached_property
    def peaks(self) -> dict[str, float]:
        """TFLOP/s of the units that did any operation; of one peak for all, that."""
        return {unit: self.roofs.peak(unit) / 1e12 for unit in roofs.units_of(self.export.work)}

    @property
    def above(self) -> pd.DataFrame:
        """The pieces above their roof, the worst first."""
        return self.pieces[self.pieces["above_roof"]].sort_values("pct_of_roof", ascending=False)

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        total = self.roofs.held_against(summed(self.export.work, "total"))
        return {
            "label": self.label,
            "peaks": self.roofs.source,
            "bandwidth_gbs": self.roofs.bandwidth / 1e9,
            "compute_tflops": self.peaks,
            "pieces": _records(self.pieces),
            "groups": _records(self.groups),
            "total": _records(total)[0],
            "above_roof": [*self.above["id"]],
            "notes": list(self.export.notes),
        }

    def records(self, *, grouped: bool = False) -> list[dict[str, Any]]:
        """Return one flat record per piece, or per name."""
        return _records(self.groups if grouped else self.pieces)

    def text(self) -> str:
        """Return the roofs, the longest groups and the total, for a terminal."""
        return "\n".join([*self._heading(), "", *self._table(), "", *self._notes()]).rstrip()

    def _heading(self) -> list[str]:
        pieces = count(len(self.pieces), self.export.piece)
        names = "" if len(self.groups) == len(self.pieces) else f" of {len(self.groups)} names"
        peaks = ", ".join(f"{unit} {peak:g}" for unit, peak in self.peaks.items())
        roofs = f"{peaks} TFLOP/s, {self.roofs.bandwidth / 1e9:g} GB/s"
        return [f"{self.label}: {pieces}{names}", f"roofs of {self.roofs.source}: {roofs}"]

    def _table(self) -> list[str]:
        head = ["name", plural(self.export.piece), "ms", "GFLOP", "MB", "FLOP/B", "TFLOP/s"]
        shown = self.groups["name"].head(_SHOWN)
        pieces = self.export.work
        more = f"... {len(self.groups) - _SHOWN} more"
        sums = summed(pieces, pieces["name"].where(pieces["name"].isin(shown), more))
        is_more = sums["name"] == more
        sums = pd.concat([sums[~is_more], sums[is_more], summed(pieces, "total")])
        rows = self.roofs.held_against(sums)
        names = labels(shown, _NAME_WIDTH)
        lines = [_line(names, row) for row in rows.itertuples()]
        return aligned([[*head, "% roof", ""], *lines], left=1)

    def _notes(self) -> list[str]:
        notes = [f"   {note}" for note in self.export.notes]
        idle = int((self.pieces["flops"] == 0).sum())
        if idle:
            notes.append(f"   {count(idle, self.export.piece)} without FLOPs: not in the picture")
        high = self.pieces["pct_of_roof"] > 100 * TOLERANCE
        saved = int((high & ~self.pieces["above_roof"]).sum())
        if saved:
            notes.append(
                f"   {count(saved, self.export.piece)} above the compute roof: Winograd and FFT do "
                "fewer operations than are counted"
            )
        return [*notes, *self._mistakes()]

    def _mistakes(self) -> list[str]:
        """Return the pieces above their roof, and what may be wrong."""
        if self.above.empty:
            return []
        pieces = count(len(self.above), self.export.piece)
        lines = [f"!  {pieces} above the roof, which cannot be: {self._reason()}"]
        for piece in self.above.head(_WORST).itertuples():
            name = shortened(f"{piece.name} {piece.detail}".strip(), _NAME_WIDTH)
            share = f"{piece.pct_of_roof:.0f} % of its {piece.bound} roof"
            lines.append(f"   {piece.id}: {name}: {share}")
        return lines

    def _reason(self) -> str:
        if self.export.counted:
            return "the peaks are another device's, or time and counters are of different runs"
        bounds = set(self.above["bound"])
        reasons = []
        if "memory" in bounds:
            cached = "caches served some of the bytes, which bytes_min counts as memory traffic"
            reasons.append(cached)
        if "compute" in bounds:
            reasons.append("FLOPs or times are of something else")
        return "; ".join([*reasons, "or the peaks are another device's"])


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    cells: list[Any] = rows.astype(object).where(rows.notna(), None).to_dict("records")
    return cells


def _line(names: Mapping[str, str], row: Any) -> list[str]:  # noqa: ANN401 - a row
    return [
        names.get(row.name, row.name),
        str(row.count),
        f"{row.time_us / 1e3:.4g}",
        f"{row.flops / 1e9:.4g}",
        f"{row.bytes / 1e6:.4g}",
        f"{row.flop_per_byte:.3g}" if row.bytes else "-",
        f"{row.tflops:.3g}",
        f"{row.pct_of_roof:.1f}",
        "above!" if row.above_roof else row.bound,
    ]


def read_roofline(  # noqa: PLR0913 - one argument per option
    source: SweepDir | Sequence[Path],
    *,
    gpu: str | None = None,
    peak_compute: float | None = None,
    peak_bw: float | None = None,
    label: str | None = None,
    layers: bool = False,
    where: str = "",
) -> Roofline:
    """Read exports, or the tables of a sweep, and find the roofs of their device.

    `peak_compute` (TFLOP/s) and `peak_bw` (GB/s) override the peaks of `gpu`, and these override
    the peaks of the device that the source names. `UsageError` where a source cannot be read, or no
    peaks are known.
    """
    if isinstance(source, SweepDir):
        name = source.name
        export = sweep_work.work_of(dataset.read_dataset(source), gpu, layers=layers, where=where)
    else:
        is_sample = source[0] == sample()
        name = "sample (computed, not measured)" if is_sample else source[0].stem
        export = _export(source, layers=layers, where=where)
    roofs = _roofs(export.device, gpu, peak_compute, peak_bw)
    roofline = Roofline(label or name, export, roofs)
    roofline.pieces  # noqa: B018 - refuses units without a peak
    return roofline


def under_roofs(export: Export, gpu: str) -> Roofline:
    """Return work below the roofs of its device, or of a GPU; `UsageError` without peaks."""
    known = export.device if gpus.sheet(export.device) else gpu
    return Roofline("", export, _roofs(known, None, None, None))


def sample() -> Path:
    """Return the sample export that comes with hpcsweep: computed, not measured."""
    return Path(str(resources.files("hpcsweep.analysis.roofline") / "sample_ncu.csv"))


def _export(sources: Sequence[Path], *, layers: bool, where: str) -> Export:
    first = sources[0]
    if layers or where:
        option = "--layers" if layers else "--where"
        raise UsageError(f"{first}: {option} is for sweeps; an export has one row per launch")
    if first.suffix == ".ncu-rep":
        raise UsageError(f"{first}: export it first: ncu --import {first} --csv --page raw > x.csv")
    lines = roofs.text(first).splitlines()
    if any(map(rocprof.is_export, lines)) and not any(map(ncu.is_export, lines)):
        return rocprof.read_rocprof(sources)
    if len(sources) > 1:
        raise UsageError(f"{sources[1]}: only the passes of rocprofv3 are joined; give one export")
    return ncu.read_ncu(first)


def _roofs(device: str, gpu: str | None, compute: float | None, bandwidth: float | None) -> Roofs:
    if compute and bandwidth:
        return Roofs(bandwidth * 1e9, _GIVEN, single=compute * 1e12)
    entry = gpus.sheet(gpu or device)
    if entry is None and gpu:
        known = [*gpus.GPUS, *(entry.name for entry in gpus.DEVICES)]
        raise UsageError(f"no GPU '{gpu}'{suggest(gpu, known)} (there are: {', '.join(known)})")
    if entry is None:
        whose = f"no peaks of '{device}' are known" if device else "the export names no device"
        raise UsageError(
            f"{whose}: give --gpu ({', '.join(gpus.GPUS)}), or --peak-compute TFLOP/s and "
            "--peak-bw GB/s, as of a CPU, whose peaks no table has"
        )
    roofs = roofs_of(entry)
    if compute or bandwidth:
        roofs = replace(roofs, source=f"{entry.name} and {_GIVEN}")
    if bandwidth:
        roofs = replace(roofs, bandwidth=bandwidth * 1e9)
    return replace(roofs, single=compute * 1e12) if compute else roofs
