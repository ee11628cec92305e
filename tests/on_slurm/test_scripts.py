"""The job script on a real Slurm: rehearsed, requeued, cancelled, in a hostile folder."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import resultsfolder
from gate import Gate
from hpcsweep.store import row_reader
from labtools import arrays, furnished, unfinished, wait_for_the_end

if TYPE_CHECKING:
    from hpcsweep.store.folders import ShardPath, SubmissionDir
    from lab import Lab
    from labtools import StartCluster
    from localruns import Desk

SPEC = """\
name: s
workload: noop
axes: {model: [resnet18], input_size: {start: 1, stop: 12, num: 12}}
measure: {sleep_ms: 200}
"""
NSYS = """#!/bin/bash
for word in "$@"; do case $word in --output=*) report=${word#--output=} ;; esac; done
while [ "$1" != bash ]; do shift; done
"$@"
echo report >"${report//%%/%}"
"""
# What a login shell of the site would have read; `conda` answers as conda's own function does.
INIT = """\
module() { [ "$1" = load ] && LOADED=$2; }
conda() { case $1 in shell.bash) echo : ;; activate) [ -n "$LOADED" ] && ACTIVE=$2 ;; esac; }
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Give a folder with a sweep of twelve points in one chunk, and a profile."""
    return furnished(tmp_path / "desk", SPEC)


def submitted(cluster: Lab, desk: Desk, rows: int, **env: str) -> SubmissionDir:
    """Submit, and return when some rows are there."""
    done = desk.run("submit", "s.yaml", "--cluster", "v100", **env)
    assert done.returncode == 0, done.stderr
    (submission,) = desk.sweep("s").submissions()
    cluster.wait_for("rows", lambda: ids(submission), enough=lambda found: len(found) >= rows)
    return submission


def ids(submission: SubmissionDir) -> list[str]:
    """Return the point of every row, over all attempts."""
    found = submission.attempts(0)
    return [key["point_id"] for shard in found for key in row_reader.read_rows([shard])]


def log(submission: SubmissionDir) -> str:
    """Return what the job printed."""
    (file,) = submission.logs.glob("slurm-*.out")
    return file.read_text()


def test_a_dry_run_writes_what_submit_sends_and_sends_nothing(cluster: Lab, desk: Desk):
    """Byte for byte, but for the submission's id and the time; results and queue stay empty."""
    env = {"TMPDIR": str(desk.folder)}
    done = desk.run("submit", "s.yaml", "--cluster", "v100", "--dry-run", **env)
    assert done.returncode == 0, done.stderr
    assert unfinished() == []
    assert not desk.results.exists()
    assert "s on v100: 12 points in 1 chunk," in done.stdout
    assert re.search(r"expected: \d+ s on v100\n  12 from the length", done.stdout)
    assert "Slurm would accept this job: partition gpu, nodes v100n1" in done.stdout
    draft = Path(re.search(r"submit would send the files in (.*)", done.stdout)[1])
    submission = submitted(cluster, desk, rows=0)
    for name in ("job.sbatch", "chunks.jsonl", "manifest.json"):
        drafted = (draft / name).read_text().replace(draft.name, submission.id)
        sent = (submission.path / name).read_text()
        if name == "manifest.json":
            drafted, sent = without_time(drafted), without_time(sent)
        assert drafted == sent
    assert (draft / "job.sbatch").read_text() in done.stdout


@pytest.mark.parametrize("launcher", ["sbatch", "submitit"])
@pytest.mark.usefixtures("cluster")
def test_a_dry_run_without_a_configured_cluster_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str
):
    """As on a laptop with Slurm's client programs: a warning, the script, and a point here."""
    desk = furnished(tmp_path / "desk", SPEC.replace("200", "0"), f"launcher: {launcher}\n")
    monkeypatch.delenv("SLURM_CONF")
    env = {"TMPDIR": str(tmp_path)}
    done = desk.run("submit", "s.yaml", "--cluster", "v100", "--dry-run", **env)
    assert "Slurm was not asked: sbatch: no slurm.conf was found" in done.stderr
    assert "the point measured here: 1 ok" in done.stdout
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_dry_run_while_slurmctld_is_dead_is_well(
    special_cluster: StartCluster, desk: Desk, tmp_path: Path
):
    """Slurm was not asked, which is a warning."""
    special_cluster(accounting=False).kill("slurmctld")
    env = {"TMPDIR": str(tmp_path)}
    done = desk.run("submit", "s.yaml", "--cluster", "v100", "--dry-run", **env)
    assert "Slurm was not asked: sbatch: " in done.stderr
    assert done.returncode == 0, done.stderr


def without_time(manifest: str) -> str:
    """Return a manifest's text without the line that says when it was made, and its checksum."""
    lines = manifest.splitlines(keepends=True)
    return "".join(line for line in lines if '"created_at"' not in line and '"crc"' not in line)


def test_usr1_requeues_a_job_that_continues_where_it_was(cluster: Lab, desk: Desk):
    """Same job id, next attempt, no point twice, one log with both, and the count of restarts."""
    gate = Gate(desk)
    gate.sweep(points=24, passes=2, name="s")  # more than may pass until the signal has arrived
    submission = submitted(cluster, desk, rows=2)
    cluster.run("scancel", "-b", "--signal=USR1", arrays(submission)[0].job_id)

    def attempts() -> list[ShardPath]:
        gate.let_pass()
        return submission.attempts(0)

    cluster.wait_for("second attempt", attempts, enough=lambda found: len(found) == 2)
    gate.open()
    wait_for_the_end(cluster)
    assert len(ids(submission)) == len(set(ids(submission))) == 24
    first, second = (json.loads(shard.env.read_text()) for shard in submission.attempts(0))
    assert (first["state"], first["reason"]) == ("stopped", "SIGUSR1")
    assert second["state"] == "done"
    assert "SLURM_RESTART_COUNT" not in first["slurm"]
    assert second["slurm"]["SLURM_RESTART_COUNT"] == "1"
    assert first["slurm"]["SLURM_JOB_ID"] == second["slurm"]["SLURM_JOB_ID"]
    assert log(submission).index("attempt 0") < log(submission).index("attempt 1")


def test_a_folder_with_a_hostile_name_runs_under_a_profiler(cluster: Lab, tmp_path: Path):
    """Blanks, quotes, substitutions, percent signs: the report lies beside the shard."""
    folder = tmp_path / 'it\'s a 100%j "hostile" $(touch pwned) `folder` #1, ünï'
    desk = furnished(folder, SPEC, "wrapper: nsys\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nsys").write_text(NSYS)
    (tmp_path / "bin/nsys").chmod(0o755)
    submission = submitted(cluster, desk, 12, PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    wait_for_the_end(cluster)
    assert (submission.shards / "0.0.nsys-rep").read_text() == "report\n"
    assert "12/12 profiled" in log(submission)
    assert list(tmp_path.rglob("pwned")) == []


@pytest.mark.parametrize("launcher", ["sbatch", "submitit"])
def test_init_comes_before_modules_and_the_nodes_conda_is_taken(
    cluster: Lab, tmp_path: Path, launcher: str
):
    """CONDA_EXE of the submitting shell is not on the node; without `init` the log names it."""
    desk = furnished(
        tmp_path / "it's a desk",
        SPEC.replace("200", "0"),
        f"launcher: {launcher}\nmodules: [cuda/12.4]\nconda: deep\n"
        "setup: ['[ $LOADED+$ACTIVE = cuda/12.4+deep ]']\n",
    )
    (desk.folder / "init.sh").write_text(INIT)
    submitted(cluster, desk, 0)
    wait_for_the_end(cluster)
    said = desk.run("logs", "s").stdout
    assert "this setup line failed: module load cuda/12.4; the shell on " in said
    assert "let `init` in the profile source what defines it" in said
    own = f". {shlex.quote(str(desk.folder / 'init.sh'))}"
    profile = desk.folder / "cluster_profiles/v100.yaml"
    profile.write_text(f"{profile.read_text()}init: [{json.dumps(own)}]\n")
    done = desk.run("submit", "s.yaml", "--cluster", "v100", CONDA_EXE="/opt/login/conda")
    assert done.returncode == 0, done.stderr
    wait_for_the_end(cluster)
    assert len(desk.rows("s")) == 12, desk.run("logs", "s").stdout


@pytest.mark.slow
def test_a_first_point_that_hangs_does_not_keep_the_others_from_running(cluster: Lab, desk: Desk):
    """It may take longer than the job (`point_timeout` is 600 s); the job is requeued after it."""
    profile = desk.folder / "cluster_profiles/v100.yaml"
    profile.write_text(profile.read_text().replace("time: 30", "time: 1\nsignal_lead: 10"))
    hang = "measure: {fail: [{when: {input_size: 1}, how: hang}]}\n"
    sizes = "{start: 1, stop: 6, num: 6}"
    desk.spec(
        f"name: s\nworkload: noop\naxes: {{model: [a], input_size: {sizes}}}\n{hang}", "s.yaml"
    )
    submission = submitted(cluster, desk, 0)
    cluster.wait_for(
        "six rows", lambda: ids(submission), enough=lambda found: len(found) == 6, seconds=400
    )
    wait_for_the_end(cluster)
    found = [
        [row["status"] for row in resultsfolder.read_shard(one).rows]
        for one in submission.attempts(0)
    ]
    assert found == [["timeout"], ["ok"] * 5]
    assert len(arrays(submission)) == 1
