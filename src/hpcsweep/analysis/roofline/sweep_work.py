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
from hpcsweep.analysis.dataset import Dataset
from hpcsweep.analysis.merged import cells
from hpcsweep.analysis.roofline.roofs import Export, table_of
from hpcsweep.catalog import may_use_tensor_cores
from hpcsweep.errors import UsageError
from hpcsweep.text import count

Row = Mapping[Any, Any]

_MIXED: Final = {"fp16": "float16", "bf16": "bfloat16"}  # values of the axis `amp`
_FEWER: Final = ("winograd", "fft")  # algorithms that multiply less than the definition
_WORK: Final = ["flops", "bytes_min", "median_ms"]
_ABOUT: Final = ["point_id", "call_index", "layer", "algorithm", "backend", "algorithm_used"]


def work_of(data: Dataset, gpu: str | None, *, layers: bool = False, where: str = "") -> Export:
    """Return pieces of work: the measured points of a sweep, or their layer calls.

    `gpu` chooses one of several, `where` has conditions, as `--where`. `UsageError` where the sweep
    ran on several GPU types, or its workload has no work columns.
    """
    sweep_dir = data.sweep_dir
    rows = _of_one_gpu(data, data.where(where), gpu)
    trained = cells(rows, "workload") == dataset.TRAINING
    points = {point["point_id"]: point for point in rows.to_dict("records")}
    # of a training point the work columns count the forward pass, so that is its time
    forward = rows["median_ms"].where(~trained, rows.get("phase_forward_ms", math.nan))
    pieces = data.layers() if layers else rows.assign(median_ms=forward)
    pieces = pieces[pieces["point_id"].isin(points)]
    known = pieces.reindex(columns=[*_WORK, *_ABOUT])
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
    records = known.to_dict("records")
    works = [_work(row, points[row["point_id"]], varying, layers=layers) for row in records]
    about = pd.DataFrame(works)
    known = known.reset_index(drop=True)
    flops = pd.get_dummies(about.pop("unit")).mul(known["flops"], axis=0)
    seconds = known["median_ms"] / 1e3
    work = table_of(flops, **about, bytes=known["bytes_min"], seconds=seconds)
    hardware = dataset.hardware(rows)
    return Export(work, _device(rows), tuple(notes), piece, counted=False, hardware=hardware)


def _of_one_gpu(data: Dataset, rows: pd.DataFrame, gpu: str | None) -> pd.DataFrame:
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
        names = cells(rows, column, None).dropna().unique()
        if len(names) == 1:
            return str(names[0])
    return ""


def _work(row: Row, point: Row, varying: Iterable[str], *, layers: bool) -> dict[str, Any]:
    known = [axis for axis in varying if pd.notna(point[axis])]
    names = [axis for axis in known if not dataset.is_quantity(axis)]
    detail = [axis for axis in known if dataset.is_quantity(axis)]
    if layers:
        ident = f"{row['point_id']}:{row['call_index']:g}"
        name = row["layer"]
        detail = [*names, *detail]
    else:
        ident = row["point_id"]
        name = formats.labelled(point, names) or str(point["model"])
    ran: list[str] = []
    for cell in (row.get("algorithm_used"), row.get("algorithm"), point.get("algorithm")):
        ran += str(cell).split("+")
    fewer = any(algorithm.startswith(_FEWER) for algorithm in ran)
    detail_text = formats.labelled(point, detail)
    unit = _unit(row, point)
    return {"name": name, "id": ident, "unit": unit, "detail": detail_text, "fewer": fewer}


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
