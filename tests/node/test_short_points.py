"""Points that take a few milliseconds travel together."""

from __future__ import annotations

from attempts import attempt, in_order_of_sizes, prepared
from hpcsweep.store import shards

SHORT = """\
workload: noop
axes: {model: [a], input_size: {start: 1, stop: 120, num: 120}}
point_timeout: 2
measure:
  fail:
    - {when: {input_size: 40}, how: crash}
    - {when: {input_size: 70}, how: hang}
    - {when: {input_size: 100}, how: kill}
    - {when: {input_size: 115}, how: error}
"""
FAILS = {40: "crashed", 70: "timeout", 100: "crashed", 115: "error"}


def test_short_points_that_travel_together_have_one_row_each(desk):
    """A crash costs its own point; those of its message are measured again, each alone."""
    submission = in_order_of_sizes(prepared(desk, SHORT))
    attempt(submission).communicate(timeout=300)
    rows = shards.read_shard(submission.attempts(0)[0]).rows
    assert [int(row["input_size"]) for row in rows] == [*range(1, 121)]
    found = {int(row["input_size"]): row["status"] for row in rows if row["status"] != "ok"}
    assert found == FAILS
    assert [int(row["place"]) for row in rows] == [*range(120)]
    began = [row["started_at"] for row in rows]
    assert began == sorted(began)
