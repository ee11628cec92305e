"""Rows say where they come from."""

from __future__ import annotations

import json
import os
import sys


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
