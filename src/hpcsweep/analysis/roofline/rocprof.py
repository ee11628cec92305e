"""What kernels did, from the counters that AMD's profilers collect on CDNA GPUs.

The formulas are those of AMD's empirical roofline, `calc_ai` in `roofline_calc.py` of ROCm Compute
Profiler (Omniperf): a vector instruction is 64 operations, one per lane (FMA: two), a unit of
`SQ_INSTS_VALU_MFMA_MOPS_*` is 512, and HBM traffic is counted in requests of the L2 (TCC) to the
memory's fabric (EA)::

    FLOPs = 64 (ADD + MUL + TRANS + 2 FMA) per type + 512 MFMA_MOPS per type
    bytes = 32 RDREQ_32B + 64 (RDREQ - RDREQ_32B) + 64 WRREQ_64B + 32 (WRREQ - WRREQ_64B)

MI300 has further read requests of 128 bytes (`TCC_BUBBLE`), which `RDREQ` includes.

The hardware counts a few events at a time, so rocprofv3 runs the program several times and writes
a file per pass, `counter_collection.csv`, with one row per counter. Passes are joined by dispatch;
times are those of the first pass. Tables of rocprof, rocprofv2 and ROCm Compute Profiler have a
column per counter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pandas as pd

from hpcsweep import numerals
from hpcsweep.analysis.roofline import roofs
from hpcsweep.analysis.roofline.roofs import Export, Lacking, Source
from hpcsweep.errors import UsageError

_LANES: Final = {"ADD": 64, "MUL": 64, "TRANS": 64, "FMA": 128}
_TYPES: Final = {"F16": "fp16", "F32": "fp32", "F64": "fp64"}
_MATRIX: Final = {"F16": "fp16", "BF16": "bf16", "F32": "fp32", "F64": "fp64"}
_MATRIX_OPS: Final = 512
VALU: Final = {
    f"SQ_INSTS_VALU_{op}_{kind}": (unit, weight)
    for kind, unit in _TYPES.items()
    for op, weight in _LANES.items()
}
MFMA: Final = {
    f"SQ_INSTS_VALU_MFMA_MOPS_{kind}": (f"{unit} matrix", _MATRIX_OPS)
    for kind, unit in _MATRIX.items()
}
# bytes = sum of weight times counter: the formula above, multiplied out
MI200_BYTES: Final = {
    "TCC_EA_RDREQ_sum": 64,
    "TCC_EA_RDREQ_32B_sum": -32,
    "TCC_EA_WRREQ_sum": 32,
    "TCC_EA_WRREQ_64B_sum": 32,
}
MI300_BYTES: Final = {
    "TCC_BUBBLE_sum": 64,
    **{name.replace("_EA_", "_EA0_"): weight for name, weight in MI200_BYTES.items()},
}

_OPERATIONS: Final = {**VALU, **MFMA}
_COUNTED: Final = {*_OPERATIONS, *MI200_BYTES, *MI300_BYTES}
_NEEDED: Final = (
    "Counter_Name", "Counter_Value", "Dispatch_Id", "Kernel_Name", "Start_Timestamp",
    "End_Timestamp",
)  # fmt: skip
# how rocprof and rocprofv2, whose tables ROCm Compute Profiler joins, name these columns
_OTHER_NAMES: Final = {
    "Index": "Dispatch_Id", "Dispatch_ID": "Dispatch_Id", "KernelName": "Kernel_Name",
    "BeginNs": "Start_Timestamp", "EndNs": "End_Timestamp", "pid": "Process_Id",
    "PID": "Process_Id",
}  # fmt: skip
_NUMBERS: Final = ["Counter_Value", "Start_Timestamp", "End_Timestamp"]
_KEY: Final = ["process", "Dispatch_Id"]
_PER_PASS: Final = 8  # counters that a hardware block has; as ROCm Compute Profiler groups them


def passes() -> str:
    """Return the list of counters for `rocprofv3 -i`, for MI200."""
    names = [*_OPERATIONS]
    groups = [names[start : start + _PER_PASS] for start in range(0, len(names), _PER_PASS)]
    groups.append([*MI200_BYTES])
    return "\n".join(f"pmc: {' '.join(group)}" for group in groups)


def read_rocprof(sources: Sequence[Source]) -> Export:
    """Read the passes of one run, a piece per dispatch; `UsageError` where one was cut."""
    rows = pd.concat([_pass(source) for source in sources])
    dispatches = rows.drop_duplicates(_KEY).set_index(_KEY)  # as the first pass has them
    before = rows.groupby(_KEY)["Kernel_Name"].transform("first")
    for line, kernel in before[rows["Kernel_Name"] != before].items():
        raise UsageError(
            f"{line}: another kernel than before, which was {kernel[:60]}; give the passes of one "
            "run"
        )
    counters = rows.pivot_table("Counter_Value", _KEY, "Counter_Name", "first")
    counters = counters.reindex(dispatches.index)
    traffic = MI300_BYTES if "TCC_EA0_RDREQ_sum" in counters else MI200_BYTES
    counters = counters.reindex(columns=[*_OPERATIONS, *traffic])
    names = dispatches["Kernel_Name"]
    for key, cells in counters[counters.isna().any(axis=1)].iterrows():
        missing = ", ".join(cells.index[cells.isna()])
        raise Lacking(
            f"{sources[0].path}: dispatch {key[-1]} ({names[key][:60]}) lacks {missing}; the "
            "export was cut, or passes are missing"
        )
    seconds = (dispatches["End_Timestamp"] - dispatches["Start_Timestamp"]) / 1e9
    for _, ident in seconds.index[seconds <= 0]:
        raise Lacking(f"{sources[0].path}: dispatch {ident} took no time")
    flops = pd.DataFrame(index=counters.index)
    for name, (unit, weight) in _OPERATIONS.items():
        flops[unit] = flops.get(unit, 0.0) + weight * counters[name]
    moved = counters[[*traffic]].dot(pd.Series(traffic))
    ids = dispatches.index.get_level_values("Dispatch_Id")
    return Export(roofs.table_of(flops, id=ids, name=names, bytes=moved, seconds=seconds))


def _pass(source: Source) -> pd.DataFrame:
    if source.lines[-1]:  # a number that was cut still looks like one
        raise Lacking(f"{source.path}: the last line has no end: the export was cut")
    rows = source.table().rename(columns=_OTHER_NAMES)
    if "Counter_Name" not in rows:
        rows = _long(rows)
    missing = [name for name in _NEEDED if name not in rows]
    if missing:
        raise Lacking(f"{source.path}: no column {', '.join(missing)}")
    rows = rows[rows["Counter_Name"].isin(_COUNTED)]
    if rows.empty:
        raise Lacking(f"{source.path}: no dispatch has a counter of a roofline")
    # each pass is a run of its own, with other process ids: their order joins them
    process = pd.factorize(rows["Process_Id"])[0] if "Process_Id" in rows else 0
    rows = rows.assign(process=process)
    for line, row in rows[rows.duplicated([*_KEY, "Counter_Name"])].iterrows():
        raise Lacking(f"{line}: {row['Counter_Name']} of dispatch {row['Dispatch_Id']} again")
    cells = ((text, numerals.WHOLE) for text in rows["Counter_Value"])
    notation = numerals.notation(cells, usual=".")  # as these programs write in any locale
    numbers = rows[_NUMBERS].map(notation.plain).apply(pd.to_numeric, errors="coerce")
    for line, row in rows[numbers.isna().any(axis=1)].iterrows():
        raise Lacking(f"{line}: one of {', '.join(row[_NUMBERS])} is no number")
    return rows.assign(**numbers)


def _long(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per dispatch and counter, of a table with a column per counter."""
    counters = rows.columns.intersection([*_COUNTED])
    others = rows.columns.intersection([*_NEEDED, "Process_Id"])
    rows = rows.melt(others, counters, "Counter_Name", "Counter_Value", ignore_index=False)
    return rows[rows["Counter_Value"] != ""]
