"""Makes a roofline of a profiler's export or a collected sweep, as text, JSON and CSV records.

A piece of work above its roof is a mistake in the counters, the clock or the peak, and is reported
as a mistake.

A sweep needs no profiler. FLOPs and bytes are those of the shapes (`flops`, `bytes_min`), time is
the median. So bytes are the least that has to move, not what moved. A layer whose data stays in a
cache can be above the memory roof, and an algorithm that saves operations (Winograd, FFT) above the
compute roof; the text below the table says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pandas as pd

from hpcsweep.analysis import conditions, dataset, formats, reliability
from hpcsweep.analysis.dataset import Dataset
from hpcsweep.analysis.plain_rows import cells
from hpcsweep.analysis.roofline import exports, roofs
from hpcsweep.analysis.roofline.roofs import (
    TOLERANCE,
    Export,
    Roofs,
    labels,
    roofs_of,
    shortened,
    summed,
    table_of,
)
from hpcsweep.catalog import gpus, may_use_tensor_cores
from hpcsweep.errors import UsageError, suggest
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import aligned, count, plural

_SHOWN: Final = 15  # groups of the table, which is to fit a screen
_WORST: Final = 5  # pieces that a message about mistakes names
_NAME_WIDTH: Final = 56  # so that a row with its numbers fits 120 columns
_HEADS: Final = ("ms", "GFLOP", "MB", "FLOP/B", "TFLOP/s", "% roof", "")  # of the table
_GIVEN: Final = "the command line"
_MIXED: Final = {"fp16": "float16", "bf16": "bfloat16"}  # values of the axis `amp`
_FEWER: Final = ("winograd", "fft")  # algorithms that multiply less than the definition
_WORK: Final = ["flops", "bytes_min", "median_ms"]
_TOLD: Final = ["point_id", "call_index", "layer", "algorithm", "backend", "algorithm_used"]
_OF_POINT: Final = {"point_id", "model", "algorithm", "amp", "dtype", "tf32"}  # and what varies
READ: Final = {*_WORK, *_TOLD, *_OF_POINT, "phase_forward_ms", "peak_source", "workload"}


Row = Mapping[Any, Any]  # of a table


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
        pieces = count(len(self.pieces), self.export.piece)
        names = "" if len(self.groups) == len(self.pieces) else f" of {len(self.groups)} names"
        peaks = ", ".join(f"{unit} {peak:g}" for unit, peak in self.peaks.items())
        bandwidth = f"{self.roofs.bandwidth / 1e9:g} GB/s"
        head = f"{self.label}: {pieces}{names}"
        known = f"roofs of {self.roofs.source}: {peaks} TFLOP/s, {bandwidth}"
        return "\n".join([head, known, "", *self._table(), "", *self._notes()]).rstrip()

    def _table(self) -> list[str]:
        shown = self.groups["name"].head(_SHOWN)
        pieces = self.export.work
        is_shown = pieces["name"].isin(shown)
        longest = summed(pieces[is_shown], pieces["name"])
        more = summed(pieces[~is_shown], f"... {len(self.groups) - _SHOWN} more")
        rows = self.roofs.held_against(pd.concat([longest, more, summed(pieces, "total")]))
        names = labels(shown, _NAME_WIDTH)
        lines = [_line(names, row) for row in rows.itertuples()]
        return aligned([["name", plural(self.export.piece), *_HEADS], *lines], left=1)

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
            share = f"{piece.pct_of_roof:.0f} %"
            lines.append(f"   {piece.id}: {name}: {share} of its {piece.bound} roof")
        return lines

    def _reason(self) -> str:
        if self.export.counted:
            return "the peaks are another device's, or time and counters are of different runs"
        reason = ""
        bounds = {*self.above["bound"]}
        if "memory" in bounds:
            reason += "caches served some of the bytes, which bytes_min counts as memory traffic; "
        if "compute" in bounds:
            reason += "FLOPs or times are of something else; "
        return reason + "or the peaks are another device's"


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
        asked = {condition.column for condition in conditions.parse(where)}
        data = dataset.read_dataset(source, columns=READ | asked)
        export = work_of(data, gpu, layers=layers, where=where)
    else:
        is_sample = source[0] == sample()
        name = "sample (computed, not measured)" if is_sample else source[0].stem
        if layers or where:
            option = "--layers" if layers else "--where"
            raise UsageError(f"{source[0]}: {option} is for sweeps, an export has launches")
        export = exports.read(source)
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
    return Path(__file__).with_name("sample_ncu.csv")


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
    if compute:
        roofs = replace(roofs, single=compute * 1e12)
    return roofs


def work_of(data: Dataset, gpu: str | None, *, layers: bool = False, where: str = "") -> Export:
    """Return pieces of work: the measured points of a sweep, or their layer calls.

    `gpu` chooses one of several, `where` has conditions, as `--where`. `UsageError` where the sweep
    ran on several GPU types, or its workload has no work columns.
    """
    sweep_dir = data.sweep_dir
    rows = data.where(where)
    measured_on = sorted(rows["gpu"].dropna().unique())
    if len(measured_on) > 1:
        if gpu not in measured_on:
            which = f"measured on {', '.join(measured_on)}; choose one with --gpu"
            raise UsageError(f"{sweep_dir.overall}: {which}")
        rows = rows[rows["gpu"] == gpu]
    trained = cells(rows, "workload") == dataset.TRAINING
    varying = dataset.varying_axes(rows)
    told = rows.loc[:, rows.columns.isin({*_OF_POINT, *varying})]
    points = {point["point_id"]: point for point in told.to_dict("records")}
    # of a training point the work columns count the forward pass, so that is its time
    forward = rows["median_ms"].where(~trained, rows.get("phase_forward_ms", math.nan))
    pieces = data.layers() if layers else rows.assign(median_ms=forward)
    pieces = pieces[pieces["point_id"].isin(points)]
    known = pieces.reindex(columns=[*_WORK, *_TOLD])
    known = known.dropna(subset=_WORK).query("flops > 0")
    if known.empty and not layers and reliability.is_foreign(rows):
        return work_of(data, gpu, layers=True, where=where)  # no pass, as in a find-db or a trace
    if known.empty:
        path = sweep_dir.layers if layers else sweep_dir.overall
        raise UsageError(f"{path}: no row has {', '.join(_WORK)}; nothing to draw a roofline of")
    notes = ["FLOPs and bytes are those of the shapes, each tensor moved once"]
    notes += [*data.of_earlier_files(), *reliability.unreliable(rows)]
    if not layers and trained.any():
        notes.append("of a training step the forward pass, its work over phase_forward_ms")
    piece = "layer call" if layers else "point"
    if len(known) < len(pieces):
        notes.append(f"{count(len(pieces) - len(known), piece)} without FLOPs or bytes left out")
    records = known.to_dict("records")
    works = [_work(row, points[row["point_id"]], varying, layers=layers) for row in records]
    about = pd.DataFrame(works, known.index)
    flops = pd.get_dummies(about.pop("unit")).mul(known["flops"], axis=0)
    work = table_of(flops, **about, bytes=known["bytes_min"], seconds=known["median_ms"] / 1e3)
    return Export(
        work, _peaks_from(rows), tuple(notes), piece, counted=False,
        hardware=dataset.hardware(rows),
    )  # fmt: skip


def _peaks_from(rows: pd.DataFrame) -> str:
    """Return what the peaks were taken from when the rows were written, or the device's name."""
    for column in ("peak_source", "device_name", "gpu"):
        names = cells(rows, column, None).dropna().unique()
        if len(names) == 1:
            return str(names[0])
    return ""


def _work(row: Row, point: Row, varying: Iterable[str], *, layers: bool) -> dict[str, Any]:
    axes = [axis for axis in varying if not pd.isna(point[axis])]
    detail = [axis for axis in axes if dataset.is_quantity(axis)]
    names = [axis for axis in axes if axis not in detail]
    if layers:
        ident = f"{row['point_id']}:{row['call_index']:g}"
        name = row["layer"]
        detail = names + detail
    else:
        ident = row["point_id"]
        name = formats.labelled(point, names) or str(point["model"])
    ran = f"{row.get('algorithm_used')}+{row.get('algorithm')}+{point.get('algorithm')}"
    fewer = any(algorithm.startswith(_FEWER) for algorithm in ran.split("+"))
    unit = _unit(row, point)
    told = formats.labelled(point, detail)
    return {"name": name, "id": ident, "unit": unit, "detail": told, "fewer": fewer}


def _unit(row: Row, point: Row) -> str:
    """Return whose peak counts: the type's that multiplies, or TF32's where it was allowed.

    An algorithm of cuDNN without tensor cores multiplies in float32.
    """
    dtype = _MIXED.get(str(point.get("amp")), str(point["dtype"]))
    backend = str(row.get("backend"))
    used = str(row.get("algorithm_used")).split("+")
    on_tensor_cores = any(may_use_tensor_cores(backend, name) for name in used)
    if dtype != "float64" and not on_tensor_cores:
        return "float32"
    return "tf32" if dtype == "float32" and point.get("tf32") == "true" else dtype
