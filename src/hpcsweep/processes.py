"""Who a process is, so that a recycled pid is never taken for it; how ours start and end."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Runs a module as `python -m` does, but without the modules of the working directory, which may
# have names of the standard library. Python 3.10 has no option for that.
RUN_MODULE: Final = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
    'runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)'
)
_OF_THE_HOST: Final = " pid:[4026531836]"  # its pid namespace; the kernel fixes the number
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER: Final = 36  # linux/prctl.h
_END_SECONDS: Final = 5.0  # for killed processes to be gone; one that waits for a disk may stay
_adopts: list[bool] = []  # whether this process gets the orphans of those that it started
_OBJECTS: Final = 100_000  # made between two searches for garbage; Python's own are 700


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A process on a host; `start` is in ticks since that boot, None where it was gone.

    A pid means something only within one boot and one pid namespace, as of a container: `boot`
    names both. The name of the host is for people, since two hosts may share one.
    """

    host: str = ""
    boot: str = ""
    pid: int = 0
    start: int | None = None

    def in_sight(self) -> bool:
        """Say whether this process knows that one by its pid."""
        mine = identity()
        return (self.boot or self.host) == (mine.boot or mine.host)

    def is_alive(self) -> bool:
        """Say whether that very process runs; false where it is not in sight."""
        if not self.in_sight():
            return False
        start = _start_ticks(self.pid)
        return start is not None and start == self.start


def identity(pid: int | None = None) -> Identity:
    """Return who a process is; this one by default."""
    pid = os.getpid() if pid is None else pid
    boot = ""
    with suppress(OSError):  # there is no /proc
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
        boot += f" {namespace}".removesuffix(_OF_THE_HOST)
    return Identity(host=os.uname().nodename, boot=boot, pid=pid, start=_start_ticks(pid))


def _start_ticks(pid: int) -> int | None:
    """Return field 22 of /proc/PID/stat (proc(5)); None when gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _start_without_proc(pid)
    # the name of the program, field 2, may hold spaces and parentheses; field 3 is the state
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in {"Z", "X"} else int(fields[22 - 3])


def _start_without_proc(pid: int) -> int | None:
    """Where there is no /proc (macOS): alive or not is all that can be said."""
    if Path("/proc/self/stat").exists():
        return None
    try:
        with suppress(PermissionError):  # it is another user's
            os.kill(pid, 0)
    except ProcessLookupError:
        return None
    return 0


def python(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module, whatever lies in the working directory."""
    return [sys.executable, "-c", RUN_MODULE, module, *map(str, arguments)]


def raise_gc_threshold() -> None:
    """Search modules for garbage seldom, and not at the end: it is a fifth of a command's time."""
    gc.set_threshold(_OBJECTS)
    atexit.register(end_without_search)


def end_without_search() -> None:
    """Keep what is left out of the searches that Python makes at its end."""
    if "torch" not in sys.modules:  # else libraries complain of what they cannot give back
        gc.freeze()


def fork() -> int:
    """Fork this process, as `os.fork` does, of which Python 3.12 warns where it sees threads.

    They are those of numpy's BLAS, which makes them anew in the copy.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies, in case a pass holds the GIL."""
    parent = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # the kernel does not tell of a parent that died meanwhile
    if sys.platform.startswith("linux") and (parent == 1 or os.getppid() != parent):
        os._exit(0)


def adopt_orphans() -> None:
    """Become the parent of whatever loses its own among what this process starts (Linux)."""
    _adopts[:] = [_prctl(_PR_SET_CHILD_SUBREAPER, 1)]


def adopts() -> bool:
    """Say whether this process is the parent of orphans."""
    return any(_adopts)


def end_orphans(but: int = 0) -> None:
    """Kill all children but one, and what they leave, if this process adopts."""
    until = time.monotonic() + _END_SECONDS
    while adopts() and time.monotonic() < until:
        children = [pid for pid in _children(os.getpid()) if pid != but]
        if not children:
            return
        for pid in children:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)  # a killed process is gone in less, unless it waits for a disk


def _children(pid: int) -> list[int]:
    found = list[int]()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it has ended
            found += map(int, task.read_text().split())
    return found


def _prctl(option: int, value: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    import ctypes  # noqa: PLC0415 - only on a compute node

    return bool(ctypes.CDLL(None).prctl(option, value) == 0)
