"""Recognises a profiler's export by the header of its table, and has the right reader read it.

`FORMS` lists what people have. What has times alone, or was cut, is told by its name, with the
command of that tool that collects what a roofline needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hpcsweep.analysis.roofline import ncu, rocprof, roofs
from hpcsweep.analysis.roofline.roofs import Export, Lacking, Source
from hpcsweep.errors import UsageError

_NCU: Final = (
    "collect with: ncu --csv --page raw --metrics $(hpcsweep roofline --counters ncu) PROGRAM > "
    "kernels.csv"
)
_NOT_NSYS: Final = f"Nsight Systems counts neither, Nsight Compute does; {_NCU}"
_LIST: Final = "`hpcsweep roofline --counters rocprof > counters.txt` writes that list"
_ROCPROFV3: Final = (
    f"collect with: rocprofv3 -i counters.txt --output-format csv -- PROGRAM; {_LIST}"
)
_ROCPROF: Final = (
    f"collect with: rocprof -i counters.txt --timestamp on -o results.csv PROGRAM; {_LIST}"
)
_ROCPROFV2: Final = (
    f"collect with: rocprofv2 -i counters.txt --plugin file -d results PROGRAM; {_LIST}"
)
# Omniperf is the name of ROCm Compute Profiler before ROCm 6.3
_COMPUTE: Final = (
    "collect with: rocprof-compute profile -n NAME --roof-only -- PROGRAM (or omniperf profile "
    "...), which writes workloads/NAME/*/pmc_perf.csv"
)


@dataclass(frozen=True)
class Form:
    """A table that a tool writes: which columns tell it, and how to collect a whole one."""

    name: str
    columns: tuple[str, ...]
    how: str
    read: Callable[[Sequence[Source]], Export] | None = None
    has: str = "times, and no FLOPs or bytes"  # of a form that nothing reads


# Where the headers come from: Nsight Compute's documentation of its command line (page `details`
# and `raw`, --print-summary); Nsight Systems' analysis guide, statistical reports; ROCprofiler's
# and ROCprofiler-SDK's documentation of rocprof, rocprofv2 and rocprofv3; `tests/workloads` of ROCm
# Compute Profiler. The first whose columns are in a header counts: who tells most stands first.
FORMS: Final = (
    Form("ncu --csv (Nsight Compute)", ("Kernel Name", "ID"), _NCU, ncu.read_ncu),
    Form(
        "ncu (Nsight Compute)", ("Metric Name",), _NCU,
        has="no IDs of launches: it was written without --csv, or with --print-summary",
    ),
    Form(
        "counter_collection.csv (rocprofv3)", ("Counter_Name",), _ROCPROFV3, rocprof.read_rocprof
    ),
    Form("kernel_trace.csv (rocprofv3)", ("Kernel_Name", "Kind"), _ROCPROFV3),
    Form("kernel_stats.csv (rocprofv3)", ("TotalDurationNs", "MinNs"), _ROCPROFV3),
    Form("results.csv (rocprof)", ("KernelName", "Index"), _ROCPROF, rocprof.read_rocprof),
    Form("results.stats.csv (rocprof)", ("TotalDurationNs",), _ROCPROF),
    Form("results.csv (rocprofv2)", ("Dispatch_ID", "Queue_ID"), _ROCPROFV2, rocprof.read_rocprof),
    Form(
        "pmc_perf.csv (ROCm Compute Profiler, Omniperf)", ("Dispatch_ID", "Kernel_Name"), _COMPUTE,
        rocprof.read_rocprof,
    ),
    Form("cuda_gpu_kern_sum (Nsight Systems)", ("Instances", "Name"), _NOT_NSYS),
    Form("a summary of nsys stats (Nsight Systems)", ("Total Time (ns)",), _NOT_NSYS),
    Form("cuda_gpu_trace (Nsight Systems)", ("CorrId", "Name"), _NOT_NSYS),
)  # fmt: skip
_REPORTS: Final = {
    ".ncu-rep": "export it first: ncu --import {} --csv --page raw > kernels.csv",
    ".nsys-rep": f"a report without FLOPs and bytes; {_NOT_NSYS}",
    ".sqlite": f"a report without FLOPs and bytes; {_NOT_NSYS}",
    ".gz": "unpack it first: gunzip {}",
    ".db": "export it first: rocpd convert -i {} --output-format csv",
}


def read(paths: Sequence[Path]) -> Export:
    """Read an export, or the passes of one run; `UsageError` where it is unknown or too little."""
    form, first = recognised(paths[0])
    sources = [first]
    for path in paths[1:]:
        other, source = recognised(path)
        if other != form:
            raise UsageError(f"{path}: {other.name}, not {form.name}; give the passes of one run")
        sources.append(source)
    if form.read is None:
        raise UsageError(f"{first.path}: {form.name} has {form.has}; {form.how}")
    try:
        return form.read(sources)
    except Lacking as error:
        raise UsageError(f"{error}; {form.how}") from None


def recognised(path: Path) -> tuple[Form, Source]:
    """Return the form of an export, and its lines; `UsageError` lists all where it has none."""
    if path.suffix in _REPORTS:
        raise UsageError(f"{path}: {_REPORTS[path.suffix].format(path)}")
    lines = roofs.text(path).split("\n")
    for form in FORMS:
        # a program's own output, and remarks of the profiler, may stand above the header
        for number, line in enumerate(lines):
            if form.columns[0] not in line:
                continue
            # the tables for people have spaces between the columns
            cells = {cell.strip('" ') for cell in re.split(r"[,;\t]|  +", line)}
            if cells.issuperset(form.columns):
                return form, Source(path, lines, number)
    known = ", ".join(form.name for form in FORMS if form.read)
    raise UsageError(
        f"{path}: no export of a known profiler; these are read: {known}; `hpcsweep roofline "
        "--counters ncu` or `--counters rocprof` lists what to collect"
    )
