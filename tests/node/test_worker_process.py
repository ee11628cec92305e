"""A worker that cannot start charges no point."""

from __future__ import annotations

from dataclasses import replace

from attempts import SLOW, attempt, ids, prepared
from hpcsweep.errors import Refused


def test_a_worker_that_cannot_start_charges_no_point(desk):
    """An environment that is broken is the machine's fault; nothing is written."""
    submission = prepared(desk, SLOW)
    submission.write_manifest(replace(submission.read_manifest(), workload="baking"))
    refused = attempt(submission)
    _, errors = refused.communicate(timeout=60)
    assert refused.returncode == Refused.exit_code
    assert "baking" in errors
    assert ids(submission) == []
