"""Gives one input to the program, and watches what it takes; many inputs in forked processes."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import re
import resource
import selectors
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.hostile import place as places
from benchmarks.hostile.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.hostile.place import Place
    from benchmarks.hostile.targets import Target

SECONDS: Final = 5.0  # of CPU
MEGABYTES: Final = 500.0  # resident, of the whole process
_ENDED_S: Final = 20.0  # of CPU: an input is given up there
_SILENT_S: Final = 120.0  # a process that says nothing for so long is killed
_ROOM: Final = 3 << 30  # bytes of address space beyond what a process begins with
_BATCH: Final = 250


class LateError(BaseException):
    """An input takes too long; no `except Exception` may catch it."""


@dataclass(frozen=True)
class Verdict:
    """What became of one input."""

    number: int
    refused: bool
    seconds: float
    megabytes: float
    wrong: str = ""  # the last frames of what was raised

    @property
    def costly(self) -> bool:
        """Say whether it took more than an input may take."""
        return self.seconds > SECONDS or self.megabytes > MEGABYTES


@dataclass(frozen=True)
class Batch:
    """Some inputs of one target, by number."""

    target: str
    seed: int
    numbers: range

    def rest(self, after: int) -> Batch:
        """Return the inputs after one."""
        return Batch(self.target, self.seed, range(after + 1, self.numbers.stop))


def drawn(target: Target, place: Place, seed: int, number: int) -> bytes:
    """Return an input: the same for the same seed and number."""
    return target.draw(place, random.Random(f"{target.name} {seed} {number}"))


def judged(target: Target, place: Place, data: bytes, number: int = 0) -> Verdict:
    """Give one input to the program."""
    place.refused = False
    wrong = ""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    began = time.process_time()
    signal.signal(signal.SIGPROF, _late)
    signal.setitimer(signal.ITIMER_PROF, _ENDED_S)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            target.read(place, data)
    except (Exception, LateError) as error:  # noqa: BLE001 - it is what is looked for
        wrong = "".join(traceback.format_exception(error)[-6:])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return Verdict(number, place.refused, time.process_time() - began, _peak(), wrong)


def _late(*_: object) -> None:
    raise LateError


def _peak() -> float:
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(found[1]) / 1024 if found else 0.0


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """Give a folder in memory, where there is one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="hostile-", dir=memory if memory.is_dir() else None
    ) as name:
        yield Path(name)


def load_everything(folder: Path, names: Sequence[str]) -> None:
    """Give each target its seeds as they are; raise for one that is not read as it should be."""
    folder.mkdir()
    place = places.enter(folder)
    for name in names:
        for data in TARGETS[name].seeds(place):
            if wrong := judged(TARGETS[name], place, data).wrong:
                raise SystemExit(f"{name}: a seed is not read: {wrong}")
    gc.collect()
    gc.freeze()


def verdicts(folder: Path, batches: Sequence[Batch], jobs: int) -> Iterator[tuple[Batch, Verdict]]:
    """Run batches in processes of their own, some at a time; a process that dies is one input."""
    waiting = deque(batches)
    running: dict[int, _Child] = {}
    with selectors.DefaultSelector() as selector, _ended(running):
        while waiting or running:
            while waiting and len(running) < jobs:
                child = _Child(folder, waiting.popleft())
                running[child.pipe] = child
                selector.register(child.pipe, selectors.EVENT_READ)
            for key, _ in selector.select(1.0):
                child = running[key.fd]
                yield from ((child.batch, one) for one in child.heard())
                if child.ended:
                    selector.unregister(key.fd)
                    del running[key.fd]
                    yield from ((child.batch, one) for one in child.last_words(waiting))
            for child in running.values():
                if time.monotonic() - child.seen > _SILENT_S:
                    os.kill(child.pid, signal.SIGKILL)


@contextlib.contextmanager
def _ended(running: dict[int, _Child]) -> Iterator[None]:
    """End what still runs, as after Ctrl-C."""
    try:
        yield
    finally:
        for child in running.values():
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)


class _Child:
    """A process that judges the inputs of a batch, and writes a line before and after each."""

    def __init__(self, folder: Path, batch: Batch) -> None:
        self.batch = batch
        self.seen = time.monotonic()
        self.ended = False
        self._begun = batch.numbers.start - 1
        self._done = batch.numbers.start - 1
        self._text = b""
        sys.stdout.flush()
        self.pipe, writing = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                os.close(self.pipe)
                with tempfile.TemporaryDirectory(dir=folder) as name:  # pids come round again
                    _judge_all(Path(name), batch, writing)
                code = 0
            except BaseException:  # noqa: BLE001 - nothing of it may go on in the child
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writing)

    def heard(self) -> Iterator[Verdict]:
        """Yield the verdicts that came since the last time."""
        text = os.read(self.pipe, 1 << 16)
        self.seen = time.monotonic()
        self.ended = not text
        *lines, self._text = (self._text + text).split(b"\n")
        for line in lines:
            record: dict[str, Any] = json.loads(line)
            if len(record) == 1:
                self._begun = record["number"]
            else:
                self._done = record["number"]
                yield Verdict(**record)

    def last_words(self, waiting: deque[Batch]) -> Iterator[Verdict]:
        """Yield the verdict on the input at which the process died, and put the rest back."""
        os.close(self.pipe)
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if self._begun > self._done:
            yield Verdict(self._begun, False, 0.0, 0.0, f"the process ended with {code}")  # noqa: FBT003
            waiting.appendleft(self.batch.rest(self._begun))
        elif code:
            raise SystemExit(f"{self.batch}: the process ended with {code} before its first input")


def _judge_all(folder: Path, batch: Batch, writing: int) -> None:
    """Judge the inputs of a batch; in the child."""
    place = places.enter(folder)
    target = TARGETS[batch.target]
    size = re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text(encoding="ascii"))
    limit = (int(size[1]) << 10 if size else 0) + _ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    for number in batch.numbers:
        os.write(writing, json.dumps({"number": number}).encode() + b"\n")
        data = drawn(target, place, batch.seed, number)
        used = int(time.process_time() + 3 * _ENDED_S)
        resource.setrlimit(resource.RLIMIT_CPU, (used, hard))  # for what hears no signal
        verdict = judged(target, place, data, number)
        os.write(writing, json.dumps(asdict(verdict)).encode() + b"\n")


def batches(name: str, seed: int, count: int) -> list[Batch]:
    """Return the inputs of a target in parts."""
    starts = range(0, count, _BATCH)
    return [Batch(name, seed, range(at, min(at + _BATCH, count))) for at in starts]
