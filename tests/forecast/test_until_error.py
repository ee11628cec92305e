"""`submit --until-error` as a person types it, with points that sleep."""

from __future__ import annotations

import csv
import json
import signal
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import sizes
from hpcsweep.forecast import groups, intervals, until_error
from hpcsweep.forecast.next_round import judge
from hpcsweep.store import rounds
from paths import SUPPORT
from waiting import wait_for

if TYPE_CHECKING:
    from localruns import Desk

SLEEPING = """\
workload: noop
axes: {model: [a, b], input_size: {start: 10, stop: 200, num: 39}}
measure: {sleep_ms: 40}
"""


@pytest.fixture
def steady(monkeypatch):
    """Let points that sleep take a steady time: a prediction is about times."""
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT / "steadysleep"))


def until(desk: Desk, *more: str, target: str = "90%"):
    """Type the command."""
    return desk.submit("--until-error", target, *more)


def table(desk: Desk) -> list[dict[str, str]]:
    """Return the rows of predicted.csv."""
    with (desk.sweep().path / "predicted.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("steady")
def test_it_runs_through_and_fills_in_the_rest(desk: Desk):
    """Every measured point is an ordinary row; the summary says how good the others are."""
    desk.spec(SLEEPING)
    told = until(desk)
    assert told.returncode == 0, told.stderr
    assert "measured 14 of 78 points" in told.stdout
    assert "(mean of 10 points), target 90 %: target reached" in told.stdout
    assert "64 points predicted" in told.stdout
    assert len(desk.rows()) == len({row["point_id"] for row in desk.rows()}) == 14
    rows = table(desk)
    assert Counter((row["status"], row["basis"]) for row in rows) == {
        ("ok", "measured"): 14,
        ("predicted", "lines"): 64,
    }
    assert [row["input_size"] for row in rows[:3]] == ["10", "15", "20"]
    for row in rows:
        low, said, high = (
            float(row[name]) for name in ("predicted_lo_ms", "median_ms", "predicted_hi_ms")
        )
        assert low <= said <= high
        assert said == pytest.approx(40, rel=0.01)  # a line through sleeps of 40 ms
    again = until(desk)
    assert again.returncode == 0
    assert "measured 14 of 78 points" in again.stdout
    assert "target reached" in desk.run("status").stdout
    (record,) = json.loads(desk.run("status", "--json").stdout)["sweeps"]
    counts = [(one["points"], one["held_out"]) for one in record["until_error"][0]["rounds"]]
    assert counts == [(14, 10)]


@pytest.mark.slow
def test_a_second_command_measures_nothing_twice_and_ctrl_c_is_resumed(desk: Desk):
    """The second one says where the points are; the point in work is finished."""
    desk.spec(SLEEPING.replace("40}", "1000}"))
    process = desk.start("submit", "sweep.yaml", "--cluster", "local", "--until-error", "90%")
    desk.wait_for_rows(1)
    told = until(desk)
    assert told.returncode == 4
    assert "already queued or running" in told.stdout
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "interrupted: run the same command again to resume" in out
    assert until(desk).returncode == 0
    ids = [row["point_id"] for row in desk.rows()]
    assert len(ids) == len(set(ids)) == 14
    assert [len(one.points) for one in rounds.read_rounds(desk.sweep())["cpu"].rounds] == [14]


@pytest.mark.slow
def test_killed_in_a_round_it_goes_on(desk: Desk):
    """SIGKILL while the second round is measured."""
    desk.spec(SLEEPING.replace("40}", "500}"))
    words = ("submit", "sweep.yaml", "--cluster", "local", "--until-error")
    process = desk.start(*words, "0.0001%")
    desk.wait_for_rows(15)
    process.kill()
    process.communicate(timeout=300)
    # its supervisor ends when it notices
    wait_for("whole round", lambda: until(desk), enough=lambda told: told.returncode == 0)
    known = rounds.read_rounds(desk.sweep())["cpu"].rounds
    assert [len(one.points) for one in known] == [14, 6]
    assert len({row["point_id"] for row in desk.rows()}) == 20


def test_the_budget_ends_it_and_the_same_command_measures_nothing_more(desk: Desk):
    """2.3 seconds are seven points of 0.3 s each: the first round, and no point of a second."""
    spec = "workload: noop\naxes: {model: [a], input_size: {start: 1, stop: 40, num: 40}}\n"
    desk.spec(spec + "measure: {sleep_ms: 300}\n")
    for _ in range(2):
        told = until(desk, "--max-gpu-hours", str(2.3 / 3600), target="0.0001%")
        assert told.returncode == 10, told.stderr
        assert "the budget is gone" in told.stdout
        assert "larger --max-gpu-hours goes on" in told.stdout
        assert 1 <= len(desk.rows()) <= 7
    assert "the budget is gone" in desk.run("status").stdout


@pytest.mark.usefixtures("steady")
def test_a_round_without_a_valid_row_ends_it_and_a_retry_lets_it_go_on(desk: Desk):
    """It says why and what to do; the other network goes on, and nothing is measured in vain."""
    how = "[{when: {model: a}, how: contended, attempts: 1}]"
    desk.spec(SLEEPING.replace("40}", f"4, fail: {how}}}"))
    for _ in range(2):
        told = until(desk)
        assert told.returncode == 10, told.stderr
        assert "most of its points are not valid" in told.stdout
        assert "these 7 points again: hpcsweep retry sweep --invalid" in told.stdout
        assert "target missed in 1 of 2 groups" in told.stdout
        assert Counter(row["model"] for row in desk.rows()) == {"a": 7, "b": 7}
        assert {row["model"] for row in table(desk)} == {"b"}
        assert "none to predict it from: 39 points" in told.stdout
    assert desk.run("retry", "sweep", "--invalid").returncode == 0
    told = until(desk)
    assert told.returncode == 0, told.stdout
    assert Counter(row["model"] for row in desk.rows()) == {"a": 14, "b": 7}
    assert len(table(desk)) == 78


@pytest.mark.usefixtures("steady")
def test_failed_points_are_not_rows_in_doubt(desk: Desk):
    """Points at the ends cannot be measured at all: others are, as ever."""
    desk.spec(SLEEPING.replace("40}", "4, fail: [{when: {input_size: [10, 200]}, how: error}]}"))
    told = until(desk)
    assert told.returncode == 3, told.stdout
    assert "target reached" in told.stdout
    assert "not valid" not in told.stdout


@pytest.mark.usefixtures("steady")
def test_what_is_larger_than_a_point_out_of_memory_has_no_time(desk: Desk):
    """Few such points are tried, the others are told; a network that never fits ends at once."""
    large = [*range(110, 401, 10)]
    how = f"[{{when: {{input_size: {large}}}, how: oom}}, {{when: {{model: b}}, how: oom}}]"
    axes = "{model: [a, b], input_size: {start: 10, stop: 400, step: 10}}"
    desk.spec(f"workload: noop\naxes: {axes}\nmeasure: {{sleep_ms: 4, fail: {how}}}\n")
    told = until(desk)
    assert told.returncode == 0, told.stdout
    assert max(int(row["input_size"]) for row in table(desk)) == 100
    assert {row["model"] for row in table(desk)} == {"a"}
    assert Counter(row["model"] for row in desk.rows())["b"] == 7
    assert "no point of a group has a time" in told.stdout
    assert "without a time, since a smaller one ran out of memory: " in told.stdout
    assert "none to predict it from" not in told.stdout


@pytest.mark.usefixtures("steady")
def test_an_edited_sweep_gets_points_of_its_new_sizes_and_networks(desk: Desk):
    """They are not taken for reached."""
    spec = SLEEPING.replace("[a, b]", "[a]")
    desk.spec(spec)
    assert until(desk).returncode == 0
    desk.spec(SLEEPING.replace("stop: 200, num: 39", "stop: 400, num: 79"))
    told = until(desk)
    assert told.returncode == 0, told.stdout
    found = {(row["model"], int(row["input_size"])) for row in desk.rows()}
    assert found > {("a", 10), ("a", 400), ("b", 10), ("b", 400)}


def test_a_command_needs_neither_axis_and_positive_numbers(desk: Desk):
    """Without a batch nothing is told per second; zero has no logarithm."""
    command = "workload: command\naxes: {input_size: {start: 10, stop: 90, step: 10}}\n"
    desk.spec(command + 'run: sh -c "sleep 0.0{input_size}"\n')
    told = until(desk, target="99%")
    assert told.returncode == 0, told.stderr
    assert {row["throughput_ips"] for row in table(desk)} == {""}
    zero = "axes: {batch_size: [0, 1, 2]}"
    none = "axes: {batch_size: [1, 2], x: [1]}\ninclude: [{x: 2}]"
    for axes, value in ((zero, 0), (none, None)):
        desk.spec(f"workload: command\n{axes}\nrun: sleep 0\n")
        told = until(desk, "--join")
        assert told.returncode == 2
        assert f"positive numbers, and batch_size has {value}" in told.stderr


def test_a_first_round_beyond_the_budget_measures_nothing(desk: Desk):
    """It says what it would cost."""
    desk.spec(SLEEPING)
    told = until(desk, "--max-gpu-hours", "0.00001")
    assert told.returncode == 5
    assert "exceeds --max-gpu-hours" in told.stderr
    assert not desk.rows()


@pytest.mark.slow
@pytest.mark.usefixtures("steady")
def test_points_of_a_sample_that_was_measured_before_are_used(desk: Desk):
    """They are rows as any others."""
    desk.spec(SLEEPING)
    assert desk.submit("--sample", "3").returncode == 0
    assert until(desk).returncode == 0
    assert [len(one.points) for one in rounds.read_rounds(desk.sweep())["cpu"].rounds] == [8]
    assert len(desk.rows()) == 14


@pytest.mark.slow
@pytest.mark.usefixtures("steady")
def test_without_the_file_of_rounds_the_rows_count_as_one_round(desk: Desk):
    """Nothing that was measured is lost; a damaged file is named."""
    desk.spec(SLEEPING)
    assert until(desk).returncode == 0
    path = desk.sweep().until
    for damage in ("[]", '{"cpu": {"rounds": 3}}'):
        path.write_text(damage)
        told = until(desk)
        assert told.returncode == 6
        assert "until.json: " in told.stderr
        assert "remove it" in told.stderr
        assert "until.json: " in desk.run("status").stdout
    path.unlink()
    told = until(desk)
    assert told.returncode == 0
    assert len(desk.rows()) == 14  # which count as known


def test_several_profiles_and_what_cannot_be_predicted_are_refused(desk: Desk):
    """Before anything is measured."""
    desk.spec("workload: noop\naxes: {model: [a, b]}\n")
    told = until(desk)
    assert told.returncode == 2
    assert "between values of input_size or batch_size" in told.stderr
    assert not desk.results.exists()
    desk.spec(SLEEPING)
    told = until(desk, "--cluster", "local")
    assert (told.returncode, "one --cluster" in told.stderr) == (2, True)
    training = "axes: {model: [resnet18], input_size: [32, 64]}\n"
    desk.spec(f"workload: training\n{training}")
    told = until(desk)
    assert (told.returncode, "training" in told.stderr) == (2, True)


def filled(left_out, failed=(), rounds=(), too_large=()):
    """Return the filled rows of six sizes, by size, where some have no time."""
    (group,) = groups.groups_of(sizes.points([32, 48, 64, 96, 128, 256]))
    ms = {p.point_id: sizes.smooth(p) for p in group.points}
    known = sizes.known({name: ms[name] for name in ms if name not in left_out}, failed)
    known = replace(known, too_large=too_large)
    rows = until_error.filled("demo", judge(group, known, rounds), known)
    return {row["input_size"]: row for row in rows}


def test_points_between_measured_ones_are_predicted_and_failed_ones_left_out():
    """In the order of the sweep."""
    rows = filled({"auto-64-1", "auto-96-1"}, failed={"auto-64-1"})
    assert list(rows) == [32, 48, 96, 128, 256]
    assert (rows[96]["status"], rows[96]["basis"]) == ("predicted", "lines")
    assert rows[96]["median_ms"] == pytest.approx(sizes.smooth(sizes.points([96])[0]), rel=0.2)
    assert (rows[32]["status"], rows[32]["source"]) == ("ok", "demo")


def test_what_would_run_out_of_memory_is_left_out():
    """It was not tried."""
    rows = filled({"auto-96-1", "auto-256-1"}, too_large={"auto-256-1"})
    assert list(rows) == [32, 48, 64, 96, 128]


def test_beyond_what_was_measured_the_interval_is_a_wide_guess():
    """The largest size has no time, and did not fail."""
    four = [["auto-48-1", "auto-64-1", "auto-96-1", "auto-128-1"]]
    rows = filled({"auto-256-1", "auto-96-1"}, rounds=four)
    for size, factor in ((256, intervals.UNKNOWN), (96, None)):
        row = rows[size]
        found = row["predicted_hi_ms"] / row["median_ms"]
        assert found == pytest.approx(factor or found)
        assert row["predicted_lo_ms"] * found == pytest.approx(row["median_ms"])
