"""The job after the last one: it waits for every array, and its end, failure and loss are told."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hpcsweep.store.jobs_file import Then
from labtools import SIX, arrays, furnished, job_numbers, queue, requeue, running, wait_for_the_end

if TYPE_CHECKING:
    from lab import Lab
    from localruns import Desk

# A site's sbatch: {words} look at the call of the job after the others.
SITE = """#!/bin/bash
case "$*" in *then.sbatch*) {words} ;; esac
exec {sbatch} "$@"
"""

# A connection that broke when sbatch was about to read the answer.
LOST = "echo 'sbatch: error: Zero Bytes were transmitted or received' >&2; exit 1"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Give a folder with a sweep of six chunks that wait for a file `go`; its name is hostile."""
    folder = tmp_path / "it's 100%j a desk"
    wait = f"until [ -e {shlex.quote(str(folder / 'go'))} ]; do sleep 0.1; done"
    return furnished(folder, SIX, f"max_points_per_chunk: 1\nsetup: [{json.dumps(wait)}]\n")


def _submit(desk: Desk, then: str, code: int = 0, **env: str) -> str:
    done = desk.run("submit", "s.yaml", "--cluster", "v100", "--then", then, **env)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def _after(desk: Desk) -> list[Then]:
    (submission,) = desk.sweep("s").submissions()
    return [entry for entry in submission.read_jobs() if isinstance(entry, Then)]


def _site(desk: Desk, words: str) -> dict[str, str]:
    """Put a script before sbatch; return the variables with which it is found."""
    folder = desk.folder.parent / "site"
    folder.mkdir()
    (folder / "sbatch").write_text(SITE.format(words=words, sbatch=shutil.which("sbatch")))
    (folder / "sbatch").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.parametrize("launcher", ["sbatch", "submitit"])
def test_it_runs_once_where_the_user_stood_when_the_last_array_ended(
    bare_cluster: Lab, tmp_path: Path, launcher: str
):
    """Two arrays, of which a task is requeued; without a GPU; its program is beside the Python."""
    folder = tmp_path / "it's a desk"
    wait = f"until [ -e {shlex.quote(str(folder / 'go'))} ]; do sleep 0.1; done"
    more = f"launcher: {launcher}\nmax_points_per_chunk: 1\nsetup: [{json.dumps(wait)}]\n"
    desk = furnished(folder, SIX, more)
    count = "hpcsweep collect s && wc -l <results/s/overall.csv >>after; env >env"
    said = _submit(desk, f'{count}; echo "it\'s $(pwd)" >>after')
    _sending, queued = _after(desk)
    assert f", queued as {queued.job}" in said
    bare_cluster.wait_for("start", running)
    status = desk.run("status", "s")
    assert f"then (job {queued.job}) is pending (Dependency)" in status.stdout
    requeue(bare_cluster, [running()[0].id])
    (desk.folder / "go").touch()
    wait_for_the_end(bare_cluster)
    assert (desk.folder / "after").read_text() == f"7\nit's {desk.folder}\n"
    assert "SLURM_JOB_GPUS" not in (desk.folder / "env").read_text()
    assert "then" not in desk.run("status", "s").stdout
    assert "so `true` is not run" in _submit(desk, "true")


@pytest.mark.parametrize(
    ("then", "words"),
    [("exit 7", "failed with exit code 7: see "), ("kill -9 $PPID", "ended as FAILED")],
)
def test_how_it_failed_is_shown_with_its_log(cluster: Lab, desk: Desk, then: str, words: str):
    """By the exit code of its command, or by Slurm; points that are measured stay well."""
    (desk.folder / "go").touch()
    _submit(desk, f"echo why; {then}")
    wait_for_the_end(cluster)
    status = desk.run("status", "s")
    assert words in status.stdout
    (log,) = desk.results.rglob("then-*.out")
    assert "why" in log.read_text()
    (sweep,) = json.loads(desk.run("status", "s", "--json").stdout)["sweeps"]
    assert words in sweep["profiles"][0]["then"][0]
    assert "6       6" in status.stdout


@pytest.mark.no_second_try
def test_it_is_cancelled_with_the_others(cluster: Lab, desk: Desk):
    """It would begin when they end; nothing can be removed while it waits."""
    _submit(desk, "touch after")
    assert desk.run("rm", "s", "--yes").returncode == 5
    done = desk.run("cancel", "s")
    assert f"cancelled job {_after(desk)[-1].job}, which was to run `then`" in done.stdout
    wait_for_the_end(cluster)
    assert not (desk.folder / "after").exists()
    assert "then" not in desk.run("status", "s").stdout
    assert "nothing is queued" in desk.run("cancel", "s").stdout


@pytest.mark.no_second_try
@pytest.mark.parametrize("accepted", [True, False])
def test_it_is_found_again_where_sbatchs_answer_was_lost(
    cluster: Lab, desk: Desk, *, accepted: bool
):
    """The next submit looks for it in the queue; no point is sent twice meanwhile."""
    ask = f'{shutil.which("sbatch")} "$@" >/dev/null' if accepted else "true"
    told = _submit(desk, "touch after", 7, **_site(desk, f"{ask}; {LOST}"))
    assert "the job may be in the queue" in told
    assert [entry.then for entry in _after(desk)] == ["sending"]
    assert "sbatch's answer was lost" in desk.run("status", "s").stdout
    known = job_numbers()
    told = _submit(desk, "touch after")
    how = f"it went in as {max(known)}" if accepted else "it did not go in"
    assert how in told
    assert "6 points are already queued or running" in told
    assert job_numbers() == known
    (desk.folder / "go").touch()
    wait_for_the_end(cluster)
    assert (desk.folder / "after").exists() == accepted
    assert len(desk.rows("s")) == 6


def test_a_site_that_wants_a_gpu_of_each_job_gets_what_the_profile_has(cluster: Lab, desk: Desk):
    """It refuses the job without; the second call has all that the arrays had."""
    refuse = "echo 'sbatch: error: no GPU requested: use --gres' >&2; exit 1"
    words = f'case "$*" in *--gres*) ;; *) {refuse} ;; esac'
    (desk.folder / "go").touch()
    _submit(desk, "env >env", **_site(desk, words))
    wait_for_the_end(cluster)
    assert "SLURM_JOB_GPUS" in (desk.folder / "env").read_text()


def test_it_is_left_out_where_it_or_a_part_of_the_others_was_refused(cluster: Lab, desk: Desk):
    """What went in stays there, and the command says what is not queued."""
    profile = desk.folder / "cluster_profiles/v100.yaml"
    text = profile.read_text()
    profile.write_text(f"{text}account: small\n")
    assert "`touch after` is not queued" in _submit(desk, "touch after", 8)
    desk.run("cancel", "s")
    wait_for_the_end(cluster)
    profile.write_text(text)
    refuse = "echo 'sbatch: error: the moon is full' >&2; exit 1"
    told = _submit(desk, "touch after", 7, **_site(desk, refuse))
    assert "the job after them (`then`) was not sent" in told
    assert len(arrays(desk.sweep("s").submissions()[-1])) == 1
    assert len({job.id.job for job in queue()}) > 1
    (desk.folder / "go").touch()
    wait_for_the_end(cluster)
    assert len(desk.rows("s")) == 6
    assert not (desk.folder / "after").exists()


def test_a_dry_run_shows_it_and_a_profile_can_name_it(cluster: Lab, desk: Desk, tmp_path: Path):
    """Its script lies beside that of the array; nothing of it runs."""
    profile = desk.folder / "cluster_profiles/v100.yaml"
    text = profile.read_text().replace(
        "partition: gpu\n", "sbatch_options: [-p gpu, --exclusive]\n"
    )
    profile.write_text(f"{text}then: touch after\n")
    env = {"TMPDIR": str(tmp_path)}
    done = desk.run("submit", "s.yaml", "--cluster", "v100", "--dry-run", **env)
    assert done.returncode == 0, done.stderr
    call = "sbatch --partition=gpu --constraint=gpu2v100 --time=00:30:00 --job-name=hpcsweep-s-then"
    assert f"then `touch after`:\n{call}" in done.stdout
    draft = Path(re.search(r"submit would send the files in (.*)", done.stdout)[1])
    assert "exec bash -c 'touch after'" in (draft / "then.sbatch").read_text()
    assert not (desk.folder / "after").exists()
    (desk.folder / "go").touch()
    assert desk.run("submit", "s.yaml", "--cluster", "v100").returncode == 0
    wait_for_the_end(cluster)
    assert (desk.folder / "after").exists()
