"""Answers about networks, each in a process of its own, and ends whatever that has started.

`hpcsweep.submit.questions` runs this module as a program, and has the other end of the socket that
is its stdin and stdout. Requests come in and replies go out, one JSON object a line. This process
imports torch and computes nothing. For each request it forks the trial that runs the network, sees
how that ends, and kills what it left behind, also when nobody waits for the reply any more. One
network is tried at a time: a login node is shared, and a network may be large.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torch._dynamo  # noqa: F401 - the first pass of each network would import it, in 2 s

from hpcsweep import processes, sources
from hpcsweep.measure import inputs, model_builder

_LOOK_SECONDS: Final = 0.02  # a network with few layers takes about as long


def main() -> int:
    """Reply to one request after the other, until the other end is closed."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is imported may print
    sources.look_in(sys.argv[1:])
    processes.adopt_orphans()  # also those that make a session of their own
    print(file=replies, flush=True)  # ready: only now the time of a network begins
    for line in sys.stdin:
        request = json.loads(line)
        about = {question["about"] for question in request["questions"]}
        if ":" not in request["network"] and about != {"engines"}:  # which needs no network
            model_builder.torchvision_models()  # once for all
        gc.freeze()  # or the first search for garbage in each copy would copy all that it shares
        answers = _tried(request["questions"], request["seconds"], replies.fileno())
        print(json.dumps(answers), file=replies, flush=True)
    return 0


def _tried(
    questions: Sequence[Mapping[str, Any]], seconds: float, asker: int
) -> list[dict[str, Any]]:
    """Return an answer to each question; how the trial ended stands for those that did not come."""
    answers = list[dict[str, Any]]()
    with tempfile.TemporaryFile() as file:
        pid = processes.fork()
        if pid == 0:
            try:
                _answer(questions, file.fileno(), asker)
            finally:
                os._exit(0)  # threads that the network started may never end
        ending = _ending(pid, seconds, asker)
        file.seek(0)
        for line in file:
            with suppress(ValueError):  # it was cut off
                answers.append(json.loads(line))
    return answers + [ending] * (len(questions) - len(answers))


def _ending(pid: int, seconds: float, asker: int) -> dict[str, str]:
    """Return how a trial ended: by itself, or since it took too long or nobody waits for it."""
    hang_up = select.poll()
    hang_up.register(asker, 0)  # tells nothing but that the other end is closed
    until = time.monotonic() + seconds
    ended, status = os.waitpid(pid, os.WNOHANG)
    while not ended and time.monotonic() < until and not hang_up.poll(1000 * _LOOK_SECONDS):
        ended, status = os.waitpid(pid, os.WNOHANG)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # where no process can adopt, this is all that can be done
    processes.end_orphans()
    if not ended:
        return {"failed": f"no answer within {seconds:.0f} s"}
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return {"wrong": f"it ends the process that runs it, with exit code {code}"}
    why = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
    return {"failed": f"its process ended by signal {-code} ({signal.strsignal(-code)}){why}"}


def _answer(questions: Sequence[Mapping[str, Any]], file: int, asker: int) -> None:
    """Write an answer to each question. What the network prints is lost; it has nothing to read."""
    os.setsid()
    processes.die_with_parent()
    os.close(asker)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    with suppress(OSError):  # only Linux has it
        # where memory is short, this process is to be killed, and none of the user's others
        Path("/proc/self/oom_score_adj").write_text("1000")
    own = os.getpid()
    for question in questions:
        answer = inputs.answer(question)
        if os.getpid() != own:
            return  # the network forked, and this is the copy
        os.write(file, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
