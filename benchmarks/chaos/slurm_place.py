"""A sweep whose points are measured by jobs of the tests' real Slurm on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final

from benchmarks.chaos.place import HangsError, Place
from killing import command
from lab import NODES, Lab

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

_PATIENCE: Final = 240.0  # seconds for jobs to end
_SITE: Final = """\
gpu: any
time: 30
mem: 500M
kill_wait: 2
max_points_per_chunk: 20
launcher: {launcher}
partition: {partition}
python: {python}
"""


class Cluster:
    """One lab for all sweeps; who breaks a part of it has it for himself until that is mended."""

    def __init__(self, lab: Lab, second: Lab) -> None:
        self.lab = lab
        self.second = second
        self.breaking = Lock()

    def ask(self, *words: str) -> list[str]:
        """Return the lines that a program of Slurm prints; none if it cannot."""
        try:
            return self.lab.run(*words, check=False).stdout.splitlines()
        except subprocess.TimeoutExpired:
            return []

    def queue(self, *words: str) -> list[str]:
        """Return the lines that squeue prints, when slurmctld is there to be asked."""
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            with suppress(subprocess.TimeoutExpired):
                done = self.lab.run("squeue", "-h", *words, check=False)
                if not done.returncode:
                    return done.stdout.splitlines()
            time.sleep(1)
        raise HangsError("squeue does not answer")

    def resume_nodes(self) -> None:
        """Take nodes into use again that Slurm drained when a job could not start."""
        if self.breaking.acquire(blocking=False):
            try:
                for line in self.ask("sinfo", "-h", "-p", "all", "-N", "-o", "%N %T"):
                    node, state = line.split()
                    if state.rstrip("*").startswith(("down", "drain")):
                        self.ask("scontrol", "update", f"nodename={node}", "state=resume")
            finally:
                self.breaking.release()


@dataclass(kw_only=True)
class SlurmPlace(Place):
    """A sweep whose points are measured by jobs."""

    cluster: Cluster
    partition: str

    sleep_ms = 1000

    def prepare(self) -> None:
        """Write sweep and profile."""
        super().prepare()
        (self.folder / "cluster_profiles").mkdir()
        self.write_profile(sys.executable)

    def write_profile(self, python: str) -> None:
        """Write the profile; jobs are to run this Python."""
        site = {"launcher": self.launcher, "partition": self.partition}
        text = _SITE.format(python=json.dumps(python), **site)
        (self.folder / "cluster_profiles/any.yaml").write_text(text)

    def submit(self) -> list[str]:
        """Return the command that sends what is missing."""
        return command(self.results, "submit", str(self.spec), "--cluster", "any")

    def retry(self) -> list[str]:
        """Return the command that sends failed points again."""
        return command(self.results, "retry", self.spec.stem, "--cluster", "any")

    def measuring(self, rng: Random, **env: str) -> list[subprocess.Popen[bytes]]:
        """Send what is missing; return at a random moment of a job."""
        self.end("submit", self.start(self.submit(), **env))
        until = time.monotonic() + 90
        while not {"supervisor", "worker"} & {*self.processes().values()}:
            if time.monotonic() > until or not self.jobs():
                return []
            time.sleep(0.3)
        time.sleep(rng.uniform(0, 1.2))
        return []

    def is_measuring(self) -> bool:
        """Say whether a job is queued or runs."""
        return bool(self.jobs())

    def jobs(self, states: str = "all") -> list[str]:
        """Return `id state reason node` of each task that is queued or runs."""
        format_ = "%i %T %r %N"
        name = f"hpcsweep-{self.spec.stem}"
        over = {"COMPLETED", "FAILED", "CANCELLED"}
        lines = self.cluster.queue("-r", "-n", name, "-t", states, "-o", format_)
        over |= {"TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}
        return [line for line in lines if line.split()[1] not in over]

    def running_jobs(self) -> list[tuple[str, str]]:
        """Return id and node of each task that runs."""
        found = [line.split() for line in self.jobs("RUNNING")]
        return [(words[0], words[-1]) for words in found if words[-1] in NODES]

    def settle(self) -> None:
        """Wait until nothing is queued or runs; end what can never start, as a person would."""
        until = time.monotonic() + _PATIENCE
        while lines := self.jobs():
            held = [line.split()[0] for line in lines if "held" in line.lower()]
            if held:
                self.cluster.ask("scancel", *held)
            if time.monotonic() > until:
                told = f"{lines}, {self.processes()}"
                self.cluster.ask("scancel", "--name", f"hpcsweep-{self.spec.stem}")
                raise HangsError(f"jobs do not end: {told}")
            self.cluster.resume_nodes()
            time.sleep(0.7)
        while self.processes() and time.monotonic() < until:
            time.sleep(0.2)  # attempts that Slurm lost sight of
        super().settle()

    def wait(self, condition: Callable[[], object], seconds: float = 40) -> bool:
        """Wait for a condition; say whether it came."""
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                return False
            time.sleep(0.2)
        return True
