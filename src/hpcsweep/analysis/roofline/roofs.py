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

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from hpcsweep.catalog.gpus import Gpu
from hpcsweep.errors import UsageError

_MATRIX: Final = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
# A piece above this share of its roof is a mistake in the counters, the clock or the peak. The
# margin allows for datasheets that round a clock.
TOLERANCE: Final = 1.02


# the columns of a table of work; the others are units, and hold what each of them did
_ABOUT: Final = ["id", "name", "detail", "seconds", "bytes", "count", "fewer"]


@dataclass(frozen=True)
class Export:
    """The work that a profiler or a sweep recorded, a row per piece (see `table_of`).

    `device` is empty where its name is unknown. `piece` says what a piece is: a launch, a layer
    call or a point. `counted` is false where FLOPs and bytes were computed from shapes.
    """

    work: pd.DataFrame
    device: str = ""
    notes: tuple[str, ...] = ()
    piece: str = "launch"
    counted: bool = True
    hardware: str = ""  # for a caption


def units_of(columns: Iterable[Any]) -> list[str]:
    """Return the units that did any operation, of the columns of a table of work."""
    return [str(name) for name in columns if name not in _ABOUT]


def table_of(flops: pd.DataFrame, **columns: Any) -> pd.DataFrame:  # noqa: ANN401 - id, name, ...
    """Return a table of work: a row per piece, with its operations by unit, bytes and seconds.

    An id tells pieces of the same name apart; `detail` says more about this one. An algorithm may
    do `fewer` operations than the FLOPs of the definition, which then are no rate of the device.
    """
    about = {"detail": "", "count": 1, "fewer": False, **columns}
    done = flops.loc[:, (flops != 0).any()]
    return done.assign(**about).reset_index(drop=True)


def summed(work: pd.DataFrame, names: Any) -> pd.DataFrame:  # noqa: ANN401 - a column, or one name
    """Return a row for the pieces of each name, the longest first."""
    by_name = work.assign(name=names).groupby("name", as_index=False, sort=False)
    sums = by_name.sum(numeric_only=True).assign(id="", detail="").astype({"fewer": bool})
    return sums.sort_values("seconds", ascending=False, kind="stable")


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

    def held_against(self, work: pd.DataFrame) -> pd.DataFrame:
        """Return rates of work, which roof is the lower one, and the part of it that was reached.

        What is above its roof is impossible. `UsageError` where the peak of a unit is not known.
        """
        units = units_of(work)
        flops = work[units].sum(axis=1)
        peaks = pd.Series([self.peak(unit) for unit in units], units, dtype=float)
        compute = flops / self.single if self.single else (work[units] / peaks).max(axis=1)
        memory = work["bytes"] / self.bandwidth
        share = np.fmax(compute, memory) / work["seconds"]
        by_compute = compute > memory
        whole = work[[*units, "bytes"]].round().astype("int64")
        of_units = whole[units].rename(columns=lambda unit: f"flops_{unit.replace(' ', '_')}")
        return work[["id", "name", "detail", "count"]].assign(
            time_us=1e6 * work["seconds"],
            flops=flops.round().astype("int64"),
            **of_units,
            bytes=whole["bytes"],
            flop_per_byte=flops / work["bytes"].where(work["bytes"] > 0),
            tflops=flops / work["seconds"] / 1e12,
            gbs=work["bytes"] / work["seconds"] / 1e9,
            pct_of_roof=100 * share,
            bound=np.where(by_compute, "compute", "memory"),
            above_roof=(share > TOLERANCE) & ~(work["fewer"] & by_compute),
        )


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
    }
    for kind, name in _MATRIX.items():
        teras[f"{kind} matrix"] = gpu.peak(name)
        teras[name] = gpu.peak(name)
    peaks = {unit: rate * 1e12 for unit, rate in teras.items() if rate}
    return Roofs(gpu.bandwidth_gbs * 1e9, gpu.name, peaks)


def text(path: Path) -> str:
    """Return what an export holds, in UTF-8 or 16; `UsageError` where the file cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    lines = data.decode(json.detect_encoding(data[:4]), "replace")
    return lines.replace("\r\n", "\n").replace("\r", "\n")


class Lacking(UsageError):
    """An export that its tool has to write anew: it was cut, or holds too little."""


@dataclass(frozen=True)
class Source:
    """The lines of an export, and which of them is the header."""

    path: Path
    lines: Sequence[str]
    start: int = 0

    def table(self) -> pd.DataFrame:
        """Return the cells below the header as text; skip empty lines.

        Rows are labelled ``FILE, line N``. `Lacking` where a row has more or fewer cells than the
        header, or a quote is not closed.
        """
        delimiter = max(",;\t", key=self.lines[self.start].count)
        try:
            rows = pd.read_csv(
                StringIO("\n".join(self.lines)), sep=delimiter, skiprows=self.start, header=None,
                dtype=str, keep_default_na=False, skip_blank_lines=False,
                engine="python",  # which is strict
            )  # fmt: skip
        except ValueError as error:  # pandas' parser errors are ValueErrors
            raise Lacking(f"{self.path}: {error}: the export was cut") from error
        rows.index = f"{self.path}, line " + (rows.index + self.start + 1).astype(str)
        rows = rows.dropna(how="all")  # empty lines
        known = rows.count(axis=1)
        all_cells = len(rows.columns)
        for line in rows.index[known < all_cells]:
            raise Lacking(f"{line}: {known[line]} of {all_cells} cells: the export was cut")
        rows.columns = pd.Index(rows.iloc[0])
        return rows.iloc[1:]


def shortened(text: str, width: int) -> str:
    """Return a text of at most `width` characters; three dots replace its middle."""
    if len(text) <= width:
        return text
    # a longer head keeps the operation of a kernel's name, a longer tail the template's arguments
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
