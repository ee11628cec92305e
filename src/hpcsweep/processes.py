"""Who a process is, so that a recycled pid is never taken for it; how ours start and end.

Standard library only.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
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
_OBJECTS: Final = 100_000  # made between two searches for garbage; Python's own are 700


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A process on a host; `start` is in ticks since that boot, None where it was gone.

    A pid means something only within one boot and one pid namespace, which containers have of their
    own: `boot` names both. The name of the host is for people, since two hosts may share one.
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
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def _start_without_proc(pid: int) -> int | None:
    """Where there is no /proc (macOS): alive or not is all that can be said."""
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return 0
    return 0


def python(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module, whatever lies in the working directory."""
    return [sys.executable, "-c", RUN_MODULE, module, *map(str, arguments)]


def seldom_search_garbage() -> None:
    """Let a process of a second search for cycles of garbage seldom, and not when it ends.

    Modules are many objects and no garbage: to search them takes a fifth of a command's time.
    """
    gc.set_threshold(_OBJECTS)
    atexit.register(end_without_search)


def end_without_search() -> None:
    """Keep what is left out of the searches that Python makes at its end."""
    if "torch" not in sys.modules:  # else libraries complain of what they cannot give back
        gc.freeze()


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies, in case a pass holds the GIL."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes  # noqa: PLC0415 - only a worker needs it

    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent == 1:
        os._exit(0)
