"""Seconds and memory to merge many shards, against pandas' concat of the same layer rows.

Run ``python benchmarks/collect.py [--scale 0.1]``. Scale 1 is the budget's size: 1,000 shards and
10 million layer rows, to be merged within 1 GB and 5 times faster than pandas. The two take turns,
each in a process of its own; then collect runs once more with nothing new.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from hpcsweep.catalog.columns import (
    LAYER_COLUMNS,
    OVERALL_COLUMNS,
    SCHEMA_VERSION,
    SHARD_COLUMNS,
    axis_cells,
    cells,
)
from hpcsweep.point import Point
from hpcsweep.store import chunk_file, shards
from hpcsweep.store.folders import ShardPath, SweepDir
from hpcsweep.store.manifest import Manifest

SHARDS = 1000
LAYER_ROWS = 10_000_000
PER_POINT = 465
SAMPLES = 20

COLLECT = """
import sys
from pathlib import Path
from hpcsweep.store.collect.collector import collect
from hpcsweep.store.folders import SweepDir
report = collect(SweepDir(Path(sys.argv[1])))
result = f"{report.points:,} points, {report.layer_rows:,} layer rows"
result += f", {report.shards_read:,} shards read"
"""
PANDAS = """
import sys
from pathlib import Path
import pandas as pd
run = Path(sys.argv[1])
rows = 0
for name in ("overall", "layers", "samples"):
    found = sorted(run.glob(f"shards/*/*.{name}.csv"))
    table = pd.concat([pd.read_csv(path, low_memory=False) for path in found], ignore_index=True)
    table.to_csv(run / f"pandas-{name}.csv", index=False)
    rows = max(rows, len(table))
result = f"{rows:,} layer rows"
"""
TIMED = """
import json, resource, time
began = time.perf_counter()
{code}
seconds = time.perf_counter() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([seconds, peak, result]))
"""


def main() -> None:
    """Collect from scratch, beside pandas in turns; print one line per run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        run = SweepDir(Path(folder) / "many")
        points = round(LAYER_ROWS * args.scale / PER_POINT)
        make(run, max(1, round(SHARDS * args.scale)), points, PER_POINT)
        mine = []
        theirs = []
        for _ in range(args.rounds):
            run.collect_index.unlink(missing_ok=True)
            mine.append(measure("collect, from scratch", COLLECT, run))
            theirs.append(measure("pandas concat", PANDAS, run))
        print(f"ratio {min(theirs) / min(mine):.1f} (best of {args.rounds})")
        measure("collect, nothing new", COLLECT, run)


def measure(name: str, code: str, run: SweepDir) -> float:
    """Run code in a process of its own; print and return its seconds."""
    done = subprocess.run(
        [sys.executable, "-c", TIMED.format(code=code), str(run.path)],
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, peak, result = json.loads(done.stdout)
    print(f"{name:24s} {seconds:7.2f} s  peak {peak:6.0f} MiB  {result}", flush=True)
    return float(seconds)


def make(run: SweepDir, count: int, points: int, per_point: int) -> None:
    """Make a results folder as a submission of `count` chunks leaves it."""
    submission = run.submission("20250101-000000-l40")
    submission.path.mkdir(parents=True)
    submission.shards.mkdir(parents=True)
    share = -(-points // count)
    chunks = []
    for chunk in range(count):
        first = chunk * share
        last = min((chunk + 1) * share, points)
        shard = ShardPath(submission.shards, chunk, 0)
        chunks.append(chunk_file.Chunk(chunk, fill(shard, first, last - first, per_point), 1.0))
    chunks = [chunk for chunk in chunks if chunk.points]
    chunk_file.write_chunks(submission.chunks, chunks)
    manifest = Manifest(id=submission.id, gpu="l40", spec_sha256="0", chunks=len(chunks))
    submission.write_manifest(manifest)


def fill(shard: ShardPath, first: int, count: int, per_point: int) -> tuple[Point, ...]:
    """Write a shard; the text of one point stands in for all, but for its id and size."""
    points = tuple(_point(number) for number in range(first, first + count))
    model = points[0] if points else _point(0)
    layers = shards.block_of(_layer(model, call) for call in range(per_point))
    parts: dict[str, list[bytes]] = {"overall": [], "layers": [], "samples": []}
    with shards.ShardWriter(shard):
        pass  # the headers
    shard.layers.write_bytes(shards.header(LAYER_COLUMNS))
    at = {name: getattr(shard, name).stat().st_size for name in ("layers", "samples")}
    for point in points:
        block = layers.replace(model.point_id.encode(), point.point_id.encode())
        samples = b"".join(
            b"%s,%d,12.34567\n" % (point.point_id.encode(), i) for i in range(SAMPLES)
        )
        row = {
            **_row(point),
            "submission": shard.submission,
            "layer_rows": per_point,
            "layers_offset": at["layers"],
            "layers_bytes": len(block),
            "samples_offset": at["samples"],
            "samples_bytes": len(samples),
        }
        parts["overall"].append(shards.sealed(cells(row, SHARD_COLUMNS[:-1]), block, samples))
        parts["layers"].append(block)
        parts["samples"].append(samples)
        at = {"layers": at["layers"] + len(block), "samples": at["samples"] + len(samples)}
    for name, blocks in parts.items():
        with getattr(shard, name).open("ab") as file:
            file.writelines(blocks)
    return points


def _point(number: int) -> Point:
    axes = {"model": "resnet152", "input_size": 224 + number, "algorithm": "gemm", "gpu": "l40"}
    return Point("inference", {**axes, "batch_size": 1, "dtype": "float32"}, {}, f"{number:016x}")


def _row(point: Point) -> dict[str, object]:
    numbers = {name: 12.34567 for name in OVERALL_COLUMNS if name.endswith(("_ms", "_pct", "_gbs"))}
    cells = {
        "status": "ok",
        "schema_version": SCHEMA_VERSION,
        "torch_version": "2.9.0",
        "valid": True,
    }
    return {**axis_cells(point.axes), **numbers, **cells, "point_id": point.point_id}


def _layer(point: Point, call: int) -> dict[str, object]:
    numbers = {name: 0.1234567 for name in LAYER_COLUMNS if name.endswith(("_ms", "percentage"))}
    sizes = dict.fromkeys(("in_h", "in_w", "out_h", "out_w", "in_channels", "out_channels"), 256)
    names = {"layer": f"layer3.{call}.conv2", "op": "conv2d", "algorithm_used": "gemm"}
    counts = {"call_index": call, "flops": 231_211_008, "params": 589_824, "bytes_min": 4_194_304}
    cells = {**axis_cells(point.axes), **numbers, **sizes, **names, **counts}
    cells.pop("memory_format", None)
    return {**cells, "point_id": point.point_id, "n": 20, "layer_timer": "events"}


if __name__ == "__main__":
    main()
