"""Imports MIOpen's find-db: what AMD, or a user who tuned, measured of convolution problems.

A line is a problem and what each solver took. Fields of the gradients (B, W) begin with the side of
the output, so both sides change places. A time of 0 is no measurement.

A point holds the problems of one algorithm, batch size, type and layout. A time is the best of a
few short runs of another program, so the flag `foreign` puts all rows in doubt: they are never the
fastest of a report. `best --from` chooses by them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hpcsweep.catalog import gpus
from hpcsweep.catalog.columns import FOREIGN, Row
from hpcsweep.conv.shape import NCHW, NHWC, ConvShape
from hpcsweep.errors import UsageError
from hpcsweep.importing import delimited, submission, unpacking
from hpcsweep.importing.delimited import TAKEN
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count

NETWORK: Final = "find-db"  # in place of a network: its convolutions belong to many
_MOST: Final = 1 << 30  # bytes, unpacked; the largest of AMD's has 200 million
_NAME: Final = re.compile(r".+\.u?fdb\.txt(\.bz2|\.gz)?")
# Compute units stand behind an underscore, or as hexadecimal digits where they are more than 64:
# gfx906_60, gfx90878. Features of a chip are no part of its name: gfx906_xnack_60, gfx90a:xnack-.
_GPU: Final = re.compile(
    r"(gfx(?:9[0-9a-f]{2}|1[0-9a-f]{3}))(?:[:_](?:no)?(?:sramecc|xnack)[+-]?)*"
    r"(?:_(\d+)|([0-9a-f]+))?\."
)
_WORDS: Final = {
    "F": "forward", "B": "backward_data", "W": "backward_weights", "NCHW": NCHW, "NHWC": NHWC,
    "FP64": "float64", "FP32": "float32", "FP16": "float16", "BF16": "bfloat16", "GEMM": "gemm",
    "Direct": "direct", "FFT": "fft", "Winograd": "winograd", "ImplicitGEMM": "implicit_gemm",
}  # fmt: skip
# no size has ten digits, and of more than 4,300 Python makes no number
_PROBLEM: Final = re.compile(
    r"(?P<in_c>\d{1,9})-(?P<in_h>\d{1,9})-(?P<in_w>\d{1,9})"
    r"-(?P<kernel_h>\d{1,9})x(?P<kernel_w>\d{1,9})"
    r"-(?P<out_c>\d{1,9})-(?P<out_h>\d{1,9})-(?P<out_w>\d{1,9})-(?P<n>\d{1,9})"
    r"-(?P<pad_h>\d{1,9})x(?P<pad_w>\d{1,9})-(?P<stride_h>\d{1,9})x(?P<stride_w>\d{1,9})"
    r"-(?P<dilation_h>\d{1,9})x(?P<dilation_w>\d{1,9})-\d+"
    r"-(?P<layout>NCHW|NHWC)(?:-(?P=layout)-(?P=layout))?-(?P<dtype>FP64|FP32|FP16|BF16)"
    r"-(?P<way>[FBW])(?:_g(?P<groups>\d{1,9}))?"
)
_DEEP: Final = re.compile(r"[\d-]+?-\d+x\d+x\d+-")
_ALGORITHM: Final = (
    r"miopenConvolution(?:Fwd|BwdData|BwdWeights)Algo"
    r"(?P<algorithm>GEMM|Direct|FFT|Winograd|ImplicitGEMM)"
)
_ENTRIES: Final = (
    re.compile(rf"(?P<solver>[^,:]*):(?P<ms>[^,]*),(?P<workspace>\d{{1,18}}),{_ALGORITHM}(,.*)?"),
    re.compile(rf"{_ALGORITHM}:(?P<solver>[^,]*),(?P<ms>[^,]*),(?P<workspace>\d{{1,18}})(,.*)?"),
)
_UNREAD: Final = "without a problem of a known type and layout, whose sizes agree"


def read_rows(path: Path, gpu: str, counts: Counter[str]) -> Iterator[Row]:
    """Yield a layer row for the time of each solver; `ResultsError` where it cannot be read.

    `counts` has what became of each solver in the file: `TAKEN`, or why it was left out.
    """
    with unpacking.opened(path.resolve(), _MOST) as file:
        text = unpacking.as_text(file, "replace")
        for line in map(str.strip, text):
            if line:
                yield from of_line(line, gpu, counts)
    delimited.check_taken(path, counts, "solver")


def of_line(line: str, gpu: str, counts: Counter[str]) -> list[Row]:
    """Return a row for the time of each solver of a line."""
    key, _, text = line.partition("=")
    entries = text.split(";")
    work = _work(key)
    if not work:
        counts["with a 3-D problem" if _DEEP.match(key) else _UNREAD] += len(entries)
        return []
    times = [*filter(None, map(_time, entries))]
    counts[TAKEN] += len(times)
    counts["without a time"] += len(entries) - len(times)
    return [{**work, **time, "gpu": gpu} for time in times]


def _work(key: str) -> Row:
    """Return the cells of a problem; none where its sizes disagree: it was cut, or edited."""
    match = _PROBLEM.fullmatch(key)
    if match is None:
        return {}
    fields = match.groupdict()
    layout = _WORDS[fields.pop("layout")]
    dtype = _WORDS[fields.pop("dtype")]
    direction = _WORDS[fields.pop("way")]
    sizes = {name: int(digits or 1) for name, digits in fields.items()}  # one group is not named
    if direction != "forward":
        for side in ("c", "h", "w"):
            inner, outer = f"in_{side}", f"out_{side}"
            sizes[inner], sizes[outer] = sizes[outer], sizes[inner]
    output = sizes.pop("out_h"), sizes.pop("out_w")
    shape = ConvShape(**sizes, dtype=dtype, layout=layout)  # type: ignore[arg-type]
    if not submission.agrees(shape) or (shape.out_h, shape.out_w) != output:
        return {}
    work = submission.work_cells(shape)
    return {**work, "direction": direction, "memory_format": layout, "backend": "miopen"}


def _time(entry: str) -> Row:
    """Return the cells of `Solver:ms,workspace,Algo` or `Algo:Solver,ms,workspace,..`."""
    new, old = _ENTRIES
    match = new.fullmatch(entry.strip()) or old.fullmatch(entry.strip())
    if match is None:
        return {}
    ms = submission.milliseconds(match["ms"])
    if ms is None:
        return {}
    algorithm = _WORDS[match["algorithm"]]
    return {
        "algorithm": algorithm, "algorithm_used": algorithm,
        "algorithm_evidence": f"solver {match['solver']}",
        "workspace_bytes": int(match["workspace"]), "min_ms": ms, "median_ms": ms,
    }  # fmt: skip


def sweep_name(path: Path) -> str:
    """Return the name of the sweep that a find-db becomes: its GPU, else the file's first word.

    "" for a file that is not named as MIOpen names a find-db, its own or a user's.
    """
    if _NAME.fullmatch(path.name) is None:
        return ""
    return gpu_of(path.name) or path.name.split(".", 1)[0]


def gpu_of(name: str) -> str:
    """Return the GPU in a file's name: its chip, and its compute units where told; "" for none."""
    match = _GPU.match(name)
    if match is None:
        return ""
    chip, decimal, hexadecimal = match.groups()
    units = decimal or (hexadecimal and int(hexadecimal, 16))
    return f"{chip}_{units}" if units else chip


def bring(path: Path, sweep_dir: SweepDir, device: str = "") -> tuple[str, tuple[str, ...]]:
    """Write the problems of a file as a submission; return its source and what was left out.

    `ResultsError` where it cannot be read or has no time, `UsageError` where nothing tells the GPU.
    """
    gpu = gpus.as_value(device) or gpu_of(path.name)
    if not gpu:
        raise UsageError(f"{path}: its name tells no GPU (gfx...); --device does")
    counts = Counter[str]()
    rows = read_rows(path, gpu, counts)
    written = submission.write_foreign(sweep_dir, path, NETWORK, rows)
    return path.name, (
        f"{count(written.calls, 'time')} on {gpu}, the best of a few short runs, not a median",
        *delimited.account(counts, "solver"),
        *written.notes(),
        f"flagged {FOREIGN}: measured by MIOpen, not here",
    )
