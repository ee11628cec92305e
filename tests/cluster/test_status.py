"""What `status` says: rows first, then who still lives; and what it could not read."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from hpcsweep import files
from hpcsweep.cluster import status, sweep_status
from hpcsweep.cluster.sweep_status import ProfileStatus, SweepStatus
from hpcsweep.errors import UsageError
from hpcsweep.store import folders, row_reader
from waiting import wait_for

if TYPE_CHECKING:
    from localruns import Desk

SLOW = """\
workload: noop
axes: {model: [a], input_size: {start: 1, stop: 60, num: 60}}
measure:
  sleep_ms: 300
  fail: [{when: {input_size: [2, 12, 22, 32, 42, 52]}, how: oom}]
"""


def rows(desk: Desk) -> int:
    """Return how many rows there are."""
    return sum(len([*row_reader.read_rows([shard])]) for shard in desk.sweep().shards())


def live_run(desk: Desk):
    """Start a sweep and wait for its first rows."""
    desk.spec(SLOW)
    running = desk.start("submit", "sweep.yaml", "--cluster", "local")
    wait_for(
        "four rows, one of them oom",
        lambda: [row["status"] for row in desk.rows()],
        enough=lambda found: len(found) >= 4 and "oom" in found,
    )
    return running


def test_a_live_sweep_shows_done_remaining_and_pace(desk):
    """Every point is counted once, whatever state it is in."""
    running = live_run(desk)
    (found,) = status.read_status(desk.results, [])
    (profile,) = found.profiles
    counts = profile.tally().counts()
    assert len(profile.planned) == 60
    assert counts["oom"] >= 1
    assert sum(counts.values()) + profile.remaining == 60
    assert profile.live == profile.remaining > 0
    assert profile.running == 1
    assert profile.seconds_left > 0
    head, row, chunk, *_ = sweep_status.as_text([found], 80, at_work=True).splitlines()
    assert max(map(len, (head, row, chunk))) <= 80
    (submission,) = desk.sweep().submissions()
    done = profile.running_done
    assert chunk == f"sweep: {submission.id}:0 runs, {done} of 60 points done"
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=120)
    (after,) = status.read_status(desk.results, ["sweep"])
    assert after.profiles[0].live == 0
    assert after.profiles[0].remaining > 0


def test_each_shard_is_read_once(measured, monkeypatch):
    """Statuses and what is not valid come from one look, which is most of what `status` does."""
    read, seen = files.regular_bytes, Counter()
    monkeypatch.setattr(files, "regular_bytes", lambda path: seen.update([path]) or read(path))
    (found,) = status.read_status(measured.results, [])
    assert len(found.profiles[0].status) == 10
    assert [seen[shard.overall] for shard in measured.sweep().shards()] == [1]


def test_orphans_are_no_points(desk):
    """Those that left the sweep are counted apart; a run has the points of its time."""
    desk.spec("workload: noop\naxes: {model: [a, b, c]}\n")
    desk.run("submit", "sweep.yaml")
    desk.spec("workload: noop\naxes: {model: [a, b]}\n")
    desk.run("submit", "sweep.yaml", "--again")
    desk.spec("workload: noop\naxes: {model: [a, d]}\n")
    desk.run("submit", "sweep.yaml")
    record = json.loads(desk.run("status", "sweep", "--json").stdout)["sweeps"][0]
    (profile,) = record["profiles"]
    assert (profile["points"], profile["orphans"], profile["pending"]) == (2, 1, 0)
    assert profile["by_status"] == {"ok": 2}
    assert [(run["points"], run["measured"]) for run in record["runs"]] == [(3, 3), (3, 3)]
    text = desk.run("status", "sweep").stdout
    assert "local: 1 point no longer in the sweep (orphans), not counted" in text
    assert text.splitlines()[1].split()[2:5] == ["2", "2", "0"]
    shown = desk.run("show", "sweep").stdout
    assert shown.splitlines()[2] == "sweep: 2 ok; 2 orphans"
    assert sum(line.endswith("orphan") for line in shown.splitlines()) == 2
    assert json.loads(desk.run("collect", "sweep", "--json").stdout)["sweeps"][0]["orphans"] == 2
    desk.sweep().sweep_file.write_text("half edited: [")
    (found,) = status.read_status(desk.results, [])
    assert found.profiles[0].orphans == 0  # unknown: nothing is left out


def row_lines(*ends):
    """Return a shard's lines of points that ended at these seconds, each after three."""
    at = "2026-01-01T00:{:02}:{:02}.000+00:00"
    begins = f"{'0' * 16},ok"
    rows = [f"{begins},{at.format(*divmod(end - 3, 60))},3.0,crc" for end in ends]
    return [line.encode() for line in ("point_id,status,started_at,wall_s,row_crc", *rows)]


def test_the_pace_is_that_of_the_ends_of_points(tmp_path):
    """Whatever was written to the attempt's files since; two points say nothing of a third."""
    shard = folders.ShardPath(tmp_path / "20260101-000000-local", 0, 0)
    shard.overall.parent.mkdir(parents=True, exist_ok=True)
    shard.overall.touch()
    files.write_json(shard.env, {})  # as it is when the attempt stops
    assert status.points_per_second(shard, row_lines(10, 13, 16, 19)) == pytest.approx(1 / 3)
    assert status.points_per_second(shard, row_lines(10, 13)) == 0
    assert status.points_per_second(shard, row_lines(10, 10, 10)) == 0
    assert status.points_per_second(shard, [b"point_id,status\n", b"a,ok\n"] * 4) == 0
    assert status.points_per_second(None, []) == 0
    os.utime(shard.overall, (0, 0))  # long ago
    assert status.points_per_second(shard, row_lines(10, 13, 16, 19)) == 0


@pytest.mark.slow
def test_watch_ends_when_nothing_is_live(desk):
    """It is told by the operating system, not by a file."""
    running = live_run(desk)
    watching = desk.start("status", "--watch")
    running.communicate(timeout=120)
    out, errors = watching.communicate(timeout=120)
    assert watching.returncode == 0, errors
    assert "60" in out
    assert out.endswith("\n")


def test_the_table_fits_the_terminal_that_is_watched():
    """Nothing is cut."""
    long = "resnet152_implicit_precomp_gemm_of_a_very_long_study"
    profiles = [ProfileStatus("v100")]
    one = SweepStatus(long, profiles, [], [], in_slurm=False, unanswered=[])
    told = sweep_status.as_text([one], 80)
    assert max(map(len, told.splitlines())) <= 80
    assert told.split() == sweep_status.as_text([one]).split()
    assert sweep_status.as_text([one]).splitlines()[1].startswith(long)


def test_the_first_and_the_last_expected_start_are_told_and_another_day_with_its_date():
    """In the time of this machine; one start is told once."""
    soon, late = (datetime.now().astimezone() + timedelta(hours=h, seconds=9) for h in (2, 50))
    first = f"{soon:%H:%M}, in 2.0 h"
    if soon.date() > datetime.now().astimezone().date():
        first = f"{soon:%Y-%m-%d} {first}"
    told = f"the first is expected to start at {first}"
    last = f", the last job at {late:%Y-%m-%d %H:%M}, in 50.0 h"
    assert sweep_status.expected([soon, soon]) == f"{told} (Slurm's guess)"
    assert sweep_status.expected([late, soon]) == f"{told}{last} (Slurm's guess)"


def test_a_damaged_manifest_hides_no_other_submission(desk):
    """The problem is named, the rest is shown."""
    desk.spec("workload: noop\naxes: {model: [a, b]}\n")
    desk.run("submit", "sweep.yaml")
    broken = desk.sweep().submission("20000101-000000-local")
    broken.path.mkdir()
    broken.manifest.write_text("{half")
    (found,) = status.read_status(desk.results, [])
    assert found.profiles[0].tally().counts() == {"ok": 2}
    assert "20000101-000000-local" in found.problems[0]


def test_nothing_yet_and_no_such_sweep_are_told(desk):
    """Asking without a name is no mistake."""
    assert "no results yet" in sweep_status.as_text(status.read_status(desk.results, []))
    with pytest.raises(UsageError, match="no results of a sweep 'x'"):
        status.read_status(desk.results, ["x"])
