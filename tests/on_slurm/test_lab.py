"""The cluster that the tests start is real, private and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import lab as lab_module
from lab import Lab, LabError, Options, claim_ports, processes
from waiting import wait_for

if TYPE_CHECKING:
    from labtools import StartCluster

SCRIPT = str(Path(lab_module.__file__))


def _run_job(cluster: Lab, out: Path, *options: str) -> str:
    shown = "echo $SLURMD_NODENAME $SLURM_JOB_ACCOUNT $CUDA_VISIBLE_DEVICES $ROCR_VISIBLE_DEVICES"
    cluster.run("sbatch", f"--output={out}", *options, "--wrap", shown)
    said = cluster.wait_for(
        "output of the job",
        lambda: out.read_text() if out.exists() else "",
        enough=lambda text: text.endswith("\n"),
    )
    return said.strip()


@pytest.mark.parametrize(
    ("constraint", "node"),
    [("gpu2v100", "v100n1"), ("gpul40s", "l40sn1"), ("mi250", "mi250n1")],
)
def test_a_job_runs_on_the_node_of_its_feature_and_gets_its_gpu(
    cluster: Lab, tmp_path: Path, constraint: str, node: str
):
    """Partition gpu, the constraint and one GPU: the node and device variables are right."""
    said = _run_job(
        cluster, tmp_path / "out", "-p", "gpu", "-C", constraint, "--gres=gpu:1", "-A", "lab"
    )
    assert said == f"{node} lab 0"


def test_without_accounting_jobs_run_and_sacct_is_disabled(bare_cluster: Lab, tmp_path: Path):
    """The second kind of cluster has the same nodes but answers no question about the past."""
    assert _run_job(bare_cluster, tmp_path / "out", "-p", "v100").startswith("v100n1")
    asked = bare_cluster.run("sacct", check=False)
    assert (asked.returncode, asked.stderr) == (1, "Slurm accounting storage is disabled\n")


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


def test_a_wait_in_vain_tells_what_was_seen_last(bare_cluster: Lab):
    """And the last words of every daemon: whoever reads the log of CI can see nothing else."""
    with pytest.raises(LabError) as caught:
        bare_cluster.wait_for("third job", lambda: [7, 8], seconds=0.1, enough=lambda _: False)
    told, *words = str(caught.value).splitlines()
    assert told == "no third job: 0.1 s passed; last seen: [7, 8]"
    assert any(word.startswith("slurmctld.log: ") for word in words)


def test_slurmctld_can_be_killed_and_started_again(bare_cluster: Lab):
    """A job that ran while the controller was down is still known afterwards."""
    command = ("sbatch", "--parsable", "-J", "remembered", "--wrap", "sleep 600")
    job = bare_cluster.run(*command).stdout.strip()
    bare_cluster.wait_for("saved state", lambda: bare_cluster.has_saved("remembered"))
    bare_cluster.kill("slurmctld")
    assert bare_cluster.run("scontrol", "ping", check=False).returncode == 1
    bare_cluster.spawn("slurmctld")
    assert bare_cluster.run("squeue", "-h", "-o", "%i").stdout.split() == [job]


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


def test_options_reach_the_configuration(special_cluster: StartCluster):
    """A special cluster has the limits that were asked for and the extra lines."""
    lab = special_cluster(
        accounting=False, max_array_size=8, lines=("PartitionName=extra Nodes=l40sn1",)
    )
    shown = lab.run("scontrol", "show", "config").stdout.split("\n")
    assert any(line.split() == ["MaxArraySize", "=", "8"] for line in shown)
    assert lab.run("sinfo", "-h", "-p", "extra", "-o", "%N").stdout == "l40sn1\n"


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


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_test_run_leaves_no_cluster_behind(tmp_path: Path, how: signal.Signals):
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
        owner.send_signal(how)
    wait_for("end of all", lambda: processes(folder), enough=lambda pids: not pids)
    wait_for("end of the folder", lambda: not folder.exists())


def test_the_command_line_starts_and_stops_a_cluster_for_people(tmp_path: Path):
    """`start` prints the line to type; two clusters do not disturb each other; `stop` ends one."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        command = [sys.executable, SCRIPT, "start", str(folder), "--no-accounting"]
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert shown == f"export SLURM_CONF={folder}/slurm.conf\n"
    subprocess.run([sys.executable, SCRIPT, "stop", str(folders[0])], check=True)
    assert not folders[0].exists()
    assert not processes(folders[0])
    assert Lab(folders[1]).run("sinfo", "-h", "-p", "v100", "-o", "%N").stdout == "v100n1\n"
    subprocess.run([sys.executable, SCRIPT, "stop", str(folders[1])], check=True)
    assert not processes(folders[1])


def test_ports_are_below_the_ephemeral_range():
    """Ports that daemons are given do not collide with outgoing connections."""
    ports = claim_ports(50)
    for claim in ports.values():
        claim.close()
    assert len(ports) == 50
    assert max(ports) < 32_768


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
