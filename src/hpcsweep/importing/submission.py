"""The submission that an import writes: one chunk, one shard, points of their own ids."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, Final

from hpcsweep import catalog
from hpcsweep.catalog.columns import SCHEMA_VERSION, Row, axis_cells
from hpcsweep.conv.shape import ConvShape
from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.point import Point, point_id
from hpcsweep.store import chunk_file, rundir, shards
from hpcsweep.store.manifest import Manifest
from hpcsweep.store.rundir import RunDir, ShardPath
from hpcsweep.store.shards import ShardWriter
from hpcsweep.store.state import PointStatus

PROFILE: Final = "import"
_OF_SHAPE: Final = (
    "in_h", "in_w", "out_h", "out_w", "kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h",
    "pad_w", "dilation_h", "dilation_w", "groups", "bias", "dtype", "unique_key", "flops",
)  # fmt: skip


def check(run: RunDir) -> None:
    """Raise `UsageError` where the sweep has results that were not imported like these."""
    records = run.manifests() if run.submissions_dir.is_dir() else []
    if any(record.profile != PROFILE for record in records):
        raise UsageError(
            f"{run.path} has results of hpcsweep: --as imports under another name "
            "(`compare` takes both)"
        )


class ImportedRows:
    """The rows of an import, on their way into its shard."""

    def __init__(self, file: ShardWriter, shard: ShardPath) -> None:
        self._file, self._shard = file, shard
        self.points: list[Point] = []

    def commit(
        self, point: Point, own: Row, layers: Sequence[Row | list[str]], flag: str, *, valid: bool
    ) -> None:
        """Write the row of a point, with its `own` cells, and its layer rows.

        The cells of the point are added to a layer row, unless it is a list: all texts of a row.
        """
        shared = {**axis_cells(point.axes), "point_id": point.point_id}
        row = {
            **shared, **own, "status": PointStatus.OK, "schema_version": SCHEMA_VERSION,
            "workload": "inference", "profile": PROFILE, "submission": self._shard.submission,
            "chunk": 0, "attempt": 0, "flags": flag, "valid": valid,
        }  # fmt: skip
        whole = [of if isinstance(of, list) else {**shared, **of} for of in layers]
        self._file.commit(row, whole)
        self.points.append(point)


@contextmanager
def opened(run: RunDir, source: str) -> Iterator[ImportedRows]:
    """Make a submission; its manifest is written when all rows are. `ResultsError`: no row."""
    round_ = run.next_round()
    submission = rundir.new_submission(run, PROFILE)
    shard = ShardPath(submission.shards, 0, 0)
    with shards.ShardWriter(shard) as file:
        rows = ImportedRows(file, shard)
        yield rows
    if not rows.points:
        raise ResultsError(f"{source}: no row with a time")
    chunk_file.write_chunks(submission.chunks, [chunk_file.Chunk(0, tuple(rows.points), 0.0)])
    record = Manifest(
        id=submission.id, sweep=run.name, workload="inference", profile=PROFILE, launcher="local",
        source=source, round=round_, chunks=1, points=len(rows.points),
        created_at=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
    )  # fmt: skip
    submission.write_manifest(record)


def point(source: str, axes: dict[str, Any]) -> Point:
    """Return a point that no sweep has; `axes` are those that are known."""
    name = point_id("inference", axes, {"imported": source})
    return Point("inference", {**catalog.axis_defaults("inference"), **axes}, {}, name)


def work_cells(shape: ConvShape) -> Row:
    """Return the cells of a convolution: sizes, operations, and the bytes it moves at least."""
    weights, images = math.prod(shape.filter_size), (shape.input_size, shape.output_size)
    return {
        **{name: getattr(shape, name) for name in _OF_SHAPE},
        "kernel_size": pair(shape.kernel_h, shape.kernel_w),
        "stride": pair(*shape.stride), "padding": pair(*shape.padding),
        "batch_size": shape.n, "in_channels": shape.in_c, "out_channels": shape.out_c,
        "op": "conv2d", "layer": shape.unique_key.removeprefix("conv2d_"), "params": weights,
        "bytes_min": shape.itemsize * (weights + sum(map(math.prod, images))),
    }  # fmt: skip


def pair(down: Any, across: Any) -> str:  # noqa: ANN401 - a number or its text
    """Return the cell of two sizes: one of them, if they are equal."""
    return str(down) if down == across else f"{down}x{across}"
