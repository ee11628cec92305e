"""What a profiled pass proved of each convolution call, and when that contradicts a claim.

`profiled_passes` tells the steps of a proof. Code reads a record's fields; `cell` writes it for
people.

A cell reads ``profiler: aten::unfold aten::bmm[1,64,576,3136]``; the numbers of a product are
[batch, m, k, n], those of a transform its last two dimensions. Kernels of a GPU follow the
operators, each one word. Where oneDNN ran, its own report follows:
``onednn: jit:avx512_core convolution_direct``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from hpcsweep.conv.backend import Direction, Expected, Operation, comparable, matches
from hpcsweep.conv.proof.kernels import helps, kernel_word, recognise

if TYPE_CHECKING:
    from hpcsweep.conv.proof.onednn import Primitive

# names in a cell; the longest that is known is an FFT's: two names of calls and five kernels, with
# tensors turned around
_MOST_SHOWN: Final = 10


class Source(Enum):
    """Who says what a call ran."""

    NONE = "none"  # nobody: the profiler did not see the call
    API = "api"  # the library's function that was called; no kernel of it was recorded
    PROFILER = "profiler"


@dataclass(frozen=True)
class Observation:
    """What the profiler saw inside the ranges of one call.

    `operators` are all of them in order, `library_calls` the ranges around calls of a vendor's
    library, `kernels` the GPU's, by their full names. `telling` is the short form for people.
    `kernel_ms` is the time of all kernels and copies together; None if there were none.
    """

    operators: Sequence[str] = ()
    library_calls: Sequence[str] = ()
    kernels: Sequence[str] = ()
    telling: Sequence[Operation] = ()
    kernel_ms: float | None = None

    @property
    def names(self) -> list[str]:
        """All names that a pattern of the back-end is compared with."""
        return [*self.operators, *self.library_calls, *self.kernels]

    @property
    def computing(self) -> list[str]:
        """The kernels that may be a convolution's: what is held against those of an algorithm."""
        return [name for name in self.kernels if not helps(name)]


@dataclass(frozen=True)
class Evidence:
    """What one convolution call ran, or its gradients.

    `seen` is None where the profiler did not see the call. `primitives` are oneDNN's own reports.
    `problem` says what contradicts the algorithm that the call claims; None: nothing does.
    """

    layer: str
    seen: Observation | None = None
    primitives: tuple[Primitive, ...] = ()
    problem: str | None = None

    @property
    def source(self) -> Source:
        if self.seen is None:
            return Source.NONE
        named = (self.seen.library_calls or self.seen.kernels) and not self.seen.computing
        return Source.API if named else Source.PROFILER

    @property
    def lacks_kernel(self) -> bool:
        """Whether the profiler saw the call, but no kernel of it."""
        return self.seen is not None and not self.seen.computing


@dataclass(frozen=True)
class Work:
    """What a profiled pass ran: its convolutions, and the operations of its other products.

    `flops` is None if a product ran of which the profiler has no sizes, such as fused attention.
    `elsewhere` are convolutions that oneDNN reports and no operator called, as in other threads.
    """

    convolutions: int = 0
    flops: int | None = 0
    elsewhere: int = 0


@dataclass(frozen=True)
class Proof:
    """The evidence of each choice, and the convolutions that ran outside of every layer.

    `others_ms` are the kernel times of the layer calls that are no convolutions, in order; `work`
    is that of the forward pass, None if it was not profiled.
    """

    calls: tuple[Evidence, ...] = ()
    outside: tuple[str, ...] = ()
    others_ms: tuple[float | None, ...] = ()
    work: Work | None = None

    @classmethod
    def unseen(cls, layers: Iterable[str]) -> Proof:
        """Return the proof of calls that nobody profiled."""
        return cls(tuple(Evidence(layer) for layer in layers))

    @property
    def source(self) -> Source:
        """The best source that any call has."""
        sources = {call.source for call in self.calls}
        for source in (Source.PROFILER, Source.API):
            if source in sources:
                return source
        return Source.NONE


def cell(evidence: Evidence) -> str:
    """Return evidence as text, for a table or a screen."""
    seen = evidence.seen
    if seen is None:
        return Source.NONE.value
    words = [str(operation) for operation in seen.telling]
    words += dict.fromkeys(kernel_word(name) for name in seen.kernels)
    text = f"{evidence.source.value}: {' '.join(words[:_MOST_SHOWN]) or Source.NONE.value}"
    recognised = recognise(seen.kernels)
    if recognised.algorithms:
        text += f"; kernels of {recognised}"
    for report in evidence.primitives:
        way = "" if report.way is Direction.FORWARD else f" {report.way.value}"
        text += f"; onednn{way}: {report.implementation} {report.algorithm}"
    return f"mismatch ({evidence.problem}); {text}" if evidence.problem else text


def contradiction(seen: Observation, expected: Expected) -> str | None:
    """Return the first thing that does not fit, or None."""
    names = seen.names
    for name in names:
        if matches(name, expected.must_not):
            return f"ran {name}"
    if expected.algorithm:
        other = recognise(seen.kernels).against(expected.algorithm)
        if other:
            return f"ran {kernel_word(other)}, which is of {recognise([other])}"
    for group in expected.must:
        if not any(matches(name, group) for name in names):
            return f"no {group[0]}"
    for group in expected.kernels:
        # a profiler that recorded no kernel at all has not seen that one is missing
        computing = seen.computing
        if computing and not any(matches(name, group) for name in computing):
            return f"no {group[0]}"
    return None


def other_work(telling: Iterable[Operation], expected: Iterable[Expected]) -> str | None:
    """Return the first operation of another algorithm that ran, or one of this that did not."""
    named = [each.work for each in expected if each.work is not None]
    if not named:
        return None
    wanted = frozenset[Operation]().union(*named)
    ran = set[Operation]()
    for operation in telling:
        ran.add(comparable(operation))
        if comparable(operation) not in wanted:
            return f"ran {operation}"
    missing = sorted(str(operation) for operation in wanted - ran)
    return f"did not run {missing[0]}" if missing else None
