"""What rows say to the next round."""

from __future__ import annotations

import resultsfolder
from hpcsweep.adaptive import measured


def test_only_valid_times_are_known_and_every_row_costs(tmp_path):
    """A point whose time is in doubt was measured, but teaches nothing."""
    folder = resultsfolder.make(tmp_path)
    folder.submit("one")
    good, doubtful, failed, *_ = folder.points
    folder.measure(folder.shard("one"), [good], median_ms=3.0, iqr_rel=0.1, wall_s=2.0, valid=True)
    folder.measure(folder.shard("one", 0, 1), [doubtful], median_ms=3.0, wall_s=2.0, valid=False)
    folder.measure(folder.shard("one", 0, 2), [failed], status="oom", wall_s=1.0, valid=False)
    ids = [point.point_id for point in folder.points]
    known = measured.read(folder.run, ids, {good.point_id, failed.point_id})
    assert known.ms == {good.point_id: 3.0}
    assert known.spread == {good.point_id: 0.1}
    assert set(known.settled) == {good.point_id, doubtful.point_id, failed.point_id}
    assert known.failed == {failed.point_id}
    assert known.seconds == 3.0
    assert measured.read(folder.run, [], []).settled == set()
