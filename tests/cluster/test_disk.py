"""What a sweep holds is told and removed; never what may still be measured."""

from __future__ import annotations

import json
import signal

import pytest

import resultsfolder
from gate import Gate
from hpcsweep.cluster import disk
from hpcsweep.errors import Refused
from hpcsweep.store import runs
from hpcsweep.store.collect import collector
from waiting import wait_for

FIRST, SECOND = "20260101-000000-local", "20260102-000000-local"


@pytest.fixture
def two_runs(tmp_path):
    """Return a sweep that was measured twice, and collected."""
    made = resultsfolder.make(tmp_path)
    for again, name in enumerate((FIRST, SECOND)):
        made.submit(name, round=again, again=again)
        made.measure(made.shard(name), median_ms=1.0 + again)
    collector.collect(made.sweep_dir)
    return made


def test_status_tells_what_is_on_the_disk(measured):
    """All bytes of the folder, by what they are."""
    record = json.loads(measured.run("status", "--disk", "--json").stdout)
    files = [path for path in measured.sweep().path.rglob("*") if path.is_file()]
    assert sum(record["bytes"]["sweep"].values()) == sum(path.stat().st_size for path in files)
    assert {"shards", "submissions", "tables"} <= record["bytes"]["sweep"].keys()
    assert measured.run("status", "--disk").stdout.startswith("sweep: ")


def test_a_sweep_is_removed_when_a_person_says_yes(measured):
    """A dry run, and no answer, remove nothing; both say what is lost."""
    folder = measured.sweep().path
    for options, code in ((("--dry-run",), 0), ((), 2)):
        done = measured.run("rm", "sweep", *options)
        assert (done.returncode, folder.is_dir()) == (code, True)
        held = sum(disk.usage(measured.sweep()).values())
        assert f"{held:,} bytes" in f"{done.stdout}{done.stderr}"
        assert "1 submission, points: 10 ok" in f"{done.stdout}{done.stderr}"
    done = measured.run("rm", "sweep", "--yes")
    assert (done.returncode, folder.exists()) == (0, False), done.stderr
    assert "were removed" in done.stdout


def test_a_run_goes_and_the_other_one_stays(two_runs):
    """The tables have the rows of the other one."""
    sweep_dir = two_runs.sweep_dir
    first = runs.named(sweep_dir, "2")[0]
    disk.removal(first, old_attempts=False).remove()
    assert [*sweep_dir.ages()] == [FIRST]
    assert set(resultsfolder.by_point(sweep_dir, "median_ms").values()) == {"1"}
    assert not (sweep_dir.shards_dir / SECOND).exists()


def test_attempts_go_whose_rows_do_not_count(two_runs):
    """One whose row is the only whole one stays, and so do all rows of the tables."""
    sweep_dir = two_runs.sweep_dir
    failed = {"status": "error", "median_ms": None}
    for chunk, points in ((1, two_runs.points[:4]), (2, two_runs.points[4:])):
        two_runs.measure(two_runs.shard(SECOND, chunk), points, **failed)
        two_runs.measure(two_runs.shard(SECOND, chunk, 1), points, median_ms=3.0)
    spoilt = two_runs.shard(SECOND, 2, 1).overall
    spoilt.write_bytes(spoilt.read_bytes().replace(b",3,", b",9,"))
    two_runs.measure(two_runs.shard(SECOND, 0, 1), two_runs.points, **failed)
    collector.collect(sweep_dir)
    before = resultsfolder.by_point(sweep_dir, "median_ms")
    found = disk.removal(sweep_dir, old_attempts=True)
    found.remove()
    left = {(shard.chunk, shard.attempt) for shard in sweep_dir.shards_of(SECOND)}
    assert left == {(0, 0), (0, 1), (1, 1), (2, 1)}
    assert resultsfolder.by_point(sweep_dir, "median_ms") == before


def test_nothing_is_removed_while_it_is_measured(desk):
    """Not by a run, nor as a whole; after its end it is."""
    gate = Gate(desk)
    gate.sweep(points=4, passes=1)
    process = desk.start("submit", "sweep.yaml", "--cluster", "local")
    try:
        wait_for("point at the gate", gate.waiting)
        with pytest.raises(Refused, match="may still be queued or running"):
            disk.removal(desk.sweep(), old_attempts=False)
        done = desk.run("rm", "sweep@1", "--yes")
        assert (done.returncode, "hpcsweep cancel sweep" in done.stderr) == (5, True)
    finally:
        process.send_signal(signal.SIGTERM)
        gate.open()
        process.communicate()
    assert desk.run("rm", "sweep", "--yes").returncode == 0
