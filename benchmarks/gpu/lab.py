"""What a step works with: a device, a file, options, and the time that is left."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks.gpu import machine as machines
from benchmarks.gpu import processes
from benchmarks.gpu.record import LATE, STOPPED, Record, reason
from hpcsweep import catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.gpu.machine import Gpu

Item = TypeVar("Item")


class Stop(Exception):
    """The step cannot go on; the text says why."""


class OutOfTime(Exception):
    """The time of the step ended within an item."""


@dataclass(frozen=True)
class Options:
    """What every step is told."""

    model: str = "resnet152"
    size: int = 224
    iterations: int = 50
    sizes: tuple[int, ...] = (224, 512, 368)  # of the shipped sweep, from both ends
    algorithms: tuple[str, ...] = tuple(catalog.ALGORITHMS)
    heavy: int = 256  # images of the batch that warms the GPU
    crowd: int = 64  # images that do not fit into what is left of a full GPU
    shapes: int | None = None  # distinct convolutions; all
    most: int = 20  # convolutions of the steps that take long for each
    idle_s: float = 1.5  # between profiler sessions, since what they lose grows with it
    tests: str = "tests"  # the folder, or the file


SMALL = Options(
    *("tinynets:Residual", 32, 4, (32, 73), ("auto", "autotune", "implicit_gemm")),
    heavy=4,
    crowd=1024,
    shapes=2,
    most=2,
    idle_s=0.1,
    tests="tests/measure/machine/test_fit.py",
)  # on a pretend GPU


@dataclass
class Lab:
    """A step's surroundings."""

    machine: Gpu
    record: Record
    options: Options = field(default_factory=Options)
    ends: float = float("inf")  # by time.monotonic, which all processes share

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return self.ends - time.monotonic()

    def each(self, items: Mapping[str, Item]) -> Iterator[tuple[str, Item]]:
        """Plan items; yield those that the file does not have yet, while there is time."""
        self.record.plan(items)
        for key, item in items.items():
            if key in self.record.found or key in self.record.failed:
                continue
            if self.left <= 0:
                return
            yield key, item

    @contextmanager
    def entry(self, key: str) -> Iterator[dict[str, Any]]:
        """Keep the facts that the block finds, or why it failed; nothing if its time was over.

        Raises:
            Stop: the device does not answer any more.

        """
        facts: dict[str, Any] = {}
        try:
            yield facts
        except OutOfTime:
            print(f"{key}: its time is over", flush=True)  # another call tries it again
        except Exception as error:  # libraries raise what they like, and the next one is tried
            self.record.fail(key, reason(error))
            print(f"{key}: FAILED: {reason(error)}", flush=True)
            if not machines.answers(self.machine):
                raise Stop("the device answers no more; run the step again to continue") from error
        else:
            self.record.put(key, facts)
            print(f"{key}: {str(facts)[:300]}", flush=True)

    def call(self, *command: str) -> None:
        """Run a program in the time that is left; it writes to a log beside the step's file.

        Raises:
            OutOfTime: it did not end until then.
            RuntimeError: it failed.

        """
        assert self.record.folder is not None
        log = self.record.folder / f"{self.record.step}.log"
        ended = processes.run(command, self.left, log=log)
        if ended == processes.TOO_LATE:
            raise OutOfTime
        if ended != processes.DONE:
            raise RuntimeError(f"{ended}: {log.read_text()[-250:]}")


def alone(function: Callable[..., Item], *arguments: object) -> Item:
    """Return what a function returns in a process of its own: without plans, or a profiler."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(function, *arguments).result()


def end(lab: Lab) -> None:
    """Say in the file whether everything was tried."""
    if lab.record.missing:
        lab.record.end(LATE, "run the step again to continue")
    elif lab.record.state != STOPPED:
        lab.record.end("complete")
