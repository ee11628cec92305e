"""The cluster that the tests start is real, private and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import lab as lab_module
from lab import Lab, LabError, Options, claim_ports, processes
from waiting import wait_for

SCRIPT = str(Path(lab_module.__file__))


def test_a_killed_node_takes_its_steps_along_and_comes_back(cluster: Lab):
    """Killing a node ends slurmd, the step and the job's processes, and nothing on other nodes."""
    for node in ("v100n1", "l40sn1"):
        cluster.run("sbatch", "--parsable", "-w", node, "--wrap", "sleep 600 & sleep 600")
    for node in ("v100n1", "l40sn1"):
        _wait_for_both(cluster, node)
    cluster.kill("v100n1")
    assert not processes(cluster.directory, "v100n1")
    assert len(_sleepers(cluster, "l40sn1")) == 2
    cluster.clear()
    assert not _sleepers(cluster, "l40sn1")


def test_what_a_cancelled_job_left_behind_is_gone_when_the_cluster_is_empty(cluster: Lab):
    """Without cgroups Slurm finds only children, not what forked while its parent was killed."""
    cluster.run("sbatch", "-w", "v100n1", "--wrap", "(sleep 600 &); sleep 600")
    _wait_for_both(cluster, "v100n1")
    cluster.clear()
    assert not _sleepers(cluster, "v100n1")


def _wait_for_both(cluster: Lab, node: str) -> None:
    """Wait until the job of a node has started what it starts."""
    cluster.wait_for(
        f"two processes on {node}",
        lambda: _sleepers(cluster, node),
        enough=lambda pids: len(pids) == 2,
    )


def _sleepers(cluster: Lab, node: str) -> list[int]:
    found = []
    for pid in processes(cluster.directory, node):
        with suppress(OSError):  # it has ended
            if Path(f"/proc/{pid}/comm").read_text() == "sleep\n":
                found.append(pid)
    return found


def test_a_slurmctld_that_forgot_a_job_does_not_give_its_id_away_again(bare_cluster: Lab):
    """A slurmd still knows the forgotten job and would refuse to start another with its id."""
    state = bare_cluster.directory / "state"
    bare_cluster.kill("slurmctld")  # it replaces its files one by one: no copy while it runs
    before = shutil.copytree(state, state.with_name("state-before"))
    bare_cluster.spawn("slurmctld")
    first = _long_job(bare_cluster)
    bare_cluster.kill("slurmctld")
    shutil.rmtree(state)
    before.rename(state)
    bare_cluster.clear()
    second = _long_job(bare_cluster)
    assert int(second) > int(first)


def _long_job(lab: Lab) -> str:
    """Submit a job that does not end, wait until it runs, and return its id."""
    job = lab.run("sbatch", "--parsable", "--wrap", "sleep 600").stdout.strip()
    lab.wait_for(
        f"start of job {job}",
        lambda: lab.run("squeue", "-h", "-j", job, "-o", "%T", check=False).stdout,
        enough=lambda state: state == "RUNNING\n",
    )
    return job


def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path):
    """A broken configuration is told with the daemon's last words; process and folder are gone."""
    folder = tmp_path / "lab"
    with pytest.raises(LabError, match=r"slurmctld ended[^$]*NoSuchKey"):
        Lab(folder, Options(accounting=False, lines=("NoSuchKey=1",))).start()
    assert not processes(folder)
    assert not folder.exists()


def test_a_folder_that_exists_is_neither_used_nor_removed(tmp_path: Path):
    """Start refuses a folder with something in it; stop does not remove what start did not make."""
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(FileExistsError):
        Lab(tmp_path).start()
    Lab(tmp_path).stop()
    assert (tmp_path / "thesis.tex").exists()


def test_a_killed_test_run_leaves_no_cluster_behind(tmp_path: Path):
    """The guard stops the cluster of a process that died without doing so."""
    folder = tmp_path / "lab"
    program = (
        "import sys, time, pathlib, lab\n"
        f"it = lab.Lab(pathlib.Path({str(folder)!r}), lab.Options(accounting=False)).start()\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(SCRIPT).parent)},
    )
    with owner:
        assert owner.stdout.readline() == b"up\n"
        assert processes(folder)
        owner.kill()
    wait_for("end of all", lambda: processes(folder), enough=lambda pids: not pids)
    wait_for("end of the folder", lambda: not folder.exists())


def test_two_labs_that_start_at_once_get_different_ports(monkeypatch: pytest.MonkeyPatch):
    """Though nobody listens on them yet; what a lab gave back is free again."""
    few = claim_ports(4)
    monkeypatch.setattr(lab_module, "PORTS", list(few))
    with pytest.raises(LabError, match="no free port"):
        claim_ports(1)
    for claim in few.values():
        claim.close()
    again = claim_ports(4)
    for claim in again.values():
        claim.close()
    assert again.keys() == few.keys()
