"""Imports torch once, and forks a worker for each socket that the supervisor sends.

Its argument is the number of the socket through which these sockets come. Until it forks, it runs
no operator, starts no thread, and does not ask torch for a GPU: a copy of a process that did could
hang, or find no GPU. Its environment, which libraries read when they are loaded, is complete before
it starts. If it cannot import torch it ends, and workers are started without it.

A worker is forked twice: as an orphan it becomes a child of the supervisor, which adopts them, and
sees how it ends.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
from typing import Final

from hpcsweep import processes
from hpcsweep.node import worker

# between two looks whether the parent is gone: it ends at once, and a point waits for it
_LOOK_SECONDS: Final = 0.001


def main(argv: list[str]) -> int:
    """Fork workers until the supervisor hangs up; in a worker, return its exit code."""
    worker.ignore_signals()
    processes.die_with_parent()
    import_all()
    gc.freeze()  # or a worker's first search for garbage would copy all that it shares
    requests = socket.socket(fileno=int(argv[0]))
    while True:
        _, sockets, *_ = socket.recv_fds(requests, 1, 1)
        if not sockets:
            return 0
        between = processes.fork()
        if between == 0:
            requests.close()
            parent = os.getpid()
            if processes.fork():
                os._exit(0)
            os.setsid()
            while os.getppid() == parent:  # until the supervisor has adopted this process
                time.sleep(_LOOK_SECONDS)
            return worker.main([str(sockets[0]), str(os.getpid())])
        os.close(sockets[0])
        os.waitpid(between, 0)


def import_all() -> None:
    """Import what every worker needs."""
    # ruff: noqa: F401, PLC0415 - all of it is slow
    import torchvision

    from hpcsweep.measure.machine import drivers, fit, provenance
    from hpcsweep.measure.measure_point import PointBench
    from hpcsweep.measure.workloads.inference import Inference
    from hpcsweep.measure.workloads.training.workload import Training


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
