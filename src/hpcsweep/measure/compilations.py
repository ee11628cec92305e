"""Detects by torch's counters whether it compiles, and finds layers inside compiled code.

A part under `torch.compile` compiles in its first run, and again when a guard fails; after eight
times it runs uncompiled. Timers inside it would change its code, and would be compiled themselves.
So passes are timed when nothing compiles any more, and layers inside compiled code have no times.
torch.jit has no counters, but compiles in its first runs only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torch import nn

    from hpcsweep.measure.shape_pass import LayerCall

# torch.jit records in the first, compiles in the second, and tunes in the third
RUNS: Final = 3
# Passes without compilation before timing, if there was any: some networks compile in each third.
_CALM: Final = 6
# passes to wait for that; then the row is flagged. Torch gives up after eight compilations, which
# such a network has within some 30 passes.
_MOST: Final = 120


def compilations() -> int:
    """Return a count that grows whenever torch compiles in this process."""
    utils = sys.modules.get("torch._dynamo.utils")  # it takes seconds to import
    if utils is None:
        return 0
    return sum(counter.total() for counter in list(utils.counters.values()))


def forget() -> None:
    """Drop compiled code, so that a point does not depend on the shapes of earlier points.

    The counters are dropped, too, so that a point that compiles nothing need not wait for calm.
    """
    if compilations():  # on a GPU the first reset imports the whole compiler, which takes a second
        dynamo = sys.modules["torch._dynamo"]
        dynamo.reset()
        dynamo.utils.counters.clear()


@dataclass
class CompileCount:
    """Counts the blocks of passes in which torch compiled."""

    blocks: int = 0

    @contextmanager
    def block(self) -> Iterator[None]:
        """Compare torch's counters before and after a block."""
        before = compilations()
        yield
        self.blocks += compilations() != before


@dataclass
class Calm:
    """Waits for `wanted` passes in a row without compilation; gives up after `_MOST` more."""

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
        """Compare torch's counters before and after a pass."""
        before = self.compiled.blocks
        with self.compiled.block():
            yield
        self._ran += 1
        self._row += 1
        if self.compiled.blocks > before:
            self._row = 0
            self.wanted = max(self.wanted, _CALM)


def settle(run: Callable[[], object], ran: int) -> int:
    """Run passes, after `ran` others, until calm; return the number of passes that compiled."""
    calm = Calm(_CALM if compilations() else RUNS - ran)
    while not calm.reached:
        with calm.run():
            run()
    return calm.compiled.blocks


def layers_inside(model: nn.Module, calls: Sequence[LayerCall]) -> frozenset[str]:
    """Return the layers of calls inside a module that torch.compile made or changed."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    made = getattr(eval_frame, "OptimizedModule", ())
    inside = set[object]()
    for module in model.modules():
        if isinstance(module, made) or getattr(module, "_compiled_call_impl", None) is not None:
            inside.update(module.modules())
    if not inside:
        return frozenset()
    layers = {call.layer for call in calls}
    return frozenset(name for name in layers if model.get_submodule(name) in inside)
