"""What a sweep holds is told and removed; never what may still be measured."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal

import pytest

import resultsfolder
from gate import Gate
from hpcsweep import files
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


def test_what_a_killed_import_left_is_told(measured):
    """In the folder of a sweep, and where nothing of the sweep has come yet."""
    places = [measured.results / name / ".import-x" for name in ("sweep", "new")]
    for place in places:
        place.mkdir(parents=True)
        (place / "0.0.samples.csv").write_bytes(bytes(1000))
    done = measured.run("status", "--disk")
    for name in ("sweep", "new"):
        assert f"{name}/.import-x: of an import" in done.stderr
    assert "unfinished imports 1,000" in done.stdout
    for place in places:
        shutil.rmtree(place)
    places[1].parent.rmdir()


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


@pytest.fixture
def attempted_twice(two_runs):
    """Return the sweep, and two attempts of its second run: all rows of the first are repeated."""
    first, second = two_runs.shard(SECOND, 1), two_runs.shard(SECOND, 1, 1)
    two_runs.measure(first, two_runs.points[:2], median_ms=2.5)
    two_runs.measure(second, two_runs.points, median_ms=3.0)
    return two_runs.sweep_dir, first, second


def test_an_attempt_that_cannot_be_read_for_a_moment_stays(attempted_twice, monkeypatch):
    """Its rows may count; where the later one cannot be read, those of the earlier one do."""
    sweep_dir, first, second = attempted_twice
    really = files.open_regular
    for closed in (first.overall, first.layers, second.overall, second.layers):

        def opened(path, closed=closed):
            if path == closed:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return really(path)

        with monkeypatch.context() as patch:
            patch.setattr(files, "open_regular", opened)
            found = disk.removal(sweep_dir, old_attempts=True)
        assert found.sizes == {}, closed
        said = [line for line in found.kept if f"{first.overall} stays" in line]
        assert len(said) == (closed in {first.overall, first.layers})
    assert first.overall in disk.removal(sweep_dir, old_attempts=True).sizes


def test_an_attempt_that_this_user_may_not_read_stays(attempted_twice, desk):
    """The command says so, and removes nothing of it."""
    sweep_dir, first, _second = attempted_twice
    first.overall.chmod(0)
    done = desk.run_bound(
        "--results", sweep_dir.path.parent, "rm", sweep_dir.name, "--old-attempts", "--yes"
    )
    assert first.overall.exists()
    assert (done.returncode, f"{first.overall} stays" in done.stderr) == (6, True), done


def test_rows_of_a_newer_version_stay(two_runs):
    """This version cannot know whether they count."""
    two_runs.measure(two_runs.shard(SECOND, 1), median_ms=2.5, schema_version="99.0")
    two_runs.measure(two_runs.shard(SECOND, 1, 1), median_ms=3.0)
    found = disk.removal(two_runs.sweep_dir, old_attempts=True)
    assert (found.sizes, len(found.kept)) == ({}, 1)
    assert "newer hpcsweep" in found.kept[0]


def test_a_submission_that_cannot_be_read_lets_no_attempt_go(attempted_twice):
    """It may begin another run, in which other rows count."""
    sweep_dir, first, _second = attempted_twice
    sweep_dir.submission(SECOND).manifest.write_text("{")
    with pytest.raises(Refused, match="nothing is removed"):
        disk.removal(sweep_dir, old_attempts=True)
    assert first.overall.exists()


def test_only_what_was_asked_about_is_removed(two_runs):
    """What was measured while a person thought stays, and so does all else; then they are asked."""
    sweep_dir = two_runs.sweep_dir
    asked = disk.removal(sweep_dir, old_attempts=False)
    two_runs.measure(two_runs.shard(SECOND, 0, 1), two_runs.points, median_ms=3.0)
    with pytest.raises(Refused, match="has other files than when you were asked"):
        asked.remove()
    assert len(sweep_dir.shards()) == 3
    disk.removal(sweep_dir, old_attempts=False).remove()
    assert not sweep_dir.path.exists()


@pytest.mark.parametrize(("place", "mode"), [("submissions", 0o000), ("shards", 0o555)])
def test_what_another_user_has_in_a_sweep_lets_nothing_go(two_runs, desk, place, mode):
    """It may be live, and a half of the sweep would be left."""
    sweep_dir = two_runs.sweep_dir
    (sweep_dir.path / place / SECOND).chmod(mode)
    before = sorted(sweep_dir.path.rglob("*"))
    try:
        for what in (sweep_dir.name, f"{sweep_dir.name}@2"):
            done = desk.run_bound("--results", sweep_dir.path.parent, "rm", what, "--yes")
            assert done.returncode in {2, 5}, done  # where it is closed, nobody knows its run
            assert "is removed" in done.stderr or "no run" in done.stderr
    finally:
        (sweep_dir.path / place / SECOND).chmod(0o755)
    assert sorted(sweep_dir.path.rglob("*")) == before
