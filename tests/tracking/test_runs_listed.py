"""`status` and `show` list the runs of a sweep; reports take one of them."""

from __future__ import annotations

import json

from hpcsweep.store import runs
from localruns import TEN


def again(desk):
    """Measure the sweep once more."""
    done = desk.run("submit", "sweep.yaml", "--cluster", "local", "--again")
    assert done.returncode == 0, done.stderr


def test_status_and_show_list_runs(measured):
    """Number, date, points and how many are valid; the table counts the last run alone."""
    assert "run 1" not in measured.run("status").stdout
    measured.spec(TEN.replace("num: 5", "num: 3"))
    again(measured)
    first, second = runs.of(measured.sweep())
    for command in (["status"], ["show", "sweep"]):
        said = measured.run(*command).stdout
        assert f"run 1 ({first.began}): 10 points, 10 measured, 10 valid" in said
        assert f"run 2 ({second.began}): 6 points, 6 measured, 6 valid" in said
        record = json.loads(measured.run(*command, "--json").stdout)
        listed = record["sweeps"][0]["runs"] if command == ["status"] else record["runs"]
        assert [(one["number"], one["points"]) for one in listed] == [(1, 10), (2, 6)]
    line = next(one for one in measured.run("status").stdout.splitlines() if " local " in one)
    assert line.split()[2:5] == ["6", "6", "0"]


def test_reports_take_one_run(measured):
    """Its rows alone, in a table that says its name; the tables of the sweep stay as they are."""
    again(measured)
    measured.run("collect", "sweep")
    overall = measured.sweep().overall.read_bytes()
    for at, number in (("previous", 0), ("2", 1)):
        shown = json.loads(measured.run("show", f"sweep@{at}", "--json").stdout)
        (submission,) = runs.of(measured.sweep())[number].dir.ages()
        assert {one["submission"] for one in shown["points"]} == {submission}
        assert "10 ok" in measured.run("report", f"sweep@{at}").stdout
    assert "there are: run 1" in measured.run("report", "sweep@7").stderr
    assert "no sweep can have the name 'sweep@1'" in measured.run("retry", "sweep@1").stderr
    assert measured.sweep().overall.read_bytes() == overall
