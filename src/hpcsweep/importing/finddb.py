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
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from hpcsweep.catalog.columns import FOREIGN, Row
from hpcsweep.conv.shape import NCHW, NHWC, ConvShape
from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.importing import submission, unpacking
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count

Counts = Counter[str]  # of what was left out of a file: deep, unread and untimed
NETWORK: Final = "find-db"  # in place of a network: its convolutions belong to many
_NAME: Final = re.compile(r".+\.u?fdb\.txt(?:\.bz2)?")
_LAYOUTS: Final = {"NCHW": NCHW, "NHWC": NHWC}
_LONGEST: Final = 1 << 20  # characters of a line; a problem with all solvers has some thousand
_MOST: Final = 1 << 30  # bytes, unpacked; the largest of AMD's has 200 million
_MOST_LINES: Final = 1_000_000  # half a minute; the largest of AMD's has 183,610
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


class DirectedShape(NamedTuple):
    """A convolution: the shape of its forward pass, whatever its direction is."""

    shape: ConvShape
    direction: str


class SolverTime(NamedTuple):
    """What a solver took for a problem."""

    algorithm: str
    solver: str
    ms: float
    workspace: int


def gpu_of(name: str) -> tuple[str, int | None] | None:
    """Return architecture and compute units in a file's name: gfx906_60 and gfx90878 (hex)."""
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    return match[1], int(match[2]) if match[2] else int(match[3], 16) if match[3] else None


def read_find_db(path: Path, counts: Counts) -> Iterator[tuple[DirectedShape, list[SolverTime]]]:
    """Yield the 2-D problems that a file has times of; `ResultsError` where it cannot be read."""
    try:
        with unpacking.opened(path.resolve(), _MOST) as file:
            text = unpacking.as_text(file, "replace")
            lines = iter(partial(text.readline, _LONGEST), "")
            for each in islice(lines, _MOST_LINES):
                problem = line(each.strip(), counts)
                if problem is not None:
                    yield problem
            if next(lines, None):
                why = f"more than {_MOST_LINES:,} lines; import it in parts"
                raise ValueError(why)  # noqa: TRY301 - one message for all that is wrong with it
    except ValueError as error:
        raise ResultsError(f"{path}: cannot be read ({error})") from error


def line(text: str, counts: Counts) -> tuple[DirectedShape, list[SolverTime]] | None:
    """Return the problem of a line and what its solvers took; None, counted, where it has none."""
    if not text:
        return None
    key, _, entries = text.partition("=")
    if _DEEP.match(key):
        counts["deep"] += 1
        return None
    problem = _problem(key)
    if problem is None:
        counts["unread"] += 1
        return None
    times = [timed for entry in entries.split(";") if (timed := _timed(entry)) is not None]
    counts["untimed"] += entries.count(";") + 1 - len(times)
    return (problem, times) if times else None


def _problem(key: str) -> DirectedShape | None:
    """Return the problem of a key; None where its sizes disagree: it was cut, or edited."""
    match = _PROBLEM.fullmatch(key)
    if match is None or match[17] not in _DTYPES or match[16] not in _LAYOUTS:
        return None
    c, h, w, r, s, k, oh, ow, n, ph, pw, sh, sw, dh, dw = map(int, match.groups()[:15])
    if match[18] != "F":
        (c, h, w), (k, oh, ow) = (k, oh, ow), (c, h, w)
    shape = ConvShape(
        n, c, h, w, k, r, s, sh, sw, ph, pw, dh, dw, int(match[19] or 1),
        dtype=_DTYPES[match[17]], layout=_LAYOUTS[match[16]],
    )  # fmt: skip
    fits = submission.agrees(shape) and (shape.out_h, shape.out_w) == (oh, ow)
    return DirectedShape(shape, DIRECTIONS[match[18]]) if fits else None


def _timed(entry: str) -> SolverTime | None:
    """Return an entry, `Solver:ms,workspace,Algo` or `Algo:Solver,ms,workspace,..`; else None."""
    head, _, rest = entry.strip().partition(":")
    parts = rest.split(",")
    named = _NAMED.fullmatch(head)
    if named:
        head = parts[0]
        parts = [*parts[1:3], named[0]]
    algorithm = _NAMED.fullmatch(parts[2]) if len(parts) > 2 else None
    try:
        ms = submission.milliseconds(parts[0])
        workspace = int(parts[1])
    except (ValueError, IndexError):
        return None
    if algorithm is None or algorithm[1] not in _ALGORITHMS or ms is None:
        return None
    return SolverTime(_ALGORITHMS[algorithm[1]], head, ms, workspace)


def is_one(path: Path) -> bool:
    """Say whether a path is named as MIOpen names a find-db, its own or a user's."""
    return path.is_file() and _NAME.fullmatch(path.name) is not None


def sweep_name(path: Path) -> str:
    """Return the name of the sweep that a file becomes: its GPU, else the file's first word."""
    return _gpu(path, "") or path.name.split(".", 1)[0]


def _gpu(path: Path, device: str) -> str:
    """Return the name of a file's GPU: the architecture, and its compute units where told."""
    if device or (gpu := gpu_of(path.name)) is None:
        return device
    return gpu[0] if gpu[1] is None else f"{gpu[0]}_{gpu[1]}"


def bring(path: Path, sweep_dir: SweepDir, device: str = "") -> tuple[str, tuple[str, ...]]:
    """Write the problems of a file as a submission; return its source and what was left out.

    `ResultsError` where it cannot be read or has no time, `UsageError` where nothing tells the GPU.
    """
    gpu = _gpu(path, device)
    if not gpu:
        raise UsageError(f"{path}: its name tells no GPU (gfx...); --device does")
    counts = Counts()
    written = submission.write_foreign(sweep_dir, path, NETWORK, _rows(path, gpu, counts))
    told = f"{count(written.calls, 'time')} on {gpu}"
    return path.name, (
        f"{told}, the best of a few short runs, in place of a median",
        *_left_out(counts),
        *written.notes(),
        f"flagged {FOREIGN}: measured by MIOpen, not here",
    )


def _rows(path: Path, gpu: str, counts: Counts) -> Iterator[Row]:
    """Yield a layer row for what each solver took."""
    for (shape, direction), times in read_find_db(path, counts):
        work = {
            **submission.work_cells(shape), "direction": direction, "gpu": gpu,
            "memory_format": shape.layout, "backend": "miopen",
        }  # fmt: skip
        for timed in times:
            yield {
                **work, "algorithm": timed.algorithm, "algorithm_used": timed.algorithm,
                "algorithm_evidence": f"solver {timed.solver}", "workspace_bytes": timed.workspace,
                **dict.fromkeys(("min_ms", "median_ms"), timed.ms),
            }  # fmt: skip


def _left_out(counts: Counts) -> Iterator[str]:
    if deep := counts["deep"]:
        yield f"left out: {count(deep, '3-D problem')}"
    if unread := counts["unread"]:
        yield f"left out: {count(unread, 'line')} without a problem"
    if untimed := counts["untimed"]:
        yield f"left out: {untimed} solvers without a time"
