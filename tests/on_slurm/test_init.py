"""`init` and `doctor --on-node` on a real Slurm."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from hpcsweep.errors import PointsFailed, Refused
from labtools import wait_for_the_end

if TYPE_CHECKING:
    from pathlib import Path

    from lab import Lab
    from localruns import Desk


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the configuration folder of a person who begins."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home/data"))
    monkeypatch.delenv("HPCSWEEP_CLUSTER")
    return tmp_path / "home/hpcsweep"


def test_it_ends_with_a_point_that_a_job_measured(cluster: Lab, desk: Desk, home: Path):
    """Then a sweep without --cluster goes to the default profile."""
    done = desk.run("init", "--cluster", "l40s", "--noop", "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["cluster"] == "l40s"
    assert (record["row"]["status"], record["row"]["node"]) == ("ok", "l40sn1")
    assert {path.stem for path in (home / "cluster_profiles").glob("*.yaml")} == {
        "l40s", "mi250", "v100",
    }  # fmt: skip
    assert (home / "config.toml").read_text() == 'cluster = "l40s"\n'
    desk.spec("workload: noop\naxes: {model: [a]}\n")
    done = desk.run("submit", "sweep.yaml")
    assert "1 chunk queued" in done.stdout, done.stderr


@pytest.mark.slow
def test_a_job_that_finds_no_gpu_is_told_with_its_reason(cluster: Lab, desk: Desk, home: Path):
    """The GPUs of this cluster are none: the worker says so, and `init` fails."""
    done = desk.run("init", "--cluster", "v100")
    assert done.returncode == PointsFailed.exit_code, done.stdout
    assert "hpcsweep logs init" in done.stderr
    wait_for_the_end(cluster)


PROFILE = "partition: gpu\nconstraint: gpu2v100\ntime: 30\nmem: 2G\n"


def test_a_node_tells_what_it_lacks(cluster: Lab, desk: Desk):
    """In one job of the profile's own launcher: data, torch, GPU; each with what to do."""
    (desk.folder / "lib").mkdir()
    (desk.folder / "lib/torch.py").write_text("raise ImportError('libcudart.so.12')\n")
    env = f"{{HPCSWEEP_DATA: /nowhere, PYTHONPATH: {desk.folder}/lib}}"
    keys = f"gpu: v100\nlauncher: submitit\nenv: {env}\n"
    desk.spec(f"{PROFILE}{keys}", "mine.yaml")
    done = desk.run("doctor", "--cluster", "mine.yaml", "--on-node")
    assert done.returncode == Refused.exit_code
    here, node = done.stdout.split("==> ", maxsplit=1)
    assert "warn  env" in here
    assert "/nowhere is not on this machine" in here
    assert "fail  env" in node
    assert "/nowhere is not there" in node
    assert "this job sees no GPU; the profile's is v100" in node
    assert "-> correct `gres` and `constraint`" in node
    assert "fail  torch import" in node
    assert "libcudart.so.12" in node
    wait_for_the_end(cluster)


@pytest.mark.parametrize("launcher", ["sbatch", "submitit"])
def test_a_node_without_the_environment_is_told_by_the_line_that_failed(
    cluster: Lab, desk: Desk, launcher: str
):
    """No Python of ours runs there, so the job's own output is the answer."""
    desk.spec(f"{PROFILE}gpu: cpu\nvenv: /nowhere\nlauncher: {launcher}\n", "mine.yaml")
    done = desk.run("doctor", "--cluster", "mine.yaml", "--on-node")
    assert done.returncode == Refused.exit_code
    assert "this setup line failed: . /nowhere/bin/activate" in done.stdout
    assert (
        "-> correct `init`, `modules`, `conda`, `venv`, `setup` or `python` in mine.yaml"
        in done.stdout
    )


def test_a_node_that_has_everything_is_fit(cluster: Lab, desk: Desk):
    """The exit code says so; `--json` has the lines."""
    desk.spec(f"{PROFILE}gpu: cpu\n", "mine.yaml")
    done = desk.run("doctor", "--cluster", "mine.yaml", "--on-node", "--json")
    assert done.returncode == 0, done.stdout
    (machine,) = json.loads(done.stdout)["machines"]
    assert any(line.startswith("ok    gpu") for line in machine["on_node"])
    refused = desk.run("doctor", "--cluster", "local", "--on-node")
    assert (refused.returncode, "name a profile with --cluster" in refused.stderr) == (2, True)
