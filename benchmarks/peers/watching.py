"""Runs commands, and tells what they cost: wall time, CPU time, memory and files."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

_EVERY: Final = 0.1  # seconds between two looks at memory
_SUBREAPER: Final = 36  # PR_SET_CHILD_SUBREAPER, linux/prctl.h


@dataclass(frozen=True)
class Cost:
    """Seconds, CPU seconds of all descendants, peak memory of the process tree in MiB, files.

    `complete` is False where the commands were ended at their limit; the figures are those until
    then.
    """

    wall: float
    cpu: float
    memory: float
    files: int
    complete: bool = True


def run(
    commands: Sequence[Sequence[str]], folder: Path, env: Mapping[str, str], limit: float
) -> Cost:
    """Run one command after the other, and return what they cost together.

    After `limit` seconds everything that they started is ended.

    Raises:
        subprocess.CalledProcessError: one of them failed.

    """
    _adopt_orphans()
    begin = time.perf_counter()
    cpu = _cpu_of_children()
    wall = 0.0
    peak = 0.0
    complete = True
    before = _descendants()
    with ThreadPoolExecutor(1) as pool:
        for command in commands:
            with _started(command, folder, env) as child:
                looking = pool.submit(_peak, child)
                try:
                    child.wait(max(0.0, limit - (time.perf_counter() - begin)))
                except subprocess.TimeoutExpired:
                    complete = False
                    wall = time.perf_counter() - begin
                    _end(child, before)
                peak = max(peak, looking.result())
            if not complete:
                break
            if child.returncode:
                raise subprocess.CalledProcessError(child.returncode, command)
            wall = time.perf_counter() - begin
    reap_orphans()
    files = sum(path.is_file() for path in folder.rglob("*"))
    return Cost(wall, _cpu_of_children() - cpu, peak, files, complete)


def run_and_kill(
    commands: Sequence[Sequence[str]],
    folder: Path,
    env: Mapping[str, str],
    half: Callable[[], bool],
    limit: float,
) -> None:
    """Kill the first command and everything that it started as soon as `half` says so."""
    _adopt_orphans()
    before = _descendants()
    with _started(commands[0], folder, env) as child:
        deadline = time.monotonic() + limit
        while not half() and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        _end(child, before)


@contextlib.contextmanager
def _started(
    command: Sequence[str], folder: Path, env: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    with (
        (folder / "log.txt").open("ab") as log,
        subprocess.Popen(
            command, cwd=folder, env={**os.environ, **env}, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, start_new_session=True,
        ) as child,
    ):  # fmt: skip
        yield child


def _end(child: subprocess.Popen[bytes], before: set[int]) -> None:
    """Kill all that was started since `before`, in sessions of their own too, and take it in.

    What a killed process leaves behind becomes ours, so this goes on until there is nothing.
    """
    while started := _descendants() - before:
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in started:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    child.wait()


def _descendants() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def _adopt_orphans() -> None:
    """Become the parent of processes whose parents end, so that their CPU time is known."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def reap_orphans() -> None:
    """Take in the processes that became ours and ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _cpu_of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _peak(child: subprocess.Popen[bytes]) -> float:
    """Return the largest memory of the process tree: shared pages count once (PSS)."""
    peak = 0.0
    while child.poll() is None:
        total = 0
        with contextlib.suppress(psutil.NoSuchProcess):
            tree = psutil.Process(child.pid)
            for process in [tree, *tree.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    total += process.memory_full_info().pss
        peak = max(peak, total / 2**20)
        time.sleep(_EVERY)
    return peak
