"""`hpcsweep status` on a large folder: CPU seconds of the whole process.

    python benchmarks/status.py [--points 100000] [--tasks 1000] [--runs 5]

Makes a folder as submit and workers leave it, every chunk measured but for its last point.
Budget: 1 s for 100,000 points in 1,000 tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

from hpcsweep.catalog.columns import axis_cells
from hpcsweep.spec import expansion, sweep_file
from hpcsweep.store import chunk_file, folders, shards
from hpcsweep.store.manifest import Manifest

RUN = (sys.executable, "-c", "from hpcsweep.cli import run; run()")


def main() -> None:
    """Make the folder, time the command, print the median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        results = Path(name) / "results"
        _make(Path(name), results, options.points, options.tasks)
        seconds = [_cpu_seconds(results, options.points) for _ in range(options.runs)]
    print(
        f"status --json, {options.points:,} points in {options.tasks:,} tasks: "
        f"{statistics.median(seconds):.2f} s CPU ({min(seconds):.2f} to {max(seconds):.2f}), "
        "budget 1 s"
    )


def _make(folder: Path, results: Path, points: int, tasks: int) -> None:
    file = folder / "large.yaml"
    file.write_text(
        "workload: noop\naxes: {model: [a], "
        f"input_size: {{start: 1, stop: {points}, num: {points}}}}}\n"
    )
    submission = folders.new_submission(folders.SweepDir(results / "large"), "l40")
    stream = iter(expansion.expand(sweep_file.load(file), gpu="l40"))
    each = points // tasks
    chunks = [chunk_file.Chunk(i, tuple(islice(stream, each)), 1.0) for i in range(tasks)]
    chunk_file.write_chunks(submission.chunks, chunks)
    for chunk in chunks:
        shard = folders.ShardPath(submission.shards, chunk.index, 0)
        with shards.ShardWriter(shard) as writer:
            for point in chunk.points[:-1]:
                row = {**axis_cells(point.axes), "point_id": point.point_id, "status": "ok"}
                writer.commit({**row, "median_ms": 1.5, "node": "n1"})
        shard.env.write_text(json.dumps({"state": "stopped"}))
    submission.write_manifest(Manifest(profile="l40", launcher="sbatch", chunks=tasks))


def _cpu_seconds(results: Path, points: int) -> float:
    before = os.times()
    done = subprocess.run(
        [*RUN, "--results", str(results), "status", "--json"], capture_output=True, check=True
    )
    after = os.times()
    (profile,) = json.loads(done.stdout)["sweeps"][0]["profiles"]
    if profile["points"] != points:
        raise SystemExit(f"{profile['points']} points instead of {points}")
    user = after.children_user - before.children_user
    return user + after.children_system - before.children_system


if __name__ == "__main__":
    main()
