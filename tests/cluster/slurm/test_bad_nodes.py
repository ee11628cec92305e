"""How long a node is avoided, by a cluster that says whether it makes nodes on demand."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta, timezone

import pytest

from hpcsweep.cluster.slurm import bad_nodes
from hpcsweep.cluster.slurm.liveness import SlurmAnswer
from hpcsweep.store.folders import SweepDir


def _ago(hours):
    return (datetime.now(timezone.utc) - timedelta(hours=hours)).isoformat(timespec="seconds")


@pytest.mark.parametrize(
    ("program", "avoided"),
    [
        ("/opt/cloud/resume", ["today"]),
        ("(null)", ["today", "yesterday"]),
        (None, ["today", "yesterday"]),
    ],
)
def test_a_cloud_gives_a_name_to_another_machine_within_a_day(
    tmp_path, monkeypatch, program, avoided
):
    """Elsewhere a broken node stays one until a person allows it; so if Slurm does not answer."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\necho 'ResumeProgram           = {program}'\n")
    if program is None:
        scontrol.write_text("#!/bin/sh\nexit 1\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    sweep_dir = SweepDir(tmp_path / "results" / "s")
    sweep_dir.bad_nodes.parent.mkdir(parents=True)
    nodes = [
        {"name": name, "why": "NODE_FAIL", "at": _ago(hours)}
        for name, hours in (("today", 23), ("yesterday", 25))
    ]
    sweep_dir.bad_nodes.write_text(json.dumps({"nodes": nodes, "allowed": {}}))
    assert [node.name for node in bad_nodes.current(sweep_dir, SlurmAnswer())] == avoided
