"""Compares what a call ran with what the back-end expects of the algorithm that it claims.

Some operators (and kernels) must appear, others must not. The size of the matrix product tells
algorithms apart: Winograd has one product per interpolation point, im2col one over channels x taps,
implicit GEMM one over the channels for each tap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcsweep.conv.backend import Expected, Way
from hpcsweep.conv.operators import matches
from hpcsweep.conv.proof.evidence import Evidence, Seen
from hpcsweep.conv.proof.onednn import Primitive
from hpcsweep.conv.proof.profiler_events import Call, descendants, look_into


def judge(
    layer: str,
    call: Call | None,
    expected: Mapping[Way, Expected],
    primitives: Sequence[Primitive] = (),
) -> Evidence:
    """Return the evidence of one call, with the first thing that contradicts its claims."""
    if call is None:
        return Evidence(layer)
    seen = look_into(call.events, all_sizes=Way.FORWARD not in expected)
    found = [(way, _problem(call, seen, wanted)) for way, wanted in expected.items()]
    found += [(one.way, _misreport(one, expected)) for one in primitives]
    texts = (text if way is Way.FORWARD else f"{way.value}: {text}" for way, text in found if text)
    return Evidence(layer, seen, tuple(primitives), next(texts, None))


def contradiction(seen: Seen, expected: Expected) -> str | None:
    """Return the first thing that does not fit, or None."""
    for name in seen.names:
        if matches(name, expected.must_not):
            return f"ran {name}"
    # a profiler that recorded no kernel at all has not seen that one is missing
    needed = [(group, seen.names) for group in expected.must]
    needed += [(group, seen.computing) for group in expected.kernels if seen.computing]
    for group, names in needed:
        if not any(matches(name, group) for name in names):
            return f"no {group[0]}"
    return _wrong_product(seen.products, expected)


def _problem(call: Call, seen: Seen, expected: Expected) -> str | None:
    """Return what contradicts an expectation in a call, or inside an operator of it."""
    if expected.inside is None:
        return contradiction(seen, expected)
    operators = (one for event in call.events for one in descendants(event))
    where = [one for one in operators if one.name == expected.inside]
    if not where:
        return f"no {expected.inside}"
    return contradiction(look_into(where, themselves=True), expected)


def _misreport(primitive: Primitive, expected: Mapping[Way, Expected]) -> str | None:
    """Return a contradiction where oneDNN reported another algorithm than direct."""
    wanted = expected.get(primitive.way)
    if wanted is None or not wanted.onednn_direct or primitive.is_direct:
        return None
    return f"oneDNN ran {primitive.implementation}"


def _wrong_product(products: Sequence[tuple[int, int, int, int]], expected: Expected) -> str | None:
    """Return what is wrong with the matrix products; None if no sizes were recorded."""
    if (expected.inner is None and expected.outer is None) or not products:
        return None
    fitting = [
        product
        for product in products
        if expected.inner in {None, product[2]}
        and expected.outer in {None, product[1], product[3]}
        and not product[0] % expected.batch
    ]
    over = expected.inner if expected.inner is not None else f"(..., {expected.outer})"
    if not fitting:
        return f"no product over {over} in batches of {expected.batch}"
    if expected.products is not None and len(fitting) != expected.products:
        return f"{len(fitting)} products over {over} instead of {expected.products}"
    return None
