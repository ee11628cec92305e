"""Runs the real command line in a folder of its own, as a person would."""

from __future__ import annotations

import ctypes
import io
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from unittest import mock

import pytest

import resultsfolder
from hpcsweep import cli
from hpcsweep.store import row_reader
from hpcsweep.store.folders import SweepDir
from waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TEN = """\
workload: noop
axes:
  model: [a, b]
  input_size: {start: 10, stop: 50, num: 5}
"""
FORTY_SLOW = """\
workload: noop
axes: {model: [a], input_size: {start: 1, stop: 40, num: 40}}
measure: {sleep_ms: 100}
"""
_PATIENCE_SECONDS = 120.0
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
        """Run hpcsweep to its end in this process, which spares the start of another one.

        Folder, environment and output streams are those of a process of its own; for the main
        thread only.
        """
        words = [*map(str, arguments)]
        out, errors = io.StringIO(), io.StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            mock.patch.dict(os.environ, env),
            redirect_stdout(out),
            redirect_stderr(errors),
        ):
            patch.chdir(self.folder)
            patch.setattr(sys, "argv", ["hpcsweep", *words])
            if "--dry-run" in words:  # it keeps in a temporary folder what it would send
                patch.setattr(tempfile, "tempdir", str(self.folder))
            code = _exit_code()
        return subprocess.CompletedProcess(words, code, out.getvalue(), errors.getvalue())

    def run_bound(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run hpcsweep in a process that rights bind, also where its user is root."""
        return self.run_process(*arguments, prepare=_give_up_power)

    def run_process(
        self, *arguments: str | Path, prepare: Callable[[], object] | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run hpcsweep to its end in a process of its own; `prepare` it before it begins."""
        return subprocess.run(
            [*COMMAND, *map(str, arguments)],
            preexec_fn=prepare,
            cwd=self.folder,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def run_on_a_terminal(self, *arguments: str, **env: str) -> str:
        """Run hpcsweep on a terminal of its own; return what it showed there."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env={**os.environ, "NO_COLOR": "1", "TERM": "xterm", **env},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # as Linux says that the other end is closed
            while piece := os.read(ours, 4096):
                shown += piece
        os.close(ours)
        process.wait()
        return shown.decode()

    def submit(self, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Measure sweep.yaml on this machine."""
        return self.run("submit", "sweep.yaml", "--cluster", "local", *more, **env)

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Start hpcsweep and return at once."""
        return subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def sweep(self, name: str = "sweep") -> SweepDir:
        """Return a sweep's results."""
        return SweepDir(self.results / name)

    def rows(self, name: str = "sweep") -> list[dict[str, str]]:
        """Return every row of every shard."""
        return [
            row
            for shard in self.sweep(name).shards()
            for row in resultsfolder.read_shard(shard).rows
        ]

    def wait_for_rows(self, count: int) -> None:
        """Wait until sweep.yaml, which is being measured, has so many rows."""
        wait_for(
            f"{count} rows",
            lambda: sum(len([*row_reader.read_rows([shard])]) for shard in self.sweep().shards()),
            enough=lambda found: found >= count,
        )


def said_until(running: subprocess.Popen[str], words: str) -> list[str]:
    """Wait until a process says some words on stderr; return its lines up to there."""
    said = list[str]()
    assert running.stderr
    late = threading.Timer(_PATIENCE_SECONDS, running.kill)  # which ends what it says
    late.start()
    try:
        for line in running.stderr:
            said.append(line.rstrip("\n"))
            if words in line:
                return said
    finally:
        late.cancel()
    raise AssertionError(f"{words!r} was not said: {said}")


def _give_up_power() -> None:
    """Lose, with the next program, root's power to read and write what its rights forbid."""
    drop_from_bounding_set = 24
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(drop_from_bounding_set, capability)


def completed_by_bash(script: str) -> str:
    """Return how bash completes hpcsweep after a script."""
    bash = shutil.which("bash") or "bash"
    return subprocess.run(
        [bash, "-c", f"{script}\ncomplete -p hpcsweep"], capture_output=True, text=True, check=True
    ).stdout


def _exit_code() -> int:
    """Run the console script; return the exit code that Python would end with."""
    interrupted = signal.getsignal(signal.SIGINT)
    try:
        cli.run()
    except SystemExit as end:
        return int(end.code or 0)
    except Exception:  # noqa: BLE001 - as at the end of a process
        traceback.print_exc()
        return 1
    finally:
        signal.signal(signal.SIGINT, interrupted)  # which ends a process at once by then
