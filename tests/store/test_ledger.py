"""What counts as measured or on its way, while jobs go on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from drafts import written
from hpcsweep.spec import profile, sweep_file
from hpcsweep.store import ledger
from hpcsweep.submit import request
from localruns import COMMAND, Desk
from waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hpcsweep.store.folders import SubmissionDir

pytestmark = pytest.mark.no_second_try


def test_a_job_that_ends_while_the_queue_is_asked_is_not_sent_again(tmp_path: Path):
    """It is no longer in the queue, so its rows are there; they are read after the queue."""
    desk = Desk(tmp_path)
    site = tmp_path / "site.yaml"
    site.write_text("gpu: l40\n")
    file = desk.spec("workload: noop\naxes: {model: [a, b]}\n")
    asked = request.make(sweep_file.load(file), profile.load(site))
    written(desk.sweep(), asked)

    def queue(submission: SubmissionDir) -> set[int]:
        command = [sys.executable, "-m", "hpcsweep.node.supervisor", submission.path, "0"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return set()

    found = ledger.read_ledger(desk.sweep(), queue)
    assert (len(found.settled()), found.live) == (2, {})


def test_the_folder_is_not_listed_once_per_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Ten times the chunks, as many listings; else ten thousand chunks take minutes."""
    site = tmp_path / "site.yaml"
    site.write_text("gpu: l40\nmax_points_per_chunk: 1\n")
    listed: list[Path] = []
    inner = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or inner(path))
    counts = []
    for number in (3, 30):
        desk = Desk(tmp_path / str(number))
        desk.folder.mkdir()
        sizes = list(range(1, number + 1))
        file = desk.spec(f"workload: noop\naxes: {{model: [a], input_size: {sizes}}}\n")
        asked = request.make(sweep_file.load(file), profile.load(site))
        written(desk.sweep(), asked)
        listed.clear()
        found = ledger.read_ledger(desk.sweep(), lambda _submission, n=number: set(range(n)))
        assert len(found.live) == number
        counts.append(len(listed))
    assert counts[0] == counts[1]


SLOW = "workload: noop\naxes: {model: [a, b]}\nmeasure: {sleep_ms: 600000}\n"
CONTAINER = ("unshare", "--pid", "--mount-proc", "--kill-child")
RENAMED_HOST = ("unshare", "--uts", "sh", "-c", 'hostname elsewhere; exec "$@"', "sh")


@contextmanager
def _measuring_in(desk: Desk, container: Sequence[str]) -> Iterator[SubmissionDir]:
    """Measure points that take ten minutes each in a container; it is killed at the end."""
    if subprocess.run([*container, "true"], capture_output=True, check=False).returncode:
        pytest.skip("containers cannot be made here")
    desk.spec(SLOW)
    command = [*container, *COMMAND, "submit", "sweep.yaml"]
    theirs = subprocess.Popen(command, cwd=desk.folder, stdout=subprocess.DEVNULL)
    try:
        wait_for(
            "attempt that began",
            lambda: [*desk.sweep().shards()],
            enough=lambda found: any(shard.env.exists() for shard in found),
        )
        (submission,) = desk.sweep().submissions()
        yield submission
    finally:
        # as by a power cut: no supervisor may live to write that its launcher is gone
        children = psutil.Process(theirs.pid).children(recursive=True)
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.suspend()
        for process in (theirs, *children):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        theirs.wait()


def _pass(submission: SubmissionDir, seconds: float) -> None:
    """Let the last signs of life be so old."""
    then = time.time() - seconds
    for path in (submission.jobs, *submission.shards.iterdir()):
        os.utime(path, (then, then))


def test_what_another_container_measures_is_not_measured_here(desk: Desk):
    """Its pids mean nothing here, though the host's name is the same; its attempts beat."""
    run = desk.sweep()
    with _measuring_in(desk, CONTAINER) as submission:
        assert len(ledger.read_ledger(run).live) == 2
        _pass(submission, 90)
        assert len(ledger.read_ledger(run).live) == 2
        ledger.fence_off_dead(run)
        assert len(run.shards()) == 1
    assert ledger.local_is_live(submission)  # nobody here can see that it is not
    _pass(submission, 121)
    assert not ledger.local_is_live(submission)
    ledger.fence_off_dead(run)
    assert [shard.attempt for shard in run.shards()] == [0, 1]


def test_a_process_in_sight_is_known_whatever_the_host_is_called(desk: Desk):
    """However old its last sign of life is; and its death at once."""
    with _measuring_in(desk, RENAMED_HOST) as submission:
        _pass(submission, 3600)
        assert len(ledger.read_ledger(desk.sweep()).live) == 2
    assert not ledger.local_is_live(submission)
