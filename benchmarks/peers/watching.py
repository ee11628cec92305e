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
    """Seconds, CPU seconds of all descendants, peak memory of the process tree in MiB, files."""

    wall: float
    cpu: float
    memory: float
    files: int


class TooLongError(Exception):
    """The commands did not end in time."""


def run(
    commands: Sequence[Sequence[str]], folder: Path, env: Mapping[str, str], limit: float
) -> Cost:
    """Run one command after the other, and return what they cost together.

    Raises:
        TooLongError: they took longer than `limit` seconds; everything they started was ended.
        subprocess.CalledProcessError: one of them failed.

    """
    _adopt_orphans()
    begin, cpu, peak = time.perf_counter(), _cpu_of_children(), 0.0
    with ThreadPoolExecutor(1) as pool:
        for command in commands:
            with _started(command, folder, env) as child:
                looking = pool.submit(_peak, child)
                try:
                    child.wait(limit - (time.perf_counter() - begin))
                except subprocess.TimeoutExpired:
                    _end(child)
                    reap_orphans(0)  # else the next run would pay for their CPU time
                    raise TooLongError from None
                peak = max(peak, looking.result())
            if child.returncode:
                raise subprocess.CalledProcessError(child.returncode, command)
    wall = time.perf_counter() - begin
    reap_orphans()
    files = sum(path.is_file() for path in folder.rglob("*"))
    return Cost(wall, _cpu_of_children() - cpu, peak, files)


def run_and_kill(
    commands: Sequence[Sequence[str]],
    folder: Path,
    env: Mapping[str, str],
    half: Callable[[], bool],
    limit: float = 300.0,
) -> None:
    """Kill the first command and everything that it started as soon as `half` says so."""
    with _started(commands[0], folder, env) as child:
        deadline = time.monotonic() + limit
        while not half() and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        _end(child)


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


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a process and its descendants, those in sessions of their own included."""
    for process in _tree(child):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    child.wait()


def _tree(child: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return a process and its descendants; none once it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(child.pid)
        return [root, *root.children(recursive=True)]
    return []


def _adopt_orphans() -> None:
    """Become the parent of processes whose parents end, so that their CPU time is known."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(options: int = os.WNOHANG) -> None:
    """Take in the processes that became ours and ended; with 0 wait until all have."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def _cpu_of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _peak(child: subprocess.Popen[bytes]) -> float:
    """Return the largest memory of the process tree: shared pages count once (PSS)."""
    peak = 0.0
    while child.poll() is None:
        total = 0
        for process in _tree(child):
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        peak = max(peak, total / 2**20)
        time.sleep(_EVERY)
    return peak
