"""How points ended: counts, why some failed, what disturbed others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

import resultsfolder
from hpcsweep.store import outcomes, row_reader
from hpcsweep.store.collect.collector import collect
from hpcsweep.store.outcomes import VALID, PointTally
from resultsfolder import make

if TYPE_CHECKING:
    from pathlib import Path

    from resultsfolder import Folder

NOISY = {"valid": False, "flags": "few_samples;very_noisy"}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return a results folder with one submission of all points, and no rows yet."""
    made = make(tmp_path)
    made.submit("s1")
    return made


def test_a_tally_says_how_many_are_not_valid_and_why() -> None:
    """Only of those that are ok; a row may have several flags."""
    found = PointTally()
    for doubts in (VALID, "very_noisy", "very_noisy;shared_cpu"):
        found.add("ok", doubts)
    assert str(found) == "3 ok, 2 of them not valid: very_noisy 2, shared_cpu 1"
    found.add("error", "inaccurate")
    assert str(found).endswith("shared_cpu 1; 1 error")
    assert found.to_json() == {"not_valid": 2, "doubts": {"very_noisy": 2, "shared_cpu": 1}}


def test_a_tally_of_valid_rows_is_as_short_as_ever() -> None:
    """Nothing is said of what is not there."""
    found = PointTally()
    found.add("ok")
    found.add("timeout")
    assert str(found) == "1 ok, 1 timeout"


@pytest.mark.parametrize("reason", ["", 'a "quoted", cell', "b,c"])
def test_the_quick_look_finds_why_rows_are_not_valid(folder: Folder, reason: str) -> None:
    """It parses the last cells only, and quotes do not mislead it; of several ok rows the last."""
    first, second, third, fourth, *_ = folder.points
    folder.measure(folder.shard("s1"), [first, second, third], **NOISY, status_reason=reason)
    folder.measure(folder.shard("s1", attempt=1), [second], valid=True, node=reason)
    folder.measure(folder.shard("s1", attempt=2), [third, fourth], **NOISY, status="error")
    assert outcomes.doubts_in(row_reader.read_rows(folder.sweep_dir.shards(), outcomes.DOUBTS)) == {
        first.point_id: "very_noisy",
        second.point_id: VALID,
        third.point_id: "very_noisy",
    }


def test_the_quick_look_agrees_with_a_full_one(folder: Folder) -> None:
    """Whatever the columns; a line that is torn counts in neither."""
    shard = folder.shard("s1")
    folder.measure(shard, folder.points[:3], **NOISY)
    with shard.overall.open("ab") as file:
        file.write(b"0123456789abcdef,ok,")
    full = {
        row["point_id"]: outcomes.doubts_of(row) for row in resultsfolder.read_shard(shard).rows
    }
    assert outcomes.doubts_in(row_reader.read_rows([shard], outcomes.DOUBTS)) == full


def test_what_messages_tell_is_all_that_they_hold_of_the_rows(folder: Folder) -> None:
    """A large sweep's whole rows fill the memory of a login node: the messages stay the same."""
    shard = folder.shard("s1")
    folder.measure(shard, folder.points[:3], **NOISY, load_avg_1min=9.0, stolen_pct=7.0)
    folder.measure(folder.shard("s1", 1), folder.points[3:6], status="oom", status_reason="5 GB")
    folder.measure(folder.shard("s1", 2), folder.points[6:], valid=True)
    every = folder.sweep_dir.shards()
    full, told = outcomes.rows_of(every), outcomes.told_rows(every)
    assert [told[point.point_id] for point in folder.points[6:]] == [{"status": "ok"}] * 2
    said = outcomes.disturbance(folder.sweep_dir, full.values())
    assert "stolen" in said
    assert outcomes.disturbance(folder.sweep_dir, told.values()) == said
    failed = [point.point_id for point in folder.points[3:6]]
    groups, same = (outcomes.failures_in(rows[point] for point in failed) for rows in (full, told))
    assert groups == same == outcomes.failures_of(every)
    assert max(map(len, told.values())) < min(map(len, full.values())) / 3


def test_collect_says_it_and_remembers_it(folder: Folder) -> None:
    """Also when nothing is new."""
    folder.measure(folder.shard("s1"), folder.points[:3], **NOISY)
    folder.measure(folder.shard("s1", 1), folder.points[3:], valid=True)
    for _ in range(2):
        report = collect(folder.sweep_dir)
        head = "demo: 8 points (8 ok, 3 of them not valid: very_noisy 3), 16 layer rows\n"
        assert report.text().startswith(head)
        assert report.to_json()["doubts"] == {"very_noisy": 3}


FAILING = """\
workload: noop
axes: {model: [a], input_size: [1, 2, 3, 4]}
measure:
  fail:
    - {when: {input_size: 2}, how: error, attempts: 1}
    - {when: {input_size: [3, 4]}, how: oom}
"""


def row(status, reason="", **axes):
    """Return what a row says of a point that ended so."""
    return {"status": status, "status_reason": reason, "model": "a", **axes}


def test_reasons_that_differ_in_numbers_only_are_one():
    """The most frequent first, each with the first point that has it."""
    rows = [
        row("error", "no", input_size="1"),
        row("oom", "needs 5 GB", input_size="2"),
        row("oom", "needs 7.5 GB", input_size="3"),
        row("timeout", "", input_size="4"),
    ]
    assert [*map(str, outcomes.failures_in(rows))] == [
        "2 oom: needs 5 GB (a 2 and 1 other)",
        "1 error: no (a 1)",
        "1 timeout: no reason was given (a 4)",
    ]


def test_of_several_rows_of_a_point_the_ok_one_counts(desk):
    """A point that failed and was measured later is no failure any more."""
    desk.spec(FAILING.replace("[3, 4]", "3"))
    desk.submit()
    told = [str(one) for one in outcomes.failures_of(desk.sweep().shards())]
    assert "1 error: RuntimeError: injected error (a 2 1 auto)" in told
    assert desk.run("retry", "sweep").returncode == 0
    (left,) = outcomes.failures_of(desk.sweep().shards())
    assert left.status == "oom"
    found = outcomes.rows_of(desk.sweep().shards())
    assert sorted(row["status"] for row in found.values()) == ["ok", "ok", "ok", "oom"]


def test_why_points_failed_is_said_by_submit_and_status(desk):
    """And what to do next."""
    desk.spec(FAILING)
    done = desk.submit()
    reason = "1 error: RuntimeError: injected error (a 2 1 auto)"
    assert reason in done.stderr
    assert "2 oom: out of memory" in done.stderr
    assert "hpcsweep show sweep, hpcsweep retry sweep" in done.stdout + done.stderr
    assert f"sweep: local: {reason}" in desk.run("status").stdout


@pytest.fixture
def sweep(tmp_path: Path) -> Folder:
    """Return a results folder with a sweep."""
    made = make(tmp_path)
    made.sweep_dir.sweep_file.write_text("name: demo\n")
    return made


def doubtful(flags: str = "very_noisy", **cells: Any) -> dict[str, Any]:
    """Return a row that is not valid."""
    return {"status": "ok", "valid": "false", "flags": flags, **cells}


def told(sweep: Folder, *rows: dict[str, Any]) -> str:
    """Return the line."""
    return outcomes.disturbance(sweep.sweep_dir, rows).replace(
        f"--results {sweep.sweep_dir.path.parent} ", ""
    )


def test_columns_of_these_rows_say_what_disturbed(sweep: Folder) -> None:
    """Medians over those that tell of it, whether cells are texts or numbers."""
    rows = [
        doubtful("contended", load_avg_1min="3.5", threads="2", waited_pct="23.4"),
        doubtful("contended", load_avg_1min=3.7, threads=2, waited_pct=math.nan, switches_per_s=24),
        doubtful("very_noisy", load_avg_1min="", stolen_pct="5"),
    ]
    assert told(sweep, *rows) == (
        "disturbed (load 3.6; 23 % of the time waited for "
        "a CPU; 5 % of the time stolen by the hypervisor); "
        "to measure these 3 points again: hpcsweep retry demo --invalid"
    )


def test_more_than_the_whole_is_no_percentage(sweep: Folder) -> None:
    """A machine 18730 % slower, and 170 % of the time waited for, as people say it."""
    found = told(sweep, doubtful("contended", control_shift_pct="18730", waited_pct=170))
    assert "1.7 threads at a time waited for a CPU; the machine itself 188 times slower" in found


def test_flags_say_what_no_column_does(sweep: Folder) -> None:
    """Other processes on the GPU, and why it was throttled."""
    found = told(
        sweep,
        doubtful("shared_gpu"),
        doubtful("throttled;noisy", throttle_reasons="sw_thermal_slowdown"),
    )
    assert "(another process on the GPU; the GPU throttled: sw_thermal_slowdown)" in found


def test_a_load_that_is_the_points_own_disturbs_nobody(sweep: Folder) -> None:
    """Four threads make a load of four; where nothing tells, that is said."""
    found = told(sweep, doubtful(load_avg_1min="4.2", threads="4"))
    assert found.startswith("disturbed (no column says what by); to measure this point again: ")


def test_what_would_be_so_again_is_not_measured_again(sweep: Folder) -> None:
    """Doubts of what a point is; one that is disturbed besides is measured again."""
    found = told(sweep, doubtful("algorithm_absent"), doubtful("inaccurate"))
    assert found == "algorithm_absent, inaccurate: would be so again (hpcsweep show demo)"
    found = told(sweep, doubtful("inaccurate;shared_cpu"), doubtful("unverified"))
    assert "this point again: hpcsweep retry demo --invalid; unverified: would" in found


@pytest.mark.parametrize("flag", ["fresh_inputs", "launch_bound", "compiling", "switched"])
def test_what_the_network_causes_is_no_disturbance(sweep: Folder, flag: str) -> None:
    """The machine did nothing: the point would have it again."""
    assert told(sweep, doubtful(flag)) == f"{flag}: would be so again (hpcsweep show demo)"


def test_the_check_in_which_a_process_ended_is_named(sweep: Folder) -> None:
    """Its times are good; whether they are valid nobody knows."""
    cells = {"checks_missing": "algorithm: SIGSEGV: Fatal Python error; numerics; control"}
    later = {"checks_missing": "algorithm: an earlier point's process ended in it"}
    fine = {"status": "ok", "valid": "true", "flags": "", "checks_missing": math.nan}
    found = told(sweep, doubtful("undecided", **cells), doubtful("undecided", **later), fine)
    assert found == (
        "undecided (a process ended in the check algorithm): would be so again (hpcsweep show demo)"
    )


def test_valid_and_failed_points_have_no_line(sweep: Folder) -> None:
    """Nor have runs under a profiler."""
    fine = {"status": "ok", "valid": "true", "flags": "noisy", "load_avg_1min": "99"}
    assert (
        told(
            sweep,
            fine,
            doubtful("old_files"),
            doubtful() | {"status": "error"},
            doubtful() | {"status": "profiled"},
        )
        == ""
    )


def test_without_a_sweep_file_no_command_is_named(sweep: Folder) -> None:
    """As of tables that were imported."""
    sweep.sweep_dir.sweep_file.unlink()
    assert told(sweep, doubtful()) == "disturbed (no column says what by)"
