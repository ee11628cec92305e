"""Compares what a call ran with what the back-end expects of the algorithm that it claims.

What tells algorithms apart is compared by sizes: Winograd has products over the channels for each
interpolation point, im2col one over channels x taps, implicit GEMM one for each tap. Where a
library computes, names of operators and kernels must appear, and others must not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hpcsweep.conv.backend import Direction, Expected, Operation
from hpcsweep.conv.proof import kernels
from hpcsweep.conv.proof.evidence import Evidence, Seen
from hpcsweep.conv.proof.kernels import kernel_word
from hpcsweep.conv.proof.onednn import Primitive
from hpcsweep.conv.proof.profiler_events import Call, descendants, look_into, matches, work_of


def judge(
    layer: str,
    call: Call | None,
    expected: Mapping[Direction, Expected],
    primitives: Sequence[Primitive] = (),
) -> Evidence:
    """Return the evidence of one call, with the first thing that contradicts its claims."""
    if call is None:
        return Evidence(layer)
    seen = look_into(call.events)
    problems = [(way, _problem(call, seen, wanted)) for way, wanted in expected.items()]
    problems.append((Direction.FORWARD, other_work(work_of(call.events), expected.values())))
    for primitive in primitives:
        wanted = expected.get(primitive.way)
        if wanted and wanted.onednn_direct and not primitive.is_direct:
            problems.append((primitive.way, f"oneDNN ran {primitive.implementation}"))
    texts = (
        text if way is Direction.FORWARD else f"{way.value}: {text}"
        for way, text in problems
        if text
    )
    return Evidence(layer, seen, tuple(primitives), next(texts, None))


def contradiction(seen: Seen, expected: Expected) -> str | None:
    """Return the first thing that does not fit, or None."""
    for name in seen.names:
        if matches(name, expected.must_not):
            return f"ran {name}"
    if expected.algorithm:
        recognised = kernels.recognise(seen.kernels)
        if recognised.grade(expected.algorithm) is kernels.Grade.CONTRADICTED:
            other = recognised.against(expected.algorithm)
            return f"ran {kernel_word(other)}, which is of {kernels.recognise([other])}"
    # a profiler that recorded no kernel at all has not seen that one is missing
    needed = [(group, seen.names) for group in expected.must]
    needed += [(group, seen.computing) for group in expected.kernels if seen.computing]
    for group, names in needed:
        if not any(matches(name, group) for name in names):
            return f"no {group[0]}"
    return None


def other_work(
    work: Iterable[tuple[Operation, Operation]], expected: Iterable[Expected]
) -> str | None:
    """Return the first operation of another algorithm that ran, or one of this that did not."""
    named = [each.work for each in expected if each.work is not None]
    if not named:
        return None
    wanted = frozenset[Operation]().union(*named)
    ran = dict(work)
    for operation, shown in ran.items():
        if operation not in wanted:
            return f"ran {shown}"
    missing = sorted(str(operation) for operation in wanted - ran.keys())
    return f"did not run {missing[0]}" if missing else None


def _problem(call: Call, seen: Seen, expected: Expected) -> str | None:
    """Return what contradicts an expectation in a call, or inside an operator of it."""
    if expected.inside is None:
        return contradiction(seen, expected)
    operators = (operator for event in call.events for operator in descendants(event))
    where = [operator for operator in operators if operator.name == expected.inside]
    if not where:
        return f"no {expected.inside}"
    return contradiction(look_into(where, themselves=True), expected)
