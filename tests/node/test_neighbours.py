"""What neighbours cost: the first point of a job alone and beside them, and who waits for whom."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from drafts import written
from hpcsweep.errors import EXIT_REQUEUE
from hpcsweep.node import neighbours
from hpcsweep.node.neighbours import Alone, cells_of, make_board
from hpcsweep.node.side_by_side import SideBySide
from hpcsweep.spec import profile, sweep_file
from hpcsweep.store import attempt
from hpcsweep.store.folders import ShardPath
from hpcsweep.store.row_reader import read_rows
from hpcsweep.submit import request
from waiting import wait_for

if TYPE_CHECKING:
    from hpcsweep.store.folders import SubmissionDir
    from localruns import Desk

FOUR = """\
workload: noop
axes: {model: [a], input_size: [1, 2, 3, 4]}
measure: {sleep_ms: 3000}
"""
CELLS = ("point_id", "median_ms", "neighbours", "alone_ms", "neighbour_slowdown_pct", "wall_s")
AT_TURN = """\
from hpcsweep.node.neighbours import board_of_job
board_of_job().wait_for_turn(lambda: False)
"""


def row(median: float, half: float | None = None) -> dict[str, object]:
    """Return a row of a point with its interval."""
    cells: dict[str, object] = {"point_id": "a", "median_ms": median}
    if half is not None:
        cells |= {"ci95_lo_ms": median - half, "ci95_hi_ms": median + half}
    return cells


@pytest.mark.parametrize(
    ("beside", "alone", "slower", "flagged"),
    [
        (row(11.0, 0.1), row(10.0, 0.1), 10, True),
        (row(10.4, 0.1), row(10.0, 0.1), 4, False),
        (row(11.0, 1.1), row(10.0, 1.0), 10, False),  # the intervals allow 14 %
        (row(9.0, 0.1), row(10.0, 0.1), -10, False),
        (row(11.0), row(10.0), 10, True),
    ],
)
def test_neighbours_disturb_where_the_point_is_slower_than_its_noise(
    beside: dict[str, object],
    alone: dict[str, object],
    slower: float,
    flagged: bool,  # noqa: FBT001
):
    """And by more than the time of a quiet machine varies."""
    found = cells_of({**beside, "flags": "noisy"}, 7, Alone("a", alone))
    assert found["neighbour_slowdown_pct"] == pytest.approx(slower)
    assert (found["neighbours"], found["alone_ms"]) == (7, 10.0)
    assert found.get("flags") == ("noisy;neighbours_disturb" if flagged else None)
    assert cells_of(beside, 3, Alone("b", alone)) == {"neighbours": 3}


def test_the_others_begin_when_the_first_one_dies():
    """It never let them; a job in which they wait would burn its time."""
    job = SideBySide(3)
    for place in range(3):
        job.board.starts(place)
    every = os.sched_getaffinity(0)
    for place, program in enumerate(["import os; os._exit(0)", AT_TURN, AT_TURN]):
        job.start(place, [sys.executable, "-c", program], os.environ, every)
    assert job.wait() == 0


def test_the_first_one_measures_when_the_others_are_ready():
    """These wait until it lets them; a neighbour is one that measures."""
    board = make_board(3)
    first, second = (neighbours.Board(board.fd, 3, place) for place in (0, 1))
    for place in range(3):
        board.starts(place)
    stops = iter([False, True])
    first.wait_for_turn(lambda: next(stops))  # the others are not ready: it was told to stop
    assert not first.is_alone()
    stops = iter([False, True])
    second.wait_for_turn(lambda: next(stops))
    assert first.others() == second.others() == 1
    board.has_ended(1)
    board.has_ended(2)
    assert first.is_alone()
    first.wait_for_turn(lambda: False)
    board.has_ended(0)
    second.wait_for_turn(lambda: False)
    assert second.others() == 0


def _job_of_two(desk: Desk, text: str) -> tuple[SubmissionDir, subprocess.Popen[str]]:
    """Start a job that measures two chunks side by side."""
    options = request.Options(workers=2)
    asked = request.make(sweep_file.load(desk.spec(text)), profile.load("local"), options)
    submission = written(desk.sweep(), asked).submission
    command = [sys.executable, "-m", "hpcsweep.node.side_by_side", str(submission.path), "0", "2"]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return submission, job


def _rows(submission: SubmissionDir) -> list[list[dict[str, str]]]:
    """Return the rows of each chunk, over all attempts."""
    chunks = range(submission.read_manifest().chunks)
    return [list(read_rows(submission.attempts(chunk), CELLS)) for chunk in chunks]


@pytest.mark.parametrize(
    ("workload", "seconds", "has_one"),
    [
        ("inference", 3.0, True),
        ("noop", 3.0, True),
        ("noop", 0.001, False),
        ("inference", 900.0, False),
        ("training", 3.0, False),
        ("command", 3.0, False),
    ],
)
def test_only_a_point_that_may_be_measured_again_soon_has_a_control(
    workload: str, seconds: float, *, has_one: bool
) -> None:
    """And only one whose time is more than the start of a pass."""
    assert neighbours.has_control(workload, seconds) == has_one


def test_the_first_point_of_a_job_is_measured_alone_once_more(desk: Desk):
    """Only the row beside neighbours counts, and says what they cost."""
    submission, job = _job_of_two(desk, FOUR)
    told, _ = job.communicate(timeout=120)
    assert job.returncode == 0, told
    (first, *others), (waited, *chunk) = _rows(submission)
    assert float(first["alone_ms"]) == pytest.approx(3000, rel=0.5)
    expected = 100 * (float(first["median_ms"]) / float(first["alone_ms"]) - 1)
    assert float(first["neighbour_slowdown_pct"]) == pytest.approx(expected, abs=0.01)
    # of the three seconds that it waited nothing is told, nor is the next point expected to wait
    assert float(waited["wall_s"]) < float(first["wall_s"]) + 2.5
    rest = [waited, *others, *chunk]
    assert len({row["point_id"] for row in (first, *rest)}) == len(rest) + 1 == 4
    assert not any("alone_ms" in row for row in rest)
    assert {row["neighbours"] for row in (first, *rest)} <= {"0", "1"}
    assert first["neighbours"] == "1"
    assert "alone on its node: " in submission.log(0, 0).read_text()


def test_a_first_supervisor_that_is_killed_while_it_is_alone_ends_the_others_wait(desk: Desk):
    """Its own points stay for the next attempt of the job."""
    submission, job = _job_of_two(desk, FOUR)
    shard = ShardPath(submission.shards, 0, 0)
    record = wait_for(
        "worker", lambda: attempt.read_record(shard), enough=lambda said: said and said.row
    )
    assert record
    os.kill(record.pid, signal.SIGKILL)
    told, _ = job.communicate(timeout=120)
    assert job.returncode == EXIT_REQUEUE, told
    assert [len(rows) for rows in _rows(submission)] == [0, 2]


def test_a_command_runs_once(desk: Desk):
    """A person knows whether it may run again; the others do not wait for it."""
    desk.spec("", "log")
    text = "workload: command\nshell: true\naxes: {x: [1, 2, 3, 4]}\nrun: echo {x} >>log\n"
    submission, job = _job_of_two(desk, text)
    told, _ = job.communicate(timeout=120)
    assert job.returncode == 0, told
    assert sorted((desk.folder / "log").read_text().split()) == ["1", "2", "3", "4"]
    rows = [row for rows in _rows(submission) for row in rows]
    assert not any("alone_ms" in row for row in rows)
