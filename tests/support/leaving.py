"""What a network may do to its process or to the line to the supervisor: by name, for `acting`.

Run as a program it is a worker whose points do what their `model` says, without torch.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

FORGED = b'{"outcomes": [{"status": "ok", "row": {"median_ms": 0.001}}]}\n'


def nothing():
    """Leave nothing."""


def auto():
    """Be a point of this algorithm."""


autotune = auto


def waits():
    """Take some time."""
    time.sleep(0.1)


def does_by_size():
    """Take some time; the smallest point of this network does what its axis `act` says."""
    waits()


def forks():
    """Go on as two processes."""
    os.fork()


def forks_in_c():
    """Go on as two processes, without Python's knowledge."""
    ctypes.CDLL(None).fork()


def prints():
    """Print what looks like replies."""
    os.write(1, FORGED * 3)


def forges():
    """Write what looks like a reply to every socket."""
    _to_sockets(FORGED)


def forges_late():
    """Write it after the reply."""
    threading.Timer(0.05, _to_sockets, [FORGED]).start()


def half_a_line():
    """Write what the reply is then glued to."""
    _to_sockets(b'{"status": ')


def binary():
    """Write bytes that are no text."""
    _to_sockets(bytes(range(128, 256)) + b"\n")


def closes():
    """Close what is not its own, as daemons do."""
    os.closerange(3, 4096)


def names_a_file():
    """Complain of a name that is no text."""
    raise FileNotFoundError(os.fsdecode(b"no \xff.pt"))


def _to_sockets(data):
    for number in _sockets():
        os.write(number, data)


def _sockets():
    for path in [*Path("/proc/self/fd").iterdir()]:
        with suppress(OSError):
            if str(path.readlink()).startswith("socket:"):
                yield int(path.name)


def hears_nothing():
    """Let no request come through."""
    for number in _sockets():
        socket.socket(fileno=os.dup(number)).shutdown(socket.SHUT_RD)


def reads_nothing():
    """Break what reads requests."""
    json.loads = lambda _: {}


def ends_later():
    """Let the process end while another point is measured."""
    faulthandler.dump_traceback_later(0.05, exit=True)


def _spin():
    while True:
        sum(range(1000))


def spins():
    """Leave a thread that computes."""
    threading.Thread(target=_spin, name="spinning", daemon=True).start()


def spins_unnamed():
    """Leave a thread that Python's list of threads does not have."""
    import _thread

    _thread.start_new_thread(_spin, ())


def plans():
    """Leave a timer that will act later."""
    timer = threading.Timer(600, _spin)
    timer.daemon = True
    timer.start()


def daemonises():
    """Leave a process in a session of its own, whose parent is gone."""
    subprocess.run(["sh", "-c", "setsid sleep 600 &"], check=True)


def keeps_a_child():
    """Leave a child that waits."""
    if not os.fork():
        time.sleep(600)
        os._exit(0)


def segfaults_with_a_child():
    """Die of a fault in the second thread, and leave a child that holds all files."""
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    if not os.fork():
        os.setsid()
        time.sleep(600)
        os._exit(0)
    strike_here()


def strike_here():
    """Die of a fault."""
    os.kill(os.getpid(), signal.SIGSEGV)


strikes_here = strike_here


def hangs():
    """Never come back."""
    time.sleep(600)


def hogs():
    """Keep all processors busy, with more processes than there are."""
    for _ in range(4 * os.cpu_count()):
        subprocess.Popen([sys.executable, "-c", "while True: pass"])


def breaks_cuda():
    """Leave a context that no later call can use."""
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def switches_to_float64():
    """Let torch make other tensors."""
    import torch

    torch.set_default_dtype(torch.float64)


def says_much_and_ends():
    """Print more than anybody reads, then the last words."""
    os.write(2, b"noise\n" * 300_000 + b"the last words\n")
    os._exit(7)


def throws_in_cpp():
    """Die as C++ does of an exception that nobody catches, as torch's in a destructor."""
    told = (
        b"terminate called after throwing an instance of 'c10::AcceleratorError'\n"
        b"  what():  CUDA error: an illegal memory access was encountered\n"
        b"CUDA kernel errors might be asynchronously reported at some other API call.\n\n"
        b"frame #0: c10::cuda::c10_cuda_check_implementation(int)\n"
    )
    os.write(2, told)
    os.abort()


def terminates():
    """Die as C++ does without an exception; the runtime library says it."""
    ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev()


def says_it_threw_and_strikes():
    """Print what another process said when it died, and die of something else."""
    os.write(2, b"terminate called after throwing an instance of 'X'\n  what():  nothing\n")
    strike_here()


def says_fatal_and_ends():
    """Print what looks like a fault, and end in another way."""
    os.write(2, b"Fatal Python error: none\nCurrent thread 0x1\n  File x, line 1\nand goes on\n")
    os._exit(3)


def changes_folder():
    """Go elsewhere."""
    os.chdir("/")


def lowers_a_limit():
    """Let later points have little memory."""
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 34, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def sets_a_variable():
    """Change the environment."""
    os.environ["OMP_SCHEDULE"] = "dynamic"


def traces():
    """Watch every call."""
    sys.setprofile(lambda *_: None)


def collects_nothing():
    """Switch garbage collection off."""
    gc.disable()


def hears():
    """Take a signal."""
    signal.signal(signal.SIGWINCH, lambda *_: None)


def sets_an_alarm():
    """Let a signal come later."""
    signal.setitimer(signal.ITIMER_REAL, 600)


def masks_files():
    """Let nobody else read new files."""
    os.umask(0o077)


def is_nice():
    """Let others go first."""
    os.nice(1)


def stops_the_clock():
    """Replace what times passes."""
    time.perf_counter_ns = lambda: 0


def ignores():
    """Ignore a signal in C, as some libraries do."""
    ctypes.CDLL(None).signal(signal.SIGHUP, ctypes.c_void_p(1))


def lets_others_go():
    """Run where nobody else wants to."""
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def adds_a_folder():
    """Let names of modules mean something else."""
    sys.path.insert(0, "/nowhere")


def redirects_output():
    """Let the log be lost."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def acting(name):
    """Return a network of torch that does a thing in its first real pass."""
    from torch import nn

    class Acting(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.done = nn.Conv2d(3, 4, 3), False

        def forward(self, x):
            if not self.done and x.device.type != "meta":
                self.done = True
                globals()[name]()
            return self.conv(x)

    return Acting()


def __getattr__(name):
    """Make such networks: `leaving:network_that_spins`."""
    if name.startswith("network_that_"):
        return lambda: acting(name.removeprefix("network_that_"))
    raise AttributeError(name)


class Bench:
    """Does what a point's `model` names, and takes as many ms as its `input_size` says."""

    def __init__(self):
        """Know nothing."""
        self.history = {}

    def environment(self):
        """Return nothing."""
        return {"row": {}}

    def measure(self, point, _tries=0, progress=None):
        """Act, and tell a time and the process; `in_check` acts when the point has its times."""
        from hpcsweep.measure.bench_api import Measurement

        ms = float(point.axes.get("input_size", 1))
        if in_check := point.axes.get("in_check"):
            found = Measurement({"median_ms": ms}, [], [ms], timed_s=0.0)
            if "numerics" not in progress.skipped:
                progress.begins("numerics", found, ["control"])
                globals()[in_check]()
            return found
        act = os.environ.get("LEAVING_ACT") or point.axes["model"]
        globals()[point.axes.get("act", act) if ms == 1 else act]()
        return Measurement({"median_ms": ms, "node": str(os.getpid())}, [], [ms], timed_s=0.0)


def worker(module, *arguments):
    """Return the command of a worker, or template, with this bench: for `processes.python`."""
    return [sys.executable, __file__, module, *map(str, arguments)]


def liar(said):
    """Return the command of a process that says so for each request; ID is put in."""
    program = f"""\
import json, socket, sys
line = socket.socket(fileno=int(sys.argv[1]))
line.sendall(b'{{"env": {{}}}}\\n')
for request in line.makefile("rb"):
    (asked,) = json.loads(request)["ids"]
    said = {said!r}.replace("ID", asked)
    line.sendall(said.encode() + b"\\n")
"""
    return lambda _module, *arguments: [sys.executable, "-c", program, *map(str, arguments)]


if __name__ == "__main__":
    from hpcsweep.node import worker as real

    setattr(real, "bench_of", lambda *_: Bench())  # noqa: B010 - a name that it imports
    real.import_all = lambda: None
    sys.exit(real.main(sys.argv[2:]))
