"""Makes results folders as submit and workers leave them: real manifests, chunk files, shards."""

from __future__ import annotations

import csv
import hashlib
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hpcsweep.catalog.columns import (
    LAYER_COLUMNS,
    MERGED_COLUMNS,
    SCHEMA_VERSION,
    axis_cells,
)
from hpcsweep.spec import expansion, sweep_file
from hpcsweep.store import chunk_file, row_reader, shards
from hpcsweep.store.folders import ShardPath, SweepDir
from hpcsweep.store.manifest import Manifest
from hpcsweep.store.row_reader import Blocks, Shard
from hpcsweep.store.shards import Heads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from hpcsweep.catalog.columns import Row
    from hpcsweep.point import Point
    from hpcsweep.store.folders import SubmissionDir

SWEEP = """\
name: demo
workload: inference
axes:
  model: [resnet18]
  input_size: [64, 96, 128, 224]
  algorithm: [gemm, winograd]
"""

_EXPANDED: dict[tuple[str, str], list[Point]] = {}  # a law needs hundreds of folders


@dataclass(frozen=True)
class Folder:
    """A results folder, and the points of its sweep."""

    sweep_dir: SweepDir
    points: list[Point]

    def submit(
        self, name: str, points: Iterable[Point] | None = None, **changes: Any
    ) -> SubmissionDir:
        """Record a submission of one chunk; `text` is the sweep file that it was made from."""
        text = changes.pop("text", SWEEP)
        submission = self.sweep_dir.submission(name)
        submission.logs.mkdir(parents=True)
        submission.shards.mkdir(parents=True)
        chosen = tuple(self.points if points is None else points)
        chunk_file.write_chunks(submission.chunks, [chunk_file.Chunk(0, chosen, 1.0)])
        manifest = Manifest(
            id=name,
            gpu="cpu",
            rehearsal=True,
            launcher="local",
            chunks=1,
            spec_sha256=hashlib.sha256(text.encode()).hexdigest(),
        )
        submission.write_manifest(replace(manifest, **changes))
        self.sweep_dir.sweep_file.write_text(text)
        return submission

    def shard(self, submission: str, chunk: int = 0, attempt: int = 0) -> ShardPath:
        """Return the files of an attempt."""
        return ShardPath(self.sweep_dir.shards_dir / submission, chunk, attempt)

    def measure(
        self, shard: ShardPath, points: Iterable[Point] | None = None, **cells: Any
    ) -> None:
        """Write an attempt: a row, two layers and three samples for each point."""
        shard.folder.mkdir(parents=True, exist_ok=True)
        with shards.ShardWriter(shard) as writer:
            for point in self.points if points is None else points:
                commit(writer, point, shard, **cells)

    def tables(self) -> dict[str, bytes]:
        """Return the merged tables."""
        return {path.name: path.read_bytes() for path in self.paths()}

    def paths(self) -> list[Path]:
        """Return where the merged tables lie."""
        return [*self.sweep_dir.merged()]


def commit(writer: shards.ShardWriter, point: Point, shard: ShardPath, **cells: Any) -> None:
    """Write one point: its row, two layers, three samples (or three many `times`)."""
    times = cells.pop("times", 1)
    row = {**row_of(point, shard), **cells}
    measured = row["status"] == "ok"
    layers = [layer_of(point, name, ms) for name, ms in (("conv1", 1.5), ("fc", 0.5))]
    writer.commit(row, layers if measured else (), [2.0, 2.25, 1.75] * times if measured else ())


def row_of(point: Point, shard: ShardPath) -> dict[str, Any]:
    """Return the row of a measured point."""
    return {
        **axis_cells(point.axes),
        "point_id": point.point_id,
        "status": "ok",
        "schema_version": SCHEMA_VERSION,
        "sweep": "demo",
        "submission": shard.submission,
        "chunk": shard.chunk,
        "attempt": shard.attempt,
        "torch_version": "2.9.0",
        "mean_ms": 2.0,
        "valid": True,
    }


def layer_of(point: Point, name: str, ms: float) -> dict[str, Any]:
    """Return one row of the table of layers."""
    names = ("model", "algorithm", "batch_size", "input_size", "gpu", "dtype")
    cells = {name: point.axes[name] for name in names}
    return {**cells, "point_id": point.point_id, "layer": name, "mean_ms": ms}


def make(path: Path, text: str = SWEEP) -> Folder:
    """Return a results folder without submissions."""
    run = SweepDir(path / "results" / "demo")
    run.submissions_dir.mkdir(parents=True)
    return Folder(run, points_of(path, text))


def points_of(path: Path, text: str = SWEEP, gpu: str = "") -> list[Point]:
    """Return a sweep's points: those for a GPU, or rehearsed on the CPU."""
    file = path / "demo.yaml"
    file.write_text(text)
    if (text, gpu) not in _EXPANDED:
        sweep = sweep_file.load(file)
        rehearse = None if gpu else "cpu"
        _EXPANDED[text, gpu] = list(expansion.expand(sweep, gpu=gpu or None, rehearse=rehearse))
    return _EXPANDED[text, gpu]


def overall(run: SweepDir) -> list[dict[str, str]]:
    """Return the rows of points as readers see them: both tables, with every known column."""
    with run.overall.open(newline="") as file, run.details.open(newline="") as rest:
        pairs = zip(csv.DictReader(file), csv.DictReader(rest), strict=True)
        return [{**dict.fromkeys(MERGED_COLUMNS, ""), **more, **row} for row, more in pairs]


@dataclass
class WholeShard(Shard):
    """A shard with its rows, and messages about those that are damaged."""

    rows: list[Row] = field(default_factory=list)


def read_shard(shard: ShardPath) -> WholeShard:
    """Read a shard to its end; the line of a row is its cell `_line`."""
    found, rows = row_reader.scan_shard(shard)
    every: list[Row] = []
    for row in rows:
        cells = dict(zip(found.heads.columns, row.cells, strict=False))
        filled = {name: text for name, text in cells.items() if text}
        every.append(defaultdict(str, {**filled, "_line": row.line}))
    return WholeShard(**vars(found), rows=every)


def by_point(run: SweepDir, column: str) -> dict[str, str]:
    """Return one column by point."""
    return {row["point_id"]: row[column] for row in overall(run)}


def edit(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Change a file's lines."""
    path.write_bytes(b"\n".join(change(path.read_bytes().split(b"\n"))))


def reseal(shard: ShardPath, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    """Rewrite the rows of a shard as another version would have written them."""
    found = read_shard(shard)
    columns: tuple[str, ...] = ()
    lines = []
    with Blocks() as blocks:
        for row in found.rows:
            cells = change({k: v for k, v in row.items() if not k.startswith("_")})
            del cells["row_crc"]
            columns = tuple(cells)
            layers, samples = (
                blocks.read(path, int(cells[f"{name}_offset"]), int(cells[f"{name}_bytes"]))
                for name, path in (("layers", shard.layers), ("samples", shard.samples))
            )
            text = shards.joined([*cells.values(), ""]).encode()
            heads = Heads((*columns, "row_crc"), LAYER_COLUMNS)
            lines.append(text + shards.seal(text, heads, layers, samples))
    head = ",".join([*columns, "row_crc"]).encode()
    shard.overall.write_bytes(b"\n".join([head, *lines, b""]))


def collect_in_a_process(run: SweepDir, prepare: str = "") -> subprocess.CompletedProcess[str]:
    """Collect in a process of its own; print the error or the number of points."""
    code = f"""
import os, resource
from pathlib import Path
from hpcsweep.store.collect.collector import collect
from hpcsweep.errors import ResultsError
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.shards import Heads
{prepare}
try:
    print(collect(SweepDir(Path({str(run.path)!r}))).points)
except ResultsError as error:
    print(error)
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
