"""Makes pieces of work of the points of a collected sweep: a roofline without a profiler.

FLOPs and bytes are those of the shapes (`flops`, `bytes_min`), time is the median. So bytes are
the least that has to move, not what moved. A layer whose data stays in a cache can be above the
memory roof, and an algorithm that saves operations (Winograd, FFT) above the compute roof; the
text below the table says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pandas as pd

from hpcsweep.analysis import dataset, formats, reliability
from hpcsweep.analysis.roofline.roofs import Export, table_of
from hpcsweep.catalog import may_use_tensor_cores
from hpcsweep.errors import UsageError
from hpcsweep.text import count

Row = Mapping[Any, Any]

_MIXED: Final = {"fp16": "float16", "bf16": "bfloat16"}  # values of the axis `amp`
_FEWER: Final = ("winograd", "fft")  # algorithms that multiply less than the definition
_WORK: Final = ["flops", "bytes_min", "median_ms"]


def work_of(
    data: dataset.Dataset, gpu: str | None, *, layers: bool = False, where: str = ""
) -> Export:
    """Return pieces of work: the measured points of a sweep, or their layer calls.

    `gpu` chooses one of several, `where` has conditions, as `--where`. `UsageError` where the sweep
    ran on several GPU types, or its workload has no work columns.
    """
    sweep_dir = data.sweep_dir
    rows = _of_one_gpu(data, data.where(where), gpu)
    trained = rows.get("workload", pd.Series("", rows.index)) == dataset.TRAINING
    points = {point["point_id"]: point for point in rows.to_dict("records")}
    # of a training point the work columns count the forward pass, so that is its time
    forward = rows["median_ms"].where(~trained, rows.get("phase_forward_ms", math.nan))
    pieces = data.layers() if layers else rows.assign(median_ms=forward)
    pieces = pieces[pieces["point_id"].isin(points)]
    known = pieces.reindex(columns=[*_WORK, "point_id", "call_index", "layer"])
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
    varying = dataset.varying_axes(rows)
    cells = [
        _work(row, points[row["point_id"]], varying, layers=layers)
        for row in known.to_dict("records")
    ]
    known = known.reset_index(drop=True)
    told = pd.DataFrame(cells)
    work = table_of(
        pd.get_dummies(told.pop("unit")).mul(known["flops"], axis=0),
        **told, bytes=known["bytes_min"], seconds=known["median_ms"] / 1e3,
    )  # fmt: skip
    hardware = dataset.hardware(rows)
    return Export(work, _device(rows), tuple(notes), piece, counted=False, hardware=hardware)


def _of_one_gpu(data: dataset.Dataset, rows: pd.DataFrame, gpu: str | None) -> pd.DataFrame:
    names = sorted(rows["gpu"].dropna().unique())
    if len(names) < 2:
        return rows
    if gpu not in names:
        raise UsageError(
            f"{data.sweep_dir.overall}: measured on {', '.join(names)}; choose one with --gpu"
        )
    return rows[rows["gpu"] == gpu]


def _device(rows: pd.DataFrame) -> str:
    """Return what the peaks were taken from when the rows were written, or the device's name."""
    for column in ("peak_source", "device_name", "gpu"):
        found = list(rows[column].dropna().unique()) if column in rows else []
        if len(found) == 1:
            return str(found[0])
    return ""


def _work(row: Row, point: Row, varying: Iterable[str], *, layers: bool) -> dict[str, Any]:
    known = [axis for axis in varying if pd.notna(point[axis])]
    known.sort(key=dataset.is_quantity)  # names first
    told = [axis for axis in known if layers or dataset.is_quantity(axis)]
    ident = f"{row['point_id']}:{row['call_index']:g}"
    name = row["layer"]
    if not layers:
        names = [axis for axis in known if axis not in told]
        ident = row["point_id"]
        name = formats.labelled(point, names) or str(point["model"])
    ran = (row.get("algorithm_used"), row.get("algorithm"), point.get("algorithm"))
    return {
        "name": name, "id": ident, "unit": _unit(row, point),
        "detail": formats.labelled(point, told),
        "fewer": any(one.startswith(_FEWER) for cell in ran for one in str(cell).split("+")),
    }  # fmt: skip


def _unit(row: Row, point: Row) -> str:
    """Return whose peak counts: the type's that multiplies, or TF32's where it was allowed.

    An algorithm of cuDNN without tensor cores multiplies in float32.
    """
    dtype = _MIXED.get(str(point.get("amp")), str(point["dtype"]))
    used = str(row.get("algorithm_used")).split("+")
    if dtype != "float64" and not any(
        may_use_tensor_cores(str(row.get("backend")), name) for name in used
    ):
        return "float32"
    return "tf32" if dtype == "float32" and point.get("tf32") == "true" else dtype
