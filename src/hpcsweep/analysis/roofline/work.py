"""What a roofline compares: pieces of work, and the roofs that no piece can be above.

A piece of work is a kernel launch, a layer call or a whole pass: floating-point operations by the
unit that did them, bytes moved, seconds. The roofs are the peaks of these units and the bandwidth
of the memory. The least time of a piece is the longer of two: its bytes over the bandwidth, and the
operations of its slowest unit over the peak of that unit. Units can work side by side, so their
times are not added. The share of the roof is the least time over the measured time (Williams,
Waterman and Patterson, "Roofline", CACM 52(4), 2009, here with a roof per unit).

The strict reader of profilers' CSV tables is here, too, and the short labels of kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, Final

import pandas as pd

from hpcsweep.catalog.gpus import Gpu
from hpcsweep.errors import UsageError

_MATRIX: Final = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
# A piece above this share of its roof is a mistake in the counters, the clock or the peak. The
# margin allows for datasheets that round a clock.
TOLERANCE: Final = 1.02


@dataclass(frozen=True)
class Work:
    """FLOPs by unit, bytes and seconds of one piece, or of the sum of `count` pieces.

    `ident` tells pieces of the same name apart; `detail` says more about this one. An algorithm may
    do `fewer` operations than the FLOPs of the definition, which then are no rate of the device.
    """

    name: str
    ident: str
    flops: Mapping[str, float]
    bytes: float
    seconds: float
    count: int = 1
    detail: str = ""
    fewer: bool = False

    @property
    def total(self) -> float:
        """FLOPs of all units."""
        return sum(self.flops.values())

    @property
    def intensity(self) -> float:
        """FLOPs per byte; infinite where nothing was moved."""
        return self.total / self.bytes if self.bytes else float("inf")

    @property
    def rate(self) -> float:
        """FLOPs per second."""
        return self.total / self.seconds


@dataclass(frozen=True)
class Export:
    """The work that a profiler or a sweep recorded.

    `device` is empty where its name is unknown. `piece` says what a piece is: a launch, a layer
    call or a point. `counted` is false where FLOPs and bytes were computed from shapes.
    """

    work: tuple[Work, ...]
    device: str = ""
    notes: tuple[str, ...] = ()
    piece: str = "launch"
    counted: bool = True
    hardware: str = ""  # for a caption


@dataclass(frozen=True)
class Roofs:
    """Peaks of a device: bytes per second, and FLOP/s by unit or one for all (`single`)."""

    bandwidth: float
    source: str
    by_unit: Mapping[str, float] = field(default_factory=dict)
    single: float | None = None

    def peak(self, unit: str) -> float:
        """Return the peak of a unit, FLOP/s; `UsageError` where the table has none."""
        found = self.single or self.by_unit.get(unit)
        if not found:
            raise UsageError(f"no peak of '{unit}' is known for {self.source}; give --peak-compute")
        return found

    def compute_seconds(self, work: Work) -> float:
        """Return the least time that the operations can take, in seconds."""
        if self.single:
            return work.total / self.single
        return max((n / self.peak(unit) for unit, n in work.flops.items() if n), default=0.0)

    def memory_seconds(self, work: Work) -> float:
        """Return the least time that the bytes can take, in seconds."""
        return work.bytes / self.bandwidth

    def share(self, work: Work) -> float:
        """Return the part of its roof that a piece reached; more than 1 is impossible."""
        return max(self.compute_seconds(work), self.memory_seconds(work)) / work.seconds

    def bound(self, work: Work) -> str:
        """Return the lower roof: `memory` or `compute`."""
        return "memory" if self.memory_seconds(work) >= self.compute_seconds(work) else "compute"


def roofs_of(gpu: Gpu) -> Roofs:
    """Return the dense roofs of a device.

    The catalogue has no vector rate of half precision, so the tensor rate, which is higher, takes
    its place. A sweep's rows name a dtype, not a unit: its peak is that of the fastest unit.
    """
    teras = {
        "fp64": gpu.fp64_tflops,
        "fp32": gpu.fp32_tflops,
        "fp16": gpu.fp16_tflops,
        "fp64 tensor": gpu.fp64_matrix_tflops,
        "fp32 tensor": gpu.fp32_matrix_tflops,
        "tf32 tensor": gpu.tf32_tflops,
        "fp16 tensor": gpu.fp16_tflops,
        "bf16 tensor": gpu.bf16_tflops,
        "tf32": gpu.peak("float32", tf32=True),
        **{f"{kind} matrix": gpu.peak(name) for kind, name in _MATRIX.items()},
        **{name: gpu.peak(name) for name in ("float64", "float32", "float16", "bfloat16")},
    }
    peaks = {unit: rate * 1e12 for unit, rate in teras.items() if rate}
    return Roofs(gpu.bandwidth_gbs * 1e9, gpu.name, peaks)


def summed(name: str, pieces: Sequence[Work]) -> Work:
    """Return the sum of pieces."""
    units = dict.fromkeys(unit for piece in pieces for unit in piece.flops)
    return Work(
        name,
        "",
        {unit: sum(piece.flops.get(unit, 0.0) for piece in pieces) for unit in units},
        sum(piece.bytes for piece in pieces),
        sum(piece.seconds for piece in pieces),
        sum(piece.count for piece in pieces),
        fewer=any(piece.fewer for piece in pieces),
    )


def text(path: Path) -> str:
    """Return what an export holds; `UsageError` where the file cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


def table(path: Path, lines: Sequence[str], start: int, how: str) -> pd.DataFrame:
    """Return the cells below the header, which is ``lines[start]``, as text; skip empty lines.

    Rows are labelled ``FILE, line N``. `how` ends error messages: the command for a whole export.
    `UsageError` where a row has more or fewer cells than the header, or a quote is not closed.
    """
    try:
        rows = pd.read_csv(
            StringIO("\n".join(lines)), skiprows=start, header=None, dtype=str,
            keep_default_na=False, skip_blank_lines=False, engine="python",  # which is strict
        )  # fmt: skip
    except ValueError as error:  # pandas' parser errors are ValueErrors
        raise UsageError(f"{path}: {error}: the export was cut; {how}") from error
    rows.index = pd.Index([f"{path}, line {start + number}" for number in range(1, len(rows) + 1)])
    rows = rows.dropna(how="all")  # empty lines
    known = rows.count(axis=1)
    all_cells = len(rows.columns)
    for line in rows.index[known < all_cells]:
        raise UsageError(f"{line}: {known[line]} of {all_cells} cells: the export was cut; {how}")
    rows.columns = pd.Index(rows.iloc[0])
    return rows.iloc[1:]


def pieces(
    names: pd.Series[str], flops: pd.DataFrame, moved: pd.Series[float], seconds: pd.Series[float]
) -> tuple[Work, ...]:
    """Return a piece of work per launch: names by ID, operations by unit, bytes, seconds."""
    columns: Any = (names.index, names, flops.to_dict("records"), moved, seconds)
    return tuple(
        Work(str(name), str(ident), operations, float(size), float(time))
        for ident, name, operations, size, time in zip(*columns, strict=True)
    )


def shortened(text: str, width: int) -> str:
    """Return a text of at most `width` characters; three dots replace its middle."""
    if len(text) <= width:
        return text
    head = (width - 3) * 2 // 3
    return f"{text[:head]}...{text[head + 3 - width :]}"


def labels(names: Iterable[str], width: int) -> dict[str, str]:
    """Return a label per name, of about `width` characters; no two are the same."""
    found: dict[str, str] = {}
    for name in names:
        short = shortened(_bare(name), width)
        twins = sum(re.sub(r" #\d+$", "", label) == short for label in found.values())
        found[name] = f"{short} #{twins + 1}" if twins else short
    return found


def _bare(name: str) -> str:
    """Return a C++ name without return type, namespaces, parameters and casts of arguments."""
    bare = re.sub(r"\((int|bool|unsigned int)\)", "", name.removeprefix("void "))
    bare = re.sub(r"^((\w+|<unnamed>|\(anonymous namespace\))::)+", "", bare)
    return re.sub(r"\([^()<>]*(\([^()]*\)[^()<>]*)*\)$", "", bare) or name
