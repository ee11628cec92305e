"""The whole sweep at the end."""

from __future__ import annotations

import pytest

import sizes
from hpcsweep.forecast import groups, intervals
from hpcsweep.submit.adaptive import until_error
from hpcsweep.submit.adaptive.planning import judge


def filled(left_out, failed=(), rounds=()):
    """Return the filled rows of six sizes, by size, where some have no time."""
    (group,) = groups.groups_of(sizes.points([32, 48, 64, 96, 128, 256]))
    ms = {p.point_id: sizes.smooth(p) for p in group.points}
    known = sizes.known({name: ms[name] for name in ms if name not in left_out}, failed)
    rows = until_error.filled("demo", judge(group, known, rounds), known)
    return {row["input_size"]: row for row in rows}


def test_points_between_measured_ones_are_predicted_and_failed_ones_left_out():
    """In the order of the sweep."""
    rows = filled({"auto-64-1", "auto-96-1"}, failed={"auto-64-1"})
    assert list(rows) == [32, 48, 96, 128, 256]
    assert (rows[96]["status"], rows[96]["basis"]) == ("predicted", "lines")
    assert rows[96]["median_ms"] == pytest.approx(sizes.smooth(sizes.points([96])[0]), rel=0.2)
    assert (rows[32]["status"], rows[32]["source"]) == ("ok", "demo")


def test_beyond_what_was_measured_the_interval_is_a_wide_guess():
    """The largest size has no time, and did not fail."""
    four = [["auto-48-1", "auto-64-1", "auto-96-1", "auto-128-1"]]
    rows = filled({"auto-256-1", "auto-96-1"}, rounds=four)
    for size, factor in ((256, intervals.UNKNOWN), (96, None)):
        row = rows[size]
        found = row["predicted_hi_ms"] / row["median_ms"]
        assert found == pytest.approx(factor or found)
        assert row["predicted_lo_ms"] * found == pytest.approx(row["median_ms"])
