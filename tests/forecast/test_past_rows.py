"""What rows tell the next round of a sweep."""

from __future__ import annotations

import resultsfolder
from hpcsweep.forecast import past_rows


def test_a_time_that_no_gpu_can_have_is_not_known(tmp_path):
    """Flagged, or of a version that did not look yet."""
    folder = resultsfolder.make(tmp_path)
    shard = folder.shard(folder.submit("20260102-000000-local").id)
    some = {"workload": "inference", "wall_s": 1.0, "device_name": "NVIDIA H200", "flops": 1e12}
    folder.measure(shard, folder.points[:2], mean_ms=1e-3, median_ms=1e-3, **some)
    other = folder.shard(folder.submit("20260103-000000-local").id)
    folder.measure(other, folder.points[2:3], mean_ms=1.0, median_ms=1.0, flags="impossible")
    every = {point.point_id for point in folder.points}
    assert past_rows.known_points(folder.sweep_dir, every, ()).ms == {}


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
    known = past_rows.known_points(folder.sweep_dir, ids, {good.point_id, failed.point_id})
    assert known.ms == {good.point_id: 4.0}
    assert {*known.tried} == {good.point_id, doubtful.point_id, failed.point_id}
    assert {*known.doubtful} == {doubtful.point_id}
    assert known.failed == known.too_large == {failed.point_id}
    assert known.seconds == 7.0
    assert past_rows.known_points(folder.sweep_dir, [], []).tried == set()
