"""slurmctld dies under running sweeps: nothing is lost, and nothing is sent twice."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import surviving

if TYPE_CHECKING:
    from pathlib import Path

    from lab import Lab

pytestmark = pytest.mark.no_second_try


def test_an_outage_of_slurmctld_costs_nothing(cluster: Lab, tmp_path: Path):
    """Two tasks run on and one waits; what is sent is not sent again, what is new is refused."""
    site = "partition: mi250\narray_throttle: 2\n"
    # the tasks outlive the wait for the saved state: what slurmctld has seen end and not saved it
    # takes for running, for two minutes
    long = {"points": 36, "chunk": 12, "sleep_ms": 1000}
    one = surviving.sweep(cluster, tmp_path / "outage", site, **long)
    late = surviving.sweep(cluster, tmp_path / "late", site)
    one.begin()
    one.wait("both tasks", lambda: len(one.sweep_dir.shards()) == 2)
    surviving.wait_for_saved_state(one)
    cluster.kill("slurmctld")
    with ThreadPoolExecutor(3) as pool:
        again = pool.submit(one.submit)
        words = ("submit", "s.yaml", "--cluster", "any", "--no-doctor")  # who would wait, too
        new = pool.submit(late.desk.run_process, *words)
        status = pool.submit(one.desk.run_process, "status")
    assert re.search("squeue: (no answer within|.*Unable to contact)", again.result())
    assert "nothing to measure" in again.result()
    assert status.result().returncode == 0
    refused = new.result()
    assert (refused.returncode, len(refused.stderr.splitlines()) < 3) == (7, True), refused
    assert late.sweep_dir.submissions() == []
    one.wait("the rows of two chunks", lambda: one.row_count() >= 24)
    cluster.spawn("slurmctld")
    one.finish()
    late.finish()
    left = surviving.checked(one)
    # Slurm may begin a task again whose start or end it had not written down: one attempt more
    assert left.attempts - left.interrupted >= 3, f"{left}\n{one.logs()}"
    surviving.checked(late)
