"""Several runs of one sweep whose times differ by known noise, and by what a test plants."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import resultsfolder
from collectedsweep import SUBMISSION, collected
from hpcsweep.store import shards
from hpcsweep.store.collect import collector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hpcsweep.store.folders import SweepDir

SWEEP = """\
name: demo
workload: inference
axes:
  model: [resnet18]
  input_size: [32, 64, 96, 128, 160, 192]
  algorithm: [auto, gemm]
"""


def _no_more(_axes: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def cells_of(
    seed: int,
    noise: float = 0.005,
    factor: Callable[[Mapping[str, Any]], float] = lambda _axes: 1.0,
    more: Callable[[Mapping[str, Any]], dict[str, Any]] = _no_more,
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return what makes the cells of a run: `noise` of each row, times `factor` of its axes."""
    source = random.Random(seed)

    def cells(axes: Mapping[str, Any]) -> dict[str, Any]:
        ms = axes["input_size"] * source.lognormvariate(0.0, noise) * factor(axes)
        interval = {"ci95_lo_ms": ms * 0.999, "ci95_hi_ms": ms * 1.001}
        times = {"median_ms": ms, "min_ms": ms * 0.9, "throughput_ips": 1000 / ms}
        return {**times, **interval, "algorithm_coverage_pct": 100, **more(axes)}

    return cells


def run(path: Path, seed: int, text: str = SWEEP, **options: Any) -> SweepDir:
    """Return a collected run of the sweep, in a folder of its own."""
    folder = path / f"run{seed}"
    folder.mkdir()
    return collected(folder, text, cells_of(seed, **options))


def again(run: SweepDir, path: Path, submission: str, cells: Callable[..., dict[str, Any]]) -> None:
    """Measure the sweep of a run again, as another submission."""
    folder = resultsfolder.Folder(run, resultsfolder.points_of(path, SWEEP))
    number = len(run.submissions())
    folder.submit(submission, text=SWEEP, round=number, again=number)
    shard = folder.shard(submission)
    with shards.ShardWriter(shard) as writer:
        for point in folder.points:
            resultsfolder.commit(writer, point, shard, **cells(point.axes))
    collector.collect(run)


__all__ = ["SUBMISSION", "SWEEP", "again", "cells_of", "run"]
