"""Rows of points whose times follow a known law: what an estimate should find."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import resultsfolder
from hpcsweep.store import shards

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hpcsweep.point import Point
    from resultsfolder import Folder


@dataclass(frozen=True)
class Law:
    """Seconds of a pass at 224 pixels by algorithm, and what points take beside their passes."""

    image: Mapping[str, float] = field(default_factory=lambda: {"gemm": 0.05, "winograd": 0.08})
    launch: float = 0.002
    fixed: float = 0.7
    slope: float = 3.0
    worker: float = 9.0
    network: float = 1.2
    layer_factor: float = 1.1
    noise: float = 0.0

    def pass_s(self, point: Point) -> float:
        """Return the seconds of a pass."""
        size, batch = point.axes["input_size"], point.axes["batch_size"]
        work = (size / 224) ** 2 * batch
        noise = math.exp(self.noise * math.sin(7.0 * size + batch))
        return (self.launch + self.image[point.axes["algorithm"]] * work) * noise

    def wall_s(self, point: Point, fresh: float = 0.0) -> float:
        """Return the seconds of a point with 10 warm-up and 20 timed passes, as by default."""
        passes = 10 + 20 * (1 + self.layer_factor)
        return fresh + self.fixed + (self.slope + passes) * self.pass_s(point)

    def cells(self, point: Point, fresh: float = 0.0) -> dict[str, Any]:
        """Return the cells of a point's row that tell of time."""
        ms = 1000 * self.pass_s(point)
        return {
            "workload": point.workload, "n": 20, "warmup_n": 10, "mean_ms": ms, "median_ms": ms,
            "wall_s": self.wall_s(point, fresh),
        }  # fmt: skip


def measure(
    folder: Folder, submission: str, points: Iterable[Point], law: Law, **more: Any
) -> None:
    """Write an attempt that measured points one after the other, under a law.

    `more` are cells of all rows.
    """
    shard = folder.shard(submission)
    shard.folder.mkdir(parents=True, exist_ok=True)
    model = None
    with shards.ShardWriter(shard) as writer:
        for point in points:
            made = law.network if model is not None else law.worker
            fresh = made if point.axes["model"] != model else 0.0
            model = point.axes["model"]
            resultsfolder.commit(writer, point, shard, **{**law.cells(point, fresh), **more})
