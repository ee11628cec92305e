"""The submission that an import writes: one chunk, one shard, points of their own ids."""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from hpcsweep import catalog, files
from hpcsweep.catalog import limits
from hpcsweep.catalog.columns import FOREIGN, IMPOSSIBLE, SCHEMA_VERSION, Row, axis_cells
from hpcsweep.catalog.record import row_of
from hpcsweep.catalog.row_records import AttemptCells, KeyCells, LayerCells, OutcomeCells
from hpcsweep.conv.shape import ConvShape
from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.importing import arrival
from hpcsweep.point import Point, point_id
from hpcsweep.store import chunk_file, folders, shards
from hpcsweep.store.folders import ShardPath, SweepDir
from hpcsweep.store.manifest import IMPORT, Manifest
from hpcsweep.store.shards import ShardWriter
from hpcsweep.store.state import PointStatus
from hpcsweep.text import count

_OF_POINT: Final = ("gpu", "algorithm", "batch_size", "dtype", "memory_format")
_SLOW: Final = 1e-3  # of the peak: a unit of a thousandth; real tables reach a tenth and more
_CYCLE_MS: Final = 1e-7  # at 10 GHz
_BETWEEN: Final = re.compile(r"\s*[x\u00d7*,;\s]\s*")  # the two sizes of a cell
_OF_SHAPE: Final = (
    "in_h", "in_w", "out_h", "out_w", "kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h",
    "pad_w", "dilation_h", "dilation_w", "groups", "bias", "dtype", "unique_key", "flops",
)  # fmt: skip


class ImportedRows:
    """The rows of an import, on their way into its shard."""

    def __init__(self, file: ShardWriter, shard: ShardPath) -> None:
        self._file = file
        self._shard = shard
        self.points: list[Point] = []
        self.calls = 0
        self.impossible = 0  # calls, and passes, with a time that cannot be
        self.reached = 0.0  # share of the peak, by the fastest call

    def commit_calls(self, source: str, axes: Row, about: Row, calls: Iterable[Row]) -> None:
        """Write convolutions that another program measured; impossible ones as another point."""
        possible: list[Row] = []
        impossible: list[Row] = []
        for call in calls:
            cells = {**axes, **about, **call}
            (impossible if limits.is_impossible(cells) else possible).append(call)
            self.reached = max(self.reached, limits.reached(cells))
        self.impossible += len(impossible)
        if possible:
            self.commit(point(source, axes), about, possible, FOREIGN, valid=False)
        if impossible:
            flags = f"{FOREIGN};{IMPOSSIBLE}"
            other = point(source, axes, IMPOSSIBLE)
            self.commit(other, about, impossible, flags, valid=False)

    def notes(self) -> list[str]:
        """Return a line on times that cannot be, or that are all so long that they hardly can."""
        if 0 < self.reached < _SLOW:
            return [f"no time reaches {_SLOW:.1%} of the GPU's peak; is the unit right?"]
        if not self.impossible:
            return []
        every = f"{count(self.impossible, 'time')} of {self.calls:,} shorter than the GPU can"
        unit = "; is the unit right?" if 2 * self.impossible > self.calls else ""
        return [f"{every}: flagged {IMPOSSIBLE}, not chosen nor learnt from{unit}"]

    def commit(
        self, point: Point, own: Row, layers: Sequence[Row], flag: str, *, valid: bool
    ) -> None:
        """Write the row of a point, with its `own` cells, and its layer rows."""
        axes = axis_cells(point.axes)
        attempt = AttemptCells(
            schema_version=SCHEMA_VERSION,
            workload="inference",
            profile=IMPORT,
            submission=self._shard.submission,
            chunk=0,
            attempt=0,
        )
        key = KeyCells(point_id=point.point_id, status=PointStatus.OK)
        row = {**axes, **own, **row_of(key, attempt, OutcomeCells(flags=flag, valid=valid))}
        shared = {name: value for name, value in axes.items() if name in LayerCells.declared}
        shared |= row_of(LayerCells(point_id=point.point_id))
        self._file.commit(row, [{**shared, **layer} for layer in layers])
        self.points.append(point)
        self.calls += len(layers)


@contextmanager
def opened(
    sweep_dir: SweepDir, source: str, path: Path, read: Collection[Path] = ()
) -> Iterator[ImportedRows]:
    """Make a submission of a file, or of those `read` in a folder; it is there when all rows are.

    `ResultsError`: no row. `UsageError`: another file of that name has measured the same points.
    """
    _refuse_measured(sweep_dir)
    with arrival.arriving(sweep_dir) as ready:
        submission = folders.new_submission(ready, IMPORT)
        while submission.id in sweep_dir.ages():
            submission = folders.new_submission(ready, IMPORT)
        shard = ShardPath(submission.shards, 0, 0)
        with shards.ShardWriter(shard) as file:
            rows = ImportedRows(file, shard)
            yield rows
        if not rows.points:
            raise ResultsError(f"{source}: no row with a time")
        chunk_file.write_chunks(submission.chunks, [chunk_file.Chunk(0, tuple(rows.points), 0.0)])
        record = Manifest(
            id=submission.id, sweep=sweep_dir.name, workload="inference", profile=IMPORT,
            launcher="local", source=source, source_path=str(path.absolute()),
            source_sha256=_digest(read or [path]),
            round=sweep_dir.next_round(), chunks=1,
            points=len(rows.points),
            created_at=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        )  # fmt: skip
        _refuse_another(sweep_dir, record, rows.points)
        submission.write_manifest(record)
        arrival.arrive(submission, sweep_dir)


def _refuse_measured(sweep_dir: SweepDir) -> None:
    """Raise `UsageError` where the sweep has results that were not imported like these."""
    if any(record.profile != IMPORT for record in sweep_dir.manifests()):
        raise UsageError(
            f"{sweep_dir.path} has results of hpcsweep: --as imports under another name "
            "(`compare` takes both)"
        )


def _digest(paths: Iterable[Path]) -> str:
    """Return the checksum of what files hold, in any order."""
    every = sorted(files.sha256(path) for path in paths)
    return every[0] if len(every) == 1 else hashlib.sha256("".join(every).encode()).hexdigest()


def _refuse_another(sweep_dir: SweepDir, new: Manifest, points: Sequence[Point]) -> None:
    """Raise `UsageError` where points came from a file elsewhere that holds something else.

    A point knows the name of its file, not what it held: two tables of one name would be mixed. The
    file at the same path may have changed: its newer times count. Earlier versions of hpcsweep
    recorded no checksum, so nothing is known of what they imported.
    """
    ids = {point.point_id for point in points}
    for submission in sweep_dir.submissions():
        record = submission.manifest_or_none()
        # a point of another source has another id
        if record is None or record.source != new.source:
            continue
        if record.source_path == new.source_path:
            continue
        if record.source_sha256 in {"", new.source_sha256}:
            continue
        mixed = 0
        for _, names in chunk_file.read_ids(submission.chunks):
            mixed += len(ids.intersection(names))
        if mixed:
            elsewhere = record.source_path or "on another machine"
            raise UsageError(
                f"{new.source_path}: {sweep_dir.name} has other times of {count(mixed, 'point')} "
                f"of it, from another file of that name ({elsewhere}); --as imports it under "
                "another name"
            )


def point(source: str, axes: Row, part: str = "") -> Point:
    """Return a point that no sweep has, or a part of it; `axes` are those that are known."""
    parts = {"part": part} if part else {}
    name = point_id("inference", axes, {"imported": source, **parts})
    return Point("inference", {**catalog.axis_defaults("inference"), **axes}, {}, name)


def write_foreign(
    sweep_dir: SweepDir, path: Path, network: str, rows: Iterable[Row]
) -> ImportedRows:
    """Write convolutions of a file that another program measured; return what was written.

    A point has those of one GPU, algorithm, batch size, type and layout.
    """
    points: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        of_point = points[tuple(row.get(name) for name in _OF_POINT)]
        call = {**row, **row_of(LayerCells(call_index=len(of_point)))}
        call.pop("memory_format", None)  # of the point: layer rows have no such column
        of_point.append(call)
    with opened(sweep_dir, path.name, path) as file:
        for values, layers in points.items():
            known = {name: value for name, value in zip(_OF_POINT, values, strict=True) if value}
            axes = {"model": network, "input_size": None, **known}
            file.commit_calls(path.name, axes, {}, layers)
    return file


def agrees(shape: ConvShape) -> bool:
    """Say whether the sizes of a convolution fit each other."""
    ways = (*shape.stride, shape.dilation_h, shape.dilation_w, shape.groups)
    sides = (shape.n, shape.in_c, shape.out_c)
    whole = min(ways) > 0 and shape.in_c % shape.groups == shape.out_c % shape.groups == 0
    return whole and min(*sides, shape.out_h, shape.out_w) > 0


def number(text: object) -> float | None:
    """Return a finite number that is not negative; None for anything else."""
    try:
        value = float(str(text))
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None


def sides(text: str) -> tuple[int, int] | None:
    """Return both sizes that a cell has: 3, 3.0, 3x5, (3, 5) or [3 5]; None for anything else."""
    parts = _BETWEEN.split(text.strip("()[], "))
    numbers = [number(part) for part in parts]
    whole = [int(each) for each in numbers if each is not None and each == int(each)]
    if len(whole) != len(parts) or len(parts) not in {1, 2}:
        return None
    return whole[0], whole[-1]


def milliseconds(text: object, unit: float = 1.0) -> float | None:
    """Return a time that was measured, given in units of milliseconds; None for anything else.

    What is shorter than a cycle of any clock, such as a denormal number, was not measured.
    """
    ms = (number(text) or 0.0) * unit
    return ms if ms >= _CYCLE_MS else None


def as_algorithm(text: str) -> str:
    """Return the name of an algorithm as it is written here."""
    return re.sub(r"[\s-]+", "_", text.strip().lower())


def work_cells(shape: ConvShape) -> Row:
    """Return the cells of a convolution: sizes, operations, and the bytes it moves at least."""
    weights = math.prod(shape.filter_size)
    images = (shape.input_size, shape.output_size)
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
