"""Sweeps on the tests' real Slurm on this machine, and the faults that only they can meet."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.chaos import others
from benchmarks.chaos.faults import Struck, killed
from benchmarks.chaos.slurm_place import Cluster, SlurmPlace
from killing import command
from lab import PATH, Lab, Options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

# Python in a container: all of them have this name, and a supervisor's pid is small.
_IN_CONTAINER: Final = f"""\
#!/bin/sh
exec unshare --uts --pid --fork --kill-child --mount-proc \\
  sh -c 'hostname node1; exec {sys.executable} "$@"' sh "$@"
"""


@contextmanager
def running() -> Iterator[Cluster]:
    """Start a cluster; stop it whatever happens."""
    os.environ["PATH"] = PATH
    where = Path(tempfile.gettempdir()) / f"hpcsweep-lab-{uuid.uuid4().hex[:12]}"
    private = ("PrivateData=jobs",)  # root sees them all the same
    lab = Lab(where, Options(slurmd_timeout=8, lines=private)).start()
    for name in ("slurm.conf", "job_ids.conf"):
        (where / name).chmod(0o644)
    os.environ.update(lab.environment)
    try:
        with others.second_cluster() as second:
            yield Cluster(lab, second)
    finally:
        lab.stop()


def _requeue(place: SlurmPlace, rng: Random) -> Struck | None:
    jobs = place.running_jobs()[: rng.choice((1, 3))]
    for job, _node in jobs:
        place.cluster.ask("scontrol", "requeue", job)
    return Struck("scontrol requeue", f"{len(jobs)} requeued") if jobs else None


def _scancel(place: SlurmPlace, rng: Random) -> Struck | None:
    jobs = [line.split()[0] for line in place.jobs()]
    if not jobs:
        return None
    chosen = jobs if rng.random() < 0.5 else [rng.choice(jobs)]
    by_kill = ["--signal=KILL", "--full"] if rng.random() < 0.3 else []
    place.cluster.ask("scancel", *by_kill, *chosen)
    return Struck("scancel", f"scancel {' '.join(by_kill)} of {len(chosen)} tasks")


def _cancel(place: SlurmPlace, rng: Random) -> Struck | None:
    struck = place.jobs()
    child = place.start(command(place.results, "cancel", place.spec.stem))
    if rng.random() < 0.3:
        time.sleep(rng.uniform(0.2, 1.0))
        child.kill()
    place.hear("cancel", child)
    return Struck("hpcsweep cancel", "cancel") if struck else None


def _submit_is_killed(place: SlurmPlace, rng: Random) -> Struck | None:
    place.cluster.ask("scancel", *[line.split()[0] for line in place.jobs()])
    place.wait(lambda: not place.jobs())
    return killed(place, "submit", place.submit(), rng.uniform(0.3, 1.8))


def _step_is_killed(place: SlurmPlace, rng: Random) -> Struck | None:
    """SIGKILL or SIGSTOP for slurmstepd, the parent of a job script."""
    scripts = [pid for pid, role in place.processes().items() if role in {"job script", "submitit"}]
    parents = [pid for script in scripts if (pid := _parent(script, b"slurmstepd"))]
    if not parents:
        return None
    chosen = rng.choice(parents)
    stops = rng.random() < 0.4
    with suppress(ProcessLookupError):
        os.kill(chosen, signal.SIGSTOP if stops else signal.SIGKILL)
    if stops:
        time.sleep(rng.uniform(0.5, 5))
        with suppress(ProcessLookupError):
            os.kill(chosen, signal.SIGCONT)
    return Struck(f"{'SIGSTOP' if stops else 'SIGKILL'}: slurmstepd", "slurmstepd")


def _parent(pid: int, name: bytes) -> int | None:
    with suppress(OSError):
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if name in Path(f"/proc/{parent}/comm").read_bytes():
            return parent
    return None


def _node_is_lost(place: SlurmPlace, rng: Random) -> Struck | None:
    """Kill slurmd, with the steps or without, and let it come back when it was missed."""
    lab = place.cluster.lab
    steps = rng.random() < 0.7
    with place.cluster.breaking:
        jobs = place.running_jobs()
        if not jobs:
            return None
        node = jobs[0][1]
        lab.kill(node, steps=steps)
        if rng.random() < 0.7:
            place.wait(lambda: "down" in "".join(place.cluster.ask("sinfo", "-hn", node, "-o%T")))
        lab.spawn(node)
    return Struck(f"SIGKILL: slurmd{' and its steps' if steps else ''}", "a node is lost")


def _slurmctld_dies(place: SlurmPlace, rng: Random) -> Struck | None:
    """Kill it after it has saved its state: what it forgets is Slurm's affair."""
    lab = place.cluster.lab
    with place.cluster.breaking:
        state = lab.directory / "state/job_state"
        now = time.time()
        for job in {line.split("_")[0] for line in place.jobs()}:
            place.cluster.ask("scontrol", "update", f"jobid={job}", "comment=to be saved")
        if not place.wait(lambda: state.exists() and state.stat().st_mtime > now, 15):
            return None
        lab.kill("slurmctld")
        time.sleep(rng.uniform(0.5, 4))
        lab.spawn("slurmctld")
    return Struck("SIGKILL: slurmctld", "slurmctld dies")


def _accounts_are_gone(place: SlurmPlace, _rng: Random) -> Struck | None:
    """Let slurmdbd be away for some seconds."""
    with place.cluster.breaking:
        place.cluster.lab.kill("slurmdbd")
        place.hear("submit without accounts", place.start(place.submit()))
        place.cluster.lab.spawn("slurmdbd")
    return Struck("SIGKILL: slurmdbd", "slurmdbd dies")


def _preemption(place: SlurmPlace, rng: Random) -> Struck | None:
    """Let a job of higher priority ask for the node."""
    if not place.partition.startswith("low"):
        return None
    jobs = place.running_jobs()
    if not jobs:
        return None
    node = rng.choice(jobs)[1]
    what = ("--output=/dev/null", "--exclusive", f"--nodelist={node}", "--wrap", "sleep 1")
    place.cluster.ask("sbatch", "--partition=all", *what)
    how = "requeues" if place.partition == "low" else "cancels"
    return Struck(f"preemption that {how}", f"preempted on {node}")


def _containers(place: SlurmPlace, rng: Random) -> Struck | None:
    """Run jobs in containers whose name and pids are equal, and requeue one of them."""
    python = place.folder / "python-in-container"
    python.write_text(_IN_CONTAINER)
    python.chmod(0o755)
    place.cluster.ask("scancel", *[line.split()[0] for line in place.jobs()])
    place.wait(lambda: not place.jobs())
    place.write_profile(str(python))
    place.measuring(rng)
    jobs = place.running_jobs()
    for job, _node in jobs[:1]:
        place.cluster.ask("scontrol", "requeue", job)
    place.write_profile(sys.executable)
    return Struck("containers share name and pids", f"{len(jobs)} in containers") if jobs else None


COMMANDS: Final = (_submit_is_killed, _submit_is_killed, _containers)
STRIKES: Final = (
    _requeue, _requeue, _scancel, _scancel, _cancel, _step_is_killed, _step_is_killed,
    _node_is_lost, _slurmctld_dies, _accounts_are_gone, _preemption, _preemption,
    others.two_clusters, others.two_clusters, others.another_user, others.squeue_lies,
    others.squeue_lies,
)  # fmt: skip
