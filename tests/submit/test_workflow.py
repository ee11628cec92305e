"""Submit, again, sampled, interrupted, twice at once, on a bad disk: what a person meets."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter

from hpcsweep.errors import (
    EXIT_INTERRUPTED,
    BadInput,
    Incomplete,
    PointsFailed,
    Refused,
    ResultsError,
)
from hpcsweep.store.shards import read_keys
from localruns import COMMAND, Desk

NOOP = """\
workload: noop
axes:
  model: [a, b]
  input_size: {start: 10, stop: 50, num: 5}
"""
SLOW = """\
workload: noop
axes: {model: [a], input_size: {start: 1, stop: 40, num: 40}}
measure: {sleep_ms: 100}
"""


def submit(desk: Desk, *more: str, spec: str = "sweep.yaml", **env: str):
    """Submit a sweep to this machine."""
    return desk.run("submit", spec, "--cluster", "local", *more, **env)


def wait_for_rows(desk: Desk, count: int) -> None:
    """Wait until some rows are there."""
    until = time.monotonic() + 30
    while sum(len(read_keys(s.overall)) for s in desk.sweep().shards()) < count:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_sweep_is_measured_once(desk):
    """The second submit finds nothing to do, sends nothing, and says so."""
    desk.spec(NOOP)
    first, second = (
        desk.run_process("submit", "sweep.yaml", "--cluster", "local") for _ in range(2)
    )
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert len(desk.rows()) == 10
    assert "nothing to measure (10 ok)" in second.stdout
    assert len(desk.sweep().submissions()) == 1


def test_samples_are_reused_by_larger_ones(desk):
    """One size, then three, then all of them measure ten points in all."""
    desk.spec(NOOP)
    for more in (("--sample", "1"), ("--sample", "3"), ()):
        assert submit(desk, *more).returncode == 0
    points = [row["point_id"] for row in desk.rows()]
    assert len(points) == len(set(points)) == 10


def test_an_edited_sweep_measures_only_what_is_new(desk):
    """Points are known by what they are, not by their place in the file."""
    desk.spec(NOOP)
    submit(desk)
    desk.spec(NOOP.replace("[a, b]", "[c, b, a]"))
    assert submit(desk).returncode == 0
    assert Counter(row["model"] for row in desk.rows()) == {"a": 5, "b": 5, "c": 5}


def test_a_sweep_that_shrank_has_orphans(desk):
    """Their rows stay and are marked, also when the edit left nothing to measure."""
    desk.spec(NOOP)
    submit(desk)
    desk.spec(NOOP.replace("[a, b]", "[a]"))
    assert "nothing to measure" in submit(desk).stdout
    assert json.loads(desk.run("collect", "sweep", "--json").stdout)["orphans"] == 5


def test_ctrl_c_finishes_the_current_point_and_the_same_command_continues(desk):
    """The exit code is a shell's own for an interrupt."""
    desk.spec(SLOW)
    running = desk.start("submit", "sweep.yaml", "--cluster", "local")
    wait_for_rows(desk, 3)
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=30)
    assert running.returncode == EXIT_INTERRUPTED
    assert "run the same command again to resume" in out
    assert "collect" not in out
    before = len(desk.rows())
    assert before < 40
    assert submit(desk).returncode == 0
    points = [row["point_id"] for row in desk.rows()]
    assert len(points) == len(set(points)) == 40


def test_a_second_submit_sends_nothing_that_is_on_its_way(desk):
    """What the first one will measure counts as pending; it is named, with how to watch it."""
    desk.spec(SLOW)
    first = desk.start("submit", "sweep.yaml", "--cluster", "local")
    wait_for_rows(desk, 2)
    second = submit(desk)
    assert second.returncode == Incomplete.exit_code
    assert "nothing to measure" in second.stdout
    (submission,) = desk.sweep().submissions()
    assert f"points are already queued or running in {submission.id}" in second.stdout
    assert "hpcsweep status sweep --watch" in second.stdout
    first.communicate(timeout=60)
    points = [row["point_id"] for row in desk.rows()]
    assert len(points) == len(set(points)) == 40


def test_a_rehearsal_has_ids_of_its_own_and_equal_points_collapse(desk):
    """Two GPU types that are not here become one CPU point each."""
    desk.spec(NOOP + "  gpu: [v100, l40]\n")
    done = submit(desk)
    assert "a rehearsal" in done.stdout
    assert {row["gpu"] for row in desk.rows()} == {"cpu"}
    assert len(desk.rows()) == 10


def test_failed_points_are_taken_again_on_request(desk):
    """The failure is injected for the first try only; exit codes tell the two apart."""
    text = NOOP + "measure:\n  fail: [{when: {model: a}, how: error, attempts: 1}]\n"
    desk.spec(text)
    for _ in range(2):  # nothing is sent again unasked
        done = desk.run_process("submit", "sweep.yaml", "--cluster", "local")
        assert done.returncode == PointsFailed.exit_code
    again = desk.run_process("retry", "sweep")
    assert again.returncode == 0, again.stdout + again.stderr
    assert desk.run("collect", "sweep", "--json").returncode == 0
    assert desk.sweep().overall.read_text().count(",ok,") == 10


def test_one_point_is_taken_again_by_its_id(desk):
    """The beginning of the id is enough."""
    desk.spec(NOOP)
    submit(desk)
    point_id = desk.rows()[0]["point_id"]
    assert desk.run("retry", "sweep", "--point", point_id[:8]).returncode == 0
    assert Counter(row["point_id"] for row in desk.rows())[point_id] == 2


def test_a_dry_run_rehearses_one_point_and_leaves_nothing(desk):
    """The plan is shown; the results folder is not even made."""
    desk.spec(NOOP)
    done = submit(desk, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "10 points" in done.stdout
    assert "nothing was submitted" in done.stdout
    assert not desk.results.exists()


def test_a_budget_is_kept(desk):
    """What is expected to cost more is refused, and nothing is left behind."""
    desk.spec(SLOW.replace("100}", "3600000}"))
    done = submit(desk, "--max-gpu-hours", "0.5")
    assert done.returncode == Refused.exit_code
    assert "--max-gpu-hours 0.5" in done.stderr
    assert desk.sweep().submissions() == []


def test_a_results_path_that_is_a_file_is_told(desk):
    """One line that names the option."""
    desk.spec(NOOP)
    desk.results.write_text("")
    done = submit(desk)
    assert done.returncode == BadInput.exit_code
    assert "--results" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_results_folder_that_cannot_be_made_is_told(desk):
    """Below a file, or on a disk that is not ours."""
    desk.spec(NOOP)
    (desk.folder / "file").write_text("")
    done = desk.run("--results", "file/results", "submit", "sweep.yaml")
    assert done.returncode == ResultsError.exit_code, done.stderr
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_disk_that_fills_up_keeps_every_complete_row(desk):
    """A limit on file size stands for the full disk; afterwards the same command continues."""
    desk.spec(
        SLOW.replace("100}", "0}").replace("num: 40", "num: 400").replace("stop: 40", "stop: 400")
    )

    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    done = subprocess.run(
        [*COMMAND, "submit", "sweep.yaml", "--cluster", "local"],
        cwd=desk.folder,
        preexec_fn=small_files,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == ResultsError.exit_code, done.stdout + done.stderr
    assert "cannot be written" in done.stdout + done.stderr
    kept = len(desk.rows())
    assert 0 < kept < 400
    assert submit(desk).returncode == 0
    assert len({row["point_id"] for row in desk.rows()}) == 400
    assert len(desk.rows()) == 400


def test_results_of_a_newer_version_are_told(desk):
    """They are not touched."""
    desk.spec(NOOP)
    submit(desk)
    (submission,) = desk.sweep().submissions()
    manifest = json.loads(submission.manifest.read_text())
    submission.manifest.write_text(json.dumps({**manifest, "layout": 99}))
    done = submit(desk)
    assert done.returncode == ResultsError.exit_code
    assert "newer hpcsweep" in done.stderr


def test_a_wrong_sweep_is_told_before_anything_is_made(desk):
    """Exit code 2, file and line, the nearest spelling, no traceback."""
    desk.spec(NOOP.replace("input_size", "input_siez"))
    done = submit(desk)
    assert done.returncode == BadInput.exit_code
    assert "sweep.yaml:4" in done.stderr
    assert "input_size" in done.stderr
    assert "Traceback" not in done.stderr
    assert not desk.results.exists()


def test_several_workers_share_the_points(desk):
    """Each chunk is one supervisor; no point is measured by two of them."""
    desk.spec(NOOP)
    assert submit(desk, "--workers", "3").returncode == 0
    assert len({row["chunk"] for row in desk.rows()}) == 3
    assert len(desk.rows()) == 10


def test_rows_say_where_they_come_from(desk):
    """Identity is in every row; provenance in the attempt's own file."""
    desk.spec(NOOP)
    submit(desk)
    (submission,) = desk.sweep().submissions()
    for row in desk.rows():
        assert row["sweep"] == "sweep"
        assert row["profile"] == "local"
        assert row["submission"] == submission.id
        assert row["workload"] == "noop"
        assert row["gpu"] == row["device"] == "cpu"
        assert float(row["wall_s"]) >= 0
    (shard,) = desk.sweep().shards()
    env = json.loads(shard.env.read_text())
    assert env["state"] == "done"
    assert env["python"] == ".".join(map(str, sys.version_info[:3]))
    assert env["pid"] != os.getpid()


OOM = """\
workload: noop
axes:
  model: [a, b]
  batch_size: [1, 2, 4, 8]
  input_size: [10, 20]
measure:
  fail: [{when: {model: a, batch_size: [4, 8]}, how: oom}]
"""


def test_what_is_larger_than_a_known_out_of_memory_is_skipped_on_request_only(desk):
    """Skipping saves the tries, says why, and is undone by the same command without the option."""
    desk.spec(OOM)
    assert submit(desk, "--skip-dominated").returncode == 0
    by_point = {(r["model"], r["batch_size"], r["input_size"]): r for r in desk.rows()}
    found = {key: row["status"] for key, row in by_point.items() if row["status"] != "ok"}
    assert found == {
        ("a", "4", "10"): "oom",
        ("a", "4", "20"): "skipped",
        ("a", "8", "10"): "skipped",
        ("a", "8", "20"): "skipped",
    }
    reason = by_point["a", "8", "20"]["status_reason"]
    assert reason.startswith("batch_size 4, input_size 10 ran out of memory already")
    assert "without --skip-dominated" in reason
    assert "nothing to measure" in submit(desk, "--skip-dominated").stdout
    assert submit(desk).returncode == 0
    assert Counter(row["status"] for row in desk.rows())["oom"] == 4


def test_a_later_submission_knows_what_ran_out_of_memory_before(desk):
    """The known points come from rows, not from the same attempt alone."""
    desk.spec(OOM + "exclude: [{batch_size: [2, 8]}]\n")
    assert submit(desk).returncode == 0
    desk.spec(OOM)
    assert submit(desk, "--skip-dominated").returncode == 0
    statuses = {(r["batch_size"], r["status"]) for r in desk.rows() if r["model"] == "a"}
    assert statuses == {("1", "ok"), ("2", "ok"), ("4", "oom"), ("8", "skipped")}


def test_failed_points_are_told_with_what_to_do_about_them(desk):
    """After measuring, and when nothing is left to measure; in the order of the statuses' table."""
    desk.spec(NOOP + "measure: {fail: [{when: {model: a}, how: error}]}\n")
    for head in ("measured 5 ok, 5 error; next:", "nothing to measure (5 ok, 5 error);"):
        said = submit(desk).stdout
        assert head in said
        assert said.rstrip().endswith("; failed points: hpcsweep logs sweep, hpcsweep retry sweep")


def test_a_damaged_manifest_is_told_with_what_to_do(desk):
    """And that helps: the rows stay, nothing is measured twice."""
    desk.spec(NOOP)
    submit(desk)
    (submission,) = desk.sweep().submissions()
    submission.manifest.write_text('{"x"')
    for command in (("submit", "sweep.yaml"), ("collect", "sweep")):
        done = desk.run(*command)
        assert done.returncode == ResultsError.exit_code
        assert f"{submission.id}/manifest.json: cannot be read" in done.stderr
        assert "restore it, or remove the file" in done.stderr
    submission.manifest.unlink()
    assert "nothing to measure (10 ok)" in submit(desk).stdout
    assert "10 points (10 ok)" in desk.run("collect", "sweep").stdout


def test_a_profile_that_takes_no_point_is_told_with_the_gpus_of_the_sweep(desk):
    """Nothing is sent, and nothing is wrong."""
    desk.spec(NOOP + "  gpu: [a100, h100]\n")
    (desk.folder / "v100.yaml").write_text("gpu: v100\n")
    done = desk.run("submit", "sweep.yaml", "--cluster", "v100.yaml", "--no-check")
    assert done.returncode == 0, done.stderr
    told = "no point of this sweep matches profile v100 (the sweep asks for gpu: a100, h100)"
    assert told in done.stdout
    assert desk.sweep().submissions() == []


def test_the_commit_of_the_sweep_file_is_kept(desk):
    """With a mark where tracked files have changed; outside of a repository there is none."""

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", *who, *arguments]
        done = subprocess.run(command, cwd=desk.folder, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    spec = desk.spec(NOOP)
    submit(desk, "--sample", "1")
    git("init")
    git("add", spec.name)
    git("commit", "-m", "one")
    git("tag", "-am", "one", "v1")
    submit(desk, "--sample", "2")
    spec.write_text(NOOP.replace("[a, b]", "[a, b, c]"))
    submit(desk)
    found = [entry.read_manifest() for entry in desk.sweep().submissions()]
    sha = git("rev-parse", "HEAD")
    told = [(one.git_sha, one.git_dirty) for one in found]
    assert told == [(None, None), (sha, False), (sha, True)]
