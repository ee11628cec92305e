"""What rows say to the next round."""

from __future__ import annotations

import pytest

import resultsfolder
from hpcsweep.adaptive import measured
from hpcsweep.adaptive.measured import Known


def test_only_valid_times_are_known_and_every_row_costs(tmp_path):
    """A point whose time is in doubt was measured, but teaches nothing."""
    folder = resultsfolder.make(tmp_path)
    folder.submit("one")
    good, doubtful, failed, *_ = folder.points
    for attempt, (point, cells) in enumerate(
        [
            (good, {"median_ms": 3.0, "wall_s": 2.0}),
            (doubtful, {"median_ms": 3.0, "wall_s": 2.0, "valid": False}),
            (failed, {"status": "oom", "wall_s": 1.0, "valid": False}),
            (good, {"median_ms": 4.0, "wall_s": 2.0}),
            (good, {"median_ms": 9.0, "wall_s": 2.0, "valid": False}),
        ]
    ):
        folder.measure(folder.shard("one", 0, attempt), [point], **cells)
    ids = [point.point_id for point in folder.points]
    known = measured.read(folder.run, ids, {good.point_id, failed.point_id})
    assert known.times == {good.point_id: [3.0, 4.0]}
    assert known.ms == {good.point_id: 4.0}
    assert known.rows == {good.point_id: 3, doubtful.point_id: 1, failed.point_id: 1}
    assert known.failed == {failed.point_id}
    assert known.seconds == 7.0
    assert measured.read(folder.run, [], []).rows == {}


def test_points_that_were_measured_twice_differ_by_the_noise():
    """Others say nothing of it."""
    times = {"a": [10.0, 11.0], "b": [10.0, 8.0], "c": [10.0, 10.0], "d": [5.0]}
    assert Known(times, {}).differences == pytest.approx([0.1, 0.2, 0.0])
