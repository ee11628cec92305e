"""Compares what a call ran with what the back-end expects of the algorithm that it claims.

Operators are accounted for: each product and transform by its sizes, each other operator that
computes by its name, as often as the algorithm runs it. So Winograd has products over the channels
for each interpolation point, im2col one over channels x taps, implicit GEMM one for each tap; and
what runs besides to look like another algorithm is left over. Where a library computes, names of
operators and kernels must appear, and others must not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

from hpcsweep.conv.backend import Direction, Expected
from hpcsweep.conv.operators import Operation, matches
from hpcsweep.conv.proof import kernels
from hpcsweep.conv.proof.evidence import Evidence, Seen, kernel_word
from hpcsweep.conv.proof.onednn import Primitive
from hpcsweep.conv.proof.profiler_events import Call, descendants, look_into, work_of


def judge(
    layer: str,
    call: Call | None,
    expected: Mapping[Direction, Expected],
    primitives: Sequence[Primitive] = (),
) -> Evidence:
    """Return the evidence of one call, with the first thing that contradicts its claims."""
    if call is None:
        return Evidence(layer)
    seen = look_into(call.events, all_sizes=Direction.FORWARD not in expected)
    problems = [(way, _problem(call, seen, wanted)) for way, wanted in expected.items()]
    problems.append((Direction.FORWARD, unaccounted(work_of(call.events), expected.values())))
    problems += [(primitive.way, _misreport(primitive, expected)) for primitive in primitives]
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


def unaccounted(
    work: Iterable[tuple[Operation, Operation]], expected: Iterable[Expected]
) -> str | None:
    """Return what computed and is no work of the algorithm, or which of its work is missing."""
    wanted = [each for each in expected if each.work is not None]
    if not wanted:
        return None
    shared = reduce(lambda a, b: a | b, (Counter(each.shared) for each in wanted))
    missing = sum((Counter(each.work) for each in wanted), shared)
    surplus = Counter[str]()
    for operation, shown in work:
        if missing[operation]:
            missing[operation] -= 1
        elif not any(matches(shown.name, each.also) for each in wanted):
            surplus[str(shown)] += 1
    if surplus:
        return f"ran {_counted(surplus)}"
    lacking = Counter({str(operation): n for operation, n in missing.items() if n})
    return f"did not run {_counted(lacking)}" if lacking else None


def _counted(names: Counter[str]) -> str:
    """Return the commonest name, and how often there is any."""
    ((name, count),) = names.most_common(1)
    times = f"{count} times " if count > 1 else ""
    rest = sum(names.values()) - count
    return f"{times}{name}" + (f" and {rest} more" if rest else "")


def _problem(call: Call, seen: Seen, expected: Expected) -> str | None:
    """Return what contradicts an expectation in a call, or inside an operator of it."""
    if expected.inside is None:
        return contradiction(seen, expected)
    operators = (operator for event in call.events for operator in descendants(event))
    where = [operator for operator in operators if operator.name == expected.inside]
    if not where:
        return f"no {expected.inside}"
    return contradiction(look_into(where, themselves=True), expected)


def _misreport(primitive: Primitive, expected: Mapping[Direction, Expected]) -> str | None:
    """Return a contradiction where oneDNN reported another algorithm than direct."""
    wanted = expected.get(primitive.way)
    if wanted is None or not wanted.onednn_direct or primitive.is_direct:
        return None
    return f"oneDNN ran {primitive.implementation}"
