"""Makes a roofline of a profiler's export or a collected sweep, as text, JSON and CSV records.

A piece of work above its roof is a mistake in the counters, the clock or the peak, and is reported
as a mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Final

from hpcsweep.analysis import dataset
from hpcsweep.analysis.roofline import ncu, rocprof, sweep, work
from hpcsweep.analysis.roofline.work import (
    TOLERANCE,
    Export,
    Roofs,
    Work,
    labels,
    roofs_of,
    shortened,
    summed,
)
from hpcsweep.catalog import gpus
from hpcsweep.errors import UsageError, suggest
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import aligned, count, plural

_SHOWN: Final = 15
_NAME_WIDTH: Final = 56
_GIVEN: Final = "the command line"


@dataclass(frozen=True)
class Roofline:
    """Pieces of work, and the roofs of the device that did them."""

    label: str
    export: Export
    roofs: Roofs

    @cached_property
    def groups(self) -> tuple[Work, ...]:
        """The pieces summed by name, the longest first."""
        by_name: dict[str, list[Work]] = {}
        for piece in self.export.work:
            by_name.setdefault(piece.name, []).append(piece)
        found = [summed(name, pieces) for name, pieces in by_name.items()]
        return tuple(sorted(found, key=lambda group: -group.seconds))

    @cached_property
    def units(self) -> tuple[str, ...]:
        """The units that did any operation."""
        found = {unit for piece in self.export.work for unit, n in piece.flops.items() if n}
        return tuple(sorted(found))

    @cached_property
    def above(self) -> tuple[Work, ...]:
        """The pieces above their roof, the worst first."""
        found = [piece for piece in self.export.work if self.is_above(piece)]
        return tuple(sorted(found, key=lambda piece: -self.roofs.share(piece)))

    def is_above(self, piece: Work) -> bool:
        """Tell whether a piece did more than the device can do."""
        saves = piece.fewer and self.roofs.bound(piece) == "compute"
        return self.roofs.share(piece) > TOLERANCE and not saves

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        return {
            "label": self.label,
            "peaks": self.roofs.source,
            "bandwidth_gbs": self.roofs.bandwidth / 1e9,
            "compute_tflops": {unit: self.roofs.peak(unit) / 1e12 for unit in self.units},
            "pieces": self.records(),
            "groups": self.records(grouped=True),
            "total": self._record(summed("total", self.export.work)),
            "above_roof": [piece.ident for piece in self.above],
            "notes": list(self.export.notes),
        }

    def records(self, *, grouped: bool = False) -> list[dict[str, Any]]:
        """Return one flat record per piece, or per name."""
        return [self._record(piece) for piece in (self.groups if grouped else self.export.work)]

    def text(self) -> str:
        """Return the roofs, the longest groups and the total, for a terminal."""
        return "\n".join([*self._heading(), "", *self._table(), "", *self._notes()]).rstrip()

    def _record(self, piece: Work) -> dict[str, Any]:
        return {
            "id": piece.ident,
            "name": piece.name,
            "detail": piece.detail,
            "count": piece.count,
            "time_us": piece.seconds * 1e6,
            "flops": _whole(piece.total),
            **{f"flops_{u.replace(' ', '_')}": _whole(piece.flops.get(u, 0)) for u in self.units},
            "bytes": _whole(piece.bytes),
            "flop_per_byte": piece.intensity if piece.bytes else None,
            "tflops": piece.rate / 1e12,
            "gbs": piece.bytes / piece.seconds / 1e9,
            "pct_of_roof": 100 * self.roofs.share(piece),
            "bound": self.roofs.bound(piece),
            "above_roof": self.is_above(piece),
        }

    def _heading(self) -> list[str]:
        work = self.export.work
        groups = self.groups
        pieces = count(len(work), self.export.piece)
        of = "" if len(groups) == len(work) else f" of {len(groups)} names"
        peaks = [f"{unit} {self.roofs.peak(unit) / 1e12:g}" for unit in self.units]
        roofs = f"{', '.join(peaks)} TFLOP/s, {self.roofs.bandwidth / 1e9:g} GB/s"
        return [f"{self.label}: {pieces}{of}", f"roofs of {self.roofs.source}: {roofs}"]

    def _table(self) -> list[str]:
        pieces = plural(self.export.piece)
        head = ["name", pieces, "ms", "GFLOP", "MB", "FLOP/B", "TFLOP/s", "% roof", ""]
        groups = self.groups
        names = labels((group.name for group in groups[:_SHOWN]), _NAME_WIDTH)
        rows = [self._line(names[group.name], group) for group in groups[:_SHOWN]]
        if len(groups) > _SHOWN:
            rest = f"... {len(groups) - _SHOWN} more"
            rows.append(self._line(rest, summed(rest, groups[_SHOWN:])))
        return aligned([head, *rows, self._line("total", summed("total", groups))], left=1)

    def _line(self, name: str, group: Work) -> list[str]:
        return [
            name,
            str(group.count),
            f"{group.seconds * 1e3:.4g}",
            f"{group.total / 1e9:.4g}",
            f"{group.bytes / 1e6:.4g}",
            f"{group.intensity:.3g}" if group.bytes else "-",
            f"{group.rate / 1e12:.3g}",
            f"{100 * self.roofs.share(group):.1f}",
            "above!" if self.is_above(group) else self.roofs.bound(group),
        ]

    def _notes(self) -> list[str]:
        notes = [f"   {note}" for note in self.export.notes]
        idle = sum(not piece.total for piece in self.export.work)
        if idle:
            notes.append(f"   {count(idle, self.export.piece)} without FLOPs: not in the picture")
        high = [piece for piece in self.export.work if self.roofs.share(piece) > TOLERANCE]
        if saved := len(high) - len(self.above):
            notes.append(
                f"   {count(saved, self.export.piece)} above the compute roof: Winograd and FFT do "
                "fewer operations than are counted"
            )
        return [*notes, *self._mistakes()]

    def _mistakes(self) -> list[str]:
        """Return the pieces above their roof, and what may be wrong."""
        if not self.above:
            return []
        pieces = count(len(self.above), self.export.piece)
        lines = [f"!  {pieces} above the roof, which cannot be: {self._reason()}"]
        for piece in self.above[:5]:
            share = f"{100 * self.roofs.share(piece):.0f} % of its {self.roofs.bound(piece)} roof"
            name = shortened(f"{piece.name} {piece.detail}".strip(), _NAME_WIDTH)
            lines.append(f"   {piece.ident}: {name}: {share}")
        return lines

    def _reason(self) -> str:
        if self.export.counted:
            return "the peaks are another device's, or time and counters are of different runs"
        kinds = {self.roofs.bound(piece) for piece in self.above}
        reasons = {
            "memory": "caches served some of the bytes, which bytes_min counts as memory traffic",
            "compute": "FLOPs or times are of something else",
        }
        told = [text for kind, text in reasons.items() if kind in kinds]
        return f"{'; '.join(told)}; or the peaks are another device's"


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
        export = sweep.work_of(dataset.read_dataset(source), gpu, layers=layers, where=where)
    else:
        is_sample = source[0] == sample()
        name = "sample (computed, not measured)" if is_sample else source[0].stem
        export = _export(source, layers=layers, where=where)
    roofs = _roofs(export.device, gpu, peak_compute, peak_bw)
    return _checked(Roofline(label or name, export, roofs))


def under_roofs(export: Export, gpu: str) -> Roofline:
    """Return work below the roofs of its device, or of a GPU; `UsageError` without peaks."""
    known = export.device if gpus.sheet(export.device) else gpu
    return _checked(Roofline("", export, _roofs(known, None, None, None)))


def _checked(roofline: Roofline) -> Roofline:
    """Return a roofline whose units all have a peak."""
    for unit in roofline.units:
        roofline.roofs.peak(unit)
    return roofline


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
    lines = work.text(first).splitlines()
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


def _whole(number: float) -> float | int:
    return int(number) if float(number).is_integer() else float(number)
