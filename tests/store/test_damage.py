"""One damaged submission does not hide the others: it is named, and commands end with 6."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest

from hpcsweep.errors import ResultsError
from hpcsweep.store import damage, ledger
from hpcsweep.store.jobs_file import Queued, Sending, Started
from hpcsweep.tracking import journal
from localruns import Desk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hpcsweep.store.rundir import SubmissionDir

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


DAMAGES = {
    "manifest {}": written("manifest", "{}"),
    "manifest cut": written("manifest", '{"layout": 1, "ro'),
    "manifest types": written("manifest", '{"layout": 1, "round": [], "chunks": "x"}'),
    "manifest huge": written("manifest", '{"layout": 1, "chunks": 1000000000000, "seconds": 1}'),
    "manifest overflow": written("manifest", f'{{"layout": 1, "seconds": 1{"0" * 400}}}'),
    "manifest deep": written("manifest", f'{{"layout": {DEEP}}}'),
    "manifest unreadable": unreadable("manifest"),
    "chunks garbage": written("chunks", "\x00\x01 garbage\n"),
    "chunks no ids": written("chunks", '{"chunk":0,"ids":[[],{},7]}\n'),
    "chunks deep": written("chunks", f'{{"chunk":0,"ids":{DEEP}}}\n'),
    "chunks unreadable": unreadable("chunks"),
    "journal number": added("17"),
    "journal null": added("null"),
    "journal no id": added('{"job_id": null, "tasks": [1]}'),
    "journal odd id": added('{"job_id": {"a": 1}}'),
    "journal odd chunks": added('{"over": {"COMPLETED": "a-b"}, "at": "x"}'),
    "journal huge": added('{"sending": 0, "tasks": 1000000000000}'),
    "journal deep": added(DEEP),
    "journal unreadable": unreadable("jobs"),
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


@pytest.mark.parametrize(
    "which",
    [one if one in MEASURED else pytest.param(one, marks=pytest.mark.slow) for one in DAMAGES],
)
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
    assert (done.returncode, damage.of(two.sweep())) == (0, [])


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
        for shard in submission.run.shards_of(submission.id):
            shard.overall.unlink()
        found = ledger.read(two.sweep(), queue)
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
    assert journal.Answer().live_chunks(submission) == {0}
    journal.not_sent(submission, 0)
    assert journal.Answer().live_chunks(submission) == set()
    assert "jobs.jsonl:2: cannot be read" in damage.of(submission.run)[0]


def test_damage_is_told_file_by_file(two: Desk) -> None:
    """In the order of the submissions."""
    broken, whole = two.sweep().submissions()
    broken.chunks.write_text("x\n")
    broken.manifest.write_text(json.dumps({"layout": 1, "round": "x"}))
    with whole.jobs.open("a") as file:
        file.write("[]\n")
    assert [text.split(":")[0].split("/")[-1] for text in damage.of(two.sweep())] == [
        "manifest.json", "chunks.jsonl", "jobs.jsonl"
    ]  # fmt: skip


def test_chunks_that_are_missing_are_told(two: Desk) -> None:
    """A chunk file that was cut between two lines; where it lives, submit must not guess."""
    submission = submission_with(two, Started(process=ledger.processes.identity()))
    submission.chunks.write_text("")
    assert "chunks.jsonl: has 0 of 1 chunk; was the" in damage.of_submission(submission)[0]
    with pytest.raises(ResultsError, match="must not be measured twice"):
        ledger.read(two.sweep())
