"""What counts as measured or on its way, while jobs go on."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from hpcsweep import ledger, profile, spec
from hpcsweep.launch import prepare, submitting
from localruns import Desk

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from hpcsweep.rundir import SubmissionDir


def test_a_job_that_ends_while_the_queue_is_asked_is_not_sent_again(tmp_path: Path):
    """It is no longer in the queue, so its rows are there; they are read after the queue."""
    desk = Desk(tmp_path)
    site = tmp_path / "site.yaml"
    site.write_text("gpu: l40\n")
    file = desk.spec("workload: noop\naxes: {model: [a, b]}\n")
    asked = submitting.request(spec.load(file), profile.load(site))
    prepare.prepare(desk.sweep(), asked)

    def queue(submission: SubmissionDir, _manifest: dict[str, Any]) -> set[int]:
        command = [sys.executable, "-m", "hpcsweep.supervisor", submission.path, "0"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return set()

    found = ledger.read(desk.sweep(), queue)
    assert (len(found.settled()), found.live) == (2, {})
