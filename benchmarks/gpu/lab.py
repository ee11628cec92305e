"""What a step works with: a device, a file, options, and the time that is left."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks.gpu import machine as machines
from benchmarks.gpu.record import LATE, STOPPED, Record, reason
from hpcsweep.errors import HpcsweepError
from hpcsweep.measure.bench_api import CannotMeasure, OutOfMemory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from benchmarks.gpu.machine import Machine

Item = TypeVar("Item")
# what an item may end with, and the next one is tried
FAILURES = (CannotMeasure, OutOfMemory, HpcsweepError, RuntimeError, MemoryError)


class Stop(Exception):
    """The step cannot go on; the text says why."""


@dataclass(frozen=True)
class Options:
    """What every step is told."""

    model: str = "resnet152"
    size: int = 224
    iterations: int = 50
    sizes: int = 3
    gpu: str = "gpu"


@dataclass
class Lab:
    """A step's surroundings."""

    machine: Machine
    record: Record
    options: Options = field(default_factory=Options)
    ends: float = float("inf")  # by time.monotonic

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
        """Keep the facts that the block finds, or why it failed.

        Raises:
            Stop: the device does not answer any more.

        """
        facts: dict[str, Any] = {}
        try:
            yield facts
        except FAILURES as error:
            self.record.fail(key, reason(error))
            print(f"{key}: FAILED: {reason(error)}", flush=True)
            if not machines.answers(self.machine):
                raise Stop("the device answers no more; run the step again to continue") from error
        else:
            self.record.put(key, facts)
            print(f"{key}: {str(facts)[:300]}", flush=True)

    def need_gpu(self) -> None:
        """Raise `Stop` on a machine without one."""
        if self.machine.kind != "cuda":
            raise Stop("this step needs a GPU")


def end(lab: Lab) -> None:
    """Say in the file whether everything was tried."""
    if lab.record.missing:
        lab.record.end(LATE, "run the step again to continue")
    elif lab.record.state != STOPPED:
        lab.record.end("complete")
