"""What kernels did, from the CSV export of NVIDIA Nsight Compute.

There are two layouts, which differ in their header. `--page raw` has one row per launch, a column
per metric, and a row of units below the header. `--page details` has one row per metric, with the
columns "Metric Name", "Metric Unit" and "Metric Value". Launches are told apart by "ID" and never
by kernel name, since a network launches the same kernel many times. ncu scales every value for
reading and gives each a unit of its own. Units are decimal: a Kbyte is 1000 bytes. An unknown unit,
number or layout is refused: a wrong number is worse than none.

Time is `gpu__time_duration.sum` and bytes are those of the DRAM. Operations are counted by unit:
thread-level instructions of the FP32, FP64 and FP16 pipes, with a fused multiply-add as two, and
what the tensor cores count themselves. An export without time, bytes or FP32 is refused, with the
command that collects them. Other units that were not collected are named in a note, but a kernel
that runs on tensor cores is refused where nothing counts them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pandas as pd

from hpcsweep.analysis.roofline import work
from hpcsweep.analysis.roofline.work import Export
from hpcsweep.errors import UsageError

HOW: Final = (
    "collect with: ncu --csv --page raw --metrics $(hpcsweep roofline --counters ncu) PROGRAM > "
    "kernels.csv"
)

# Units by quantity, as patterns; the first group is a prefix, and the second that of a divisor.
SECONDS: Final = r"([mun]?)(?:s|sec|second)"
BYTES: Final = rf"([KMGTP]?)(?:byte|B)(?:/{SECONDS})?"  # or bytes per second
OPERATIONS: Final = r"(?:([KMGTP]?)(?:inst|ops?)|1?)(?:/cycle)?"  # older versions write no unit
CYCLES: Final = rf"([KMGTP]?)(?:[Hh]z|cycle(?:/{SECONDS})?)"  # per second
_PREFIXES: Final = dict(zip("numKMGTP", (1e-9, 1e-6, 1e-3, 1e3, 1e6, 1e9, 1e12, 1e15), strict=True))
_NUMBER: Final = r"-?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?([eE][+-]?\d+)?"
_NOT_MEASURED: Final = ("", "n/a", "(!) n/a", "nan")
_METRIC = "Metric Name"
_VALUE = "Metric Value"
_UNIT = "Metric Unit"
_IDENTITY: Final = ("ID", "Kernel Name", "Process ID", "CC")


@dataclass(frozen=True)
class Launches:
    """The kernel launches of an export, labelled by ID."""

    path: Path
    kernels: pd.Series[str]
    capabilities: pd.Series[str]
    metrics: dict[str, pd.DataFrame]  # with the columns "Metric Value" and "Metric Unit"

    def name(self, ident: str) -> str:
        """Return how a message names a launch."""
        return f"{self.path}: ID {ident} ({self.kernels[ident][:60]})"

    def values(self, metric: str, known_units: str) -> pd.Series[float]:
        """Return a metric of all launches in base units; `UsageError` where one lacks it."""
        cells = self.metrics[metric].reindex(self.kernels.index, fill_value="")
        texts = cells[_VALUE].str.strip()
        units = cells[_UNIT].str.strip()
        for ident in texts.index[texts.isin(_NOT_MEASURED)]:
            raise UsageError(
                f"{self.name(ident)} lacks {metric}: the export was cut, or ncu could not measure "
                f"it; {HOW}"
            )
        for ident in texts.index[~texts.str.fullmatch(_NUMBER)]:
            raise UsageError(
                f"{self.name(ident)}: {metric} is '{texts[ident]}', which is no number as ncu "
                "writes it (1,234.5); export with LC_ALL=C"
            )
        factors = units.map(lambda unit: factor_of(unit, known_units)).astype(float)
        for ident in texts.index[factors.isna()]:
            raise UsageError(
                f"{self.name(ident)}: the unit '{units[ident]}' of {metric} is not known; export "
                "with --print-units base"
            )
        return texts.str.replace(",", "").astype(float) * factors


def factor_of(unit: str, known_units: str) -> float:
    """Return how many base units a unit is; NaN where the pattern does not match it."""
    match = re.fullmatch(known_units, unit[:1].upper() + unit[1:] if "hz" in unit else unit)
    if match is None:
        return math.nan
    scale, divisor = (_PREFIXES.get(prefix or "", 1.0) for prefix in (*match.groups(), "")[:2])
    return scale / divisor


def is_export(line: str) -> bool:
    """Tell whether a line is the header of an export."""
    return line.startswith(('"ID"', "ID,")) and "Kernel Name" in line


def read_launches(path: Path) -> Launches:
    """Read an export's launches; `UsageError` where it is none, was cut, or holds several."""
    lines = work.text(path).splitlines()
    rows = _rows(path, lines)
    identity = [name for name in _IDENTITY if name in rows]
    launches = rows[identity].drop_duplicates()
    for line, row in launches[launches["ID"].duplicated()].iterrows():
        raise UsageError(
            f"{line}: ID {row['ID']} again, for another launch; give one export at a time"
        )
    rows = rows.drop_duplicates(["ID", _METRIC, _VALUE, _UNIT])
    again = rows.duplicated(["ID", _METRIC])
    # names for people ("Memory Throughput") stand in several sections; counters do not differ
    for line, row in rows[again & rows[_METRIC].str.contains("__")].iterrows():
        raise UsageError(f"{line}: '{row[_METRIC]}' of ID {row['ID']} has two values")
    announced = sum(line.startswith("==PROF== Profiling ") for line in lines)
    if launches.empty or announced > len(launches):
        raise UsageError(
            f"{path}: {len(launches)} launches, and ncu announced {announced or 'some'}: the "
            f"export was cut; {HOW}"
        )
    launches = launches.set_index("ID")
    metrics = {str(name): cells.set_index("ID") for name, cells in rows[~again].groupby(_METRIC)}
    capabilities = launches.get("CC", pd.Series("", launches.index))
    return Launches(path, launches["Kernel Name"], capabilities, metrics)


def _rows(path: Path, lines: Sequence[str]) -> pd.DataFrame:
    """Return a row per launch and metric, as `--page details` has them."""
    start = next((number for number, line in enumerate(lines) if is_export(line)), None)
    if start is None:
        raise UsageError(f'{path}: no line begins with "ID", so this is no ncu export; {HOW}')
    # the program's own output and ncu's remarks may stand between the rows
    quote = '"' if lines[start].startswith('"') else ""
    table = [x if x.startswith(quote) and not x.startswith("==") else "" for x in lines]
    rows = work.table(path, table, start, HOW)
    for line in rows.index[(rows == rows.columns).all(axis=1)]:
        raise UsageError(f"{line}: a second table; give one export at a time")
    long = _METRIC in rows
    needed = ["ID", "Kernel Name", *((_UNIT, _VALUE) if long else ())]
    work.check_columns(path, rows, needed, HOW)
    if long:
        return rows
    if rows.empty or rows["ID"].iloc[0]:
        raise UsageError(f"{path}: no row of units below the header; {HOW}")
    identity = [name for name in _IDENTITY if name in rows]
    units = rows.iloc[0]
    rows = rows.iloc[1:]
    rows = rows.melt(identity, var_name=_METRIC, value_name=_VALUE, ignore_index=False)
    return rows.assign(**{_UNIT: rows[_METRIC].map(units)})


TIME: Final = "gpu__time_duration.sum"
DRAM: Final = "dram__bytes.sum"
_DRAM_PARTS: Final = ("dram__bytes_read.sum", "dram__bytes_write.sum")
_CLOCK: Final = "smsp__cycles_elapsed.avg.per_second"
_DEVICE: Final = "device__attribute_display_name"
_TENSOR: Final = "sm__ops_path_tensor_src_"
TENSOR_LIST: Final = f"ncu --query-metrics | grep {_TENSOR}"

# What a thread-level instruction is worth: a fused multiply-add is two operations, as in Nsight's
# own SpeedOfLight_*RooflineChart sections and LIKWID's groups FLOPS_{SP,DP,HP}. Half precision is
# counted as LIKWID does, a lane per instruction; Nsight's chart takes each for a packed half2.
WEIGHTS: Final = {"add": 1, "mul": 1, "fma": 2}
FAMILIES: Final = {"fp32": "f", "fp64": "d", "fp16": "h"}
# Metrics that hold an instruction counter, and the factor that is in each.
_COUNTERS: Final = {
    "smsp__{}.sum": 1,
    "sm__{}.sum": 1,
    "smsp__{}.sum.per_cycle_elapsed": 1,
    "derived__smsp__{}_x2": 2,
    "derived__smsp__{}_x4": 4,
}
# A Volta tensor instruction (HMMA.884, per warp) is 512 operations: the factor in
# SpeedOfLight_HierarchicalTensorRooflineChart. Later chips have instructions of many sizes.
_VOLTA_OPS: Final = 512
_VOLTA: Final = ("7.0", "7.2")
# Names that cuBLAS, cuDNN and CUTLASS give to kernels that run on tensor cores.
_TENSOR_KERNEL: Final = re.compile(
    r"tensorop|[hsdi](?:16816|16832|1688|884)|tf32|hmma|gmma|mma_sync", re.IGNORECASE
)


class _Term(NamedTuple):
    """A metric that counts operations: the unit that did them, and how many each count is."""

    unit: str
    metric: str
    weight: float

    @property
    def per_cycle(self) -> bool:
        return "per_cycle" in self.metric or self.metric.startswith("derived__")


def metrics() -> tuple[str, ...]:
    """Return the metrics to collect, without those of the tensor cores, which differ by chip."""
    return (TIME, DRAM, *(f"smsp__{name}.sum" for kind in FAMILIES for name in instructions(kind)))


def instructions(family: str) -> dict[str, int]:
    """Return the instruction counters of a family (fp32, fp64, fp16) and what each is worth."""
    letter = FAMILIES[family]
    return {
        f"sass_thread_inst_executed_op_{letter}{op}_pred_on": weight
        for op, weight in WEIGHTS.items()
    }


def read_ncu(path: Path) -> Export:
    """Read an export: one piece of work per launch.

    `UsageError` where it is no export, it was cut, it lacks a metric, or it holds an unknown unit
    or number.
    """
    launches = read_launches(path)
    seconds = launches.values(_one_of(launches, TIME, "Duration"), SECONDS)
    for ident in seconds.index[seconds <= 0]:
        raise UsageError(f"{launches.name(ident)} took no time; {HOW}")
    terms, notes = _terms(launches)
    flops = _flops(launches, terms, seconds)
    if "fp16" in flops and flops["fp16"].any():
        notes.append("FP16 outside tensor cores: a lane per instruction; half2 does twice that")
    moved = _bytes(launches, seconds)
    pieces = work.pieces(launches.kernels, flops, moved, seconds)
    cells = launches.metrics.get(_DEVICE)
    names = [] if cells is None else list(cells["Metric Value"].unique())
    device = str(names[0]) if len(names) == 1 else ""
    return Export(pieces, device, tuple(notes))


def _bytes(launches: Launches, seconds: pd.Series[float]) -> pd.Series[float]:
    for suffix, factor in (("", 1), (".per_second", seconds)):
        for names in ((DRAM,), _DRAM_PARTS):
            metrics = [name + suffix for name in names]
            if launches.metrics.keys() >= set(metrics):
                values = [launches.values(metric, BYTES) for metric in metrics]
                return sum(values[1:], values[0]) * factor
    raise _lacks(launches, DRAM)


def _flops(launches: Launches, terms: list[_Term], seconds: pd.Series[float]) -> pd.DataFrame:
    flops = pd.DataFrame(0.0, launches.kernels.index, list(dict.fromkeys(t.unit for t in terms)))
    for term in terms:
        counts = launches.values(term.metric, OPERATIONS)
        if term.per_cycle:
            clock = launches.values(_one_of(launches, _CLOCK), CYCLES)
            counts = counts * clock * seconds
        flops[term.unit] += term.weight * counts
    return flops


def _terms(launches: Launches) -> tuple[list[_Term], list[str]]:
    """Return everything that counts operations, and notes on what nothing counts."""
    terms: list[_Term] = []
    absent = []
    for family in FAMILIES:
        found = _family(launches, family)
        terms += found
        absent += [] if found else [family.upper()]
    tensor = _tensor_terms(launches)
    if tensor is None:
        for ident in launches.kernels.index[launches.kernels.str.contains(_TENSOR_KERNEL)]:
            raise UsageError(
                f"{launches.name(ident)} runs on tensor cores, and the export lacks "
                f"{_TENSOR}*.sum; add what `{TENSOR_LIST}` lists, with .sum; {HOW}"
            )
        absent.append("tensor cores")
    terms += tensor or []
    notes = [f"not in this export, so not counted: {', '.join(absent)}"] if absent else []
    if any(term.per_cycle for term in terms):
        notes.append("FLOPs are from rates per cycle, which ncu rounds")
    return terms, notes


def _family(launches: Launches, family: str) -> list[_Term]:
    """Return the counters of a family; FP32 must be there, and others wholly or not at all."""
    terms = []
    missing = []
    for name, weight in instructions(family).items():
        metrics = ((form.format(name), factor) for form, factor in _COUNTERS.items())
        known = [(metric, factor) for metric, factor in metrics if metric in launches.metrics]
        terms += [_Term(family, metric, weight / factor) for metric, factor in known[:1]]
        missing += [] if known else [f"smsp__{name}.sum"]
    if missing and (terms or family == "fp32"):
        raise _lacks(launches, *missing)
    return terms


def _tensor_terms(launches: Launches) -> list[_Term] | None:
    """Return what counts tensor-core operations, or None where the export does not say."""
    per_source = re.compile(_TENSOR + r"\w+\.sum(\.per_cycle_elapsed)?")
    ops = filter(per_source.fullmatch, launches.metrics)
    if sources := _without_parts(ops):
        pairs = sorted(sources.items())
        return [_Term(f"{s} tensor", name, 1) for name, s in pairs if not s.startswith("int")]
    per_instruction = re.compile(r"sm(sp)?__inst_executed_pipe_tensor(_(?!\w*[ib]mma)\w+)?\.sum")
    pipe = list(filter(per_instruction.fullmatch, launches.metrics))
    if not pipe:
        return None
    name = min(pipe, key=len)
    used = launches.values(name, OPERATIONS) > 0
    for ident in used.index[used & ~launches.capabilities.isin(_VOLTA)]:
        raise UsageError(
            f"{launches.name(ident)} used tensor cores, and how many operations an instruction is "
            f"differs by chip; add what `{TENSOR_LIST}` lists, with .sum; {HOW}"
        )
    return [_Term("fp16 tensor", name, _VOLTA_OPS)]


def _one_of(launches: Launches, *names: str) -> str:
    """Return the first of several names of a metric that the export has."""
    for name in names:
        if name in launches.metrics:
            return name
    raise _lacks(launches, names[0])


def _lacks(launches: Launches, *names: str) -> UsageError:
    return UsageError(f"{launches.path}: the export lacks {', '.join(names)}; {HOW}")


def _without_parts(names: Iterable[str]) -> dict[str, str]:
    """Return metric to source type; where ncu gives a sum and its parts, only the sum.

    `src_fp16_dst_fp32` is a part of `src_fp16`, and `_sparsity_on` and `_off` are parts of what
    stands before them.
    """
    by_stem = {  # of two with one stem the shorter, which is no rate
        name.removeprefix(_TENSOR).split(".")[0]: name
        for name in sorted(names, key=len, reverse=True)
    }
    kept = {}
    for stem, name in by_stem.items():
        whole = re.sub(r"_sparsity_(on|off)$", "", stem)
        source = whole.split("_dst_")[0]
        if by_stem.keys().isdisjoint({whole, source} - {stem}):
            kept[name] = source
    return kept
