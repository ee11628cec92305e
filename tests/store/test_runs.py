"""Runs: everything measured once more beside the earlier rows, listed, and read one by one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import hpcsweep
import resultsfolder
from gate import Gate
from hpcsweep.catalog.columns import OVERALL_COLUMNS
from hpcsweep.errors import EXIT_INTERRUPTED, Incomplete, UsageError
from hpcsweep.store import ledger, row_reader, runs, shards
from localruns import TEN, Desk, said_until
from waiting import wait_for


def again(desk, *more, code=0):
    """Run `submit --again` here, and return what it said."""
    done = desk.run("submit", "sweep.yaml", "--cluster", "local", "--again", *more)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def rows_of(run):
    """Return how many rows each run has."""
    return [len([*row_reader.read_rows(one.dir.shards())]) for one in runs.runs_of(run)]


def test_a_new_run_measures_every_point_beside_the_earlier_rows(measured):
    """The rows, ids and submissions of the earlier run stay as they are."""
    run = measured.sweep()
    before = {path: path.read_bytes() for path in run.shards_dir.rglob("*.csv")}
    assert "sweep, run 2: 10 points" in again(measured)
    assert rows_of(run) == [10, 10]
    assert all(path.read_bytes() == text for path, text in before.items())
    first, second = (ledger.statuses(one.dir) for one in runs.runs_of(run))
    assert first == second
    assert "run 3: 10 points" in again(measured)
    assert "nothing to measure (10 ok)" in measured.submit().stdout
    assert rows_of(run) == [10, 10, 10]


def test_an_interrupted_run_is_gone_on_with(desk):
    """The same command measures what that run lacks, and starts the next one only afterwards."""
    gate = Gate(desk)
    gate.sweep(points=40, passes=9)
    assert desk.run("submit", "sweep.yaml", "--cluster", "local", "--sample", "9").returncode == 0
    gate.let_pass(3)
    going = desk.start("submit", "sweep.yaml", "--cluster", "local", "--sample", "9", "--again")
    wait_for("point at the gate", gate.waiting)
    assert "queued or running" in again(desk, "--sample", "9", code=Incomplete.exit_code)
    going.terminate()
    said_until(going, "finishing the current point")
    gate.open()
    going.communicate(timeout=120)
    assert going.returncode == EXIT_INTERRUPTED
    assert rows_of(desk.sweep()) == [9, 4]
    assert "run 2: " in again(desk, "--sample", "9")
    assert rows_of(desk.sweep()) == [9, 9]
    second = runs.runs_of(desk.sweep())[1]
    assert len(second.dir.submissions()) == 2
    assert len({*ledger.statuses(second.dir)}) == 9


def test_points_of_another_profile_join_the_last_run(measured):
    """Two clusters that are measured one after the other are one run, not two halves."""
    (measured.folder / "other.yaml").write_text("extends: local\ngpu: other\n")
    for profile in ("other.yaml", "local", "other.yaml"):
        measured.run("submit", "sweep.yaml", "--cluster", profile, "--again")
    assert rows_of(measured.sweep()) == [20, 20]


def test_a_sweep_that_grew_is_measured_whole(measured):
    """The run before was complete for the sweep as it was then."""
    again(measured)
    measured.spec(TEN.replace("[a, b]", "[a, b, c]"))
    assert "run 3: 15 points" in again(measured)


def test_estimate_and_dry_run_tell_the_run_that_submit_would_measure(measured):
    """And nothing is written on the way."""
    told = json.loads(measured.run("estimate", "sweep.yaml", "--again", "--json").stdout)
    (one,) = told["estimates"]
    assert (one["run"], one["points"], one["already_measured"]) == (2, 10, 0)
    assert "sweep, run 2 on local: 10 points" in again(measured, "--dry-run")
    assert rows_of(measured.sweep()) == [10]


def test_failures_of_the_last_run_count(measured):
    """Also where the run before had measured these points: `retry` measures them in the last."""
    again(measured)
    second = runs.runs_of(measured.sweep())[1]
    (shard,) = second.dir.shards()
    (point, *_) = ledger.statuses(second.dir)
    rows = resultsfolder.read_shard(shard).rows
    shard.overall.write_bytes(b"")
    with shards.ShardWriter(shard.next_attempt()) as writer:
        for row in rows:
            failed = {"status": "error"} if row["point_id"] == point else {}
            cells = {name: cell for name, cell in row.items() if name in OVERALL_COLUMNS}
            writer.commit({**cells, **failed}, (), ())
    assert runs.statuses(measured.sweep())[point] == "error"
    assert "measured 1 ok" in measured.run("retry", "sweep").stdout
    assert rows_of(measured.sweep()) == [10, 11]
    assert "no point is error" in measured.run("retry", "sweep").stdout


def test_what_does_not_go_together_is_told(measured):
    """Rounds measure as little as they can; a profiler measures nothing."""
    assert (
        "leave out --again"
        in measured.run("submit", "sweep.yaml", "--again", "--until-error", "3%").stderr
    )
    (measured.folder / "ncu.yaml").write_text("extends: local\nwrapper: ncu\n")
    done = measured.run("submit", "sweep.yaml", "--cluster", "ncu.yaml", "--again")
    assert done.returncode == UsageError.exit_code
    assert len(runs.runs_of(measured.sweep())) == 1


def test_status_and_show_list_runs(measured):
    """Number, date, points and how many are valid; the table counts the last run alone."""
    assert "run 1" not in measured.run("status").stdout
    measured.spec(TEN.replace("num: 5", "num: 3"))
    again(measured)
    first, second = runs.runs_of(measured.sweep())
    for command in (["status"], ["show", "sweep"]):
        said = measured.run(*command).stdout
        assert f"run 1 ({first.began}): 10 points, 10 measured, 10 valid" in said
        assert f"run 2 ({second.began}): 6 points, 6 measured, 6 valid" in said
        record = json.loads(measured.run(*command, "--json").stdout)
        listed = record["sweeps"][0]["runs"] if command == ["status"] else record["runs"]
        assert [(one["number"], one["points"]) for one in listed] == [(1, 10), (2, 6)]
    line = next(one for one in measured.run("status").stdout.splitlines() if " local " in one)
    assert line.split()[2:5] == ["6", "6", "0"]


def test_a_number_that_no_run_has_is_no_date(measured):
    """Every year begins with a 2: what there is stays."""
    for command in (["report"], ["rm", "--yes"], ["show"]):
        done = measured.run(*command, "sweep@2")
        assert done.returncode == UsageError.exit_code
        assert "no run '2' (there are: run 1" in done.stderr
    assert (
        "10 ok" in measured.run("report", "sweep@20").stderr + measured.run("show", "sweep").stdout
    )


def test_a_folder_elsewhere_is_that_one(measured, tmp_path):
    """Not the sweep of its name below the folder of results here."""
    mine = Desk(tmp_path / "here")
    mine.folder.mkdir()
    mine.spec(TEN.replace("num: 5", "num: 3"))
    mine.submit()
    there = str(measured.sweep().path)
    for command in (["status"], ["show"], ["collect"], ["report"], ["rm", "--dry-run"]):
        done = mine.run(*command, there)
        assert "10" in done.stdout, done.stderr
    assert hpcsweep.load(f"{there}@1", results=mine.results).sweep_dir.path == Path(there)
    assert mine.run("rm", there, "--yes").returncode == 0
    assert not Path(there).exists()
    assert len(mine.rows()) == 6
    beside = tmp_path / "c++" / "sweep"
    shutil.copytree(mine.sweep().path, beside)
    loaded = hpcsweep.load(beside)
    assert len(loaded.compare(loaded)) == 6


def test_reports_take_one_run(measured):
    """Its rows alone, in a table that says its name; the tables of the sweep stay as they are."""
    again(measured)
    measured.run("collect", "sweep")
    overall = measured.sweep().overall.read_bytes()
    for at, number in (("previous", 0), ("2", 1)):
        shown = json.loads(measured.run("show", f"sweep@{at}", "--json").stdout)
        (submission,) = runs.runs_of(measured.sweep())[number].dir.ages()
        assert {one["submission"] for one in shown["points"]} == {submission}
        assert "10 ok" in measured.run("report", f"sweep@{at}").stdout
    assert "there are: run 1" in measured.run("report", "sweep@7").stderr
    assert "no sweep can have the name 'sweep@1'" in measured.run("retry", "sweep@1").stderr
    assert measured.sweep().overall.read_bytes() == overall
