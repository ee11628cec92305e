"""The faults: each does one bad thing to a command about a sweep, or to what measures it."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.chaos import disk, hosts

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from benchmarks.chaos.place import Place

_ERRORS: Final = (
    "EIO", "ESTALE", "EMFILE", "EDQUOT", "ENOSPC", "EACCES", "EINTR", "EROFS", "ETIMEDOUT",
)  # fmt: skip
# How often a command does them at least, roughly.
_CALLS: Final = {
    "open": 60, "read": 60, "write": 60, "close": 60, "stat": 60, "list": 12, "fsync": 12,
    "mkdir": 4, "rename": 8, "unlink": 4, "lock": 2,
}  # fmt: skip
_SOURCE: Final = Path(__file__).with_name("failing.c")
_SIGNALS: Final = (
    signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1,
    signal.SIGUSR2,
)  # fmt: skip


class Struck(NamedTuple):
    """What a fault did: its kind, to count, and the case."""

    kind: str
    told: str


def a_call_fails(place: Place, rng: Random) -> Struck | None:
    """One system call on a file of the results fails, once or from then on."""
    call, name = rng.choice([*_CALLS]), rng.choice(_ERRORS)
    nth, times = rng.randint(1, _CALLS[call]), rng.choice((1, 1, 1, 5, 10_000))
    words, verb = _verb(place, rng)
    witness = place.folder / f"struck-{uuid.uuid4()}"
    child = place.start(
        words, LD_PRELOAD=str(place.library), CHAOS_CALL=call, CHAOS_UNDER=str(place.results),
        CHAOS_ERRNO=str(getattr(errno, name)), CHAOS_NTH=str(nth), CHAOS_TIMES=str(times),
        CHAOS_TOLD=str(witness),
    )  # fmt: skip
    told = f"{verb}: {call} number {nth} (x{times}) fails with {name}"
    place.end(told, child)
    if place.launcher != "local":
        time.sleep(rng.uniform(0, 3))  # its jobs inherit it
    return Struck(f"a call fails: {name}", told) if witness.exists() else None


def a_process_is_signalled(place: Place, rng: Random) -> Struck | None:
    """Send one of the signals that end a process to one process, or SIGKILL to all."""
    children = place.measuring(rng)
    found, everything = place.processes(), rng.random() < 0.15
    number = signal.SIGKILL if everything else rng.choice(_SIGNALS)
    chosen = list(found) if everything else _one_of(found, rng)
    for pid in chosen:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    what = "everything" if everything else found[chosen[0]] if chosen else ""
    told = f"{number.name} for {what}"
    place.end(told, *children)
    return Struck(f"{number.name}: {what}", told) if chosen else None


def a_process_is_stopped(place: Place, rng: Random) -> Struck | None:
    """SIGSTOP for one process for up to three seconds, another command meanwhile."""
    children = place.measuring(rng)
    found = place.processes()
    chosen = _one_of(found, rng)
    for pid in chosen:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    words, verb = _verb(place, rng)
    second = place.start(words)
    time.sleep(rng.uniform(0, 3))
    for pid in chosen:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    what = found[chosen[0]] if chosen else ""
    told = f"{what} stopped, {verb} meanwhile"
    place.end(told, *children, second)
    return Struck(f"SIGSTOP: {what}", told) if chosen else None


def collect_is_killed(place: Place, rng: Random) -> Struck | None:
    """SIGKILL for `collect` at any moment of it."""
    if not place.begun:
        return None
    child = place.start(place.collect())
    time.sleep(rng.uniform(0.1, 0.8))
    struck = child.poll() is None
    child.kill()
    place.end("collect is killed", child)
    return Struck("SIGKILL: collect", "collect is killed") if struck else None


def two_at_once(place: Place, rng: Random) -> Struck:
    """Two commands at once: submits or collects."""
    children, verbs = [], []
    for _ in range(2):
        words, verb = _verb(place, rng)
        children.append(place.start(words))
        verbs.append(verb)
        time.sleep(rng.uniform(0, 0.3))
    told = f"{' and '.join(sorted(verbs))} at once"
    place.end(told, *children)
    return Struck(told, told)


def the_clock_steps(place: Place, rng: Random) -> Struck:
    """Let the wall clock be wrong by minutes to a year, from the start or suddenly."""
    ahead = rng.choice((-1, 1)) * rng.choice((30, 3600, 86_400, 40_000_000))
    step = rng.choice((0, rng.randint(300, 2500)))
    words, verb = _verb(place, rng)
    clock = {"CHAOS_CLOCK": str(ahead), "CHAOS_STEP": str(step)}
    child = place.start(words, LD_PRELOAD=str(place.library), **clock)
    told = f"{verb}: clock {ahead:+} s after {step} ms"
    place.end(told, child)
    return Struck("the clock steps" if step else "the clock is wrong", told)


def the_output_is_gone(place: Place, rng: Random) -> Struck:
    """Stdout or stderr is closed, full, or a pipe whose reader left."""
    how = rng.choice((">&-", "2>&-", ">&- 2>&-", ">/dev/full", "2>/dev/full", "| head -c 1"))
    words, verb = _verb(place, rng)
    place.end(how, place.start(["sh", "-c", f"{shlex.join(words)} {how}"]))
    return Struck("an output is closed or full", f"{verb}: {how}")


def the_folder_vanishes(place: Place, rng: Random) -> Struck | None:
    """Rename the results folder away while points are measured, then bring it back."""
    children = place.measuring(rng)
    away = place.results.with_name("away")
    # before it looked for what is measured, a folder that is not there is a new sweep
    struck = "worker" in place.processes().values()
    if struck:
        place.results.rename(away)
    time.sleep(rng.uniform(0, 0.5))
    told = "the results folder is renamed away and back"
    if place.launcher == "local":
        place.end(told, *children)
    else:
        time.sleep(rng.uniform(0, 3))
    if struck:
        _bring_back(away, place.results)
    return Struck("the results folder vanishes", told) if struck else None


def _bring_back(away: Path, results: Path) -> None:
    scraps = results.with_name("scraps")
    if results.exists():
        results.rename(scraps)  # something was made where the folder was
    away.rename(results)
    for file in [path for path in scraps.rglob("*") if path.is_file()]:
        target = results / file.relative_to(scraps)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            file.rename(target)
    shutil.rmtree(scraps, ignore_errors=True)


def resources_are_limited(place: Place, rng: Random) -> Struck:
    """No file may grow beyond some kilobytes, or few files may be open."""
    limit = rng.choice((f"ulimit -f {rng.randint(1, 40)}", f"ulimit -n {rng.randint(8, 40)}"))
    words, verb = _verb(place, rng)
    place.end(limit, place.start(["sh", "-c", f"{limit}; {shlex.join(words)}"]))
    return Struck("few or small files only", f"{verb}: {limit}")


def the_disk_is_full(place: Place, rng: Random) -> Struck | None:
    """No space, or no room for files, before a command or in the middle of it."""
    if place.disk is None:
        return None
    what = rng.choice(("bytes", "files"))
    left = rng.randint(0, 40) * 4096 if what == "bytes" else rng.randint(0, 12)
    early, room = (
        rng.random() < 0.5,
        place.disk.fill if what == "bytes" else place.disk.forbid_files,
    )
    if early:
        room(left)
    children = _command(place, rng) if early else place.measuring(rng)
    if not early:
        room(left)
    how = rng.choice(("cleaned", "enlarged"))
    told = f"disk full ({left} {what} left), {'before' if early else 'in mid-run'}, then {how}"
    _endure(place, rng, children)
    (place.disk.clean if how == "cleaned" else place.disk.enlarge)()
    place.end(told, *children)
    return Struck("the disk is full", told)


def the_disk_is_read_only(place: Place, rng: Random) -> Struck | None:
    """Remount the file system; where files are open for writing, cover the folder instead."""
    if place.disk is None:
        return None
    children = _command(place, rng) if rng.random() < 0.4 else place.measuring(rng)
    time.sleep(rng.uniform(0, 0.4))
    whole = place.disk.forbid_writing()
    if not whole:
        disk.cover(place.results)
    told = f"{'file system' if whole else 'folder'} read-only, then writable"
    _endure(place, rng, children)
    if whole:
        place.disk.allow_writing()
    else:
        disk.uncover(place.results)
    place.end(told, *children)
    return Struck(f"the {'file system is' if whole else 'folder becomes'} read-only", told)


def _endure(place: Place, rng: Random, children: list[subprocess.Popen[bytes]]) -> None:
    """Let a fault last for some seconds; here half of the time until the commands ended."""
    if place.launcher != "local" or rng.random() < 0.5:
        time.sleep(rng.uniform(0.5, 3))
        return
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.wait(60)


def hosts_share_a_name(place: Place, rng: Random) -> Struck | None:
    """Let two containers or hosts whose name and pids are equal use one folder."""
    if os.geteuid() or place.launcher != "local":
        return None
    return Struck(*hosts.meet(place, rng))


FAULTS: Final[tuple[Callable[[Place, Random], Struck | None], ...]] = (
    a_call_fails, a_call_fails, a_call_fails, a_process_is_signalled, a_process_is_signalled,
    a_process_is_stopped, collect_is_killed, two_at_once, the_clock_steps, the_output_is_gone,
    the_folder_vanishes, resources_are_limited, the_disk_is_full, the_disk_is_read_only,
    hosts_share_a_name,
)  # fmt: skip


def build(folder: Path) -> Path:
    """Compile the library that makes calls fail."""
    library = folder / "failing.so"
    words = ["cc", "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl"]
    subprocess.run(words, check=True)
    return library


def _verb(place: Place, rng: Random) -> tuple[list[str], str]:
    """Choose a command; there is nothing to collect before the first submission."""
    submits = rng.random() < 0.6 or not place.begun
    return (place.submit(), "submit") if submits else (place.collect(), "collect")


def _command(place: Place, rng: Random) -> list[subprocess.Popen[bytes]]:
    return [place.start(_verb(place, rng)[0])]


def _one_of(found: dict[int, str], rng: Random) -> list[int]:
    """Choose a role, then one of its processes: there are more helpers than others."""
    roles = sorted(set(found.values()) - {"helper"}) or sorted(set(found.values()))
    if not roles:
        return []
    role = rng.choice(roles)
    return [rng.choice(sorted(pid for pid, name in found.items() if name == role))]
