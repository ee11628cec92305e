"""What kernels did, from the metrics of an NVIDIA Nsight Compute export.

Time is `gpu__time_duration.sum`, bytes are those of the DRAM, operations are counted by the unit
that did them: thread-level instructions of the FP32, FP64 and FP16 pipes, a fused multiply-add as
two, and what the tensor cores count themselves. An export that lacks any of it is refused, with
the command that collects it; families that were not collected at all are named, but kernels that
run on tensor cores are never passed over.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hpcsweep.analysis.roofline import ncu_export
from hpcsweep.analysis.roofline.ncu_export import HOW, Launch
from hpcsweep.analysis.roofline.work import Export, Work
from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

TIME: Final = "gpu__time_duration.sum"
DRAM: Final = "dram__bytes.sum"
_TIMES: Final = (TIME, "Duration")  # the second is its name on the details page
_DRAM_PARTS: Final = ("dram__bytes_read.sum", "dram__bytes_write.sum")
_CLOCK: Final = "smsp__cycles_elapsed.avg.per_second"
_NAME: Final = "device__attribute_display_name"
_TENSOR: Final = "sm__ops_path_tensor_src_"
TENSOR_LIST: Final = f"ncu --query-metrics | grep {_TENSOR}"

# What a thread-level instruction is worth: a fused multiply-add is two operations, as in Nsight's
# own SpeedOfLight_*RooflineChart sections and LIKWID's groups FLOPS_{SP,DP,HP}. Half precision is
# counted as LIKWID does, a lane per instruction; Nsight's chart takes each for a packed half2.
WEIGHTS: Final = {"add": 1, "mul": 1, "fma": 2}
FAMILIES: Final = {"fp32": "f", "fp64": "d", "fp16": "h"}
# A Volta tensor instruction (HMMA.884, per warp) is 512 operations: the factor in
# SpeedOfLight_HierarchicalTensorRooflineChart. Later chips have instructions of many sizes.
_VOLTA_OPS: Final = 512.0
_VOLTA: Final = ("7.0", "7.2")
# Names that cuBLAS, cuDNN and CUTLASS give to kernels that run on tensor cores.
_TENSOR_KERNEL: Final = re.compile(
    r"tensorop|[hsdi](16816|16832|1688|884)|tf32|hmma|gmma|mma_sync", re.IGNORECASE
)


def metrics() -> tuple[str, ...]:
    """Return the metrics to collect, but for those of the tensor cores, which chips differ in."""
    return (TIME, DRAM, *(f"smsp__{name}.sum" for kind in FAMILIES for name in instructions(kind)))


def instructions(family: str) -> dict[str, int]:
    """Return the instruction counters of a family (fp32, fp64, fp16) and what each is worth."""
    letter = FAMILIES[family]
    return {
        f"sass_thread_inst_executed_op_{letter}{op}_pred_on": weight
        for op, weight in WEIGHTS.items()
    }


def read(path: Path) -> Export:
    """Read an export: one piece of work per launch.

    Raises:
        UsageError: it is no export, it was cut, it lacks a metric, or it holds a unit or a number
            that is not understood.

    """
    launches = ncu_export.read(path)
    recipe = _Recipe(path, launches)
    work = tuple(recipe.work(launch) for launch in launches)
    if any(piece.flops.get("fp16") for piece in work):
        recipe.notes.append(
            "FP16 outside tensor cores: a lane per instruction; half2 does twice that"
        )
    return Export(work, recipe.device(), tuple(recipe.notes))


class _Recipe:
    """How the quantities follow from the metrics that this export has."""

    def __init__(self, path: Path, launches: list[Launch]) -> None:
        self.notes: list[str] = []
        self._path, self._launches = path, launches
        self._names = {name for launch in launches for name in launch.cells}
        self._time = self._first(_TIMES, TIME)
        self._bytes = self._dram()
        self._terms = self._flop_terms()

    def device(self) -> str:
        """Return the device's own name, where the export has it."""
        names = {launch.cells[_NAME][0] for launch in self._launches if _NAME in launch.cells}
        return names.pop() if len(names) == 1 else ""

    def work(self, launch: Launch) -> Work:
        """Return what a launch did."""
        seconds = self._value(launch, self._time, ncu_export.duration)
        if seconds <= 0:
            raise UsageError(f"{self._path}: {launch.text} took no time; {HOW}")
        cells: dict[str, float] = {}
        for unit, name, weight in self._terms:
            count = self._value(launch, name, ncu_export.count)
            if "per_cycle_elapsed" in name or name.startswith("derived__"):
                count *= self._value(launch, _CLOCK, ncu_export.rate) * seconds
            cells[unit] = cells.get(unit, 0.0) + weight * count
        moved = sum(
            self._value(launch, name, ncu_export.size)
            * (seconds if name.endswith("per_second") else 1)
            for name in self._bytes
        )
        return Work(launch.kernel, launch.ident, cells, moved, seconds)

    def _first(self, names: Iterable[str], wanted: str) -> str:
        for name in names:
            if name in self._names:
                return name
        raise self._lacks(wanted)

    def _lacks(self, *names: str) -> UsageError:
        return UsageError(f"{self._path}: the export lacks {', '.join(names)}; {HOW}")

    def _dram(self) -> tuple[str, ...]:
        """Return the metrics whose sum is the DRAM traffic."""
        for suffix in ("", ".per_second"):
            if DRAM + suffix in self._names:
                return (DRAM + suffix,)
            parts = tuple(name + suffix for name in _DRAM_PARTS)
            if self._names.issuperset(parts):
                return parts
        raise self._lacks(DRAM)

    def _flop_terms(self) -> list[tuple[str, str, float]]:
        """Return unit, metric and weight of everything that counts operations."""
        terms: list[tuple[str, str, float]] = []
        absent = []
        for family in FAMILIES:
            found = {name: self._counter(name) for name in instructions(family)}
            missing = [f"smsp__{name}.sum" for name, counter in found.items() if counter is None]
            if missing and (family == "fp32" or len(missing) < len(found)):
                raise self._lacks(*missing)
            if missing:
                absent.append(family.upper())
                continue
            weights = instructions(family)
            terms += [
                (family, counter[0], weights[name] / counter[1])
                for name, counter in found.items()
                if counter
            ]
        tensor = self._tensor_terms()
        if tensor is None:
            self._refuse_tensor_kernels()
            absent.append("tensor cores")
        if absent:
            self.notes.append(f"not in this export, so not counted: {', '.join(absent)}")
        if any("per_cycle" in name or name.startswith("derived") for _, name, _ in terms):
            self._first((_CLOCK,), _CLOCK)
            self.notes.append("FLOPs are from rates per cycle, which ncu rounds")
        return terms + (tensor or [])

    def _counter(self, name: str) -> tuple[str, float] | None:
        """Return the metric that holds an instruction counter, and the factor that is in it."""
        for found, factor in (
            (f"smsp__{name}.sum", 1),
            (f"sm__{name}.sum", 1),
            (f"smsp__{name}.sum.per_cycle_elapsed", 1),
            (f"derived__smsp__{name}_x2", 2),
            (f"derived__smsp__{name}_x4", 4),
        ):
            if found in self._names:
                return found, factor
        return None

    def _tensor_terms(self) -> list[tuple[str, str, float]] | None:
        """Return what counts tensor-core operations, or None where the export does not say."""
        ops = [name for name in self._names if re.fullmatch(_TENSOR + r"\w+\.sum(\..*)?", name)]
        ops = [n for n in ops if n.endswith((".sum", ".sum.per_cycle_elapsed"))]
        if ops:
            return [
                (f"{source} tensor", name, 1.0)
                for name, source in sorted(_without_parts(ops).items())
                if not source.startswith("int")
            ]
        pipe = [
            name
            for name in self._names
            if re.fullmatch(r"smp?s?p?__inst_executed_pipe_tensor(_\w+)?\.sum", name)
            and not re.search(r"imma|bmma", name)
        ]
        if not pipe:
            return None
        name = min(pipe, key=len)
        used = [one for one in self._launches if self._value(one, name, ncu_export.count) > 0]
        others = [one for one in used if one.capability not in _VOLTA]
        if others:
            raise UsageError(
                f"{self._path}: {others[0].text} used tensor cores, and how many operations an "
                f"instruction is differs by chip; add what `{TENSOR_LIST}` lists, with .sum; {HOW}"
            )
        return [("fp16 tensor", name, _VOLTA_OPS)]

    def _refuse_tensor_kernels(self) -> None:
        for launch in self._launches:
            if _TENSOR_KERNEL.search(launch.kernel):
                raise UsageError(
                    f"{self._path}: {launch.text} runs on tensor cores, "
                    f"and the export lacks {_TENSOR}*.sum; add what `{TENSOR_LIST}` lists, with "
                    f".sum; {HOW}"
                )

    def _value(self, launch: Launch, name: str, convert: Callable[[str], float | None]) -> float:
        return ncu_export.value(self._path, launch, name, convert)


def _without_parts(names: Iterable[str]) -> dict[str, str]:
    """Return metric to source type, where ncu gives a sum and its parts only the sum.

    `src_fp16_dst_fp32` is a part of `src_fp16`, `_sparsity_on` and `_off` are parts of what
    stands before them.
    """
    stems = {name: name.removeprefix(_TENSOR).split(".")[0] for name in names}
    kept: dict[str, str] = {}
    seen: set[str] = set()
    for name, stem in sorted(stems.items(), key=lambda item: (len(item[1]), item[0].count("."))):
        whole = re.sub(r"_sparsity_(on|off)$", "", stem)
        source = whole.split("_dst_")[0]
        if {stem, whole if whole != stem else "", source if source != stem else ""} & seen:
            continue
        seen.add(stem)
        kept[name] = source
    return kept
