"""How long a node is avoided."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest

from hpcsweep.cluster.slurm import bad_nodes, profile_wants
from hpcsweep.cluster.slurm.bad_nodes import BadNode
from hpcsweep.cluster.slurm.journal import SlurmAnswer
from hpcsweep.spec import profile
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


@pytest.mark.parametrize("own", ["exclude: a", "exclude: c\nsbatch_options: [-x a]"])
def test_nodes_are_avoided_beside_those_that_the_profile_excludes(tmp_path, own):
    """Wherever it says so, since the last option counts."""
    path = tmp_path / "x.yaml"
    path.write_text(f"gpu: l40\n{own}\n")
    wary = bad_nodes.avoiding(profile.load(path), [BadNode("b", "NODE_FAIL", _ago(1))])
    assert profile_wants.options_of(wary)["exclude"] == "a,b"
