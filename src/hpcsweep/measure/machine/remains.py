"""Detects changes that a point left behind in its process, where they would affect the next one.

`ProcessState` keeps state that no measurement should change: limits and signals of the process,
switches of Python and torch, and the functions that are called. Things that are made lazily and
stay count as unchanged: modules, pools of waiting threads, caches. torch is checked if it is
imported.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # makes no enums, most of what `signal` costs
import gc
import locale
import logging
import multiprocessing
import os
import re
import resource
import signal
import socket
import sys
import sysconfig
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final

from hpcsweep.processes import read_proc

# Names of torch's functions that return a switch and take no argument.
_SWITCH: Final = re.compile(
    r"_?get_(\w*(enabled|allow_\w+|benchmark|deterministic\w*|precision|backend|qengine|warnAlways|"
    r"immediate|state|optimize|reduction|accumulation|kernel)|default_dtype|default_device|"
    r"num_interop_threads)|_?(is|are)_(?!autocast_.pu|autocast_xla)\w+(enabled|disabled|active|tracing)|"
    r"_len_torch_\w+_stack"
)
_PRECISIONS: Final = [
    (backend, of)
    for backend in ("generic", "cuda", "mkldnn")
    for of in ("all", "conv", "rnn", "matmul")
    if (backend, of) == ("generic", "all") or backend != "generic"
]
_STATUS: Final = re.compile(
    rb"^(Umask|SigBlk|SigIgn|Cpus_allowed_list|NoNewPrivs|Seccomp|Uid|Gid):\t(.*)$", re.MULTILINE
)
# Modules whose functions measure, or are measured, beside torch's.
_CALLED: Final = ("builtins", "gc", "math", "os", "random", "statistics", "threading", "time")
_TORCH: Final = re.compile(
    r"torch(\.(_tensor|functional|random|serialization|nn(\..*)?|autograd(\..*)?|backends(\..*)?|"
    r"cuda|amp(\..*)?|optim(\..*)?|utils\.data(\..*)?|profiler(\..*)?))?|hpcsweep(\..*)?"
)
_CONFIGS: Final = ("torch._dynamo.config", "torch._inductor.config", "torch._functorch.config")
# set by torch's compiler for the processes that it starts
_COMPILERS: Final = re.compile(r"_?TORCHINDUCTOR_|TRITON_|KINETO_|CUDA_MODULE_LOADING|PYDEVD_")
_INSTALLED: Final = re.compile(
    "|".join(
        ["<", r".*/(site|dist)-packages/", re.escape(f"{Path(__file__).parents[2]}/")]
        + [re.escape(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    )
)
_SIGNALS: Final = tuple(signal.valid_signals())
_LIMITS: Final = [(n, getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")]
_BUSY: Final = 0.2  # of a core, in threads that should wait
_LOOKS: Final = (0.004, 0.02, 0.1, 0.3)  # seconds; threads of OpenMP spin for a while


class ProcessState:
    """A snapshot of the process and its torch; `changes` compares it with their later state."""

    def __init__(self) -> None:
        if torch := sys.modules.get("torch"):
            torch.ones(1 << 17).sum()  # lets OpenMP place its threads, this one among them
        self._settings = dict(_settings())
        self._namespaces = [*_namespaces()]
        self._threads = frozenset(sys._current_frames())  # noqa: SLF001 - sees all threads
        self._tasks = _tasks()

    def changes(self) -> list[str]:
        """Return messages on changed settings and functions, and on threads left running."""
        old = self._settings
        now = dict(_settings())
        changed = [
            f"{name}: {old.get(name)!s:.60} became {now.get(name)!s:.60}"
            for name in ({**old, **now} if old != now else ())
            if old.get(name) != now.get(name)
        ]
        replaced = (namespace.replaced() for namespace in self._namespaces)
        return [*changed, *filter(None, replaced), *self._running()]

    def _running(self) -> list[str]:
        """Return new threads that run the user's code, else whether others compute."""
        share = _busy() if _tasks() > self._tasks else 0.0  # new threads may be about to begin
        named = {thread.ident: thread for thread in threading.enumerate()}
        running = list[str]()
        for ident, frame in sys._current_frames().items():  # noqa: SLF001
            code = _own_code(frame, named.get(ident))
            if ident not in self._threads and code:
                name = named[ident].name if ident in named else "without a name"
                running.append(f"thread {name}: {code}")
        if share and not running:
            running.append(f"threads that compute: {share:.0%} of a core")
        return running


def _settings() -> Iterator[tuple[str, Any]]:
    yield from _of_process()
    yield from _of_python()
    if torch := sys.modules.get("torch"):
        yield from _of_torch(torch)


def _of_process() -> Iterator[tuple[str, Any]]:
    yield "working directory", os.getcwd()  # noqa: PTH109 - fast, as all here
    yield from _variables(tuple(os.environ._data.items()))  # type: ignore[attr-defined] # noqa: SLF001 - undecoded
    for name, limit in _LIMITS:
        yield name, resource.getrlimit(limit)
    with suppress(OSError):
        for name, value in _STATUS.findall(read_proc("/proc/self/status")):
            yield name.decode(), value.decode()
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        more = (read_proc(f"/proc/self/{n}").decode() for n in ("oom_score_adj", "timerslack_ns"))
        yield "scheduling", (os.sched_getscheduler(0), *more)
        yield "too many open files", len(os.listdir("/proc/self/fd")) > most / 2 > 0  # noqa: PTH208
    yield "priority", os.getpriority(os.PRIO_PROCESS, 0)
    for fd in range(3):
        with suppress(OSError):
            yield f"file {fd}", os.fstat(fd)[1:3]  # inode and device
    for number in _SIGNALS:
        handler = _signal.getsignal(number)
        if callable(handler) and not _INSTALLED.match(_file_of(handler)):
            yield f"signal {number}", handler
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        yield f"timer {timer}", any(signal.getitimer(timer))


@lru_cache(maxsize=1)
def _variables(variables: tuple[tuple[bytes, bytes], ...]) -> list[tuple[str, str]]:
    named = [(os.fsdecode(name), os.fsdecode(value)) for name, value in variables]
    return [(f"variable {name}", value) for name, value in named if not _COMPILERS.match(name)]


def _of_python() -> Iterator[tuple[str, Any]]:
    yield "garbage collection", (gc.isenabled(), gc.get_threshold(), gc.get_debug())
    yield "sys.path", sorted({folder for folder in sys.path if not _INSTALLED.match(folder)})
    for module, names in (
        (sys, ("gettrace", "getprofile", "getswitchinterval")),
        (threading, ("gettrace", "getprofile", "stack_size")),
        (socket, ("getdefaulttimeout",)),
        (multiprocessing, ("get_start_method",)),
    ):
        yield from ((f"{module.__name__}.{name}", getattr(module, name)()) for name in names)
    yield "sys.setrecursionlimit", min(sys.getrecursionlimit(), 1000)  # the compiler wants more
    yield "sys.excepthook", sys.excepthook
    yield "sys.stdout, sys.stderr", (id(sys.stdout), id(sys.stderr))
    yield "locale", locale.setlocale(locale.LC_ALL)
    yield "logging.disable", logging.root.manager.disable
    yield "warnings that are errors", [f for f in warnings.filters if f[0] == "error"]
    yield "denormal numbers", sys.float_info.min / len("12") > 0  # computed now, not compiled
    if numpy := sys.modules.get("numpy"):
        yield "numpy.geterr", numpy.geterr()


def _of_torch(torch: ModuleType) -> Iterator[tuple[str, Any]]:
    core = torch._C  # noqa: SLF001 - the public functions do not tell all of it
    for name in _switches(core):
        with suppress(TypeError, RuntimeError):  # it needs an argument, or a device
            yield f"torch {name.removeprefix('_').removeprefix('get_')}", getattr(core, name)()
    yield "torch autocast dtypes", [torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda")]
    for place in _PRECISIONS:
        with suppress(AttributeError):  # of torch 2.9 and later
            yield f"torch precision {' '.join(place)}", core._get_fp32_precision_getter(*place)  # noqa: SLF001
    for name, value in vars(torch.nn.modules.module).items():
        if name.startswith("_global_") and isinstance(value, dict):
            yield f"torch.nn {name[1:]}", [*map(id, value.values())]
    with suppress(AttributeError, TypeError):  # of another version
        yield "torch profiler", core._autograd._profiler_enabled()  # noqa: SLF001
        hooks = core._autograd._top_saved_tensors_default_hooks(False)  # noqa: SLF001, FBT003
        yield "torch hooks of saved tensors", hooks is not None
        yield "torch fast path of attention", torch.backends.mha.get_fastpath_enabled()
        kernels = (name for name in torch.library._impls if not name.endswith("/Meta"))  # noqa: SLF001
        yield "kernels of aten", sorted(name for name in kernels if name.startswith("aten/"))
    yield "torch sharing of tensors", torch.multiprocessing.get_sharing_strategy()
    for name in _CONFIGS:
        for key, entry in getattr(sys.modules.get(name), "_config", {}).items():
            if type(value := getattr(entry, "user_override", None)).__module__ == "builtins":
                yield f"{name}.{key}", value


@lru_cache(maxsize=1)
def _switches(core: ModuleType) -> tuple[str, ...]:
    return tuple(filter(_SWITCH.fullmatch, dir(core)))


class _Namespace:
    """A module or class, and what its names stand for."""

    def __init__(self, owner: Any, functions: Mapping[str, Any]) -> None:  # noqa: ANN401
        self._owner = owner
        self._functions = functions
        self._values = [*vars(owner).values()]

    def replaced(self) -> str:
        """Return a message on replaced functions; empty without any."""
        values = [*vars(self._owner).values()]
        with suppress(Exception):  # arrays cannot say whether they are equal
            if values == self._values:  # fast: a hundred names in half a microsecond
                return ""
        names = vars(self._owner)
        changed = [name for name, old in self._functions.items() if _differs(old, names.get(name))]
        if changed:
            return f"replaced: {self._owner.__name__}.{', '.join(changed[:3])}"
        self._values = values  # others of its names are no functions
        return ""


def _namespaces() -> Iterator[_Namespace]:
    """Yield modules and classes whose functions must not be replaced."""
    for name, module in [*sys.modules.items()]:
        if name in _CALLED or _TORCH.fullmatch(name):
            classes = [c for c in vars(module).values() if isinstance(c, type)]
            own = [c for c in classes if c.__module__ == name and name not in _CALLED]
            for owner in (module, *own):
                if functions := {k: v for k, v in vars(owner).items() if callable(v)}:
                    yield _Namespace(owner, functions)


def _differs(old: object, new: object) -> bool:
    """Say whether a function was replaced; torch itself wraps some of its functions."""
    if new is old or getattr(new, "__module__", None) == "torch._dynamo.mutation_guard":
        return False
    renamed = getattr(new, "__name__", None) != getattr(old, "__name__", None)
    return renamed or not _INSTALLED.match(_file_of(new))


def _own_code(frame: FrameType | None, thread: threading.Thread | None) -> str:
    """Return the user's function that a thread runs, or will run; empty without any."""
    files = []
    while frame:
        files.append((frame.f_code.co_filename, frame.f_code.co_name))
        frame = frame.f_back
    to_run = (type(thread), getattr(thread, "_target", None), getattr(thread, "function", None))
    files += [(_file_of(thing), getattr(thing, "__qualname__", "")) for thing in to_run]
    own = [f"{name} in {file}" for file, name in files if not _INSTALLED.match(file)]
    return own[0] if own else ""


def _file_of(thing: object) -> str:
    """Return the file that defines a function or class, `<` for built-in ones."""
    thing = getattr(thing, "func", thing)  # of a partial
    code = getattr(getattr(thing, "__func__", thing), "__code__", None)
    module = sys.modules.get(
        getattr(type(thing) if code is None else thing, "__module__", "") or ""
    )
    return str(getattr(code, "co_filename", "") or getattr(module, "__file__", "") or "<")


def _tasks() -> int:
    with suppress(OSError):
        return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - as fast as can be
    return threading.active_count()


def _busy() -> float:
    """Return the share of a core that other threads use; 0 if they stop within half a second."""
    share = 0.0
    for seconds in _LOOKS:
        began = time.perf_counter()
        before = time.process_time() - time.thread_time()
        time.sleep(seconds)
        took = time.process_time() - time.thread_time() - before
        share = took / (time.perf_counter() - began)
        if share < _BUSY:
            return 0.0
    return share
