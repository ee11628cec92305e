"""Where a sweep meets its faults: its files, its commands, and the processes that it has."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from killing import MARK, command, kill

if TYPE_CHECKING:
    from random import Random

    from benchmarks.chaos.disk import Disk

_SECONDS: Final = 400  # a command that takes longer hangs, also on a busy machine
SPEC: Final = """\
workload: noop
axes: {{model: [a], input_size: {{start: 1, stop: {points}, num: {points}}}}}
measure: {{sleep_ms: {sleep_ms}}}
"""
_VERBS: Final = ("collect", "import", "rm", "bundle")  # commands that measure nothing
_ROLES: Final = {
    b"hpcsweep.node.worker": "worker",
    b"hpcsweep.node.template": "worker",
    b"slurm_script": "job script",
    b"hpcsweep.node.supervisor": "supervisor",
    b"srun": "srun",
    b"submitit.core": "submitit",
    b"unshare": "container",
    b"hpcsweep.cli": "submit",
}


class HangsError(Exception):
    """A command, or a job, did not end."""


@dataclass
class Place:
    """A sweep on this machine; `said` is what its commands wrote to stderr."""

    folder: Path
    library: Path  # that makes calls fail
    points: int
    disk: Disk | None = None  # where results lie, if not in the folder
    launcher: str = "local"
    said: list[str] = field(default_factory=list)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    removals: int = 0  # how often rows were to be removed

    sleep_ms = 300

    def prepare(self) -> None:
        """Write the sweep file."""
        self.spec.write_text(SPEC.format(points=self.points, sleep_ms=self.sleep_ms))
        self.results.mkdir()

    @property
    def spec(self) -> Path:
        """Return the sweep file: its name is that of the folder."""
        return self.folder / f"{self.folder.name}.yaml"

    @property
    def results(self) -> Path:
        """Return the folder of all results."""
        return (self.disk.path if self.disk else self.folder) / "results"

    @property
    def sweep(self) -> Path:
        """Return the results of the sweep."""
        return self.results / self.spec.stem

    @property
    def begun(self) -> bool:
        """Say whether it was ever submitted."""
        return any(self.sweep.glob("submissions/*/manifest.json"))

    def submit(self) -> list[str]:
        """Return the command that measures the sweep, here with two workers."""
        words = ("submit", str(self.spec), "--cluster", "local", "--workers", "2")
        return command(self.results, *words)

    def retry(self) -> list[str]:
        """Return the command that measures failed points again."""
        return command(self.results, "retry", self.spec.stem)

    def collect(self) -> list[str]:
        """Return the command that merges the tables."""
        return command(self.results, "collect", self.spec.stem)

    @property
    def twin(self) -> Path:
        """Return the results into which copies of the sweep are imported, as of another machine."""
        return self.results / f"{self.spec.stem}-there"

    def import_copy(self, *, there: bool) -> list[str]:
        """Copy the sweep as it is now; return the command that imports it, here or as its twin."""
        copy = self.folder / "copies" / uuid.uuid4().hex / self.spec.stem
        with suppress(shutil.Error, OSError):  # as by hand: files may come and go meanwhile
            shutil.copytree(self.sweep, copy, ignore=shutil.ignore_patterns(".*", "logs"))
        return self.import_from(copy, there=there)

    def import_from(self, copy: Path, *, there: bool) -> list[str]:
        """Return the command that imports a copy of the sweep, here or as its twin."""
        name = self.twin.name if there else self.spec.stem
        return command(self.results, "import", str(copy), "--as", name)

    def bundle(self) -> list[str]:
        """Return the command that writes the sweep as it is now into one file."""
        file = self.folder / "bundles" / f"{uuid.uuid4().hex}.zip"
        file.parent.mkdir(exist_ok=True)
        return command(self.results, "bundle", self.spec.stem, "--out", str(file))

    def bundles(self) -> list[Path]:
        """Return the bundles that were written, the latest first."""
        found = self.folder.glob("bundles/*.zip")
        return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)

    def remove_old(self) -> list[str]:
        """Return the command that removes the attempts whose rows do not count."""
        self.removals += 1
        return command(self.results, "rm", self.spec.stem, "--old-attempts", "--yes")

    def remove_twin(self) -> list[str]:
        """Return the command that removes all that was imported as of another machine."""
        return command(self.results, "rm", self.twin.name, "--yes")

    def copies(self) -> list[Path]:
        """Return the copies that were made."""
        return sorted(self.folder.glob(f"copies/*/{self.spec.stem}"))

    def start(self, words: list[str], **env: str) -> subprocess.Popen[bytes]:
        """Start a command whose processes can be found by a mark."""
        return subprocess.Popen(
            words, env={**os.environ, MARK: self.mark, **env}, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=self.folder,
        )  # fmt: skip

    def end(self, told: str, *children: subprocess.Popen[bytes]) -> None:
        """Wait for commands, and for all that they started here; keep what they said.

        Raises:
            HangsError: one did not end.

        """
        until = time.monotonic() + _SECONDS
        try:
            self.hear(told, *children)
            while found := self.processes(jobs=False):
                if time.monotonic() > until:
                    raise HangsError(f"{told}: {found} do not end")
                time.sleep(0.1)
        finally:
            for pid in self.processes(jobs=False):
                kill(pid)

    def hear(self, told: str, *children: subprocess.Popen[bytes]) -> None:
        """Wait for commands alone; keep what they said."""
        for child in children:
            try:
                _, errors = child.communicate(timeout=_SECONDS)
            except subprocess.TimeoutExpired as error:
                raise HangsError(f"{told}: {error}") from None
            lines = errors.decode(errors="replace").splitlines()
            self.said += [f"{told}: {line}" for line in lines]

    def measuring(self, rng: Random, **env: str) -> list[subprocess.Popen[bytes]]:
        """Let the sweep be measured; return at a random moment with what `end` is to wait for."""
        child = self.start(self.submit(), **env)
        until = time.monotonic() + 20
        wanted = rng.choice(("submit", "supervisor", "worker"))
        while wanted not in self.processes().values() and time.monotonic() < until:
            if child.poll() is not None:
                return [child]
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 1))
        return [child]

    def is_measuring(self) -> bool:
        """Say whether there is something to strike."""
        return bool(self.processes())

    def processes(self, *, jobs: bool = True) -> dict[int, str]:
        """Return pid and role of every process of this sweep; without those in jobs of Slurm."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                environ = (entry / "environ").read_bytes()
                if f"{MARK}={self.mark}".encode() not in environ or _is_zombie(entry):
                    continue
                if jobs or b"\0SLURM_JOB_ID=" not in environ:
                    found[int(entry.name)] = _role((entry / "cmdline").read_bytes())
        return found

    def settle(self) -> None:
        """Let whatever is not seen any more count as dead."""
        if not self.processes():
            self.pass_minutes()

    def pass_minutes(self) -> None:
        """Let the signs of life of all attempts be older by so much that they count as dead."""
        for path in (*self.sweep.glob("submissions/*/jobs.jsonl"), *self.sweep.glob("shards/*/*")):
            with suppress(OSError):
                then = path.stat().st_mtime - 200
                os.utime(path, (then, then))


def _is_zombie(entry: Path) -> bool:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"


def _role(words: bytes) -> str:
    for part, role in _ROLES.items():
        if part in words:
            others = (
                verb
                for verb in ("collect", "import", "rm", "bundle")
                if f"\0{verb}\0".encode() in words
            )
            return next(others, role) if role == "submit" else role
    return "helper"
