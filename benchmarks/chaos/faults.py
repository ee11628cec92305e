"""The faults: each does one bad thing to a command about a sweep, or strikes what measures it."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks.chaos import disk, hosts, reading

if TYPE_CHECKING:
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


Fault = Callable[[Any, Random], Struck | None]  # None: there was nothing to strike


def a_call_fails(place: Place, rng: Random) -> Struck | None:
    """One system call on a file of the results fails, once or from then on."""
    call = rng.choice([*_CALLS])
    name = rng.choice(_ERRORS)
    nth = rng.randint(1, _CALLS[call])
    times = rng.choice((1, 1, 1, 5, 10_000))
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
    found = place.processes()
    everything = rng.random() < 0.1
    number = signal.SIGKILL if everything else rng.choice(_SIGNALS)
    chosen = list(found) if everything else _one_of(found, rng)
    for pid in chosen:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    what = "everything" if everything else found[chosen[0]] if chosen else ""
    return Struck(f"{number.name}: {what}", f"{number.name} for {what}") if chosen else None


def a_process_is_stopped(place: Place, rng: Random) -> Struck | None:
    """SIGSTOP for one process for up to three seconds, another command meanwhile."""
    found = place.processes()
    chosen = _one_of(found, rng)
    for pid in chosen:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    words, verb = _verb(place, rng)
    second = [place.start(words)] if chosen and rng.random() < 0.5 else []
    time.sleep(rng.uniform(0, 3))
    for pid in chosen:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    what = found[chosen[0]] if chosen else ""
    told = f"{what} stopped{f', {verb} meanwhile' if second else ''}"
    place.hear(told, *second)
    return Struck(f"SIGSTOP: {what}", told) if chosen else None


def attempts_are_suspended(place: Place, _rng: Random) -> Struck | None:
    """SIGSTOP for all that measures, SIGKILL for submit; it wakes up when the sweep is done."""
    found = place.processes()
    asleep = [pid for pid, role in found.items() if role in {"worker", "supervisor"}]
    if place.launcher != "local" or not asleep:
        return None
    _signal(asleep, signal.SIGSTOP)
    _signal([pid for pid, role in found.items() if role == "submit"], signal.SIGKILL)
    place.hear("submit beside suspended attempts", place.start(place.submit()))
    before = reading.whole_rows(place.sweep)
    _signal(asleep, signal.SIGCONT)
    until = time.monotonic() + 30
    while place.processes().keys() & {*asleep} and time.monotonic() < until:
        time.sleep(0.1)
    if late := reading.whole_rows(place.sweep) - before:
        raise AssertionError(f"{len(late)} rows of attempts that were suspended")
    return Struck("attempts are suspended", f"{len(asleep)} processes sleep until the end")


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def collect_is_killed(place: Place, rng: Random) -> Struck | None:
    """SIGKILL for `collect` at any moment of it."""
    if not place.begun:
        return None
    return killed(place, "collect", place.collect(), rng.uniform(0.1, 0.8))


def import_is_killed(place: Place, rng: Random) -> Struck | None:
    """SIGKILL for `import` at any moment of it."""
    if not place.begun:
        return None
    return killed(place, "import", _import(place, rng), rng.uniform(0.1, 0.8))


def rm_is_killed(place: Place, rng: Random) -> Struck | None:
    """SIGKILL for `rm` at any moment of it."""
    if not place.begun:
        return None
    return killed(place, "rm", _remove(place, rng), rng.uniform(0.1, 0.8))


def bundle_is_killed(place: Place, rng: Random) -> Struck | None:
    """SIGKILL for `bundle` at any moment of it."""
    if not place.begun:
        return None
    return killed(place, "bundle", place.bundle(), rng.uniform(0.1, 2))


def killed(place: Place, verb: str, words: list[str], after: float) -> Struck | None:
    """SIGKILL for a command that is started now, so many seconds later."""
    child = place.start(words)
    time.sleep(after)
    struck = child.poll() is None
    child.kill()
    place.end(f"{verb} is killed", child)
    return Struck(f"SIGKILL: {verb}", f"{verb} is killed") if struck else None


def two_at_once(place: Place, rng: Random) -> Struck:
    """Two commands at once: submits or collects."""
    children = []
    verbs = []
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
    away = place.results.with_name("away")
    # before it looked for what is measured, a folder that is not there is a new sweep
    if not {"worker", "supervisor"} & {*place.processes().values()}:
        return None
    place.results.rename(away)
    _endure(place, rng)
    _bring_back(away, place.results)
    told = "the results folder is renamed away and back"
    return Struck("the results folder vanishes", told)


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
    """No space, or no room for files, for some time."""
    if place.disk is None:
        return None
    what = rng.choice(("bytes", "files"))
    left = rng.randint(0, 40) * 4096 if what == "bytes" else rng.randint(0, 12)
    (place.disk.fill if what == "bytes" else place.disk.forbid_files)(left)
    _endure(place, rng)
    how = rng.choice(("cleaned", "enlarged"))
    (place.disk.clean if how == "cleaned" else place.disk.enlarge)()
    return Struck(f"the disk is full ({what})", f"disk full ({left} {what} left), then {how}")


def the_disk_is_read_only(place: Place, rng: Random) -> Struck | None:
    """Remount the file system; where files are open for writing, cover the folder instead."""
    if place.disk is None:
        return None
    whole = place.disk.forbid_writing()
    if not whole:
        disk.cover(place.results)
    _endure(place, rng)
    if whole:
        place.disk.allow_writing()
    else:
        disk.uncover(place.results)
    told = f"{'file system' if whole else 'folder'} read-only, then writable"
    return Struck(f"the {'file system is' if whole else 'folder becomes'} read-only", told)


def _endure(place: Place, rng: Random) -> None:
    """Let a fault last for some seconds; half of the time here, until nothing measures any more."""
    until_over = place.launcher == "local" and rng.random() < 0.5
    end = time.monotonic() + (20 if until_over else rng.uniform(0.3, 3))
    while time.monotonic() < end and (not until_over or place.processes()):
        time.sleep(0.1)


def early(strike: Fault) -> Fault:
    """Let a fault of what measures begin before a command, instead of in the middle of it."""

    def before_a_command(place: Place, rng: Random) -> Struck | None:
        with ThreadPoolExecutor(1) as pool:
            told = pool.submit(strike, place, rng)
            time.sleep(0.2)
            child = place.start(_verb(place, Random(rng.random()))[0])
            struck = told.result()
        place.end("an early fault", child)
        return struck

    return before_a_command


def hosts_share_a_name(place: Place, rng: Random) -> Struck | None:
    """Let two containers or hosts whose name and pids are equal use one folder."""
    if os.geteuid() or place.launcher != "local":
        return None
    return Struck(*hosts.meet(place, rng))


COMMANDS: Final[tuple[Fault, ...]] = (
    a_call_fails, a_call_fails, a_call_fails, a_call_fails, collect_is_killed, import_is_killed,
    rm_is_killed, bundle_is_killed, two_at_once, the_clock_steps, the_output_is_gone,
    resources_are_limited,
    early(the_disk_is_full), early(the_disk_is_read_only), hosts_share_a_name,
)  # fmt: skip
STRIKES: Final[tuple[Fault, ...]] = (
    a_process_is_signalled, a_process_is_signalled, a_process_is_signalled, a_process_is_stopped,
    a_process_is_stopped, attempts_are_suspended, the_folder_vanishes, the_disk_is_full,
    the_disk_is_read_only,
)  # fmt: skip


def build(folder: Path) -> Path:
    """Compile the library that makes calls fail."""
    library = folder / "failing.so"
    words = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(words, check=True)
    return library


def _verb(place: Place, rng: Random) -> tuple[list[str], str]:
    """Choose a command; before the first submission there is nothing for the others."""
    verbs = ("submit", "collect", "import", "rm", "bundle")
    verb = rng.choices(verbs, (5, 3, 3, 2, 2))[0] if place.begun else "submit"
    if verb == "import":
        return _import(place, rng), verb
    if verb == "rm":
        return _remove(place, rng), verb
    words = {"submit": place.submit, "collect": place.collect, "bundle": place.bundle}[verb]
    return words(), verb


def _remove(place: Place, rng: Random) -> list[str]:
    """Remove attempts that do not count, or what was imported as of another machine."""
    if place.twin.is_dir() and rng.random() < 0.5:
        return place.remove_twin()
    return place.remove_old()


def _import(place: Place, rng: Random) -> list[str]:
    """Import a copy as it is now, an older one, or a bundle: here, or as another machine's."""
    there = rng.random() < 0.6
    bundles = place.bundles()
    if bundles and rng.random() < 0.3:
        return place.import_from(rng.choice(bundles), there=there)
    older = place.copies()
    if older and rng.random() < 0.3:
        return place.import_from(rng.choice(older), there=there)
    return place.import_copy(there=there)


def _one_of(found: dict[int, str], rng: Random) -> list[int]:
    """Choose a role, then one of its processes: there are more helpers than others."""
    roles = sorted(set(found.values()) - {"helper"}) or sorted(set(found.values()))
    if not roles:
        return []
    role = rng.choice(roles)
    return [rng.choice(sorted(pid for pid, name in found.items() if name == role))]
