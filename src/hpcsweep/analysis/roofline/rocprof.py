"""What kernels did, from the counters that AMD's rocprofv3 collects on CDNA GPUs.

The formulas are those of AMD's empirical roofline, `calc_ai` in `roofline_calc.py` of ROCm Compute
Profiler (Omniperf): a vector instruction is 64 operations, one per lane (FMA: two), a unit of
`SQ_INSTS_VALU_MFMA_MOPS_*` is 512, and HBM traffic is counted in requests of the L2 (TCC) to the
memory's fabric (EA)::

    FLOPs = 64 (ADD + MUL + TRANS + 2 FMA) per type + 512 MFMA_MOPS per type
    bytes = 32 RDREQ_32B + 64 (RDREQ - RDREQ_32B) + 64 WRREQ_64B + 32 (WRREQ - WRREQ_64B)

MI300 has further read requests of 128 bytes (`TCC_BUBBLE`), which `RDREQ` includes.

The hardware counts a few events at a time, so rocprofv3 runs the program several times and writes
a file per pass, `counter_collection.csv`, with one row per counter. Passes are joined by dispatch;
times are those of the first pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pandas as pd

from hpcsweep import numerals
from hpcsweep.analysis.roofline import roofs
from hpcsweep.analysis.roofline.roofs import Export
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

HOW: Final = (
    "collect with: rocprofv3 -i counters.txt --output-format csv -- PROGRAM; "
    "`hpcsweep roofline --counters rocprof > counters.txt` writes that list"
)
_OPERATIONS: Final = {**VALU, **MFMA}
_COUNTED: Final = {*_OPERATIONS, *MI200_BYTES, *MI300_BYTES}
_NEEDED: Final = (
    "Counter_Name", "Counter_Value", "Dispatch_Id", "Kernel_Name", "Start_Timestamp",
    "End_Timestamp",
)  # fmt: skip
_NUMBERS: Final = ["Counter_Value", "Start_Timestamp", "End_Timestamp"]
_KEY: Final = ["process", "Dispatch_Id"]
_PER_PASS: Final = 8  # counters that a hardware block has; as ROCm Compute Profiler groups them


def passes() -> str:
    """Return the list of counters for `rocprofv3 -i`, for MI200."""
    flops = [*VALU, *MFMA]
    traffic = list(MI200_BYTES)
    groups = [flops[start : start + _PER_PASS] for start in range(0, len(flops), _PER_PASS)]
    return "\n".join(f"pmc: {' '.join(group)}" for group in (*groups, traffic))


def is_export(line: str) -> bool:
    """Tell whether a line is the header of a table of counters."""
    return "Kernel_Name" in line and "Dispatch_Id" in line


def read_rocprof(paths: Sequence[Path]) -> Export:
    """Read the passes of one run, a piece per dispatch; `UsageError` where one was cut."""
    rows = pd.concat([_pass(path) for path in paths])
    dispatches = rows.drop_duplicates(_KEY).set_index(_KEY)  # as the first pass has them
    known = rows.groupby(_KEY)["Kernel_Name"].transform("first")
    for line, row in rows.assign(known=known)[rows["Kernel_Name"] != known].iterrows():
        raise UsageError(
            f"{line}: dispatch {row['Dispatch_Id']} is {row['Kernel_Name'][:40]}, before it was "
            f"{row['known'][:40]}; give the passes of one run"
        )
    rows = rows.drop_duplicates([*_KEY, "Counter_Name"]).set_index([*_KEY, "Counter_Name"])
    counters = rows["Counter_Value"].unstack().reindex(dispatches.index)  # noqa: PD010
    moved = _bytes(paths[0], dispatches, counters)
    seconds = (dispatches["End_Timestamp"] - dispatches["Start_Timestamp"]) / 1e9
    for _, ident in seconds.index[seconds <= 0]:
        raise UsageError(f"{paths[0]}: dispatch {ident} took no time; {HOW}")
    flops = pd.DataFrame(0.0, counters.index, list(dict(_OPERATIONS.values())))
    for name, (unit, weight) in _OPERATIONS.items():
        flops[unit] += weight * counters[name]
    ids = dispatches.index.get_level_values("Dispatch_Id")
    names = dispatches["Kernel_Name"]
    return Export(roofs.table_of(flops, id=ids, name=names, bytes=moved, seconds=seconds))


def _pass(path: Path) -> pd.DataFrame:
    text = roofs.text(path)
    if not text.endswith("\n"):  # a number that was cut still looks like one
        raise UsageError(f"{path}: the last line has no end: the export was cut; {HOW}")
    rows = roofs.table(path, text.splitlines(), 0, HOW) if text.strip() else pd.DataFrame()
    missing = [name for name in _NEEDED if name not in rows]
    if missing:
        raise UsageError(f"{path}: no column {', '.join(missing)}; {HOW}")
    if rows.empty:
        raise UsageError(f"{path}: a header and no dispatch; {HOW}")
    # each pass is a run of its own, with other process ids: their order joins them
    rows["process"] = pd.factorize(rows["Process_Id"])[0] if "Process_Id" in rows else 0
    for line, row in rows[rows.duplicated([*_KEY, "Counter_Name"])].iterrows():
        what = f"{row['Counter_Name']} of dispatch {row['Dispatch_Id']}"
        raise UsageError(f"{line}: {what} again; {HOW}")
    fractions = rows["Counter_Name"].map(_fraction)
    cells = zip(rows["Counter_Value"], fractions, strict=True)
    notation = numerals.notation(cells, usual=".")  # as rocprofv3 writes in any locale
    numbers = rows[_NUMBERS].map(notation.plain).apply(pd.to_numeric, errors="coerce")
    for line, row in rows[numbers.isna().any(axis=1)].iterrows():
        raise UsageError(f"{line}: one of {', '.join(row[_NUMBERS])} is no number; {HOW}")
    return rows.assign(**numbers)


def _fraction(counter: str) -> str:
    """Return what may stand behind the decimal mark of a counter; derived ones may be averages."""
    return numerals.WHOLE if counter in _COUNTED else numerals.ANY


def _bytes(path: Path, dispatches: pd.DataFrame, counters: pd.DataFrame) -> pd.Series[float]:
    """Return the bytes of every dispatch; `UsageError` where a counter of any kind is missing."""
    mi300 = counters.columns.str.startswith("TCC_EA0_").any()
    weights = MI300_BYTES if mi300 else MI200_BYTES
    names = [*_OPERATIONS, *weights]
    missing = [name for name in names if name not in counters]
    if missing:
        raise UsageError(f"{path}: the export lacks {', '.join(missing)}; {HOW}")
    for key, known in counters[names][counters[names].isna().any(axis=1)].iterrows():
        kernel = dispatches["Kernel_Name"][key][:60]
        missing = known.index[known.isna()]
        raise UsageError(
            f"{path}: dispatch {key[-1]} ({kernel}) lacks {', '.join(missing)}: the export was "
            f"cut, or passes are missing; {HOW}"
        )
    return (counters[list(weights)] * pd.Series(weights)).sum(axis=1)
