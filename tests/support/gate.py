"""A sweep whose points wait at a gate, so that a test meets it half way on any machine.

Points that sleep are done sooner or later, and on a busy machine that is before the test had its
turn. A point of this sweep ends when the test lets it pass.
"""

from __future__ import annotations

import shlex
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from localruns import Desk

# Of a job that is told to stop, Slurm tells every process: the point goes on, and leaves a mark.
_SCRIPT = """\
cd {folder} || exit
trap ': >told' TERM USR1 USR2
echo "${{CUDA_VISIBLE_DEVICES-}}${{ROCR_VISIBLE_DEVICES-}}" >"gpu-$1"
until [ -e open ]; do
  for pass in pass-*; do
    rm "$pass" 2>/dev/null && exit 0 # each lets one point pass
  done
  : >"waits-$1"
  sleep 0.05
done
"""
_SWEEP = """\
name: {name}
workload: command
axes: {{input_size: [{sizes}]}}
run: sh at_the_gate.sh {{input_size}}
"""


@dataclass(frozen=True)
class Gate:
    """The gate of a desk."""

    desk: Desk

    def sweep(self, points: int, passes: int, name: str = "sweep") -> str:
        """Write a sweep of so many points, and return its text; let some of them pass."""
        self._folder.mkdir()
        script = _SCRIPT.format(folder=shlex.quote(str(self._folder)))
        (self.desk.folder / "at_the_gate.sh").write_text(script)
        sizes = ", ".join(map(str, range(1, points + 1)))
        text = _SWEEP.format(name=name, sizes=sizes)
        self.desk.spec(text, f"{name}.yaml")
        self.let_pass(passes)
        return text

    def let_pass(self, points: int = 1) -> None:
        """Let so many points pass, the next ones that come or wait."""
        for _ in range(points):
            (self._folder / f"pass-{uuid.uuid4().hex}").touch()

    def open(self) -> None:
        """Let all points pass."""
        (self._folder / "open").touch()

    def waiting(self) -> list[str]:
        """Return the points that wait, or have waited."""
        return sorted(path.name for path in self._folder.glob("waits-*"))

    def gpus(self) -> list[str]:
        """Return which GPUs the points that wait, or have waited, were given."""
        marks = [name.replace("waits", "gpu") for name in self.waiting()]
        return sorted((self._folder / mark).read_text().strip() for mark in marks)

    def was_told(self) -> bool:
        """Say whether a job was told to stop while one of its points waited."""
        return (self._folder / "told").exists()

    @property
    def _folder(self) -> Path:
        return self.desk.folder / "gate"
