"""Tells whether torch compiles, by its own counters, and which layers are inside compiled code.

A part under `torch.compile` compiles when it first runs, and again when something changes that it
relies on; after eight times it runs without. Timers inside it would change its code, and would be
compiled themselves. So passes are timed when nothing compiles any more, and layers inside compiled
code have no times. torch.jit has no counters, but it is done after a number of runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torch import nn

    from hpcsweep.measure.shape_pass import LayerCall
    from hpcsweep.measure.timing.loop import Lane

RUNS: Final = 3  # torch.jit looks at the first, compiles in the second, and tunes in the third
_CALM: Final = 6  # passes without compilation, where there was any
_MOST: Final = 120  # passes that wait for that


def compilations() -> int:
    """Return how much torch compiled in this process: any growth is a compilation."""
    utils = sys.modules.get("torch._dynamo.utils")  # it takes seconds to import
    counters = getattr(utils, "counters", {})
    return sum(sum(counter.values()) for counter in list(counters.values()))


def forget() -> None:
    """Drop compiled code, so that a point does not depend on the shapes of those before it.

    Its counters, too: a point that compiles nothing has not to wait for calm.
    """
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()
        dynamo.utils.counters.clear()


@dataclass
class CompileCount:
    """Counts the blocks of passes in which torch compiled."""

    blocks: int = 0

    @contextmanager
    def block(self) -> Iterator[None]:
        """Look at the counters around a block."""
        before = compilations()
        yield
        self.blocks += compilations() != before


@dataclass
class Calm:
    """Waits for a number of passes in a row in which nothing compiles; gives up in the end."""

    wanted: int
    compiled: CompileCount = field(default_factory=CompileCount)
    _row: int = 0
    _ran: int = 0

    @property
    def reached(self) -> bool:
        """Whether passes may be timed."""
        return self._row >= self.wanted or self._ran >= self.wanted + _MOST

    @contextmanager
    def run(self) -> Iterator[None]:
        """Look at the counters around a pass."""
        before = self.compiled.blocks
        with self.compiled.block():
            yield
        self._ran += 1
        self._row += 1
        if self.compiled.blocks > before:
            self._row, self.wanted = 0, max(self.wanted, _CALM)


def settle(lane: Lane, ran: int) -> int:
    """Run a lane, which ran so often before, until calm; return in how many passes it was not."""
    calm = Calm(_CALM if compilations() else RUNS - ran)
    while not calm.reached:
        with calm.run(), lane.around(1):
            lane.clock.block(lane.run, 1)
    return calm.compiled.blocks


def layers_inside(model: nn.Module, calls: Sequence[LayerCall]) -> frozenset[str]:
    """Return the layers of calls that are inside a module which torch.compile made or changed."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    made = getattr(eval_frame, "OptimizedModule", ())
    compiled = [
        module
        for module in model.modules()
        if isinstance(module, made) or getattr(module, "_compiled_call_impl", None) is not None
    ]
    inside = {id(module) for part in compiled for module in part.modules()}
    layers = {call.layer for call in calls} if inside else set[str]()
    return frozenset(name for name in layers if id(model.get_submodule(name)) in inside)
