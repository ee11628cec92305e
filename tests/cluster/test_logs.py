"""Logs are found by submission, chunk or point; cancel ends what is queued or runs."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest

from gate import Gate
from hpcsweep.cluster import logs
from hpcsweep.errors import EXIT_INTERRUPTED, UsageError
from localruns import said_until
from waiting import wait_for

NOOP = "workload: noop\naxes: {model: [a, b], input_size: [1, 2, 3]}\n"


def test_logs_are_found_by_whatever_names_them(desk):
    """By nothing at all, submission, chunk, or the beginning of a point's id."""
    desk.spec(NOOP)
    desk.run("submit", "sweep.yaml", "--workers", "2")
    run = desk.sweep()
    (submission,) = run.submissions()
    row = next(row for row in desk.rows() if row["chunk"] == "1")
    for what in (f"{submission.id}:1", "1", row["point_id"], row["point_id"][:6]):
        head, *lines = logs.lines_of_logs(run, what, follow=False)
        assert head.endswith("/1.0.log <==")
        assert any("3 points" in line for line in lines)
    assert list(logs.lines_of_logs(run, None, follow=False))
    assert list(logs.lines_of_logs(run, submission.id, follow=False))


def test_of_a_long_log_the_end_is_shown(desk):
    """From a whole line on, and not more of it than a login node's memory has room for."""
    desk.spec(NOOP)
    desk.run("submit", "sweep.yaml")
    (submission,) = desk.sweep().submissions()
    log = submission.log(0, 0)
    with log.open("r+b") as file:
        file.truncate(1 << 32)  # a hole
        file.seek(0, 2)
        file.write(b"\n" + b"".join(b"step %d\n" % number for number in range(200_000)))
    tracemalloc.start()
    head, first, *_, last = logs.lines_of_logs(desk.sweep(), None, follow=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert head == f"==> {log}, the last 1 MiB of 4,098 <=="
    assert (first[:5], last) == ("step ", "step 199999")
    assert peak < 1 << 28
    log.write_bytes(b"progress\r" * (1 << 18))  # one line of 2 MiB
    _head, *lines = logs.lines_of_logs(desk.sweep(), None, follow=False)
    assert 1 << 16 < sum(map(len, lines)) <= 1 << 20


def test_what_has_no_log_is_told(desk):
    """With what there is instead."""
    desk.spec(NOOP)
    desk.run("submit", "sweep.yaml")
    run = desk.sweep()
    with pytest.raises(UsageError, match="no submission 'yesterday'"):
        list(logs.lines_of_logs(run, "yesterday", follow=False))
    with pytest.raises(UsageError, match="no submission, chunk or point 'feedfeedfeed'"):
        list(logs.lines_of_logs(run, "feedfeedfeed", follow=False))


@pytest.mark.slow
def test_follow_ends_with_the_run(desk):
    """It shows what is written meanwhile."""
    gate = Gate(desk)
    gate.sweep(points=6, passes=1)
    running = desk.start("submit", "sweep.yaml")
    wait_for("point at the gate", gate.waiting)
    following = desk.start("logs", "sweep", "-f")
    assert following.stdout.readline().startswith("==> ")
    gate.open()
    running.communicate(timeout=120)
    out, _ = following.communicate(timeout=120)
    assert following.returncode == 0
    assert "done: 6 measured, 0 left" in out


def test_cancel_ends_a_live_run_and_keeps_its_rows(desk):
    """The same submit command continues afterwards."""
    gate = Gate(desk)
    gate.sweep(points=6, passes=1)
    running = desk.start("submit", "sweep.yaml")
    wait_for("point at the gate", gate.waiting)
    assert "results are kept" in desk.run("cancel", "sweep").stdout
    said_until(running, "finishing the current point")
    gate.open()
    running.communicate(timeout=120)
    assert running.returncode == EXIT_INTERRUPTED
    assert len(desk.rows()) == 2
    assert "nothing is queued or running" in desk.run("cancel", "sweep").stdout
    assert desk.run("submit", "sweep.yaml").returncode == 0
    assert len(desk.rows()) == 6


def test_a_chunk_that_is_not_there_is_told_with_those_that_are(desk):
    """Of the newest submission, or of one by name; exit code 2."""
    desk.spec(NOOP)
    desk.run("submit", "sweep.yaml", "--workers", "2")
    (submission,) = desk.sweep().submissions()
    for what in ("7", f"{submission.id}:7"):
        done = desk.run("logs", "sweep", what)
        assert done.returncode == UsageError.exit_code
        assert f"{submission.id} has no chunk 7, it has chunks 0 to 1" in done.stderr


def test_a_chunk_beyond_a_thousand_is_no_point(desk):
    """Digits that number a chunk mean it, though ids may begin so."""
    desk.spec(NOOP)
    desk.run("submit", "sweep.yaml")
    run = desk.sweep()
    (submission,) = run.submissions()
    submission.write_manifest(replace(submission.read_manifest(), chunks=1200))
    with pytest.raises(UsageError, match="no log yet"):
        list(logs.lines_of_logs(run, "1100", follow=False))
