"""An installation without any extra, from the wheel, sends a sweep to a real Slurm."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from labtools import V100, wait_for_the_end

if TYPE_CHECKING:
    from pathlib import Path

    from lab import Lab
    from lightenv import Environment


@pytest.mark.slow
def test_the_light_install_submits_watches_and_collects(
    cluster: Lab, light: Environment, tmp_path: Path
):
    """On both sides: its own Python runs the job, for the profile names no other."""
    (tmp_path / "first.yaml").write_text("workload: noop\naxes: {model: [a, b]}\n")
    (tmp_path / "here.yaml").write_text(V100)
    done = light.run(tmp_path, "submit", "first.yaml", "--cluster", "here.yaml")
    assert (done.returncode, "1 chunk queued" in done.stdout) == (0, True), done.stderr
    wait_for_the_end(cluster)
    assert light.run(tmp_path, "status", "first").returncode == 0
    done = light.run(tmp_path, "collect", "first", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(light.run(tmp_path, "show", "first", "--json").stdout)
    assert {point["node"] for point in shown["points"]} == {"v100n1"}
