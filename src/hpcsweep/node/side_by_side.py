"""Runs the chunks of a job that has several GPUs: a supervisor for each, side by side.

Its arguments are SUBMISSION CHUNK GPUS: CHUNK and the next ones have a GPU of the job each, and a
share of its cores. Signals to stop go on to every supervisor. One that dies leaves the others
going. When all have ended, the exit code tells the job whether to requeue itself; those that are
done end at once in its next attempt.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcsweep import environment, processes
from hpcsweep.errors import EXIT_REQUEUE, HpcsweepError, Refused
from hpcsweep.node import neighbours
from hpcsweep.store import folders

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# What a job script, or submitit, hands on (`node.job_limits` says what each means)
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
# What Slurm sets to the GPUs of a job. It may set all of them on a node of any vendor.
_CUDA: Final = "CUDA_VISIBLE_DEVICES"
_AMD: Final = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_TOPOLOGY: Final = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def main(argv: list[str]) -> int:
    """Run the supervisors; return the exit code for the job script."""
    path = Path(argv[0])
    first = int(argv[1])
    gpus = int(argv[2])
    try:
        submission = folders.SweepDir(path.parent.parent).submission(path.name)
        manifest = submission.read_manifest()
        # chunks of other nodes follow those of this one
        ends = accumulate(manifest.chunks_of_nodes.values())
        own = range(first, min(first + gpus, *(end for end in ends if end > first)))
        variables = [with_one_gpu(os.environ, place, gpus) for place in range(len(own))]
    except HpcsweepError as error:
        sys.stderr.write(f"hpcsweep: {error}\n")
        return error.exit_code
    job = SideBySide(gpus)
    for number in _SIGNALS:
        signal.signal(number, job.hand_on)
    shares = cores(os.sched_getaffinity(0), gpus)
    for place in range(len(own)):
        job.board.starts(place)
    for place, chunk in enumerate(own):
        command = processes.python("hpcsweep.node.supervisor", path, chunk)
        job.start(place, command, variables[place], shares[place])
    return job.wait()


class SideBySide:
    """The supervisors of a job."""

    def __init__(self, gpus: int) -> None:
        self.board = neighbours.make_board(gpus)
        self._live: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}  # by pid, with its place
        self._codes: list[int] = []
        self._came: list[int] = []  # signals

    def hand_on(self, number: int, _frame: object) -> None:
        """Send a signal to every supervisor that lives; no other is started."""
        self._came.append(number)
        for pid in self._live:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def start(
        self, place: int, command: Sequence[str], variables: Mapping[str, str], share: Iterable[int]
    ) -> None:
        """Start a supervisor on its share of the cores."""
        if self._came:
            self.board.has_ended(place)
            self._codes.append(EXIT_REQUEUE)
            return
        told = {**variables, environment.NEIGHBOURS: self.board.variable(place)}
        every = os.sched_getaffinity(0)
        os.sched_setaffinity(0, share)  # which the new process inherits
        process = subprocess.Popen(command, env=told, pass_fds=(self.board.fd,))
        os.sched_setaffinity(0, every)
        self._live[process.pid] = place, process
        for number in self._came:  # while it was being started
            process.send_signal(number)

    def wait(self) -> int:
        """Wait for all; return 75 if points are left, else the code of one that failed, else 0."""
        while self._live:
            pid, status = os.wait()
            if pid not in self._live:
                continue
            place, process = self._live.pop(pid)
            process.returncode = os.waitstatus_to_exitcode(status)
            self.board.has_ended(place)
            self._codes.append(process.returncode)
        # a supervisor that was killed says nothing of its points
        if any(code == EXIT_REQUEUE or code < 0 for code in self._codes):
            return EXIT_REQUEUE
        return max(self._codes, default=0)


def with_one_gpu(variables: Mapping[str, str], place: int, gpus: int) -> dict[str, str]:
    """Return the variables of a supervisor, to which one GPU of the job's is left.

    The GPUs are the numbers, UUIDs or slices that Slurm gave; where it gave none, all of the node.
    HIP counts the devices of one variable among those that another leaves, so one alone stays.

    Raises:
        Refused: the job has fewer GPUs than it is to use.
    """
    is_amd = environment.AMD_DRIVER.exists()
    # a site may set the variables of both vendors on every node
    names = (*_AMD, _CUDA) if is_amd or not variables.get(_CUDA) else (_CUDA,)
    given = [name for name in names if variables.get(name)]
    if not given:
        return {**variables, (_AMD[0] if is_amd else _CUDA): str(place)}
    name = given[0]
    devices = [word.strip() for word in variables[name].split(",") if word.strip()]
    if len(devices) < gpus:
        raise Refused(
            f"{os.uname().nodename}: the job has {name}={variables[name]}, and its profile's "
            f"`gpus_per_job` is {gpus}; ask for as many in `gres`"
        )
    others = {key: value for key, value in variables.items() if key not in given}
    return {**others, name: devices[place]}


def cores(given: Iterable[int], shares: int) -> list[list[int]]:
    """Return the cores of each supervisor: equal runs of them, or all where there are fewer.

    The threads of one core stay together. Neighbouring cores share a socket and its memory.
    """
    ordered = sorted(given, key=lambda number: (_first_thread(number), number))
    share = len(ordered) // shares
    if not share:
        return [ordered] * shares
    return [ordered[place * share : (place + 1) * share] for place in range(shares)]


def _first_thread(number: int) -> int:
    """Return the first of the threads of a core; the thread itself where nothing tells."""
    with suppress(OSError, ValueError):
        listed = Path(_TOPOLOGY.format(number)).read_text(encoding="ascii")
        return int(listed.replace("-", ",").partition(",")[0])
    return number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
