"""The faults: each does one bad thing to one hpcsweep command, or to what that started."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import subprocess
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from killing import MARK, command, kill, marked

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

_SECONDS: Final = 120  # a command that takes longer hangs
_ERRORS: Final = ("EIO", "ESTALE", "EMFILE", "EDQUOT", "ENOSPC", "EACCES", "EINTR")
_CALLS: Final = ("open", "read", "write", "fsync", "rename", "link", "lock", "unlink")


@dataclass(frozen=True)
class Place:
    """A sweep file, its results folder, and the library that makes calls fail."""

    spec: Path
    results: Path
    library: Path

    @property
    def sweep(self) -> Path:
        return self.results / self.spec.stem

    def submit(self) -> list[str]:
        """Return the command that measures the sweep here, with two workers."""
        words = ("submit", str(self.spec), "--cluster", "local", "--workers", "2")
        return command(self.results, *words)

    def collect(self) -> list[str]:
        """Return the command that merges the tables."""
        return command(self.results, "collect", self.spec.stem)


class HangsError(Exception):
    """A command did not end."""


def start(words: list[str], mark: str, **env: str) -> subprocess.Popen[bytes]:
    """Start a command whose processes can be found by a mark."""
    return subprocess.Popen(
        words, env={**os.environ, MARK: mark, **env}, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def end(child: subprocess.Popen[bytes], mark: str, told: str) -> str:
    """Wait for a command, and for all that it started; return what it wrote to stderr.

    Raises:
        HangsError: it did not end.

    """
    try:
        _, said = child.communicate(timeout=_SECONDS)
        deadline = time.monotonic() + _SECONDS
        while marked(mark) and time.monotonic() < deadline:
            time.sleep(0.05)
        if marked(mark):
            raise HangsError(told)
    except subprocess.TimeoutExpired:
        raise HangsError(told) from None
    finally:
        for pid in marked(mark):
            kill(pid)
    return said.decode(errors="replace")


def a_call_fails(place: Place, rng: Random) -> tuple[str, str]:
    """One system call on a file of the results fails, once or from then on."""
    call, name = rng.choice(_CALLS), rng.choice(_ERRORS)
    nth, times = rng.randint(1, 60), rng.choice((1, 1, 1, 5, 10_000))
    words, verb = rng.choice(((place.submit(), "submit"), (place.collect(), "collect")))
    mark = uuid.uuid4().hex
    child = start(
        words, mark, LD_PRELOAD=str(place.library), CHAOS_CALL=call, CHAOS_UNDER=str(place.results),
        CHAOS_ERRNO=str(getattr(errno, name)), CHAOS_NTH=str(nth), CHAOS_TIMES=str(times),
    )  # fmt: skip
    told = f"{verb}: {call} number {nth} (x{times}) fails with {name}"
    return told, end(child, mark, told)


def a_process_is_killed(place: Place, rng: Random) -> tuple[str, str]:
    """SIGKILL, SIGTERM, SIGINT or SIGHUP for one process, or SIGKILL for all."""
    mark = uuid.uuid4().hex
    child = start(place.submit(), mark)
    found = _after_a_while(mark, rng)
    number = rng.choice(
        (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    )
    pids = sorted(found)
    chosen = pids if rng.random() < 0.2 else [rng.choice(pids)] if pids else []
    for pid in chosen:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    roles = [found[pid] for pid in chosen]
    told = f"submit: {number.name} for {', '.join(roles) or 'nobody'}"
    return told, end(child, mark, told)


def a_process_is_stopped(place: Place, rng: Random) -> tuple[str, str]:
    """SIGSTOP for one process for up to two seconds, another submit meanwhile."""
    mark, other = uuid.uuid4().hex, uuid.uuid4().hex
    child = start(place.submit(), mark)
    found = _after_a_while(mark, rng)
    chosen = rng.choice(sorted(found)) if found else None
    if chosen is not None:
        with suppress(ProcessLookupError):
            os.kill(chosen, signal.SIGSTOP)
    second = start(place.submit(), other)
    time.sleep(rng.uniform(0, 2))
    if chosen is not None:
        with suppress(ProcessLookupError):
            os.kill(chosen, signal.SIGCONT)
    told = f"submit: {found.get(chosen or 0, 'nobody')} stopped, a second submit meanwhile"
    return told, end(second, other, told) + end(child, mark, told)


def two_at_once(place: Place, rng: Random) -> tuple[str, str]:
    """Two commands at once: submits or collects."""
    pair = [rng.choice((place.submit(), place.collect())) for _ in range(2)]
    children = []
    for words in pair:
        mark = uuid.uuid4().hex
        children.append((start(words, mark), mark))
        time.sleep(rng.uniform(0, 0.3))
    told = " and ".join(next(w for w in words if w in {"submit", "collect"}) for words in pair)
    told = f"{told} at once"
    return told, "".join(end(child, mark, told) for child, mark in children)


def the_clock_steps(place: Place, rng: Random) -> tuple[str, str]:
    """Let the wall clock be hours or years off, for this command only."""
    ahead = rng.choice((-1, 1)) * rng.choice((30, 3600, 86_400, 40_000_000))
    mark = uuid.uuid4().hex
    words, verb = rng.choice(((place.submit(), "submit"), (place.collect(), "collect")))
    child = start(words, mark, LD_PRELOAD=str(place.library), CHAOS_CLOCK=str(ahead))
    told = f"{verb}: clock {ahead:+} s"
    return told, end(child, mark, told)


def the_output_is_gone(place: Place, rng: Random) -> tuple[str, str]:
    """Stdout or stderr is closed, full, or a pipe whose reader left."""
    how = rng.choice((">&-", "2>&-", ">&- 2>&-", ">/dev/full", "2>/dev/full", "| head -c 1"))
    mark = uuid.uuid4().hex
    words = shlex.join(place.submit())
    child = start(["sh", "-c", f"{words} {how}"], mark)
    return f"submit: {how}", end(child, mark, how)


def the_folder_vanishes(place: Place, rng: Random) -> tuple[str, str]:
    """Rename the results folder away while points are measured, then bring it back."""
    mark = uuid.uuid4().hex
    child = start(place.submit(), mark)
    away = place.results.with_name("away")
    # before it looked for what is measured, a folder that is not there is a new sweep
    if "worker" in _after_a_while(mark, rng).values():
        place.results.rename(away)
    time.sleep(rng.uniform(0, 0.5))
    told = "submit: results folder renamed away and back"
    said = end(child, mark, told)
    if away.exists() and place.results.exists():  # something was made where the folder was
        for file in [path for path in place.results.rglob("*") if path.is_file()]:
            target = away / file.relative_to(place.results)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                file.rename(target)
        subprocess.run(["rm", "-r", "--", str(place.results)], check=True)
    if away.exists():
        away.rename(place.results)
    return told, said


def files_are_limited(place: Place, rng: Random) -> tuple[str, str]:
    """No file may grow beyond some kilobytes (as on a full disk), or few files may be open."""
    limit = rng.choice((f"ulimit -f {rng.randint(1, 40)}", f"ulimit -n {rng.randint(8, 40)}"))
    mark = uuid.uuid4().hex
    words = shlex.join(place.submit())
    child = start(["sh", "-c", f"{limit}; {words}"], mark)
    return f"submit: {limit}", end(child, mark, limit)


FAULTS: Final[tuple[Callable[[Place, Random], tuple[str, str]], ...]] = (
    a_call_fails, a_call_fails, a_call_fails, a_process_is_killed, a_process_is_killed,
    a_process_is_stopped, two_at_once, the_clock_steps, the_output_is_gone, the_folder_vanishes,
    files_are_limited,
)  # fmt: skip


def build(folder: Path) -> Path:
    """Compile the library that makes calls fail."""
    library = folder / "failing.so"
    source = Path(__file__).with_name("failing.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def _after_a_while(mark: str, rng: Random) -> dict[int, str]:
    """Return the processes of a run, at a random moment of it."""
    until = time.monotonic() + rng.uniform(0.2, 2.5)
    found: dict[int, str] = {}
    while time.monotonic() < until and (new := marked(mark)):
        found = new
        time.sleep(0.05)
    return found
