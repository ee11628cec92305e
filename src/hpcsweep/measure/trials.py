"""Asks about each network in a process of its own, and ends whatever that process has started.

`hpcsweep.submit.trials` runs this module as a program: a question comes in on stdin, and answers go
out on stdout, one JSON object a line. This process imports torch and computes nothing. For each
network it forks a keeper, which forks the trial that runs the network, sees how that ends, and
kills what it left behind. A keeper also ends its trial when nobody reads the answers any more.
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import torch._dynamo  # noqa: F401 - the first pass of each network would import it, in 2 s

from hpcsweep import processes, search_path
from hpcsweep.measure import inputs, models

_Questions = Sequence[Mapping[str, Any]]
_Tell = Callable[[Mapping[str, Any]], None]

_AT_ONCE: Final = 2  # a login node is shared, and each network may be large
_SLOW_SECONDS: Final = 10.0  # after which a person wonders what is going on
_LOOK_SECONDS: Final = 0.02  # a network with few layers takes about as long
CUDNN: Final = "cuDNN"  # in the place of a network's name


@dataclass
class _Trial:
    """A network that is being tried; its answers are in a file, one a line."""

    name: str
    questions: _Questions
    file: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    began: float = field(default_factory=time.monotonic)
    is_slow: bool = False

    def write(self, answer: Mapping[str, Any]) -> None:
        """Add a line; it begins with a line's end, since the one before may have been cut off."""
        os.write(self.file.fileno(), b"\n" + json.dumps(answer).encode() + b"\n")

    def answers(self) -> list[dict[str, Any]]:
        """Return the answers; how the trial ended stands for those that did not come."""
        self.file.seek(0)
        lines = list[dict[str, Any]]()
        for line in self.file:
            with suppress(ValueError):  # cut off, or between two
                lines.append(json.loads(line))
        ending = lines.pop() if lines else {"failed": "what watches its process was killed"}
        return lines + [ending] * (len(self.questions) - len(lines))


def main() -> int:
    """Answer about each network, and of cuDNN about the convolutions that were found."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is imported may print
    asked = json.load(sys.stdin)
    search_path.use(asked["search_path"])
    networks: dict[str, _Questions] = asked["networks"]
    if any(":" not in name for name in networks):
        models.torchvision_models()  # once for all
    gc.freeze()  # or the first search for garbage in each copy would copy all that it shares

    def tell(reply: Mapping[str, Any]) -> None:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    out = replies.fileno()
    found = _tried(networks, asked["seconds"], out, tell)
    if asked["devices"] is not None:
        about = engines_for(found, asked["devices"])
        _tried({CUDNN: [about]}, asked["seconds"], out, tell)
    return 0


def engines_for(
    found: Mapping[str, Sequence[Mapping[str, Any]]], devices: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the question for the engines of all convolutions that networks were found to have."""
    shapes: dict[str, Any] = {}
    for answers in found.values():
        for answer in answers:
            for call in answer.get("calls", ()):
                shapes[call["key"]] = call["shape"]
    return {"about": "engines", "devices": devices, "convolutions": shapes}


def _tried(
    networks: Mapping[str, _Questions], seconds: float, out: int, tell: _Tell
) -> dict[str, list[dict[str, Any]]]:
    """Try all networks, a few at a time; tell the answers as they come, and who is slow."""
    waiting = [*networks.items()]
    running: dict[int, _Trial] = {}
    found: dict[str, list[dict[str, Any]]] = {}
    while waiting or running:
        if waiting and len(running) < _AT_ONCE:
            trial = _Trial(*waiting.pop(0))
            running[_keeper(trial, seconds, out)] = trial
            continue
        ended, _ = os.waitpid(-1, os.WNOHANG)
        if ended:
            trial = running.pop(ended)
            found[trial.name] = trial.answers()
            tell({"network": trial.name, "answers": found[trial.name]})
            continue
        for trial in running.values():
            if not trial.is_slow and time.monotonic() > trial.began + _SLOW_SECONDS:
                trial.is_slow = True
                tell({"slow": trial.name})
        time.sleep(_LOOK_SECONDS)
    return found


def _keeper(trial: _Trial, seconds: float, out: int) -> int:
    """Fork the process that tries a network, and ends it in time; return its id."""
    keeper = processes.fork()
    if keeper == 0:
        try:
            processes.adopt_orphans()  # also those that made a session of their own
            trial.write(_watched(trial, seconds, out))
        finally:
            os._exit(0)
    return keeper


def _watched(trial: _Trial, seconds: float, out: int) -> dict[str, str]:
    """Return how a trial ended: by itself, or since it took too long or nobody reads answers."""
    pid = processes.fork()
    if pid == 0:
        try:
            _answer(trial, out)
        finally:
            os._exit(0)  # threads that the network started may never end
    reader = select.poll()
    reader.register(out, 0)  # tells errors alone: that the other end is closed
    until = time.monotonic() + seconds
    ended, status = os.waitpid(pid, os.WNOHANG)
    while not ended and time.monotonic() < until and not reader.poll(1000 * _LOOK_SECONDS):
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


def _answer(trial: _Trial, out: int) -> None:
    """Write an answer to each question. What the network prints is lost; it has nothing to read."""
    os.setsid()
    processes.die_with_parent()
    os.close(out)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    with suppress(OSError):  # only Linux has it
        # where memory is short, this process is to be killed, and none of the user's others
        Path("/proc/self/oom_score_adj").write_text("1000")
    own = os.getpid()
    for question in trial.questions:
        answer = inputs.answer(question)
        if os.getpid() != own:
            return  # the network forked, and this is the copy
        trial.write(answer)


if __name__ == "__main__":
    sys.exit(main())
