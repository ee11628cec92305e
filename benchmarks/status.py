"""Makes a large folder: `python benchmarks/status.py FOLDER POINTS TASKS`.

As submit and workers leave it, every chunk measured but for its last point.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

from hpcsweep.catalog.columns import axis_cells
from hpcsweep.spec import expansion, sweep_file
from hpcsweep.store import chunk_file, folders, shards
from hpcsweep.store.manifest import Manifest


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


if __name__ == "__main__":
    _make(Path(sys.argv[1]), Path(sys.argv[1]) / "results", *map(int, sys.argv[2:]))
