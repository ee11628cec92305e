"""Submitting from inside a job: what that job has says nothing of the jobs that it sends."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from labtools import furnished, wait_for_the_end
from localruns import COMMAND

if TYPE_CHECKING:
    from pathlib import Path

    from lab import Lab
    from localruns import Desk

# The command writes down its environment, and each copy that `srun` makes of a program.
SPEC = """\
name: s
workload: command
axes: {text: [a]}
run: python one.py {text}
"""
SCRIPT = """\
import json, os, pathlib, subprocess
pathlib.Path("environment.json").write_text(json.dumps(dict(os.environ)))
subprocess.run(["srun", "--overlap", "sh", "-c", "echo ${MINE:-none} >>copies"], check=True)
"""
# An allocation of four tasks on a node with AMD's GPUs, and a step in it with one CPU.
INSIDE = (
    *("salloc", "-w", "mi250n1", "--gres", "gpu:1", "-n", "4", "--mem-per-cpu", "100"),
    *("srun", "-n", "1", "-c", "1", "--cpu-bind=cores"),
)
GPUS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


def _measured(cluster: Lab, desk: Desk, *before: str, **variables: str) -> dict[str, str]:
    """Submit the sweep by a command line that begins so; return the command's environment."""
    (desk.folder / "one.py").write_text(SCRIPT)
    words = [*before, *COMMAND, "submit", "s.yaml", "--cluster", "v100"]
    sent = subprocess.run(
        words, cwd=desk.folder, env={**os.environ, **variables}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert sent.returncode == 0, sent.stdout + sent.stderr
    wait_for_the_end(cluster)
    (submission,) = desk.sweep("s").submissions()
    files = [path for path in submission.logs.rglob("*") if path.is_file()]
    logs = "".join(path.read_text(errors="replace") for path in files)
    assert [row["status"] for row in desk.rows("s")] == ["ok"], logs
    found: dict[str, str] = json.loads((desk.folder / "environment.json").read_text())
    return found


@pytest.mark.parametrize("launcher", ["sbatch", "submitit"])
def test_a_job_that_a_job_sends_is_as_one_from_a_login_node(
    cluster: Lab, tmp_path: Path, launcher: str
):
    """What the sender has stays with it; what the profile's `env` sets holds."""
    more = (
        f"launcher: {launcher}\ncpus_per_task: 2\nmem: 300M\nenv: {{SLURM_HINT: nomultithread}}\n"
    )
    login, inside = tmp_path / "login", tmp_path / "inside"
    wanted = _measured(cluster, furnished(login, SPEC, more))
    found = _measured(cluster, furnished(inside, SPEC, more), *INSIDE)
    assert (inside / "copies").read_text() == "none\n"  # one copy
    marks = ("SLURM", "SBATCH", "SRUN", "PMI")
    assert {n for n in found if n.startswith(marks)} == {n for n in wanted if n.startswith(marks)}
    assert {n: found.get(n) for n in GPUS} == {n: wanted.get(n) for n in GPUS}
    same = ("SLURM_JOB_NUM_NODES", "SLURM_MEM_PER_NODE", "SLURM_HINT", "SLURM_CPUS_PER_TASK")
    assert {n: found.get(n) for n in same} == {n: wanted.get(n) for n in same}
    assert found["SLURM_HINT"] == "nomultithread"


def test_the_doctor_in_an_interactive_job_says_what_it_says_on_a_login_node(
    cluster: Lab, tmp_path: Path
):
    """The job's own partition, account and GPUs are not the profile's: sbatch knows."""
    desk = furnished(tmp_path, SPEC, "mem: 300M\n")
    told = []
    misleading = {"SBATCH_PARTITION": "nosuch", "SLURM_TIMELIMIT": "1", "SBATCH_GRES": "none:1"}
    for before, more in (((), {}), (INSIDE[:9], misleading), (INSIDE, misleading)):
        words = [*before, *COMMAND, "doctor", "--cluster", "v100", "--json"]
        done = subprocess.run(
            words, cwd=desk.folder, env={**os.environ, **more}, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        (machine,) = json.loads(done.stdout)["machines"]
        found = {one["what"]: one for one in machine["findings"]}
        told.append([found[what]["detail"] for what in ("partition", "nodes", "sbatch")])
        assert "gpu" not in found
    assert told[0][2] == "would accept these jobs: partition gpu, nodes v100n1"
    assert told[1][::2] == told[2][::2] == told[0][::2]


@pytest.mark.parametrize("launcher", ["sbatch", "submitit"])
def test_a_job_that_exports_nothing_gives_its_steps_the_profiles_variables(
    cluster: Lab, tmp_path: Path, launcher: str
):
    """`--export=NONE` is about what the sender has; a step gets what its job set."""
    more = f"launcher: {launcher}\nmem: 300M\nsbatch_options: [--export=NONE]\nenv: {{MINE: '1'}}\n"
    found = _measured(cluster, furnished(tmp_path, SPEC, more), SLURM_EXPORT_ENV="NONE", SENT="1")
    assert "SENT" not in found
    assert (tmp_path / "copies").read_text() == "1\n"
