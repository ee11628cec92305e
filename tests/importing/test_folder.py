"""Results of several sites are one data set."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import socket
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import oldtables
import resultsfolder
from hpcsweep.analysis import dataset
from hpcsweep.errors import HpcsweepError, Incomplete, ResultsError, UsageError
from hpcsweep.importing import arrival, importer
from hpcsweep.store.collect import collector as collecting
from hpcsweep.store.shards import ShardWriter
from localruns import FORTY_SLOW
from resultsfolder import SWEEP
from waiting import wait_for

NOBODY = 65534  # the user that owns nothing
HERE, THERE = "20260101-000000-v100", "20260102-000000-mi250"


def site(folder, name, gpu, text=SWEEP):
    """Return the results of a site, measured on its GPU; points have its name."""
    folder.mkdir()
    made = resultsfolder.make(folder, text)
    points = resultsfolder.points_of(folder, text, gpu)
    made = resultsfolder.Folder(made.sweep_dir, points)
    made.submit(name, text=text, gpu=gpu, rehearsal=False, host=f"login.{gpu}", launcher="sbatch")
    made.measure(made.shard(name), median_ms=2.0)
    collecting.collect(made.sweep_dir)
    return made.sweep_dir


@pytest.fixture
def sites(tmp_path):
    """Return the results here, and those of another site."""
    return site(tmp_path / "here", HERE, "v100"), site(tmp_path / "there", THERE, "mi250")


def test_the_rows_of_both_sites_are_in_one_table(sites):
    """Each with its source; those of here have none."""
    here, there = sites
    found = importer.bring(here.path.parent, there.path)
    collecting.collect(found.sweep_dir)
    rows = dataset.read_dataset(here).rows
    assert found.source == "login.mi250"
    assert set(rows.loc[rows["gpu"] == "mi250", "source"]) == {"login.mi250"}
    assert rows.loc[rows["gpu"] == "v100", "source"].isna().all()
    assert rows["gpu"].value_counts().to_dict() == {"mi250": 8, "v100": 8}
    assert set(rows["orphan"]) == {"false"}
    assert [record.launcher for record in here.manifests()] == ["sbatch", "local"]


def test_times_beyond_the_peak_are_flagged_wherever_they_were_measured(sites):
    """An earlier version did not look; of a pass, or of one of its layers."""
    here, there = sites
    shard = resultsfolder.Folder(there, []).shard(THERE)
    points = resultsfolder.points_of(there.path.parents[1], SWEEP, "mi250")
    work = {"op": "conv2d", "flops": 1e13, "mean_ms": 1.0}
    with ShardWriter(replace(shard, attempt=1)) as writer:
        writer.commit(
            {
                **resultsfolder.row_of(points[0], shard),
                "attempt": 1,
                "mean_ms": 1e-3,
                "flops": 1e12,
            },
            [],
        )
        layer = {**resultsfolder.layer_of(points[1], "conv", 1.0), **work}
        writer.commit({**resultsfolder.row_of(points[1], shard), "attempt": 1}, [layer])
    importer.bring(here.path.parent, there.path)
    collecting.collect(here)
    rows = dataset.read_dataset(here).rows.set_index("point_id")
    bad = rows[rows["flags"] == "impossible"]
    assert {*bad.index} == {points[0].point_id, points[1].point_id}
    assert set(bad["valid"]) == {"false"}


def test_importing_again_takes_only_what_is_new(sites):
    """More rows of a shard, or another submission."""
    here, there = sites
    importer.bring(here.path.parent, there.path)
    assert importer.bring(here.path.parent, there.path).notes[0].startswith("0 files copied")
    folder = resultsfolder.Folder(
        there, resultsfolder.points_of(there.path.parents[1], SWEEP, "mi250")
    )
    folder.measure(folder.shard(THERE, 0, 1), median_ms=3.0)
    importer.bring(here.path.parent, there.path)
    collecting.collect(here)
    rows = dataset.read_dataset(here).rows
    assert set(rows.loc[rows["gpu"] == "mi250", "median_ms"]) == {3.0}
    assert [record.round for record in here.manifests()] == [0, 1]


def test_another_sweep_is_refused(sites, tmp_path):
    """Its rows would be orphans; under another name it is welcome."""
    here, _ = sites
    other = site(tmp_path / "other", THERE, "mi250", SWEEP.replace("64, 96", "64, 80"))
    with pytest.raises(UsageError, match=r"is not the sweep of .*--as imports it under another"):
        importer.bring(here.path.parent, other.path)
    found = importer.bring(here.path.parent, other.path.parent, "theirs")
    collecting.collect(found.sweep_dir)
    assert len(dataset.read_dataset(found.sweep_dir).rows) == 8
    with pytest.raises(UsageError, match="is that sweep already"):
        importer.bring(here.path.parent, here.path)


def test_results_of_another_minor_version_are_merged_by_column_name(sites):
    """Rows without a column that is known here, and with one that is new."""
    here, there = sites

    def newer(cells):
        del cells["tf32"]
        first = {name: cells.pop(name) for name in ("point_id", "status")}
        return {**first, "fan_rpm": "900", **cells, "schema_version": "1.9"}

    for shard in there.shards():
        resultsfolder.reseal(shard, newer)
    found = importer.bring(here.path.parent, there.path)
    assert collecting.collect(found.sweep_dir).left_out == []
    rows = resultsfolder.overall(here)
    assert {tuple(map(row.get, ("gpu", "tf32", "fan_rpm", "median_ms"))) for row in rows} == {
        ("v100", "false", "", "2"), ("mi250", "", "900", "2"),
    }  # fmt: skip


def odd(path, kind, outside):
    """Put something that is no file of its own in the place of a file."""
    path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to(outside)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one, pytest.MonkeyPatch.context() as patch:
            patch.chdir(path.parent)  # the name of a socket is short
            one.bind(path.name)
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 1 << 40)


@pytest.mark.parametrize("kind", ["link", "device", "pipe", "socket", "sparse"])
@pytest.mark.parametrize(
    "name", ["sweep.yaml", "submissions/*/manifest.json", "submissions/*/chunks.jsonl",
             "shards/*/0.0.overall.csv", "shards/*/0.0.env.json"],
)  # fmt: skip
def test_only_regular_files_are_imported(sites, tmp_path, kind, name):
    """Nothing is copied, nothing is waited for, and the message names the file."""
    here, there = sites
    path = next(there.path.glob(name), there.shards_dir / THERE / "0.0.env.json")
    (outside := tmp_path / "secret").write_text("a secret of this machine")
    odd(path, kind, outside)
    before = {one for one in here.path.rglob("*") if not one.name.startswith(".")}
    with pytest.raises(ResultsError, match=path.name.replace(".", r"\.")):
        importer.bring(here.path.parent, there.path)
    with pytest.raises(ResultsError):
        importer.bring(tmp_path / "empty", there.path, "new")
    assert {one for one in here.path.rglob("*") if not one.name.startswith(".")} == before


@pytest.mark.parametrize("name", ["submissions", "shards", "submissions/*", "shards/*"])
def test_a_folder_that_is_a_link_is_not_imported(sites, tmp_path, name):
    """It may lead anywhere."""
    here, there = sites
    (path,) = there.path.glob(name)
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(ResultsError, match="link"):
        importer.bring(here.path.parent, there.path)


def test_names_that_would_run_a_terminal_are_not_imported(sites):
    """They are told as Python writes them."""
    here, there = sites
    (folder,) = there.shards_dir.iterdir()
    (folder / "a\x1b[2J\n.csv").touch()
    with pytest.raises(ResultsError, match=re.escape("'a\\x1b[2J\\n.csv'")):
        importer.bring(here.path.parent, there.path)


def test_secrets_of_older_versions_are_not_imported(sites, tmp_path):
    """Nor what would run code of the other machine here, when points are measured again."""
    here, there = sites
    (theirs,) = there.submissions()
    record = theirs.read_manifest()
    fields = {"env": {"TOKEN": "hunter-1"}, "setup": ["export A=hunter-2"], "path": "/x/evil.yaml"}
    settings = replace(record.run, search_path=("/x",))
    theirs.write_manifest(replace(record, id="../..", profile_fields=fields, run=settings))
    (theirs.shards / "0.0.env.json").write_text(
        json.dumps({"slurm": {"SLURM_JWT": "hunter-3", "SLURM_JOB_ID": "1"}})
    )
    importer.bring(here.path.parent, there.path)
    assert importer.bring(here.path.parent, there.path).notes[0].startswith("0 files copied")
    mine = here.submission(theirs.id)
    texts = "".join(path.read_text() for path in here.path.rglob("*") if path.is_file())
    assert "hunter" not in texts
    assert '"SLURM_JOB_ID": "1"' in texts
    found = mine.read_manifest()
    assert (found.profile_path, found.run.search_path, found.id) == ("", (), theirs.id)


def test_results_of_a_newer_layout_are_not_imported(sites):
    """Their shards may mean something else."""
    here, there = sites
    (there.path / "layout.json").write_text('{"layout": 2}')
    with pytest.raises(ResultsError, match="newer hpcsweep") as told:
        importer.bring(here.path.parent, there.path)
    assert str(told.value).startswith(f"{there.path / 'layout.json'}: ")


def contents(run):
    """Return every file of a results folder that is not hidden, by its path."""
    found = (path for path in run.path.rglob("*") if path.is_file())
    names = ((path.relative_to(run.path), path) for path in found)
    return {str(n): p.read_bytes() for n, p in names if not any(x[0] == "." for x in n.parts)}


def rows_of(run):
    """Return every row in every shard of a results folder: by submission there, point and time."""
    found = (
        (shard.submission, row)
        for shard in run.shards()
        for row in resultsfolder.read_shard(shard).rows
    )
    return sorted((name, row["point_id"], row["median_ms"]) for name, row in found)


def grown_to(run, file, data):
    """Replace a file of an attempt as a copy by hand does: with another time."""
    path = run.shards_dir / file
    path.write_bytes(data)
    os.utime(path, ns=(0, len(data)))


def test_an_older_copy_of_oneself_takes_nothing_away(tmp_path):
    """Also while the sweep is measured: the writer goes on in its file."""
    made = resultsfolder.make(tmp_path)
    made.submit("s1", launcher="sbatch")
    with ShardWriter(made.shard("s1")) as writer:
        for number, point in enumerate(made.points):
            resultsfolder.commit(writer, point, made.shard("s1"))
            if number == 3:
                shutil.copytree(made.sweep_dir.path, tmp_path / "copy")
            if number == 5:
                before = contents(made.sweep_dir)
                found = importer.bring(made.sweep_dir.path.parent, tmp_path / "copy", "demo")
                assert found.notes[0].startswith("0 files copied")
                assert contents(made.sweep_dir) == {
                    **before,
                    "layout.json": b'{\n "layout": 1\n}\n',
                }
    assert len(rows_of(made.sweep_dir)) == 8


def test_a_running_sweep_is_not_sent_again_after_its_copy_was_imported(desk):
    """By real processes: each point is measured once."""
    desk.spec(FORTY_SLOW.replace("100", "300"))
    with desk.start("submit", "sweep.yaml", "--cluster", "local", "--workers", "2") as running:
        desk.wait_for_rows(5)
        wait_for("copy", lambda: _copied(desk.results / "sweep", desk.folder / "copy/sweep"))
        done = desk.run_process("import", "copy/sweep")
        assert done.returncode == 0, done.stderr
        again = desk.run_process("submit", "sweep.yaml", "--cluster", "local")
        running.communicate(timeout=300)
        assert running.returncode == 0
        assert again.returncode in {0, Incomplete.exit_code}, again.stderr
    assert len(desk.rows()) == 40


def _copied(source: Path, copy: Path) -> bool:
    """Copy a folder in which files are replaced meanwhile; no, if one was gone before its turn."""
    shutil.rmtree(copy, ignore_errors=True)
    with suppress(shutil.Error):
        return bool(shutil.copytree(source, copy))
    return False


def test_rows_that_a_copy_of_oneself_has_beyond_are_a_submission_of_their_own(tmp_path):
    """After a backup was restored: nothing is written into what is here, and nothing is lost."""
    made = resultsfolder.make(tmp_path)
    made.submit("s1", host="here")
    made.measure(made.shard("s1"), made.points[:6], median_ms=2.0)
    shutil.copytree(made.sweep_dir.path, tmp_path / "copy")
    made.measure(made.shard("s1", attempt=1), made.points[6:], median_ms=2.0)
    mine, copy = resultsfolder.SweepDir(tmp_path / "copy"), made.sweep_dir
    before = contents(mine)
    for _ in range(2):
        found = importer.bring(tmp_path, copy.path, "copy")
        assert {**contents(mine), **before} == contents(mine)
        assert [one.id for one in mine.submissions()] == ["s1", "s1.2"]
    assert found.notes == (f"0 files copied from {copy.path}",)
    assert collecting.collect(mine).points == 8
    assert collecting.tables_of(mine)[1] == []
    for _ in range(2):  # a third site has both, each once
        found = importer.bring(tmp_path / "third", mine.path)
        assert [one.id for one in found.sweep_dir.submissions()] == ["s1", "s1.2"]
        assert rows_of(found.sweep_dir) == rows_of(mine)
    assert found.notes == (f"0 files copied from {mine.path}",)
    changed_in_place(mine.shards_of("s1")[0].overall)
    importer.bring(tmp_path, copy.path, "copy")
    assert collecting.collect(mine).points == 8  # the damaged row is in the other one
    assert [one.id for one in mine.submissions()] == ["s1", "s1.2"]


def test_an_imported_submission_gives_way_to_a_copy_that_has_all_its_rows(sites):
    """A later one brings the rest of each file; an older one is refused, and takes nothing away."""
    here, there = sites
    name = f"{THERE}/0.0.overall.csv"
    whole = (there.shards_dir / name).read_bytes()
    cut = whole[: whole.rindex(b"\n", 0, -1) - 40]  # within a row: it was being written
    grown_to(there, name, cut)
    importer.bring(here.path.parent, there.path)
    assert (here.shards_dir / name).read_bytes() == cut
    grown_to(there, name, whole)
    assert importer.bring(here.path.parent, there.path).notes[0].startswith("1 file copied")
    assert collecting.collect(here).points == 16
    after = contents(here)
    for shorter in (cut, b"", whole[:9]):
        grown_to(there, name, shorter)
        with pytest.raises(ResultsError, match=rf"{THERE}: lacks the row of point .*--as imports"):
            importer.bring(here.path.parent, there.path)
        assert contents(here) == after


def test_a_line_that_its_writer_took_back_is_no_other_file(tmp_path):
    """The disk was full while a copy was made; what follows there is another row."""
    made = resultsfolder.make(tmp_path)
    made.submit("s1")
    made.measure(made.shard("s1"), made.points[:6], median_ms=2.0)
    shutil.copytree(made.sweep_dir.path, tmp_path / "copy")
    copy = resultsfolder.SweepDir(tmp_path / "copy")
    lines = copy.shards()[0].overall.read_bytes().split(b"\n")
    grown_to(copy, "s1/0.0.overall.csv", b"\n".join([*lines[:5], lines[6][:80]]))
    before = contents(made.sweep_dir)
    importer.bring(made.sweep_dir.path.parent, copy.path, "demo")
    assert {**contents(made.sweep_dir), **before} == contents(made.sweep_dir)
    assert len(made.sweep_dir.submissions()) == 1
    resultsfolder.reseal(copy.shards()[0], lambda cells: {**cells, "median_ms": "3"})
    importer.bring(made.sweep_dir.path.parent, copy.path, "demo")
    assert len(made.sweep_dir.submissions()) == 2  # its rows are others


def test_submissions_of_two_sites_that_began_in_the_same_second_are_both_there(sites, tmp_path):
    """Under names of their own, however often they are imported, and whichever comes first."""
    here, there = sites
    twin = site(tmp_path / "twin", THERE, "h100")
    for _ in range(2):
        for one in (there, twin):
            importer.bring(here.path.parent, one.path)
    assert [one.id for one in here.submissions()] == [HERE, THERE, f"{THERE}.2"]
    collecting.collect(here)
    rows = resultsfolder.overall(here)
    assert {(row["gpu"], row["submission"], row["source"]) for row in rows} == {
        ("v100", HERE, ""), ("mi250", THERE, "login.mi250"), ("h100", f"{THERE}.2", "login.h100"),
    }  # fmt: skip
    assert collecting.tables_of(here)[1] == []
    mine = site(tmp_path / "mine", THERE, "h100")
    before = contents(mine)
    importer.bring(mine.path.parent, there.path)
    assert {**contents(mine), **before} == contents(mine)
    assert len(rows_of(mine)) == 16


@pytest.mark.parametrize("field", ["created_at", "host", "user"])
def test_the_same_points_sent_by_another_are_another_submission(sites, field):
    """Time, host and user tell, even where every row begins as those that are here."""
    here, there = sites
    importer.bring(here.path.parent, there.path)
    (theirs,) = there.submissions()
    theirs.write_manifest(replace(theirs.read_manifest(), **{field: "another"}))
    importer.bring(here.path.parent, there.path)
    assert len(here.submissions()) == 3


def changed_in_place(path):
    """Change a byte in the middle of a file, as a disk does: with the same size and time."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def with_all_kinds_of_files(run):
    """Give the attempt of the other site a record and a trace beside its rows."""
    (shard,) = run.shards_of(THERE)
    shard.env.write_text(json.dumps({"state": "done", "node": "n1"}))
    (shard.folder / "trace.json.gz").write_bytes(bytes(range(200)))
    return [shard.overall, shard.layers, shard.samples, shard.env, run.submission(THERE).chunks]


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("harm", [changed_in_place, Path.unlink, lambda path: os.truncate(path, 9)])
def test_a_damaged_copy_replaces_nothing_and_is_mended_by_a_good_one(sites, place, harm):
    """Which of both is damaged, their rows tell, not sizes and times."""
    here, there = sites
    files = with_all_kinds_of_files(there)
    importer.bring(here.path.parent, there.path)
    good = contents(here)
    mine = here.path / files[place].relative_to(there.path)
    kept = files[place].read_bytes()
    harm(files[place])
    with pytest.raises(ResultsError, match=rf"{THERE}: lacks .*which is here"):
        importer.bring(here.path.parent, there.path)
    assert contents(here) == good
    files[place].write_bytes(kept)
    harm(mine)
    importer.bring(here.path.parent, there.path)
    assert contents(here) == good
    assert collecting.collect(here).left_out == []


def test_a_trace_that_was_cut_replaces_nothing(sites):
    """Nothing but its size tells; a longer one is a newer one."""
    here, there = sites
    with_all_kinds_of_files(there)
    importer.bring(here.path.parent, there.path)
    trace = there.shards_dir / THERE / "trace.json.gz"
    trace.write_bytes(trace.read_bytes()[:-1])
    with pytest.raises(ResultsError, match=rf"{THERE}: lacks all of trace.json.gz"):
        importer.bring(here.path.parent, there.path)
    trace.write_bytes(bytes(300))
    importer.bring(here.path.parent, there.path)
    assert (here.shards_dir / THERE / "trace.json.gz").read_bytes() == bytes(300)


def test_what_is_refused_keeps_the_others_out(sites):
    """So a message says all: nothing was imported."""
    here, there = sites
    importer.bring(here.path.parent, there.path)
    before = contents(here)
    for name in ("20260101-120000-mi250", "20260103-000000-mi250"):
        shutil.copytree(there.submission(THERE).path, there.submission(name).path)
        record = there.submission(name).read_manifest()
        there.submission(name).write_manifest(replace(record, created_at=name))
    (shard,) = there.shards()
    shard.overall.write_bytes(b"")
    with pytest.raises(ResultsError, match="nothing was imported"):
        importer.bring(here.path.parent, there.path)
    assert contents(here) == before


def test_a_disk_that_is_full_half_way_changes_nothing(sites):
    """By a limit on the size of files: what was copied is removed, what is here stays."""
    here, there = sites
    importer.bring(here.path.parent, there.path)
    before = contents(here)
    made = resultsfolder.Folder(
        there, resultsfolder.points_of(there.path.parents[1], SWEEP, "mi250")
    )
    made.measure(made.shard(THERE, 0, 1), median_ms=3.0)
    (there.shards_dir / THERE / "trace.json.gz").write_bytes(bytes(1 << 20))
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))
        try:
            importer.bring(here.path.parent, there.path)
        except ResultsError as error:
            os._exit(7 if "File too large" in str(error) else 8)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert contents(here) == before
    assert not [*here.path.glob(".import-*")]
    importer.bring(here.path.parent, there.path)
    assert len(rows_of(here)) == 24


@pytest.fixture
def everybodys():
    """Return a folder that another user may reach, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_what_another_user_imported_is_not_half_replaced(everybodys):
    """A folder of theirs cannot be moved, though the folder above it is everybody's."""
    here = site(everybodys / "here", HERE, "v100")
    there = site(everybodys / "there", THERE, "mi250")
    importer.bring(here.path.parent, there.path)
    before = contents(here)
    made = resultsfolder.Folder(there, resultsfolder.points_of(everybodys, SWEEP, "mi250"))
    made.measure(made.shard(THERE, 0, 1), median_ms=3.0)
    (here.shards_dir / THERE).chmod(0o555)
    told = as_nobody(everybodys, lambda: importer.bring(here.path.parent, there.path))
    assert "this user may not replace it" in told
    assert contents(here) == before
    assert not [*here.path.glob(".import-*")]
    (here.shards_dir / THERE).chmod(0o755)


def test_what_a_killed_import_of_another_user_left_in_another_sweep_is_theirs(everybodys):
    """Nobody else may read it; this import has nothing to do with it."""
    there = site(everybodys / "there", THERE, "mi250")
    left = everybodys / "new" / "other" / ".import-x"
    left.mkdir(parents=True)
    left.chmod(0)
    told = as_nobody(everybodys, lambda: importer.bring(everybodys / "new", there.path))
    assert told == ""
    assert len(rows_of(resultsfolder.SweepDir(everybodys / "new" / there.path.name))) == 8


def as_nobody(folder, work):
    """Do something in a folder as a user that owns it and has no other rights; return the error."""
    if not os.geteuid():  # root may do anything
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    answer, told = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.chdir(folder)
            if not os.geteuid():
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            work()
            os._exit(0)
        except (HpcsweepError, OSError) as error:
            os.write(told, f"{error!r:.4000}".encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with os.fdopen(answer) as file:
        return file.read()


@pytest.fixture
def grown(sites, tmp_path):
    """Return results with an import of the other site, which has measured more since."""
    _, there = sites
    importer.bring(tmp_path / "before", there.path)
    points = resultsfolder.points_of(there.path.parents[1], SWEEP, "mi250")
    made = resultsfolder.Folder(there, points)
    made.measure(made.shard(THERE, 0, 1), points[:2], median_ms=3.0)
    made.submit("20260103-000000-mi250", points[:1])
    made.measure(made.shard("20260103-000000-mi250"), points[:1])
    return tmp_path / "before", there


@pytest.mark.no_second_try
@pytest.mark.slow
def test_a_first_import_that_is_killed_at_any_moment_can_be_repeated(sites, tmp_path):
    """Each submission that can be seen is whole; in the end nothing is left over."""
    _, there = sites
    sizes = set()
    number = 0
    killed = True
    while killed:
        results = tmp_path / str(number)
        killed = _killed(number, importer.bring, results, there.path)
        run = resultsfolder.SweepDir(results / there.path.name)
        for mine in run.submissions():
            assert mine.chunks.read_bytes() == there.submission(mine.id).chunks.read_bytes()
        sizes.add(len(rows_of(run)))
        importer.bring(results, there.path)
        assert rows_of(run) == rows_of(there)
        assert not [*run.path.glob(".import-*")]
        number += 1
    assert number > 20  # moments
    assert sizes == {0, 8}


@pytest.mark.no_second_try
def test_an_import_over_another_that_is_killed_at_any_moment_loses_no_row(grown, tmp_path):
    """None is there twice, and each that was here is, or lies beside it until the next import."""
    before, there = grown
    old = resultsfolder.SweepDir(before / there.path.name)
    sizes = set()
    swapping = 0
    number = 0
    killed = True
    while killed:
        results = tmp_path / str(number)
        shutil.copytree(before, results)
        killed = _killed(number, importer.bring, results, there.path)
        run = resultsfolder.SweepDir(results / there.path.name)
        rows = rows_of(run)
        assert len(rows) == len({*rows})
        beside = [resultsfolder.SweepDir(aside) for aside in run.path.glob(".import-*/old")]
        kept = [row for one in beside for row in rows_of(one)]
        # once the rows of the new one are there, the old ones are being removed
        assert {*rows_of(old)} <= {*rows} or rows_of(old) == kept
        for mine in run.submissions():
            own = [row for row in rows if row[0] == mine.id]
            assert own in [
                [row for row in rows_of(one) if row[0] == mine.id] for one in (old, there)
            ]
            assert mine.chunks.read_bytes() == there.submission(mine.id).chunks.read_bytes()
        swapping += bool(beside)
        sizes.add(len(rows))
        arrival.remove_leftovers(results)  # as an import of another sweep begins
        assert {*rows_of(old)} <= {*rows_of(run)}
        assert not [*run.path.glob(".import-*")]
        importer.bring(results, there.path)
        assert rows_of(run) == rows_of(there)
        sources = {one.read_manifest().source for one in run.submissions()}
        assert sources == {"login.mi250", there.path.name}
        shutil.rmtree(results)
        number += 1
    assert swapping > 10  # moments
    # none between two renames: the rows of before are beside, and those that come wait
    assert sizes == {0, 8, 10, 11}


@pytest.mark.no_second_try
@pytest.mark.slow
def test_an_import_that_is_killed_twice_loses_no_row(grown, tmp_path):
    """The second time while it goes on with what the first one had begun."""
    before, there = grown
    old = resultsfolder.SweepDir(before / there.path.name)
    number = 0
    killed = True
    while killed:
        once = tmp_path / f"once {number}"
        shutil.copytree(before, once)
        killed = _killed(number, importer.bring, once, there.path)
        again = 0
        while [*once.glob("*/.import-*/moving/submissions/*/manifest.json")]:
            twice = tmp_path / "twice"
            shutil.copytree(once, twice)
            finished = not _killed(again, arrival.remove_leftovers, twice)
            arrival.remove_leftovers(twice)
            run = resultsfolder.SweepDir(twice / there.path.name)
            assert {*rows_of(old)} <= {*rows_of(run)} <= {*rows_of(there)}
            assert not [*run.path.glob(".import-*")]
            shutil.rmtree(twice)
            if finished:
                break
            again += 1
        shutil.rmtree(once)
        number += 1


def _killed(number, work, *arguments):
    """Work in a process that is killed at its n-th change of a folder; say whether it was."""
    child = os.fork()
    if not child:
        left = [number]

        def counting(call):
            def counted(*args, **options):
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **options)

            return counted

        for name in ("mkdir", "rename", "replace", "fsync", "unlink", "rmdir"):
            setattr(os, name, counting(getattr(os, name)))
        try:
            work(*arguments)
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] != 0


def test_an_import_of_tables_that_is_killed_leaves_no_half_of_them(tmp_path):
    """They can be imported again, in whatever moment it was."""
    oldtables.folder(tmp_path / "old", [("VGG16", "gemm", "V100")], (64, 96), layers=2)
    number, states = 0, set()
    while True:
        killed = _killed(number, importer.bring, tmp_path / str(number), tmp_path / "old")
        run = resultsfolder.SweepDir(tmp_path / str(number) / "old")
        states.add(len(rows_of(run)))
        importer.bring(tmp_path / str(number), tmp_path / "old")
        rows = [resultsfolder.read_shard(shard).rows for shard in run.shards()]
        assert {len(each) for each in rows} == {2}
        assert len(rows) == len(run.submissions())
        assert not [*run.path.glob(".import-*")]
        if not killed:
            break
        number += 1
    assert number > 10
    assert states == {0, 2}


def test_a_sweep_whose_first_import_was_cut_short_by_an_earlier_version_is_taken(sites, tmp_path):
    """It left submissions without a sweep file; that they are of another sweep is not said."""
    _, there = sites
    importer.bring(tmp_path / "new", there.path)
    run = resultsfolder.SweepDir(tmp_path / "new" / there.path.name)
    run.sweep_file.unlink()
    importer.bring(tmp_path / "new", there.path)
    assert len(rows_of(run)) == 8


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("days", [(2, 1), (1, 2), (2, 2), (2, "")])
def test_of_an_own_and_an_imported_row_the_one_measured_later_counts(tmp_path, days, grows):
    """Whenever it was imported; rows of here are in their own order, whatever the clock said."""
    made, theirs = (resultsfolder.make(tmp_path / name) for name in _made(tmp_path))
    own, other = (day and f"2026-01-0{day}T00:00:00.000Z" for day in days)
    theirs.submit("20260105-000000-x", host="there")
    theirs.measure(theirs.shard("20260105-000000-x"), mean_ms=9.0, started_at=other)
    made.submit("20260103-000000-x", host="here")
    made.measure(made.shard("20260103-000000-x"), mean_ms=1.0, started_at=own)
    if grows:
        collecting.collect(made.sweep_dir)
    importer.bring(made.sweep_dir.path.parent, theirs.sweep_dir.path)
    collecting.collect(made.sweep_dir)
    wins = "9" if days == (1, 2) else "1"
    assert set(resultsfolder.by_point(made.sweep_dir, "mean_ms").values()) == {wins}
    made.submit("20260104-000000-x", host="here", round=9)
    made.measure(
        made.shard("20260104-000000-x"), mean_ms=2.0, started_at="2026-01-01T12:00:00.000Z"
    )
    if not grows:
        made.sweep_dir.collect_index.unlink()
    collecting.collect(made.sweep_dir)
    wins = "9" if days in {(1, 2), (2, 2)} else "2"
    assert set(resultsfolder.by_point(made.sweep_dir, "mean_ms").values()) == {wins}


def _made(folder):
    for name in ("ours", "theirs"):
        (folder / name).mkdir()
        yield name
