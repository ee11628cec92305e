"""Rows say where they come from."""

from __future__ import annotations

import json
import os
import sys
from operator import itemgetter

import pytest


def test_the_share_of_timed_passes_is_told_where_something_was_timed(desk):
    """A pass of 50 ms is most of what its point took; what failed has no share."""
    desk.spec(
        "workload: noop\naxes: {model: [a], input_size: [1, 2]}\n"
        "measure: {sleep_ms: 50, fail: [{when: {input_size: 2}, how: error}]}\n"
    )
    desk.submit("--workers", "1")
    done, failed = sorted(desk.rows(), key=itemgetter("input_size"))
    share = float(done["median_ms"]) / 1000 / float(done["wall_s"])
    assert float(done["timed_share"]) == pytest.approx(share, rel=1e-5)
    assert (failed["status"], failed["timed_share"]) == ("error", "")


def test_rows_say_where_they_come_from(measured):
    """Identity is in every row; provenance in the attempt's own file."""
    (submission,) = measured.sweep().submissions()
    for row in measured.rows():
        assert row["sweep"] == "sweep"
        assert row["profile"] == "local"
        assert row["submission"] == submission.id
        assert row["workload"] == "noop"
        assert row["gpu"] == row["device"] == "cpu"
        assert float(row["wall_s"]) >= 0
    (shard,) = measured.sweep().shards()
    env = json.loads(shard.env.read_text())
    assert env["state"] == "done"
    assert env["python"] == ".".join(map(str, sys.version_info[:3]))
    assert env["pid"] != os.getpid()
