"""What counts as measured or on its way, while jobs go on."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from hpcsweep.spec import profile, sweep_file
from hpcsweep.store import ledger, rundir
from hpcsweep.submit import prepare, request
from localruns import Desk

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from hpcsweep.store.rundir import SubmissionDir


def test_a_job_that_ends_while_the_queue_is_asked_is_not_sent_again(tmp_path: Path):
    """It is no longer in the queue, so its rows are there; they are read after the queue."""
    desk = Desk(tmp_path)
    site = tmp_path / "site.yaml"
    site.write_text("gpu: l40\n")
    file = desk.spec("workload: noop\naxes: {model: [a, b]}\n")
    asked = request.make(sweep_file.load(file), profile.load(site))
    prepare.prepare(desk.sweep(), asked)

    def queue(submission: SubmissionDir) -> set[int]:
        command = [sys.executable, "-m", "hpcsweep.node.supervisor", submission.path, "0"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return set()

    found = ledger.read(desk.sweep(), queue)
    assert (len(found.settled()), found.live) == (2, {})


def test_the_folder_is_not_listed_once_per_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Ten times the chunks, as many listings; else ten thousand chunks take minutes."""
    site = tmp_path / "site.yaml"
    site.write_text("gpu: l40\nmax_points_per_chunk: 1\n")
    listed: list[Path] = []
    inner = rundir._listdir
    monkeypatch.setattr(rundir, "_listdir", lambda path: listed.append(path) or inner(path))
    counts = []
    for number in (3, 30):
        desk = Desk(tmp_path / str(number))
        desk.folder.mkdir()
        sizes = list(range(1, number + 1))
        file = desk.spec(f"workload: noop\naxes: {{model: [a], input_size: {sizes}}}\n")
        asked = request.make(sweep_file.load(file), profile.load(site))
        prepare.prepare(desk.sweep(), asked)
        listed.clear()
        found = ledger.read(desk.sweep(), lambda _submission, n=number: set(range(n)))
        assert len(found.live) == number
        counts.append(len(listed))
    assert counts[0] == counts[1]
