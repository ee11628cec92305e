"""What kernels did, from the CSV export of NVIDIA Nsight Compute: `--page raw`, or any other page.

The page `raw` has one row per launch, a column per metric, and a row of units below the header;
other pages have one row per launch and metric. Launches are told apart by "ID" and never by kernel
name, since a network launches the same kernel many times. Units are decimal: a Kbyte is 1000 bytes.
Numbers are written as the locale has it, which the counts tell: they have no fraction. An unknown
unit, number or layout is refused: a wrong number is worse than none.

Time is `gpu__time_duration.sum` and bytes are those of the DRAM. Operations are counted by unit:
thread-level instructions of the FP32, FP64 and FP16 pipes, with a fused multiply-add as two, and
what the tensor cores count themselves. An export without time, bytes or FP32 is refused. Other
units that were not collected are named in a note, but a kernel that runs on tensor cores is refused
where nothing counts them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import pandas as pd

from hpcsweep import numerals
from hpcsweep.analysis.roofline import roofs
from hpcsweep.analysis.roofline.roofs import Export, Lacking, Source
from hpcsweep.errors import UsageError
from hpcsweep.numerals import Notation

# by metric: the unit that did operations, and how many each count is
Counters = dict[str, tuple[str, int]]

# Units by quantity, as patterns; the group is a prefix.
SECONDS: Final = r"([munµμK]?)(?:s|secs?|seconds?)"
BYTES: Final = r"([KkMGTP]?)(?:bytes?|B)"
OPERATIONS: Final = r"(?:([KMGTP]?)(?:inst|ops?)|1?)"  # older versions write no unit
_POWERS: Final = (1e-9, 1e-6, 1e-6, 1e-6, 1e-3, 1e3, 1e3, 1e6, 1e9, 1e12, 1e15)
_PREFIXES: Final = dict(zip("nuµμmkKMGTP", _POWERS, strict=True))  # \xb5 and \u03bc look alike
# of a sum in these units there are no parts, by any version's name of them; of others there are
_COUNTED: Final = {"", "inst", "byte", "ns", "nsec", "nsecond"}
_NOT_MEASURED: Final = ("", "n/a", "(!) n/a", "nan")
_KERNEL: Final = "Kernel Name"
_METRIC: Final = r"(?!device__)\w+__"  # but attributes of the device
_CELL: Final = ["Metric Name", "Metric Unit", "Metric Value"]  # columns of pages other than `raw`

TIME: Final = "gpu__time_duration.sum"
DRAM: Final = "dram__bytes.sum"
_DRAM_PARTS: Final = ("dram__bytes_read.sum", "dram__bytes_write.sum")
_DEVICE: Final = "device__attribute_display_name"
_TENSOR: Final = "sm__ops_path_tensor_src_"
TENSOR_LIST: Final = f"ncu --query-metrics | grep {_TENSOR}"

# What a thread-level instruction is worth: a fused multiply-add is two operations, as in Nsight's
# own SpeedOfLight_*RooflineChart sections and LIKWID's groups FLOPS_{SP,DP,HP}. Half precision is
# counted as LIKWID does, a lane per instruction; Nsight's chart takes each for a packed half2.
_INSTRUCTION: Final = "smsp__sass_thread_inst_executed_op_{}{}_pred_on.sum"
_WORTH: Final = {"add": 1, "mul": 1, "fma": 2}


def _family(unit: str, letter: str) -> Counters:
    return {_INSTRUCTION.format(letter, op): (unit, worth) for op, worth in _WORTH.items()}


_FAMILIES: Final = {
    "FP32": _family("fp32", "f"),
    "FP64": _family("fp64", "d"),
    "FP16": _family("fp16", "h"),
}
# A Volta tensor instruction (HMMA.884, per warp) is 512 operations: the factor in
# SpeedOfLight_HierarchicalTensorRooflineChart. Later chips have instructions of many sizes.
_VOLTA_OPS: Final = 512
_VOLTA: Final = ("7.0", "7.2")
# Names that cuBLAS, cuDNN and CUTLASS give to kernels that run on tensor cores.
_TENSOR_KERNEL: Final = re.compile(
    r"tensorop|[hsdi](?:16816|16832|1688|884)|tf32|hmma|gmma|mma_sync", re.IGNORECASE
)


@dataclass(frozen=True)
class Launches:
    """The kernel launches of an export, labelled by ID, and what was measured of them.

    `cells` has a row per launch and metric: "ID" and the columns of `_CELL`.
    """

    path: Path
    rows: pd.DataFrame
    cells: pd.DataFrame

    @cached_property
    def metrics(self) -> dict[str, str]:
        """The metrics, and the name of each in the export."""
        names = self.cells["Metric Name"].unique()
        # a multiprocessor (sm) counts what its four parts (smsp) do together
        parts = {name.replace("sm__sass", "smsp__sass"): name for name in names}
        return parts | {name: name for name in names}

    @cached_property
    def notation(self) -> Notation:
        """How the export writes numbers; `UsageError` where no metric tells it."""
        cells = self.cells[_CELL].itertuples(index=False)
        try:
            return numerals.notation((text, _fraction(name, unit)) for name, unit, text in cells)
        except UsageError as error:
            raise UsageError(f"{self.path}: {error}; export with LC_ALL=C") from None

    def name(self, ident: str) -> str:
        """Return how a message names a launch."""
        return f"{self.path}: ID {ident} ({self.rows[_KERNEL][ident][:60]})"

    def need(self, *metrics: str) -> None:
        """Raise `Lacking` where metrics are missing."""
        missing = [metric for metric in metrics if metric not in self.metrics]
        if missing:
            told = f"{self.path}: the export lacks {', '.join(missing)}"
            if (self.cells["Metric Unit"] == "%").any():
                told += "; percentages of a peak tell neither FLOPs nor bytes"
            raise Lacking(told)

    def values(self, metric: str, known_units: str) -> pd.Series[float]:
        """Return a metric of all launches in base units; `UsageError` where one lacks it."""
        measured = self.cells[self.cells["Metric Name"] == self.metrics[metric]]
        for line, cell in measured[measured.duplicated("ID")].iterrows():
            raise UsageError(f"{line}: ID {cell['ID']} again; give one export at a time")
        cells = measured.set_index("ID")[_CELL[1:]].reindex(self.rows.index, fill_value="")
        numbers = []
        for ident, unit, text in cells.itertuples():
            if text in _NOT_MEASURED:
                raise Lacking(
                    f"{self.name(ident)} lacks {metric}: the export was cut, or ncu could not "
                    "measure it"
                )
            number = self.notation.plain(text, _fraction(metric, unit))
            if not number:
                raise UsageError(
                    f"{self.name(ident)}: {metric} is '{text}', which is no number with the "
                    f"decimal mark '{self.notation.decimal}' of others; export with LC_ALL=C"
                )
            factor = factor_of(unit, known_units)
            if factor is None:
                raise UsageError(
                    f"{self.path}: the unit '{unit}' of {metric} is not known; export with "
                    "--print-units base"
                )
            numbers.append(float(number) * factor)
        return pd.Series(numbers, self.rows.index)


def _fraction(metric: str, unit: str) -> str:
    return numerals.COUNT if unit in _COUNTED and metric.endswith(".sum") else numerals.ANY


def factor_of(unit: str, known_units: str) -> float | None:
    """Return how many base units a unit is; None where the pattern does not match it."""
    match = re.fullmatch(known_units, unit)
    return _PREFIXES.get(match[1], 1.0) if match else None


def read_launches(source: Source) -> Launches:
    """Read an export's launches; `UsageError` where it was cut, or holds several exports."""
    # the program's own output and ncu's remarks may stand between the rows
    quote = '"' if source.lines[source.start].startswith('"') else ""
    lines = [x if x.startswith(quote) and not x.startswith("==") else "" for x in source.lines]
    rows = replace(source, lines=lines).table()
    for line in rows.index[(rows == rows.columns).all(axis=1)]:
        raise UsageError(f"{line}: a second table; give one export at a time")
    if {*_CELL} <= {*rows}:
        cells = rows[rows["Metric Name"] != ""]  # without remarks of rules
        cells = cells.drop_duplicates(["ID", *_CELL])  # which several sections show
    elif rows.empty or rows["ID"].iloc[0]:
        raise Lacking(f"{source.path}: no row of units below the header")
    else:
        units, rows = rows.iloc[0], rows.iloc[1:]
        metrics = [name for name in map(str, rows) if re.match(_METRIC, name)]
        cells = rows.melt("ID", metrics, "Metric Name", "Metric Value", ignore_index=False)
        cells["Metric Unit"] = cells["Metric Name"].map(units)
    launches = rows.drop_duplicates("ID").set_index("ID")
    announced = sum(line.startswith("==PROF== Profiling ") for line in source.lines)
    if launches.empty or announced > len(launches):
        raise Lacking(
            f"{source.path}: {len(launches)} launches, and ncu announced {announced or 'some'}: "
            "the export was cut"
        )
    return Launches(source.path, launches, cells)


def metrics() -> list[str]:
    """Return the metrics to collect, without those of the tensor cores, which differ by chip."""
    names = [TIME, DRAM]
    for family in _FAMILIES.values():
        names += family
    return names


def read_ncu(sources: Sequence[Source]) -> Export:
    """Read an export: one piece of work per launch.

    `UsageError` where it was cut, lacks a metric, or holds an unknown unit or number.
    """
    for source in sources[1:]:
        raise UsageError(f"{source.path}: passes of AMD's tools alone are joined; give one export")
    launches = read_launches(sources[0])
    counters: Counters = {}
    absent = []
    for name, family in _FAMILIES.items():
        # FP32 has to be there; another family may be wholly absent, not in part
        if name == "FP32" or not launches.metrics.keys().isdisjoint(family):
            counters |= family
        else:
            absent.append(name)
    traffic = _DRAM_PARTS if {*_DRAM_PARTS} <= {*launches.metrics} else (DRAM,)
    launches.need(TIME, *traffic, *counters)
    tensor = _tensor_counters(launches)
    if not tensor:
        absent.append("tensor cores")
    notes = [f"not in this export, so not counted: {', '.join(absent)}"] if absent else []
    seconds = launches.values(TIME, SECONDS)
    for ident in seconds.index[seconds <= 0]:
        raise Lacking(f"{launches.name(ident)} took no time")
    flops = pd.DataFrame(index=seconds.index)
    for metric, (unit, worth) in (counters | tensor).items():
        flops[unit] = flops.get(unit, 0.0) + worth * launches.values(metric, OPERATIONS)
    if "fp16" in flops and flops["fp16"].any():
        notes.append("FP16 outside tensor cores: a lane per instruction; half2 does twice that")
    moved = sum(launches.values(metric, BYTES) for metric in traffic)
    names = {*launches.rows.get(_DEVICE, "")}
    device = names.pop() if len(names) == 1 else ""
    kernels = launches.rows[_KERNEL]
    table = roofs.table_of(flops, id=kernels.index, name=kernels, bytes=moved, seconds=seconds)
    return Export(table, device, tuple(notes))


def _tensor_counters(launches: Launches) -> Counters:
    """Return what counts tensor-core operations; nothing does where none ran, by its name."""
    by_source = _of_sources(launches.metrics)
    if by_source:
        return by_source
    rows = launches.rows
    ran = rows[_KERNEL].str.contains(_TENSOR_KERNEL)
    per_instruction = r"sm(sp)?__inst_executed_pipe_tensor(_(?!\w*[ib]mma)\w+)?\.sum"
    pipe = [name for name in launches.metrics if re.fullmatch(per_instruction, name)]
    counters: Counters = {}
    if pipe:
        whole = min(pipe, key=len)
        counters[whole] = ("fp16 tensor", _VOLTA_OPS)
        ran = launches.values(whole, OPERATIONS) > 0
        ran &= ~rows.get("CC", pd.Series("", rows.index)).isin(_VOLTA)
    for ident in ran.index[ran]:
        raise Lacking(
            f"{launches.name(ident)} runs on tensor cores, how many operations an instruction is "
            f"differs by chip, and the export lacks {_TENSOR}*.sum; add what `{TENSOR_LIST}` "
            "lists, with .sum"
        )
    return counters


def _of_sources(metrics: Iterable[str]) -> Counters:
    """Return what counts operations by the type of their sources; integers are no FLOPs.

    Where ncu gives a sum and its parts, the sum counts: `src_fp16_dst_fp32` is a part of
    `src_fp16`, and `_sparsity_on` and `_off` are parts of what stands before them.
    """
    stems = {}
    for name in metrics:
        match = re.fullmatch(_TENSOR + r"(\w+)\.sum", name)
        if match:
            stems[match[1]] = name
    counters: Counters = {}
    for stem, name in sorted(stems.items()):
        whole = re.sub(r"_sparsity_(on|off)$", "", stem)
        source = whole.split("_dst_")[0]
        is_part = not stems.keys().isdisjoint({whole, source} - {stem})
        if not is_part and not source.startswith("int"):
            counters[name] = (f"{source} tensor", 1)
    return counters
