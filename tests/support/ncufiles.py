"""Writes exports as Nsight Compute does, on the page `raw`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

OPS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
TIME, DRAM = "gpu__time_duration.sum", "dram__bytes.sum"
PREAMBLE = "==PROF== Connected to process 41 (python3.10)\nepoch 0, loss 2.3\n"
IDENTITY = ("ID", "Process ID", "Kernel Name", "CC")


@dataclass
class Launch:
    """One launch: nanoseconds, bytes, and instructions by metric."""

    ident: int
    kernel: str
    ns: int = 4_000
    bytes: int = 1_000_000
    counts: dict[str, int] = field(default_factory=dict)

    def cells(self) -> dict[str, str]:
        """Return the text of each metric, in base units."""
        ops = {OPS.format(op): self.counts.get(op, 0) for op in ("fadd", "fmul", "ffma")}
        extra = {name: n for name, n in self.counts.items() if "__" in name}
        counts = {TIME: self.ns, DRAM: self.bytes, **ops, **extra}
        return {name: f"{count:,}" for name, count in counts.items()}


def step(launches: int = 98, kernels: int = 34) -> list[Launch]:
    """Return a training step: kernels that repeat, of very different sizes."""
    return [
        Launch(
            i,
            f"void kernel_{i % kernels}<float, (int){i % kernels}>(float *, int)",
            ns=700 + 37_501 * i,
            bytes=640 + 25_003 * i * i,
            counts={"fadd": 1_003 * i, "fmul": 17, "ffma": 1_000_000 + 7 * i},
        )
        for i in range(launches)
    ]


def flops(launches: list[Launch]) -> int:
    """Return the operations of launches, counted here and not there."""
    return sum(x.counts["fadd"] + x.counts["fmul"] + 2 * x.counts["ffma"] for x in launches)


def write_wide(path: Path, launches: list[Launch], preamble: str = PREAMBLE) -> Path:
    """Write the page `raw`: one row per launch, units below the header, in base units."""
    names = list(launches[0].cells())
    units = {TIME: "nsecond", DRAM: "byte"}
    rows = [[*IDENTITY, *names], ["", "", "", "", *(units.get(name, "inst") for name in names)]]
    rows += [[str(one.ident), "41", one.kernel, "8.0", *one.cells().values()] for one in launches]
    path.write_text(preamble + lines(rows))
    return path


def lines(rows: list[list[str]]) -> str:
    """Return quoted CSV."""
    return "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows)
