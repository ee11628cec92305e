"""What kernels did, from the counters that AMD's rocprofv3 collects on CDNA GPUs.

The formulas are those of AMD's empirical roofline, `calc_ai` in `roofline_calc.py` of ROCm Compute
Profiler (Omniperf): a vector instruction is 64 operations, one per lane (FMA: two), a unit of
`SQ_INSTS_VALU_MFMA_MOPS_*` is 512, and HBM traffic is counted in requests of the L2 (TCC) to the
memory's fabric (EA)::

    FLOPs = 64 (ADD + MUL + TRANS + 2 FMA) per type + 512 MFMA_MOPS per type
    bytes = 32 RDREQ_32B + 64 (RDREQ - RDREQ_32B) + 64 WRREQ_64B + 32 (WRREQ - WRREQ_64B)

MI300 has further read requests of 128 bytes (`TCC_BUBBLE`), which `RDREQ` includes.

The hardware counts a few at a time, so rocprofv3 writes a file per pass: give them all, they are
joined by dispatch. Read are its `counter_collection.csv` (one row per counter) and tables with a
column per counter (`pmc_perf.csv`). Times are the first pass's.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hpcsweep.analysis.roofline.work import Export, Work
from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

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
    "`hpcsweep roofline --metrics rocprof > counters.txt` writes that list"
)
_IDENTS: Final = ("Dispatch_Id", "Dispatch_ID")
_PER_PASS: Final = 8  # counters that a hardware block has; as ROCm Compute Profiler groups them


@dataclass
class _Dispatch:
    """One dispatch: its counters, and when it ran in the first pass, nanoseconds."""

    kernel: str
    begin: int
    end: int
    counters: dict[str, float] = field(default_factory=dict)


_Dispatches = dict[tuple[int, str], _Dispatch]


def passes() -> str:
    """Return the list of counters for `rocprofv3 -i`, for MI200."""
    flops, traffic = [*VALU, *MFMA], list(MI200_BYTES)
    groups = [flops[i : i + _PER_PASS] for i in range(0, len(flops), _PER_PASS)]
    return "\n".join(f"pmc: {' '.join(group)}" for group in (*groups, traffic))


def is_export(line: str) -> bool:
    """Tell whether a line is the header of a table of counters."""
    return "Kernel_Name" in line and any(name in line for name in _IDENTS)


def read(paths: Sequence[Path]) -> Export:
    """Read the passes of one run: one piece of work per dispatch.

    Raises:
        UsageError: a file is no such table, was cut, or counters are missing.

    """
    found: _Dispatches = {}
    for path in paths:
        for key, dispatch in _dispatches(path).items():
            known = found.setdefault(key, dispatch)
            if known.kernel != dispatch.kernel:
                raise UsageError(
                    f"{path}: dispatch {key[-1]} is {dispatch.kernel[:40]}, in another file it is "
                    f"{known.kernel[:40]}; give the passes of one run"
                )
            known.counters = {**dispatch.counters, **known.counters}
    weights = _traffic(paths[0], found)
    work = tuple(_work(paths[0], key[-1], one, weights) for key, one in found.items())
    return Export(work)


def _dispatches(path: Path) -> _Dispatches:
    """Return the dispatches of one pass, by number of the process in this file and dispatch id."""
    found: _Dispatches = {}
    processes: list[str] = []  # each pass is a run of its own, with other process ids
    for number, row in _rows(path):
        process = row.get("Process_Id", "")
        if process not in processes:
            processes.append(process)
        key = (processes.index(process), next(row[name] for name in _IDENTS if name in row))
        try:
            dispatch = found.setdefault(
                key,
                _Dispatch(
                    row["Kernel_Name"], int(row["Start_Timestamp"]), int(row["End_Timestamp"])
                ),
            )
            for name, count in _counters(row):
                if name in dispatch.counters:
                    raise UsageError(f"{path}, line {number}: {name} of dispatch {key[-1]} again")
                dispatch.counters[name] = count
        except ValueError as error:
            raise UsageError(f"{path}, line {number}: {error}; {HOW}") from error
    if not found:
        raise UsageError(f"{path}: a header and no dispatch; {HOW}")
    return found


def _counters(row: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    if "Counter_Name" in row:
        yield row["Counter_Name"], float(row["Counter_Value"])
        return
    for name, text in row.items():
        if name.startswith(("SQ_INSTS_VALU_", "TCC_EA", "TCC_BUBBLE")) and text:
            yield name, float(text)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    if not text.endswith("\n"):  # a number that was cut still looks like one
        raise UsageError(f"{path}: the last line has no end: the export was cut; {HOW}")
    table = csv.reader(text.splitlines())
    header = next(table, [])
    missing = {"Kernel_Name", "Start_Timestamp", "End_Timestamp"} - set(header)
    if "Counter_Name" in header:
        missing |= {"Counter_Value"} - set(header)
    if not set(_IDENTS) & set(header):
        missing.add(_IDENTS[0])
    if missing:
        raise UsageError(f"{path}: no column {', '.join(sorted(missing))}; {HOW}")
    for cells in table:
        if len(cells) != len(header):
            raise UsageError(
                f"{path}, line {table.line_num}: {len(cells)} of {len(header)} cells: the export "
                f"was cut; {HOW}"
            )
        yield table.line_num, dict(zip(header, cells, strict=True))


def _traffic(path: Path, found: _Dispatches) -> dict[str, int]:
    """Return the byte weights of this GPU's generation; complain about counters nobody took."""
    names = {name for dispatch in found.values() for name in dispatch.counters}
    weights = MI300_BYTES if any("TCC_EA0_" in name for name in names) else MI200_BYTES
    missing = [name for name in (*VALU, *MFMA, *weights) if name not in names]
    if missing:
        raise UsageError(f"{path}: the export lacks {', '.join(missing)}; {HOW}")
    return weights


def _work(path: Path, ident: str, dispatch: _Dispatch, weights: Mapping[str, int]) -> Work:
    counters = dispatch.counters
    missing = [name for name in (*VALU, *MFMA, *weights) if name not in counters]
    if missing:
        raise UsageError(
            f"{path}: dispatch {ident} ({dispatch.kernel[:60]}) lacks {', '.join(missing)}: the "
            f"export was cut, or passes are missing; {HOW}"
        )
    if dispatch.end <= dispatch.begin:
        raise UsageError(f"{path}: dispatch {ident} took no time; {HOW}")
    flops: dict[str, float] = {}
    for name, (unit, weight) in {**VALU, **MFMA}.items():
        flops[unit] = flops.get(unit, 0.0) + weight * counters[name]
    moved = sum(weight * counters[name] for name, weight in weights.items())
    return Work(dispatch.kernel, ident, flops, moved, (dispatch.end - dispatch.begin) / 1e9)
