"""What kernels did, from the CSV export of NVIDIA Nsight Compute, `--page raw`.

It has one row per launch, a column per metric, and a row of units below the header; without `--page
raw`, one row per launch and metric. Launches are told apart by "ID" and never by kernel name, since
a network launches the same kernel many times. Units are decimal: a Kbyte is 1000 bytes. Numbers are
written as the locale has it, which the counts tell: they have no fraction. An unknown unit, number
or layout is refused: a wrong number is worse than none.

Time is `gpu__time_duration.sum` and bytes are those of the DRAM. Operations are counted by unit:
thread-level instructions of the FP32, FP64 and FP16 pipes, with a fused multiply-add as two, and
what the tensor cores count themselves. An export without time, bytes or FP32 is refused, with the
command that collects them. Other units that were not collected are named in a note, but a kernel
that runs on tensor cores is refused where nothing counts them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import pandas as pd

from hpcsweep import numerals
from hpcsweep.analysis.roofline import roofs
from hpcsweep.analysis.roofline.roofs import Export
from hpcsweep.errors import UsageError
from hpcsweep.numerals import Notation

Counter = tuple[str, str, int]  # the unit that did operations, the metric, how many each count is

HOW: Final = (
    "collect with: ncu --csv --page raw --metrics $(hpcsweep roofline --counters ncu) PROGRAM > "
    "kernels.csv"
)

# Units by quantity, as patterns; the group is a prefix.
SECONDS: Final = r"([mun]?)(?:s|sec|second)"
BYTES: Final = r"([KMGTP]?)(?:byte|B)"
OPERATIONS: Final = r"(?:([KMGTP]?)(?:inst|ops?)|1?)"  # older versions write no unit
_PREFIXES: Final = dict(zip("numKMGTP", (1e-9, 1e-6, 1e-3, 1e3, 1e6, 1e9, 1e12, 1e15), strict=True))
# of a sum in these units there are no parts, by any version's name of them; of others there are
_COUNTED: Final = {"", "inst", "byte", "ns", "nsec", "nsecond"}
_NOT_MEASURED: Final = ("", "n/a", "(!) n/a", "nan")
_KERNEL: Final = "Kernel Name"
_ATTRIBUTES: Final = "device__"  # of the device, which are no metrics of a launch
_OF_WHOLE: Final = "sm__sass_thread_inst"
_LONG: Final = ("Metric Name", "Metric Unit", "Metric Value")  # columns of the page `details`


@dataclass(frozen=True)
class Launches:
    """The kernel launches of an export, labelled by ID, and the units of their columns."""

    path: Path
    rows: pd.DataFrame
    units: pd.Series[str]

    @cached_property
    def notation(self) -> Notation:
        """How the export writes numbers; `UsageError` where no metric tells it."""
        names = map(str, self.rows)
        metrics = [name for name in names if "__" in name and not name.startswith(_ATTRIBUTES)]
        cells = ((text, self._fraction(name)) for name in metrics for text in self.rows[name])
        try:
            return numerals.notation(cells)
        except UsageError as error:
            raise UsageError(f"{self.path}: {error}; export with LC_ALL=C") from None

    def _fraction(self, metric: str) -> str:
        counts = self.units[metric].strip() in _COUNTED and metric.endswith(".sum")
        return numerals.COUNT if counts else numerals.ANY

    def name(self, ident: str) -> str:
        """Return how a message names a launch."""
        return f"{self.path}: ID {ident} ({self.rows[_KERNEL][ident][:60]})"

    def lacks(self, *metrics: str) -> UsageError:
        """Return the mistake of an export in which metrics are missing."""
        return UsageError(f"{self.path}: the export lacks {', '.join(metrics)}; {HOW}")

    def values(self, metric: str, known_units: str) -> pd.Series[float]:
        """Return a metric of all launches in base units; `UsageError` where one lacks it."""
        if metric not in self.rows:
            raise self.lacks(metric)
        texts = self.rows[metric].str.strip()
        for ident in texts.index[texts.isin(_NOT_MEASURED)]:
            raise UsageError(
                f"{self.name(ident)} lacks {metric}: the export was cut, or ncu could not measure "
                f"it; {HOW}"
            )
        fraction = self._fraction(metric)
        numbers = texts.map(lambda text: self.notation.plain(text, fraction))
        for ident in texts.index[numbers == ""]:
            raise UsageError(
                f"{self.name(ident)}: {metric} is '{texts[ident]}', which is no number with "
                f"the decimal mark '{self.notation.decimal}' of others; export with LC_ALL=C"
            )
        unit = self.units[metric].strip()
        factor = factor_of(unit, known_units)
        if math.isnan(factor):
            raise UsageError(
                f"{self.path}: the unit '{unit}' of {metric} is not known; export with "
                "--print-units base"
            )
        return numbers.astype(float) * factor


def factor_of(unit: str, known_units: str) -> float:
    """Return how many base units a unit is; NaN where the pattern does not match it."""
    match = re.fullmatch(known_units, unit)
    return _PREFIXES.get(match[1] or "", 1.0) if match else math.nan


def is_export(line: str) -> bool:
    """Tell whether a line is the header of an export."""
    return re.match(r'"?ID"?[,;\t]', line) is not None and _KERNEL in line


def _wide(path: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per launch, below one of units, of one row per launch and metric."""
    name, unit, value = _LONG
    rows = rows[rows[name] != ""].drop_duplicates(["ID", *_LONG])  # without remarks of rules
    for line in rows.index[rows.duplicated(["ID", name])]:
        raise UsageError(f"{line}: ID {rows['ID'][line]} again; give one export at a time")
    units = rows.drop_duplicates([name, unit]).set_index(name)[unit]
    for metric in units.index[units.index.duplicated()]:
        raise UsageError(f"{path}: {metric} has several units; export with --print-units base")
    launches = rows.drop_duplicates("ID").set_index("ID").drop(columns=[*_LONG])
    wide = launches.join(rows.set_index(["ID", name])[value].unstack())  # noqa: PD010 - of text
    return pd.concat([units.to_frame("").T, wide]).fillna("").rename_axis("ID").reset_index()


def read_launches(path: Path) -> Launches:
    """Read an export's launches; `UsageError` where it is none, was cut, or holds several."""
    lines = roofs.text(path).splitlines()
    start = next((number for number, line in enumerate(lines) if is_export(line)), None)
    if start is None:
        raise UsageError(f'{path}: no line begins with "ID", so this is no ncu export; {HOW}')
    # the program's own output and ncu's remarks may stand between the rows
    quote = '"' if lines[start].startswith('"') else ""
    table = [x if x.startswith(quote) and not x.startswith("==") else "" for x in lines]
    rows = roofs.table(path, table, start, HOW)
    if _KERNEL not in rows:  # a column of a longer name holds these words
        raise UsageError(f"{path}: no column '{_KERNEL}'; {HOW}")
    for line in rows.index[(rows == rows.columns).all(axis=1)]:
        raise UsageError(f"{line}: a second table; give one export at a time")
    if {*_LONG} <= {*rows}:
        rows = _wide(path, rows)
    if rows.empty or rows["ID"].iloc[0]:
        raise UsageError(f"{path}: no row of units below the header; {HOW}")
    # a multiprocessor counts what its four parts do together
    whole = [name for name in map(str, rows) if name.startswith(_OF_WHOLE)]
    parts = {name: name.replace("sm__", "smsp__") for name in whole}
    rows = rows.rename(columns={name: part for name, part in parts.items() if part not in rows})
    units = rows.iloc[0]
    rows = rows.iloc[1:]
    for line in rows.index[rows["ID"].duplicated()]:
        raise UsageError(f"{line}: ID {rows['ID'][line]} again; give one export at a time")
    announced = sum(line.startswith("==PROF== Profiling ") for line in lines)
    if rows.empty or announced > len(rows):
        raise UsageError(
            f"{path}: {len(rows)} launches, and ncu announced {announced or 'some'}: the "
            f"export was cut; {HOW}"
        )
    return Launches(path, rows.set_index("ID"), units)


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
FAMILIES: Final = {
    unit: [(unit, _INSTRUCTION.format(letter, op), worth) for op, worth in _WORTH.items()]
    for unit, letter in {"fp32": "f", "fp64": "d", "fp16": "h"}.items()
}
# A Volta tensor instruction (HMMA.884, per warp) is 512 operations: the factor in
# SpeedOfLight_HierarchicalTensorRooflineChart. Later chips have instructions of many sizes.
_VOLTA_OPS: Final = 512
_VOLTA: Final = ("7.0", "7.2")
# Names that cuBLAS, cuDNN and CUTLASS give to kernels that run on tensor cores.
_TENSOR_KERNEL: Final = re.compile(
    r"tensorop|[hsdi](?:16816|16832|1688|884)|tf32|hmma|gmma|mma_sync", re.IGNORECASE
)


def metrics() -> tuple[str, ...]:
    """Return the metrics to collect, without those of the tensor cores, which differ by chip."""
    return (TIME, DRAM, *(metric for family in FAMILIES.values() for _, metric, _ in family))


def read_ncu(path: Path) -> Export:
    """Read an export: one piece of work per launch.

    `UsageError` where it is no export, it was cut, it lacks a metric, or it holds an unknown unit
    or number.
    """
    launches = read_launches(path)
    rows = launches.rows
    seconds = launches.values(TIME, SECONDS)
    for ident in seconds.index[seconds <= 0]:
        raise UsageError(f"{launches.name(ident)} took no time; {HOW}")
    counters, notes = _counters(launches)
    flops = pd.DataFrame(0.0, rows.index, list(dict.fromkeys(unit for unit, _, _ in counters)))
    for unit, metric, worth in counters:
        flops[unit] += worth * launches.values(metric, OPERATIONS)
    if "fp16" in flops and flops["fp16"].any():
        notes.append("FP16 outside tensor cores: a lane per instruction; half2 does twice that")
    parts = _DRAM_PARTS if rows.columns.isin(_DRAM_PARTS).sum() == len(_DRAM_PARTS) else (DRAM,)
    moved = sum((launches.values(metric, BYTES) for metric in parts), pd.Series(0.0, rows.index))
    names = [*rows.get(_DEVICE, pd.Series(dtype=str)).unique()]
    device = str(names[0]) if len(names) == 1 else ""
    table = roofs.table_of(flops, id=rows.index, name=rows[_KERNEL], bytes=moved, seconds=seconds)
    return Export(table, device, tuple(notes))


def _counters(launches: Launches) -> tuple[list[Counter], list[str]]:
    """Return everything that counts operations, and notes on what nothing counts.

    FP32 must be there, and other families wholly or not at all.
    """
    rows = launches.rows
    counters: list[Counter] = []
    absent = []
    for unit, family in FAMILIES.items():
        missing = [metric for _, metric, _ in family if metric not in rows]
        if missing and (len(missing) < len(family) or unit == "fp32"):
            raise launches.lacks(*missing)
        counters += [] if missing else family
        absent += [unit.upper()] if missing else []
    tensor = _tensor_counters(launches)
    if tensor is None:
        for ident in rows.index[rows[_KERNEL].str.contains(_TENSOR_KERNEL)]:
            raise UsageError(
                f"{launches.name(ident)} runs on tensor cores, and the export lacks "
                f"{_TENSOR}*.sum; add what `{TENSOR_LIST}` lists, with .sum; {HOW}"
            )
        absent.append("tensor cores")
    notes = [f"not in this export, so not counted: {', '.join(absent)}"] if absent else []
    return [*counters, *(tensor or [])], notes


def _tensor_counters(launches: Launches) -> list[Counter] | None:
    """Return what counts tensor-core operations, or None where the export does not say."""
    rows = launches.rows
    names = [str(name) for name in rows]
    of_sources = [name for name in names if re.fullmatch(_TENSOR + r"\w+\.sum", name)]
    if of_sources:
        counters = []
        for name, source in sorted(_without_parts(of_sources).items()):
            if not source.startswith("int"):
                counters.append((f"{source} tensor", name, 1))
        return counters
    per_instruction = r"sm(sp)?__inst_executed_pipe_tensor(_(?!\w*[ib]mma)\w+)?\.sum"
    pipe = [name for name in names if re.fullmatch(per_instruction, name)]
    if not pipe:
        return None
    name = min(pipe, key=len)
    used = launches.values(name, OPERATIONS) > 0
    capabilities = rows.get("CC", pd.Series("", rows.index))
    for ident in used.index[used & ~capabilities.isin(_VOLTA)]:
        raise UsageError(
            f"{launches.name(ident)} used tensor cores, and how many operations an instruction is "
            f"differs by chip; add what `{TENSOR_LIST}` lists, with .sum; {HOW}"
        )
    return [("fp16 tensor", name, _VOLTA_OPS)]


def _without_parts(names: Iterable[str]) -> dict[str, str]:
    """Return metric to source type; where ncu gives a sum and its parts, only the sum.

    `src_fp16_dst_fp32` is a part of `src_fp16`, and `_sparsity_on` and `_off` are parts of what
    stands before them.
    """
    by_stem = {name.removeprefix(_TENSOR).removesuffix(".sum"): name for name in names}
    kept = {}
    for stem, name in by_stem.items():
        whole = re.sub(r"_sparsity_(on|off)$", "", stem)
        source = whole.split("_dst_")[0]
        if by_stem.keys().isdisjoint({whole, source} - {stem}):
            kept[name] = source
    return kept
