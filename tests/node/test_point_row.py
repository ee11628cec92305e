"""Rows say where they come from."""

from __future__ import annotations

import json
import os
import sys
from operator import itemgetter
from typing import TYPE_CHECKING

import pytest

from hpcsweep import environment
from hpcsweep.node import point_row
from hpcsweep.node.point_row import Reports
from hpcsweep.node.protocol import Outcome
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from pathlib import Path


def test_a_local_launcher_hears_an_end_and_the_next_begin_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To write both at once is one start of the launcher less."""
    monkeypatch.setenv(environment.PROGRESS, "json")
    reports = Reports(tmp_path / "log")
    reports.begins("10:00", "1/2 begins a", "a")
    reports.flush()
    reports.ended("10:01", "", "1/2 ok a", "ok", "very_noisy")
    assert (tmp_path / "log").read_text() == "10:00 1/2 begins a\n"
    reports.begins("10:01", "2/2 begins b", "b")
    reports.say("stopped\n  by a signal")
    heard = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert heard == [
        {"ended": [], "begins": "a"},
        {"ended": [["ok", "very_noisy"]], "begins": "b"},
    ]
    said = [line.split(" ", 1)[1] for line in (tmp_path / "log").read_text().splitlines()]
    assert said == ["1/2 begins a", "1/2 ok a", "2/2 begins b", "stopped by a signal"]


@pytest.mark.parametrize("open_before", [True, False])
def test_lines_of_two_writers_stay_whole(tmp_path: Path, *, open_before: bool) -> None:
    """The worker writes into the same log."""
    log = tmp_path / "log"
    reports = Reports(log)
    if open_before:
        reports.say("first")
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, b"of the worker\n")
    reports.say("second")
    os.close(fd)
    assert "of the worker\n" in log.read_text()
    assert log.read_text().endswith("second\n")


def test_cells_of_another_version_are_left_out_and_the_rest_is_kept():
    """The worker may be newer than the supervisor, after an update while the job runs."""
    sent = Outcome(
        status=PointStatus.OK,
        row={"median_ms": 1.5, "kernel_h": 3, "mood": "good"},
        layers=[{"kernel_h": 3, "median_ms": 1.0}, {"kernel_h": 3, "load_avg_1min": 1.0}],
    )
    kept, unknown = point_row.declared(sent)
    assert unknown == {"kernel_h", "mood", "load_avg_1min"}
    assert kept.row == {"median_ms": 1.5}
    assert kept.layers == [{"kernel_h": 3, "median_ms": 1.0}, {"kernel_h": 3}]
    assert point_row.declared(kept) == (kept, set())


def test_the_share_of_timed_passes_is_told_where_something_was_timed(desk):
    """A pass of 50 ms is most of what its point took; what failed has no share."""
    desk.spec(
        "workload: noop\naxes: {model: [a], input_size: [1, 2]}\n"
        "measure: {sleep_ms: 50, fail: [{when: {input_size: 2}, how: error}]}\n"
    )
    desk.submit("--workers", "1")
    done, failed = sorted(desk.rows(), key=itemgetter("input_size"))
    share = float(done["median_ms"]) / 1000 / float(done["wall_s"])
    assert float(done["timed_share"]) == pytest.approx(share, rel=1e-5)
    assert (failed["status"], failed["timed_share"]) == ("error", "")


def test_rows_say_where_they_come_from(measured):
    """Identity is in every row; provenance in the attempt's own file."""
    (submission,) = measured.sweep().submissions()
    for row in measured.rows():
        assert row["sweep"] == "sweep"
        assert row["profile"] == "local"
        assert row["submission"] == submission.id
        assert row["workload"] == "noop"
        assert row["gpu"] == row["device"] == "cpu"
        assert float(row["wall_s"]) >= 0
    (shard,) = measured.sweep().shards()
    env = json.loads(shard.env.read_text())
    assert env["state"] == "done"
    assert env["python"] == ".".join(map(str, sys.version_info[:3]))
    assert env["pid"] != os.getpid()
