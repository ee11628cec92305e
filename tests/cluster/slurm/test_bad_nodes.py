"""How long a node is avoided."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

from hpcsweep.cluster.slurm import bad_nodes
from hpcsweep.cluster.slurm.journal import SlurmAnswer
from hpcsweep.store.folders import SweepDir


def _ago(hours):
    return (datetime.now(timezone.utc) - timedelta(hours=hours)).isoformat(timespec="seconds")


def test_a_node_is_avoided_for_a_day(tmp_path):
    """A site mends it, or a cloud gives its name to another machine."""
    sweep_dir = SweepDir(tmp_path / "results" / "s")
    sweep_dir.bad_nodes.parent.mkdir(parents=True)
    nodes = [
        {"name": name, "why": "NODE_FAIL", "at": _ago(hours)}
        for name, hours in (("today", 23), ("yesterday", 25))
    ]
    sweep_dir.bad_nodes.write_text(json.dumps({"nodes": nodes, "allowed": {}}))
    assert [node.name for node in bad_nodes.current(sweep_dir, SlurmAnswer())] == ["today"]
