"""Whether a pass takes as long on inputs that the network never saw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hpcsweep.catalog import INFERENCE
from hpcsweep.catalog.record import Check, Flag, cell


@dataclass(frozen=True, kw_only=True)
class FreshInputs:
    """The medians of a few passes; of passes in turn with them, if they look slower."""

    fresh_ms: float | None = cell("median of passes on inputs that were never seen", clocked=True)
    seen_ms: float | None = cell(
        "median of passes on one input, in turn with those of `fresh_ms` if these look slower",
        clocked=True,
    )


FRESH_INPUTS: Final = Flag(
    "fresh_inputs",
    "a pass takes longer on inputs that were never seen, by `fresh_ms` and `seen_ms`, or returns "
    "the same for all of them: the network keeps what it computed before",
    doubt=True,
    lasting=True,
)
CHECK: Final = Check(
    finds="a network that keeps what it computed for an input, so that it is timed without work",
    costs="a pass; a few more where it looks slower; none of a graph",
    overall=FreshInputs,
    flags=(FRESH_INPUTS,),
    setting="fresh_inputs",
    workloads=(INFERENCE.name,),
)
