"""Paths, names and ages of what lies in a results folder, and what of it is damaged."""

from __future__ import annotations

import json
import os
import re
import shutil
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

import pytest

from hpcsweep import files
from hpcsweep.cluster.slurm import journal
from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.store import folders, ledger
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.jobs_file import Queued, Sending, Started
from hpcsweep.store.manifest import Manifest
from localruns import Desk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from hpcsweep.store.folders import SubmissionDir

NOW = datetime(2025, 3, 4, 5, 6, 7, tzinfo=timezone.utc)


@pytest.fixture
def run(tmp_path: Path) -> SweepDir:
    """Return a results folder that does not exist yet."""
    return SweepDir(tmp_path / "results" / "demo")


def test_a_submission_is_named_by_time_and_profile_and_never_reused(run: SweepDir) -> None:
    """Two within a second are told apart."""
    first, second = (folders.new_submission(run, "l40", NOW) for _ in range(2))
    assert (first.id, second.id) == ("20250304-050607-l40", "20250304-050607-l40.2")
    assert first.logs.is_dir()
    assert first.shards.is_dir()
    assert first.sweep_dir == run


def test_a_submission_counts_once_its_manifest_is_written(run: SweepDir) -> None:
    """A submit that was killed half way left a folder without one."""
    submission = folders.new_submission(run, "l40", NOW)
    assert run.submissions() == []
    submission.write_manifest(Manifest(id=submission.id))
    assert run.submissions() == [submission]
    assert submission.read_manifest() == Manifest(id=submission.id)


def test_what_jobs_printed_is_found_by_every_name_that_launchers_give_it(run: SweepDir) -> None:
    """Submitit has a file for each process of a task, and leaves out the only task of an array."""
    submission = folders.new_submission(run, "l40", NOW)
    submission.submitit.mkdir()
    names = {
        (5, 0): {"submitit/5_0_log.out", "submitit/5_1_log.out", "submitit/5_0_log.err"},
        (55, 0): {"submitit/55_0_0_log.out"},
        (55, 1): {"submitit/55_1_0_log.out", "submitit/55_1_12_log.err"},
        (55, 10): {"submitit/55_10_0_log.out"},
        (6, 3): {"slurm-6_3.out"},
    }
    for name in ("0.1.log", "submitit/5_0_submitted.pkl", "submitit/5_submission.sh"):
        (submission.logs / name).touch()
    for name in set().union(*names.values()):
        (submission.logs / name).touch()
    found = submission.job_outputs()
    assert {
        task: {str(path.relative_to(submission.logs)) for path in paths}
        for task, paths in found.items()
    } == names


def test_a_submission_is_known_by_another_path_to_its_folder(run: SweepDir, tmp_path: Path) -> None:
    """Through a link, or as it is called where it cannot be seen; not that of another sweep."""
    submission = folders.new_submission(run, "l40", NOW)
    twin = folders.new_submission(SweepDir(tmp_path / "results" / "other"), "l40", NOW)
    (tmp_path / "link").symlink_to("results")
    folder = f"demo/submissions/{submission.id}"
    for root in (tmp_path / "results", tmp_path / "link", "/nowhere/else"):
        assert submission.is_at(f"{root}/{folder}")
    for other in (twin.path, submission.logs, "/nowhere", f"/nowhere/other/submissions/{twin.id}"):
        assert not submission.is_at(str(other))


def test_shards_are_found_in_one_order_and_nothing_else_is(run: SweepDir) -> None:
    """By submission, chunk and attempt, as numbers."""
    for name in ("b/2.0", "b/10.0", "a/0.1", "a/0.0", "b/2.10", "b/2.9"):
        path = run.shards_dir / f"{name}.overall.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for name in ("a/0.0.layers.csv", "a/x.0.overall.csv", "a/.0.0.overall.csv.tmp", "stray"):
        (run.shards_dir / name).touch()
    found = [f"{s.submission}/{s.chunk}.{s.attempt}" for s in run.shards()]
    assert found == ["a/0.0", "a/0.1", "b/2.0", "b/2.9", "b/2.10", "b/10.0"]
    attempts = run.submission("b").attempts(2)
    assert [shard.attempt for shard in attempts] == [0, 9, 10]


def test_submissions_and_shards_are_ordered_by_round_not_by_the_clock(run: SweepDir) -> None:
    """A submission whose manifest cannot be read stands behind the one before it by name."""
    for name, number in (("d", 0), ("a", 1), ("b", None), ("c", 3), ("e", 2)):
        submission = run.submission(name)
        submission.path.mkdir(parents=True)
        if number is None:
            submission.manifest.write_text("{half")
        else:
            submission.write_manifest(Manifest(id=name, round=number))
        submission.shards.mkdir(parents=True)
        submission.shards.joinpath("0.0.overall.csv").touch()
    assert [submission.id for submission in run.submissions()] == list("dabec")
    assert [shard.submission for shard in run.shards()] == list("dabec")


def test_an_unknown_sweep_is_told_with_the_nearest_one(tmp_path: Path) -> None:
    """And with all that there are."""
    (tmp_path / "resnet152_gemm" / "submissions").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"did you mean 'resnet152_gemm'"):
        folders.open_sweep(tmp_path, "resnet125_gemm")
    assert folders.open_sweep(tmp_path, "resnet152_gemm").name == "resnet152_gemm"


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "", ".hidden", "/etc", "-x", "a..b", "é"])
def test_a_name_that_no_sweep_can_have_is_refused(tmp_path: Path, name: str) -> None:
    """By the rule of sweep files: it leaves the results, hides itself or looks like an option."""
    if "/" not in name:  # whatever lies there
        (tmp_path / name / "submissions").mkdir(parents=True, exist_ok=True)
    with pytest.raises(UsageError, match=re.escape(files.SWEEP_NAMES)):
        folders.open_sweep(tmp_path, name)
    assert name not in [run.name for run in folders.all_sweeps(tmp_path)]


SPEC = "workload: noop\naxes: {{model: [a], input_size: {sizes}}}\n"
DEEP = "[" * 100_000 + "]" * 100_000


def written(name: str, text: str) -> Callable[[SubmissionDir], None]:
    """Return a damage: a file of a submission holds something else."""

    def damage(submission: SubmissionDir) -> None:
        getattr(submission, name).write_text(text)

    return damage


def added(text: str) -> Callable[[SubmissionDir], None]:
    """Return a damage: the journal has one line more."""

    def damage(submission: SubmissionDir) -> None:
        with submission.jobs.open("a") as file:
            file.write(text + "\n")

    return damage


def unreadable(name: str) -> Callable[[SubmissionDir], None]:
    """Return a damage: reading a file fails, here since it is a folder."""

    def damage(submission: SubmissionDir) -> None:
        path = getattr(submission, name)
        path.unlink()
        path.mkdir()

    return damage


def piped(name: str) -> Callable[[SubmissionDir], None]:
    """Return a damage: whoever reads a file would wait for a writer."""

    def damage(submission: SubmissionDir) -> None:
        path = getattr(submission, name)
        path.unlink()
        os.mkfifo(path)

    return damage


DAMAGES = {
    "manifest cut": written("manifest", '{"layout": 1, "ro'),
    "manifest huge": written("manifest", '{"layout": 1, "chunks": 1000000000000, "seconds": 1}'),
    "manifest deep": written("manifest", f'{{"layout": {DEEP}}}'),
    "manifest unreadable": unreadable("manifest"),
    "manifest pipe": piped("manifest"),
    "chunks garbage": written("chunks", "\x00\x01 garbage\n"),
    "chunks unreadable": unreadable("chunks"),
    "chunks pipe": piped("chunks"),
    "journal number": added("17"),
    "journal deep": added(DEEP),
    "journal unreadable": unreadable("jobs"),
    "journal pipe": piped("jobs"),
}


@pytest.fixture(scope="module")
def _two_once(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    desk = Desk(tmp_path_factory.mktemp("two"))
    for sizes in ([1, 2], [1, 2, 3, 4]):
        desk.spec(SPEC.format(sizes=sizes))
        assert desk.run("submit", "sweep.yaml").returncode == 0
    return desk


@pytest.fixture
def two(desk: Desk, _two_once: Desk) -> Desk:
    """Return a sweep with two submissions of two points each; the first one will break."""
    shutil.copytree(_two_once.folder, desk.folder, dirs_exist_ok=True)
    return desk


MEASURED: Final = ("manifest cut", "chunks garbage", "journal number", "journal unreadable")


@pytest.mark.parametrize("which", DAMAGES)
def test_every_command_names_it_and_goes_on(two: Desk, which: str) -> None:
    """Status, collect, logs and cancel."""
    name, whole = _broken(two, which)
    _go_on(two, name, (
        (["status"], "sweep  local"),
        (["collect", "sweep"], "4 points (4 ok)"),
        (["logs", "sweep", f"{whole}:0"], "==> "),
        (["cancel", "sweep"], "nothing is queued or running"),
    ))  # fmt: skip


@pytest.mark.parametrize("which", MEASURED)
def test_beside_it_nothing_is_measured_twice(two: Desk, which: str) -> None:
    """Submit and retry name it, too."""
    name, _whole = _broken(two, which)
    two.spec(SPEC.format(sizes=[1, 2, 3, 4, 5]))
    _go_on(two, name, (
        (["submit", "sweep.yaml"], "measured 1 ok"),
        (["collect", "sweep"], "5 points (5 ok)"),
        (["retry", "sweep", "--status", "ok"], "measured 5 ok"),
    ))  # fmt: skip
    assert len(two.rows()) == 10


def _broken(two: Desk, which: str) -> tuple[str, str]:
    """Damage the first submission; return the name of its file, and the other submission."""
    broken, whole = two.sweep().submissions()
    DAMAGES[which](broken)
    file = {"manifest": "manifest.json", "chunks": "chunks.jsonl", "journal": "jobs.jsonl"}
    return f"results/sweep/submissions/{broken.id}/{file[which.partition(' ')[0]]}", whole.id


def _go_on(two: Desk, name: str, series: Iterable[tuple[list[str], str]]) -> None:
    """Run commands that must say what is broken, and what they did."""
    for arguments, shown in series:
        done = two.run(*arguments)
        said = done.stdout + done.stderr
        assert done.returncode == ResultsError.exit_code, f"{arguments}: {said}"
        assert name in said, f"{arguments}: {said}"
        assert shown in done.stdout, f"{arguments}: {said}"
        assert "unexpected" not in said


def test_a_collect_that_met_damage_is_not_remembered(two: Desk) -> None:
    """Once the file is restored, the next collect ends with 0."""
    broken, _whole = two.sweep().submissions()
    manifest = broken.manifest.read_bytes()
    assert two.run("collect", "sweep").returncode == 0
    broken.manifest.write_text("{}")
    assert two.run("collect", "sweep").returncode == ResultsError.exit_code
    broken.manifest.write_bytes(manifest)
    done = two.run("collect", "sweep")
    assert (done.returncode, two.sweep().damage()) == (0, [])


def submission_with(desk: Desk, *entries: Any) -> SubmissionDir:
    """Return the first submission with another journal."""
    submission = desk.sweep().submissions()[0]
    submission.jobs.unlink()
    for entry in entries:
        submission.append_job(entry)
    return submission


def test_what_lives_of_a_damaged_submission_is_not_sent_again(two: Desk) -> None:
    """The journal says whether its process or its jobs live, the chunk file names the points."""
    runs = Started(process=ledger.processes.identity())
    for entry, queue in ((runs, None), (Queued(job_id="7", tasks=1), lambda _submission: {0})):
        submission = submission_with(two, entry)
        submission.manifest.write_text("{}")
        for shard in submission.sweep_dir.shards_of(submission.id):
            shard.overall.unlink()
        found = ledger.read_ledger(two.sweep(), queue)
        assert (len(found.live), len(found.status)) == (2, 2)
        assert set(found.live.values()) == {submission.id}


def test_submit_refuses_where_it_cannot_know_what_lives(two: Desk) -> None:
    """A live submission whose points cannot be read; it says what to do."""
    submission = submission_with(two, Started(process=ledger.processes.identity()))
    submission.chunks.write_text("garbage\n")
    done = two.run("submit", "sweep.yaml")
    assert done.returncode == ResultsError.exit_code
    assert "must not be measured twice: wait until it ended, or hpcsweep cancel" in done.stderr
    assert len(two.sweep().submissions()) == 2


def test_chunks_that_a_damaged_line_may_have_been_about_count_as_queued(two: Desk) -> None:
    """Until Slurm has said that it has no other jobs of this submission."""
    submission = submission_with(two, Sending(sending=0, tasks=1))
    with submission.jobs.open("a") as file:
        file.write('{"job_id": 12}\n')
    assert journal.SlurmAnswer().live_chunks_of(submission) == {0}
    journal.note_not_sent(submission, 0)
    assert journal.SlurmAnswer().live_chunks_of(submission) == set()
    assert "jobs.jsonl:2: cannot be read" in submission.sweep_dir.damage()[0]


def test_damage_is_told_file_by_file(two: Desk) -> None:
    """In the order of the submissions."""
    broken, whole = two.sweep().submissions()
    broken.chunks.write_text("x\n")
    broken.manifest.write_text(json.dumps({"layout": 1, "round": "x"}))
    with whole.jobs.open("a") as file:
        file.write("[]\n")
    assert [text.split(":")[0].split("/")[-1] for text in two.sweep().damage()] == [
        "manifest.json", "chunks.jsonl", "jobs.jsonl"
    ]  # fmt: skip


def test_chunks_that_are_missing_are_told(two: Desk) -> None:
    """A chunk file that was cut between two lines; where it lives, submit must not guess."""
    submission = submission_with(two, Started(process=ledger.processes.identity()))
    submission.chunks.write_text("")
    assert "chunks.jsonl: has 0 of 1 chunk; was the" in submission.damage()[0]
    with pytest.raises(ResultsError, match="must not be measured twice"):
        ledger.read_ledger(two.sweep())


@pytest.mark.parametrize(
    ("rights", "places"),
    [(0o000, ("submissions", "shards")), (0o111, ("submissions",)), (0o444, ("shards",))],
)
def test_a_submission_that_its_owner_closed_is_one_line_of_damage(
    measured: Desk, rights: int, places: tuple[str, ...]
) -> None:
    """Another user's, with umask 077: every command does what it does for all others."""
    run = measured.sweep()
    name, other = run.submissions()[0].id, "20990101-000000-local"
    for place in places:
        shutil.copytree(run.path / place / name, run.path / place / other)
        (run.path / place / other).chmod(rights)
    closed = f"{places[0]}/{other}: this user may not read it"
    try:
        verbs = ("collect", "status") if rights else ("collect", "status", "logs", "report")
        done = {verb: measured.run_bound(verb, "sweep") for verb in verbs}
        done["submit"] = measured.run_bound("submit", "sweep.yaml", "--cluster", "local")
    finally:
        for place in places:
            (run.path / place / other).chmod(0o755)
    for verb, command in done.items():
        told = command.stdout + command.stderr
        assert told.count("may not read it") == 1 + (verb == "collect"), (verb, told)
        assert closed in told
        assert command.returncode == (0 if verb == "report" else ResultsError.exit_code), verb
    assert "10 ok" in done["collect"].stdout
    assert re.search(r"sweep  local +10 +10 +0 ", done["status"].stdout)
    assert len(run.submissions()) == 1 + ("submissions" in places)  # nothing was measured again


def test_a_fault_of_the_moment_closes_nothing(measured: Desk, monkeypatch: Any) -> None:
    """What may be read is not left out because it could not be read once."""

    def fails(*_: Any, **__: Any) -> int:
        raise PermissionError(13, "Permission denied")

    run = measured.sweep()
    monkeypatch.setattr(folders.os, "open", fails)
    assert run.closed() == []
    assert len(run.submissions()) == 1
