"""Runs the real command line in a folder of its own, as a person would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcsweep.store import shards
from hpcsweep.store.rundir import RunDir

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = (sys.executable, "-c", "from hpcsweep.cli import run; run()")


@dataclass(frozen=True)
class Desk:
    """A folder with sweep files and results."""

    folder: Path

    @property
    def results(self) -> Path:
        """Return where sweeps write."""
        return self.folder / "results"

    def spec(self, text: str, name: str = "sweep.yaml") -> Path:
        """Write a sweep file."""
        path = self.folder / name
        path.write_text(text)
        return path

    def run(self, *arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run hpcsweep to its end."""
        return subprocess.run(
            [*COMMAND, *map(str, arguments)],
            cwd=self.folder,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Start hpcsweep and return at once; SIGINT reaches it even if this process ignores it."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.Popen(
                [*COMMAND, *map(str, arguments)],
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        finally:
            signal.signal(signal.SIGINT, before)

    def sweep(self, name: str = "sweep") -> RunDir:
        """Return a sweep's results."""
        return RunDir(self.results / name)

    def rows(self, name: str = "sweep") -> list[dict[str, str]]:
        """Return every row of every shard."""
        return [row for shard in self.sweep(name).shards() for row in shards.read(shard).rows]
