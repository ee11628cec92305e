"""`hpcsweep show`: each point with its status, reason, node, and its part of the log."""

from __future__ import annotations

import json
import os
import re
import tracemalloc

import pytest

import resultsfolder
from benchmarks import collect as benchmark
from hpcsweep.cluster import points
from hpcsweep.cluster.points import PointState
from hpcsweep.store.folders import SweepDir

FAILING = """\
workload: noop
axes: {model: [a], input_size: [1, 2, 3]}
measure:
  fail: [{when: {input_size: 2}, how: error}]
"""


@pytest.fixture
def failed(desk):
    """Return a folder with a sweep of three points, of which one failed."""
    desk.spec(FAILING)
    desk.submit()
    return desk


def test_every_point_has_a_line(failed):
    """In 80 columns, with the reason where there is one."""
    head, _, columns, *lines = failed.run("show", "sweep").stdout.splitlines()
    assert head == "sweep: 2 ok, 1 error"
    assert columns.split() == ["point", "status", "what", "median", "ms", "node", "why"]
    assert sorted(line.split()[1] for line in lines) == ["error", "ok", "ok"]
    (wrong,) = (line for line in lines if " error " in line)
    assert wrong.endswith("RuntimeError: injected error")
    assert max(map(len, lines)) <= 80
    (line,) = failed.run("show", "--status", "error").stdout.splitlines()[3:]
    assert line.split() == wrong.split()


def test_points_stand_in_the_order_of_the_sweep(desk):
    """Not in that of the jobs, which is random; a point that the file lost comes last."""
    desk.spec("workload: noop\naxes: {model: [b, a], input_size: [3, 1, 2]}\n")
    desk.submit()
    wanted = [(model, size) for model in "ba" for size in "312"]

    def shown():
        record = json.loads(desk.run("show", "sweep", "--json").stdout)
        return [(point["model"], point["input_size"]) for point in record["points"]]

    assert shown() == wanted
    desk.spec("workload: noop\naxes: {model: [a, b], input_size: [1, 2]}\n")
    desk.submit()
    assert shown()[:4] == [(model, size) for model in "ab" for size in "12"]
    assert set(shown()[4:]) == {("a", "3"), ("b", "3")}
    desk.sweep().sweep_file.write_text("axes: [")
    assert sorted(shown()) == sorted(wanted)
    desk.sweep().sweep_file.unlink()
    assert sorted(shown()) == sorted(wanted)


def test_a_point_is_shown_with_its_part_of_the_log(failed):
    """The lines between its beginning and its end are its own, with the traceback."""
    (record,) = json.loads(failed.run("show", "--status", "error", "--json").stdout)["points"]
    assert (record["status"], record["input_size"]) == ("error", "2")
    shown = failed.run("show", "sweep", record["point_id"][:6]).stdout
    assert re.search(r"^status_reason +RuntimeError: injected error$", shown, re.MULTILINE)
    log = shown[shown.index("begins a 2 1 auto") :]
    assert "Traceback" in log
    assert "/3 error a 2 1 auto" in log.splitlines()[-1]
    assert "a 1 1 auto" not in log
    (submission,) = failed.sweep().submissions()
    assert record["log"] == str(submission.log(0, 0).relative_to(failed.folder))
    one = json.loads(failed.run("show", "sweep", record["point_id"], "--json").stdout)
    assert one == {**one, **record, "command": "show"}


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_of_a_log_that_is_larger_than_the_memory_a_points_lines_are_shown(failed, place):
    """What filled it may stand before them, among them, or behind them."""
    (record,) = json.loads(failed.run("show", "--status", "error", "--json").stdout)["points"]
    log = failed.folder / record["log"]
    point = PointState(record["point_id"], "", {}, log)
    begins, *rest = point.log_text()
    before, after = log.read_text().split("\n".join([begins, *rest]))
    with log.open("wb") as file:
        for number, text in enumerate([before, begins, "\n".join(rest), after]):
            if number == place:
                file.seek(1 << 28, os.SEEK_CUR)  # a hole
                file.write(b"\n")
            file.write(f"{text}\n".encode())
    tracemalloc.start()
    lines = point.log_text()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 24
    assert lines[-len(rest) :] == rest
    assert place == 2 or lines == [begins, *rest]


def test_points_without_a_row_wait(tmp_path):
    """A sweep that was interrupted shows what is left."""
    made = resultsfolder.make(tmp_path)
    made.submit("20260101-000000-local")
    made.measure(made.shard("20260101-000000-local"), made.points[:2])
    every = points.read_points(made.sweep_dir)
    head, _, _, *lines = points.table("demo", every, ["waiting"], None)
    assert head == f"demo: {len(made.points) - 2} waiting"
    assert sorted(line.split()[0] for line in lines) == sorted(
        point.point_id[:8] for point in made.points[2:]
    )


def test_a_table_of_many_points_holds_few_cells_of_each(tmp_path):
    """A login node has memory for 200,000 points; whole rows take six kilobytes each."""
    peaks = []
    for number in (100, 600):
        folder = SweepDir(tmp_path / f"of_{number}")
        benchmark.make(folder, number // 50, number, 1)
        tracemalloc.start()
        every = points.read_points(folder, whole=False)
        lines = sum(1 for _ in points.table("many", every, (), None))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert lines == number + 3  # a headline, an empty one, the head
        (whole,) = {len(point.row) for point in points.read_points(folder)}
        assert len(points.whole(folder, every[0]).row) == whole > 2 * len(every[0].row)
    assert (peaks[1] - peaks[0]) / 500 < 1000


def test_what_is_not_there_is_a_mistake(failed):
    """With the nearest status."""
    for words, told in (
        (["--status", "erorr"], "no status 'erorr'; did you mean 'error'?"),
        (["sweep", "zz"], "'zz' is no point's id"),
    ):
        done = failed.run("show", *words)
        assert (done.returncode, told in done.stderr) == (2, True)


def test_the_headline_counts_what_is_not_valid():
    """As every other headline does."""
    row = {"status": "ok", "valid": "false", "flags": "very_noisy;host_bound"}
    found = [PointState("0123456789abcdef", "a 1", row, None)]
    head = "sweep: 1 ok, 1 of them not valid: very_noisy 1"
    assert next(points.table("sweep", found, (), 80)) == head


def test_a_long_reason_is_folded_on_a_narrow_terminal():
    """Nothing is cut: it says what to do."""
    why = "UsageError: " + " ".join(f"word{number}" for number in range(30))
    row = {"status": "error", "status_reason": why}
    state = PointState("0123456789abcdef", "a 1", row, None)
    told = "\n".join(points.table("sweep", [state], (), 60))
    assert told.split()[-31:] == why.split()
    assert max(map(len, told.splitlines())) <= 60


def test_a_damaged_row_is_shown_as_it_is(failed):
    """Whatever its cells hold by now: `collect` says that its checksum does not fit."""
    (shard,) = failed.sweep().shards()
    rows = shard.overall.read_bytes()
    columns = rows.splitlines()[0].split(b",")
    for name in (b"chunk", b"attempt", b"median_ms"):
        lines = [line.split(b",") for line in rows.splitlines()]
        lines[1][columns.index(name)] = b"x7"
        shard.overall.write_bytes(b"\n".join(map(b",".join, lines)) + b"\n")
        done = failed.run("show", "sweep")
        assert (done.returncode, done.stderr) == (0, "")
