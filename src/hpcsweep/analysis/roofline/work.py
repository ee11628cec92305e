"""What a roofline compares: pieces of work, and the roofs that no piece can be above.

A piece of work is a kernel launch, a layer or a whole pass: floating-point operations by the unit
that did them, bytes moved, seconds. The roofs are the peaks of those units and of the memory. The
least time that a piece can take is the larger of its bytes over the bandwidth and, of its units,
the slowest one's operations over the peak (units can work side by side, so their times are not
added). Its share of the roof is that least time over the time it took: Williams, Waterman and
Patterson, "Roofline", CACM 52(4), 2009, with a roof per unit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hpcsweep.catalog.gpus import Gpu

_MATRIX: Final = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
# Above this share of its roof a piece is a mistake: of the counting, the clock or the peak.
# The excess allows for datasheets that round a clock.
TOLERANCE: Final = 1.02


@dataclass(frozen=True)
class Work:
    """FLOPs by unit, bytes and seconds of one piece, or of the sum of `count` pieces.

    `ident` tells pieces of one name apart; `detail` is what a reader wants to know of this one.
    """

    name: str
    ident: str
    flops: Mapping[str, float]
    bytes: float
    seconds: float
    count: int = 1
    detail: str = ""

    @property
    def total(self) -> float:
        """Return the operations of all units."""
        return sum(self.flops.values())

    @property
    def intensity(self) -> float:
        """Return FLOPs per byte; infinite where nothing was moved."""
        return self.total / self.bytes if self.bytes else float("inf")

    @property
    def rate(self) -> float:
        """Return FLOPs per second."""
        return self.total / self.seconds


@dataclass(frozen=True)
class Export:
    """What a profiler or a sweep says was done.

    `device` is the name of the device, as far as it is known; pieces are kernel launches, layer
    calls or points. `counted` is false where FLOPs and bytes follow from shapes alone.
    """

    work: tuple[Work, ...]
    device: str = ""
    notes: tuple[str, ...] = ()
    piece: str = "launch"
    counted: bool = True


@dataclass(frozen=True)
class Roofs:
    """Peaks: FLOP/s by unit, or one for all (`single`), and bytes per second."""

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
        """Return the least time that the operations can take."""
        if self.single:
            return work.total / self.single
        return max((n / self.peak(unit) for unit, n in work.flops.items() if n), default=0.0)

    def memory_seconds(self, work: Work) -> float:
        """Return the least time that the bytes can take."""
        return work.bytes / self.bandwidth

    def share(self, work: Work) -> float:
        """Return what part of its roof a piece reached; above 1 is impossible."""
        return max(self.compute_seconds(work), self.memory_seconds(work)) / work.seconds

    def bound(self, work: Work) -> str:
        """Return which roof is the lower one: `memory` or `compute`."""
        return "memory" if self.memory_seconds(work) >= self.compute_seconds(work) else "compute"


def roofs_of(gpu: Gpu) -> Roofs:
    """Return the dense roofs of a device.

    The table has no vector rate of half precision; the tensor rate, which is above it, stands in.
    Dtypes are the units of a sweep's rows: whatever runs them fastest.
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


def summed(name: str, pieces: Iterable[Work]) -> Work:
    """Return the sum of pieces."""
    flops: dict[str, float] = {}
    moved = seconds = 0.0
    count = 0
    for piece in pieces:
        for unit, operations in piece.flops.items():
            flops[unit] = flops.get(unit, 0.0) + operations
        moved += piece.bytes
        seconds += piece.seconds
        count += piece.count
    return Work(name, "", flops, moved, seconds, count)
