"""Imports MIOpen's find-db: what AMD, or a user who tuned, measured of convolution problems.

A line is a problem and what each solver took. Fields of the gradients (B, W) begin with the side of
the output, so both sides change places. A time of 0 is no measurement.

A point holds the problems of one algorithm, batch size, type and layout. A time is the best of a
few short runs of another program, so the flag `foreign` puts all rows in doubt: they are never the
fastest of a report. `best --from` chooses by them.
"""

from __future__ import annotations

import bz2
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from hpcsweep.catalog.columns import FOREIGN, LAYER_COLUMNS, Row, axis_cells, cells
from hpcsweep.conv.shape import NCHW, NHWC, ConvShape
from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.importing import submission
from hpcsweep.records import dataclass
from hpcsweep.store.rundir import RunDir
from hpcsweep.text import count

NETWORK: Final = "find-db"  # in place of a network: its convolutions belong to many
_NAME: Final = re.compile(r".+\.u?fdb\.txt(?:\.bz2)?")
_LAYOUTS: Final = {"NCHW": (NCHW, "contiguous"), "NHWC": (NHWC, "channels_last")}
_LONGEST: Final = 1 << 20  # characters of a line; a problem with all solvers has some thousand
_FILE: Final = re.compile(
    r"(gfx(?:9[0-9a-f]{2}|1[0-9a-f]{3}))(?:_(\d+)|([0-9a-f]+))?(?:\..*)?\.u?fdb\.txt(?:\.bz2)?"
)
DIRECTIONS: Final = {"F": "forward", "B": "backward_data", "W": "backward_weights"}
_DTYPES: Final = {"FP32": "float32", "FP16": "float16", "BF16": "bfloat16", "FP64": "float64"}
_ALGORITHMS: Final = {
    "GEMM": "gemm", "Direct": "direct", "FFT": "fft", "Winograd": "winograd",
    "ImplicitGEMM": "implicit_gemm",
}  # fmt: skip
_PAIR: Final = r"(\d+)x(\d+)"
_PROBLEM: Final = re.compile(
    rf"(\d+)-(\d+)-(\d+)-{_PAIR}-(\d+)-(\d+)-(\d+)-(\d+)-{_PAIR}-{_PAIR}-{_PAIR}"
    r"-\d+-([A-Z]+)(?:-\16-\16)?-(\w+)-([FBW])(?:_g(\d+))?"
)
_DEEP: Final = re.compile(r"[\d-]+?-\d+x\d+x\d+-")
_NAMED: Final = re.compile(r"miopenConvolution(?:Fwd|BwdData|BwdWeights)Algo(\w+)")


class Problem(NamedTuple):
    """A convolution: forward sizes, whatever its direction is."""

    batch_size: int
    in_channels: int
    in_h: int
    in_w: int
    out_channels: int
    out_h: int
    out_w: int
    kernel_h: int
    kernel_w: int
    pad_h: int
    pad_w: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    groups: int
    layout: str
    dtype: str
    direction: str


class Timed(NamedTuple):
    """What a solver took for a problem."""

    algorithm: str
    solver: str
    ms: float
    workspace: int


@dataclass
class Counts:
    """What was left out of a file."""

    deep: int = 0
    unread: int = 0
    untimed: int = 0


def gpu_of(name: str) -> tuple[str, int | None] | None:
    """Return architecture and compute units in a file's name: gfx906_60 and gfx90878 (hex)."""
    found = _FILE.fullmatch(name)
    if found is None:
        return None
    units = int(found[2]) if found[2] else int(found[3], 16) if found[3] else None
    return found[1], units


def read(path: Path, counts: Counts) -> Iterator[tuple[Problem, list[Timed]]]:
    """Yield the 2-D problems that a file has times of.

    Raises:
        ResultsError: it cannot be read.
    """
    try:
        with bz2.open(path, "rb") if path.suffix == ".bz2" else path.open("rb") as file:
            while raw := file.readline(_LONGEST):
                found = line(raw.decode("utf-8", "replace").strip(), counts)
                if found is not None:
                    yield found
    except (OSError, EOFError, ValueError) as error:
        raise ResultsError(f"{path}: cannot be read ({error})") from error


def line(text: str, counts: Counts) -> tuple[Problem, list[Timed]] | None:
    """Return the problem of a line and what its solvers took; None, counted, where it has none."""
    if not text:
        return None
    key, _, entries = text.partition("=")
    if _DEEP.match(key):
        counts.deep += 1
        return None
    problem = _problem(key)
    if problem is None:
        counts.unread += 1
        return None
    times = [timed for entry in entries.split(";") if (timed := _timed(entry)) is not None]
    counts.untimed += entries.count(";") + 1 - len(times)
    return (problem, times) if times else None


def _problem(key: str) -> Problem | None:
    found = _PROBLEM.fullmatch(key)
    if found is None or found[17] not in _DTYPES or found[16] not in _LAYOUTS:
        return None
    c, h, w, r, s, k, oh, ow, n, ph, pw, sh, sw, dh, dw = (
        int(text) for text in found.groups()[:15]
    )
    if found[18] != "F":
        (c, h, w), (k, oh, ow) = (k, oh, ow), (c, h, w)
    problem = Problem(
        n, c, h, w, k, oh, ow, r, s, ph, pw, sh, sw, dh, dw, int(found[19] or 1),
        found[16], _DTYPES[found[17]], DIRECTIONS[found[18]],
    )  # fmt: skip
    return problem if _fits(problem) else None


def _fits(p: Problem) -> bool:
    """Say whether the sizes of both sides agree: a line that was cut or edited has others."""
    sides = (
        (p.in_h, p.pad_h, p.dilation_h, p.kernel_h, p.stride_h, p.out_h),
        (p.in_w, p.pad_w, p.dilation_w, p.kernel_w, p.stride_w, p.out_w),
    )
    if min(p.batch_size, p.in_channels, p.out_channels, p.groups, p.stride_h, p.stride_w) < 1:
        return False
    whole = p.in_channels % p.groups == p.out_channels % p.groups == 0
    return whole and all(
        (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 == out > 0
        for size, pad, dilation, kernel, stride, out in sides
    )


def _timed(entry: str) -> Timed | None:
    """Return an entry, `Solver:ms,workspace,Algo` or `Algo:Solver,ms,workspace,..`; else None."""
    head, _, rest = entry.strip().partition(":")
    parts = rest.split(",")
    named = _NAMED.fullmatch(head)
    if named:
        head, parts = parts[0], [*parts[1:3], named[0]]
    algorithm = _NAMED.fullmatch(parts[2]) if len(parts) > 2 else None
    try:
        ms, workspace = float(parts[0]), int(parts[1])
    except (ValueError, IndexError):
        return None
    if algorithm is None or algorithm[1] not in _ALGORITHMS or not 0 < ms < float("inf"):
        return None
    return Timed(_ALGORITHMS[algorithm[1]], head, ms, workspace)


def is_one(path: Path) -> bool:
    """Say whether a path is named as MIOpen names a find-db, its own or a user's."""
    return path.is_file() and _NAME.fullmatch(path.name) is not None


def sweep_name(path: Path) -> str:
    """Return the name of the sweep that a file becomes: its GPU, else the file's first word."""
    return _gpu(path, "") or path.name.split(".", 1)[0]


def _gpu(path: Path, device: str) -> str:
    """Return the name of a file's GPU: the architecture, and its compute units where told."""
    found = gpu_of(path.name)
    if device or found is None:
        return device
    return found[0] if found[1] is None else f"{found[0]}_{found[1]}"


def bring(path: Path, run: RunDir, device: str = "") -> tuple[str, tuple[str, ...]]:
    """Write the problems of a file as a submission; return its source and what was left out.

    Raises:
        ResultsError: it cannot be read, or has no time.
        UsageError: neither its name nor `device` tells the GPU.
    """
    gpu, counts = _gpu(path, device), Counts()
    if not gpu:
        raise UsageError(f"{path}: its name tells no GPU (gfx...); --device does")
    groups: dict[tuple[str, int, str, str], list[tuple[Problem, list[Timed]]]] = defaultdict(list)
    for problem, times in read(path, counts):
        for name in dict.fromkeys(timed.algorithm for timed in times):
            own = [timed for timed in times if timed.algorithm == name]
            group = name, problem.batch_size, problem.dtype, problem.layout
            groups[group].append((problem, own))
    rows = 0
    with submission.opened(run, path.name) as file:
        for (name, batch, dtype, layout), found in groups.items():
            point = submission.point(path.name, {
                "model": NETWORK, "algorithm": name, "gpu": gpu, "batch_size": batch,
                "input_size": None, "dtype": dtype, "memory_format": _LAYOUTS[layout][1],
            })  # fmt: skip
            shared = {**axis_cells(point.axes), "point_id": point.point_id}
            layers = [
                cells({**shared, **row, "call_index": index}, LAYER_COLUMNS)
                for index, row in enumerate(_rows(found))
            ]
            file.commit(point, {}, layers, FOREIGN, valid=False)
            rows += len(layers)
    return path.name, (
        f"{count(rows, 'time')} on {gpu}, the best of a few short runs, in place of a median",
        *_left_out(counts),
        f"flagged {FOREIGN}: measured by MIOpen, not here",
    )


def _left_out(counts: Counts) -> Iterator[str]:
    if counts.deep:
        yield f"left out: {count(counts.deep, '3-D problem')}"
    if counts.unread:
        yield f"left out: {count(counts.unread, 'line')} without a problem"
    if counts.untimed:
        yield f"left out: {counts.untimed} solvers without a time"


def _rows(problems: list[tuple[Problem, list[Timed]]]) -> Iterator[Row]:
    for problem, times in problems:
        work = _work(problem)
        for timed in times:
            yield {
                **work, "min_ms": timed.ms, "median_ms": timed.ms, "backend": "miopen",
                "algorithm_used": timed.algorithm, "algorithm_evidence": f"solver {timed.solver}",
                "workspace_bytes": timed.workspace,
            }  # fmt: skip


def _work(problem: Problem) -> Row:
    """Return the cells of a problem: its sizes, its operations, and the bytes it moves at least."""
    p, layout = problem, _LAYOUTS[problem.layout][0]
    shape = ConvShape(
        p.batch_size, p.in_channels, p.in_h, p.in_w, p.out_channels, p.kernel_h, p.kernel_w,
        p.stride_h, p.stride_w, p.pad_h, p.pad_w, p.dilation_h, p.dilation_w, p.groups,
        dtype=p.dtype, layout=layout,
    )  # fmt: skip
    return submission.work_cells(shape) | {"direction": p.direction}
