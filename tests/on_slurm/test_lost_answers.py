"""sbatch took the jobs and nobody heard it: they are found again, and nothing is sent twice."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from gate import Gate
from labtools import arrays, requeue, running, wait_for_the_end
from localruns import Desk

if TYPE_CHECKING:
    from pathlib import Path

    from lab import Lab

pytestmark = pytest.mark.no_second_try

SPEC = "name: s\nworkload: noop\naxes: {model: [a], input_size: [64, 65, 66, 67]}\n"
SITE = "gpu: v100\npartition: gpu\nmax_points_per_chunk: 2\ntime: 30\nmem: 500M\n"
# A site's script in front of sbatch, which never comes back; {before} and {after} it was asked.
WRAPPER = """#!/bin/bash
[ "$1" = --test-only ] && exec {sbatch} "$@"
echo $$ >{folder}/pid
{before}
{sbatch} "$@"
{after}
"""
HANG = "touch {folder}/reached; exec sleep 600"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Give a folder with a sweep of two chunks, and a profile for each launcher."""
    profiles = tmp_path / "desk/cluster_profiles"
    profiles.mkdir(parents=True)
    for launcher in ("sbatch", "submitit"):
        text = f"{SITE}launcher: {launcher}\npython: {json.dumps(sys.executable)}\n"
        (profiles / f"{launcher}.yaml").write_text(text)
    gate = json.dumps(f"until [ -e {shlex.quote(str(tmp_path / 'desk/go'))} ]; do sleep 0.1; done")
    (profiles / "gated.yaml").write_text(f"extends: sbatch\nsetup: [{gate}]\n")
    desk = Desk(tmp_path / "desk")
    desk.spec(SPEC, "s.yaml")
    return desk


def _open_the_gate(desk: Desk) -> None:
    """Let the jobs of profile `gated` measure."""
    (desk.folder / "go").touch()


def _submit_and_die(
    lab: Lab, desk: Desk, launcher: str, how: signal.Signals, *, accepted: bool
) -> None:
    """Let sbatch hang, before or after it was heard, and end `hpcsweep submit` meanwhile."""
    folder = desk.folder / "site"
    folder.mkdir()
    hang, where = HANG.format(folder=shlex.quote(str(folder))), shlex.quote(str(folder))
    words = {"after": hang, "before": ""} if accepted else {"after": "", "before": hang}
    script = WRAPPER.format(folder=where, sbatch=shutil.which("sbatch"), **words)
    (folder / "sbatch").write_text(script)
    (folder / "sbatch").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        submitting = desk.start("submit", "s.yaml", "--cluster", launcher)
    lab.wait_for("sbatch", (folder / "reached").exists)
    submitting.send_signal(how)
    submitting.communicate(timeout=120)
    if how is signal.SIGKILL or launcher == "submitit":  # nobody ended the site's script
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)


def _finish(lab: Lab, desk: Desk, launcher: str) -> None:
    """Submit until all is measured; every point must have been measured once."""
    wait_for_the_end(lab)
    done = desk.run("submit", "s.yaml", "--cluster", launcher)
    assert "nothing to measure (4 ok)" in done.stdout, done.stdout + done.stderr
    rows = [row["point_id"] for row in desk.rows("s")]
    assert len(rows) == len(set(rows)) == 4


@pytest.mark.parametrize(
    ("launcher", "how"), [("sbatch", signal.SIGINT), ("submitit", signal.SIGKILL)]
)
def test_jobs_whose_id_nobody_heard_are_found_and_not_sent_again(
    cluster: Lab, desk: Desk, launcher: str, how: signal.Signals
):
    """`hpcsweep submit` was killed while sbatch answered; the next one finds the array.

    It finds it by any path to the results. submitit names the files of a job by its id, so those
    cannot run: they are cancelled here.
    """
    _submit_and_die(cluster, desk, launcher, how, accepted=True)
    (desk.folder / "link").symlink_to("results")
    told = desk.run("--results", "link", "submit", "s.yaml", "--cluster", launcher)
    assert "sbatch's answer was lost; 2 chunks went in as " in told.stderr
    assert "nothing to measure" in told.stdout
    (submission,) = desk.sweep("s").submissions()
    assert len(arrays(submission)) == 1
    if launcher == "submitit":
        assert "cancelled chunks 0-1" in desk.run("cancel", "s").stdout
        wait_for_the_end(cluster)
        assert "4 points on v100" in desk.run("submit", "s.yaml", "--cluster", launcher).stdout
    _finish(cluster, desk, launcher)


def _sbatch_answers(desk: Desk, then: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an sbatch first that hands the job in, keeps the answer, and ends in its own way."""
    folder = desk.folder / "site"
    folder.mkdir()
    asked = f'{shutil.which("sbatch")} "$@" >/dev/null\n{then}'
    (folder / "sbatch").write_text(f"#!/bin/bash\n{asked}\n")
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "sbatch"


@pytest.mark.parametrize(
    ("then", "named"),
    [
        ("kill -KILL $$", ""),
        ("echo 'sbatch: warning: partition gpu is not allowed' >&2; exit 1", "lab"),
    ],
    ids=["killed", "a rule of the site, and clusters"],
)
def test_jobs_whose_id_was_lost_on_the_way_are_found_and_not_sent_again(
    cluster: Lab, desk: Desk, monkeypatch: pytest.MonkeyPatch, then: str, named: str
):
    """Whatever sbatch said that is no refusal, its folder stays, and its array is looked for."""
    if named:
        monkeypatch.setenv("SLURM_CLUSTERS", named)
    site = _sbatch_answers(desk, then, monkeypatch)
    refused = desk.run("submit", "s.yaml", "--cluster", "gated")
    assert (refused.returncode, "it looks there first" in refused.stderr) == (7, True), refused
    site.unlink()
    told = desk.run("submit", "s.yaml", "--cluster", "gated")
    assert "sbatch's answer was lost; 2 chunks went in as " in told.stderr
    assert "4 points are already queued or running" in told.stdout
    _open_the_gate(desk)
    _finish(cluster, desk, "gated")


def _site_says(desk: Desk, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an sbatch first that says something before and after Slurm's; a try it hands on."""
    folder = desk.folder / "site"
    folder.mkdir()
    sbatch = f'{shutil.which("sbatch")} "$@"'
    script = f'#!/bin/sh\n[ "$1" = --test-only ] && exec {sbatch}\n{words}\n{sbatch}\n{words}\n'
    (folder / "sbatch").write_text(script)
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize("launcher", ["sbatch", "submitit"])
def test_numbers_in_the_greeting_of_a_site_are_no_job(
    cluster: Lab, desk: Desk, monkeypatch: pytest.MonkeyPatch, launcher: str
):
    """Neither a job nor an amount, before or after the id."""
    words = "echo 'Your job 17 has ended'; echo '4321.50 core-hours left'; echo"
    _site_says(desk, words, monkeypatch)
    done = desk.run("submit", "s.yaml", "--cluster", launcher)
    assert done.returncode == 0, done.stderr
    _finish(cluster, desk, launcher)


@pytest.mark.parametrize("launcher", ["sbatch", "submitit"])
def test_what_a_site_refuses_in_its_own_words_is_not_looked_for(
    cluster: Lab, desk: Desk, monkeypatch: pytest.MonkeyPatch, launcher: str
):
    """No job of it is in the queue: nothing is left behind, and its words are told."""
    words = "echo 'Dear user,' >&2; echo 'ask for less memory!' >&2; exit 9"
    _site_says(desk, words, monkeypatch)
    refused = desk.run("submit", "s.yaml", "--cluster", launcher)
    assert refused.returncode == 7
    assert "sbatch refuses (`mem`): Dear user,; ask for less memory!" in refused.stderr
    assert desk.sweep("s").submissions() == []


def test_attempts_of_an_array_that_nobody_knows_are_stopped(
    bare_cluster: Lab, desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    """Its answer was lost, squeue and scontrol hide it, and it measures: no point is done twice."""
    gate = Gate(desk)
    gate.sweep(points=4, passes=0, name="s")
    site = _sbatch_answers(desk, "exit 255", monkeypatch)
    assert desk.run("submit", "s.yaml", "--cluster", "sbatch").returncode == 7
    bare_cluster.wait_for(
        "points of both chunks at the gate", gate.waiting, enough=lambda found: len(found) == 2
    )
    site.write_text("#!/bin/sh\nexit 0\n")
    site.rename(site.with_name("squeue"))
    (site.with_name("scontrol")).write_text("#!/bin/sh\necho No jobs in the system\n")
    (site.with_name("scontrol")).chmod(0o755)
    told = desk.run("submit", "s.yaml", "--cluster", "sbatch", "--no-doctor")
    assert "2 chunks did not go in" in told.stderr
    assert "points on v100" in told.stdout
    shutil.rmtree(site.parent)
    gate.open()
    _finish(bare_cluster, desk, "sbatch")


def test_jobs_for_several_clusters_are_refused(bare_cluster: Lab, desk: Desk):
    """After a lost answer nobody would know where to look."""
    words = ("submit", "s.yaml", "--cluster", "sbatch", "--no-doctor")
    refused = desk.run(*words, SLURM_CLUSTERS="lab,far")
    assert (refused.returncode, "lab,far: name one cluster" in refused.stderr) == (2, True)
    assert not desk.sweep("s").path.exists()


def test_jobs_that_never_went_in_are_sent(cluster: Lab, desk: Desk):
    """It was killed before sbatch was heard: nothing is in the queue, so everything is sent."""
    _submit_and_die(cluster, desk, "sbatch", signal.SIGKILL, accepted=False)
    told = desk.run("submit", "s.yaml", "--cluster", "sbatch")
    assert "sbatch's answer was lost; 2 chunks did not go in" in told.stderr
    assert "4 points on v100" in told.stdout
    _finish(cluster, desk, "sbatch")


def test_jobs_whose_id_nobody_heard_can_be_cancelled(cluster: Lab, desk: Desk):
    """`status` says that they may be there; `cancel` finds them; then they are sent again."""
    _submit_and_die(cluster, desk, "gated", signal.SIGKILL, accepted=True)
    assert "sbatch's answer was lost" in desk.run("status", "s").stdout
    done = desk.run("cancel", "s")
    assert "2 chunks went in as " in done.stdout, done.stderr
    assert "cancelled chunks 0-1" in done.stdout
    wait_for_the_end(cluster)
    assert "4 points on v100" in desk.run("submit", "s.yaml", "--cluster", "sbatch").stdout
    _finish(cluster, desk, "sbatch")


def test_while_slurm_is_silent_they_count_as_live(bare_cluster: Lab, desk: Desk):
    """Nothing is sent twice because of silence."""
    _submit_and_die(bare_cluster, desk, "gated", signal.SIGKILL, accepted=True)
    path = os.environ["PATH"]
    os.environ["PATH"] = "/nonexistent"
    try:
        told = desk.run("submit", "s.yaml", "--cluster", "gated", "--no-doctor")
    finally:
        os.environ["PATH"] = path
    assert "4 points are already queued or running" in told.stdout, told.stderr
    _open_the_gate(desk)
    again = desk.run("submit", "s.yaml", "--cluster", "gated")
    assert "2 chunks went in as " in again.stderr
    _finish(bare_cluster, desk, "gated")


def test_a_cancelled_job_that_is_requeued_by_hand_leaves_its_points_to_the_new_one(
    cluster: Lab, desk: Desk
):
    """Its points were sent again: both jobs run, and every point is measured once."""
    assert desk.run("submit", "s.yaml", "--cluster", "gated").returncode == 0
    (first,) = desk.sweep("s").submissions()
    number = arrays(first)[0].job_id
    cluster.wait_for("start", running)
    cluster.run("scancel", number)
    wait_for_the_end(cluster)
    assert "4 points" in desk.run("submit", "s.yaml", "--cluster", "gated").stdout
    requeue(cluster, [f"{number}_0", f"{number}_1"])
    _open_the_gate(desk)
    cluster.wait_for("its start", lambda: first.attempts(0))
    _finish(cluster, desk, "gated")
    assert "left to another submission" in desk.run("logs", "s", f"{first.id}:0").stdout
