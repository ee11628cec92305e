"""What part of a point's convolutions ran the algorithm that was asked for, by work and by time.

All convolutions of a pass count, whoever calls them. Back-ends run the calls of plain `nn.Conv2d`
layers; functions, other kinds of convolution and classes of their own stay the framework's. Where
an explicit algorithm was asked for they are *uncovered*, and are named.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hpcsweep import catalog
from hpcsweep.conv import choice
from hpcsweep.conv.backend import FRAMEWORK

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from hpcsweep.catalog.columns import Row
    from hpcsweep.conv.choice import Algorithm, GradientChoice, LayerChoice
    from hpcsweep.measure.operations import Convolution
    from hpcsweep.measure.shape_pass import Shapes

_SHOWN: Final = 3


@dataclass(frozen=True)
class Times:
    """Mean milliseconds of calls in the layer pass.

    `of_choices` are of the calls of plain convolutions, gradients last; `outside` of the layers
    that hold other convolutions.
    """

    of_choices: Sequence[float]
    outside: Sequence[float] = ()


def cells(  # noqa: PLR0913 - what is known of a point
    algorithm: Algorithm,
    shapes: Shapes,
    choices: Sequence[LayerChoice],
    gradients: Sequence[GradientChoice] = (),
    times: Times | None = None,
    *,
    refuted: Container[int] = (),
) -> Row:
    """Return the columns about a point's convolutions; `times` is None without a layer pass.

    `refuted` are the places of calls, choices first, whose evidence contradicts their algorithm.
    """
    missed = unmet(algorithm, shapes.outside)
    outside = shapes.outside
    calls: list[LayerChoice | GradientChoice] = [*choices, *gradients]
    as_asked = [c.as_requested and at not in refuted for at, c in enumerate(calls)]
    reasons = Counter([*(c.reason for c in calls if c.reason), *map(reason, missed)])
    workspaces = [c.workspace_bytes for c in calls if c.workspace_bytes is not None]
    return {
        "backend": joined([*(c.backend for c in choices), *(FRAMEWORK for _ in outside)]),
        "algorithm_used": joined([*(c.used for c in choices), *(catalog.AUTO for _ in outside)]),
        "algorithm_coverage_pct": _share_of_work(shapes, as_asked[: len(choices)], missed),
        "algorithm_coverage_time_pct": _share_of_time(algorithm, shapes, as_asked, times),
        "algorithm_uncovered": _told(uncovered(algorithm, shapes, choices), shapes),
        "conv_calls": len(choices) + len(outside),
        "conv_fallbacks": sum(c.fallback for c in choices) + len(missed),
        "fallback_reason": reasons.most_common(1)[0][0] if reasons else None,
        "workspace_bytes": max(workspaces, default=None),
    }


def unmet(algorithm: Algorithm, outside: Iterable[Convolution]) -> list[Convolution]:
    """Return the convolutions that an explicit algorithm was asked for, and nobody can swap."""
    return [one for one in outside if not _left_to_framework(algorithm, one.layer)]


def uncovered(
    algorithm: Algorithm, shapes: Shapes, choices: Sequence[LayerChoice]
) -> list[Convolution]:
    """Return those, and the calls of layers that are `nn.Conv2d` by inheritance only."""
    calls = zip(shapes.convolution_calls, choices, strict=True)
    own = [one for call, c in calls if not c.swappable for one in call.convolutions]
    return [*own, *unmet(algorithm, shapes.outside)]


def reason(one: Convolution) -> str:
    """Return why nobody swaps a convolution."""
    return f"{one.operator} {one.part or 'that is no call of a plain nn.Conv2d'}"


def unforeseen(algorithm: Algorithm, shapes: Shapes, seen: Sequence[str]) -> str | None:
    """Return convolutions that the profiler saw outside of layers, and the shape pass did not."""
    if not seen or shapes.outside or _left_to_framework(algorithm, ""):
        return None
    return f"the profiler saw {', '.join(seen)}"


def is_absent(algorithm: Algorithm, choices: Iterable[LayerChoice]) -> bool:
    """Say whether an explicit algorithm was asked for, and no convolution at all runs one."""
    wanted = (algorithm,) if isinstance(algorithm, str) else algorithm.values()
    explicit = any(name not in choice.FRAMEWORK_CHOICES for name in wanted)
    return explicit and all(c.used in choice.FRAMEWORK_CHOICES for c in choices)


def joined(names: Iterable[str]) -> str | None:
    """Return distinct names joined by `+`, the commonest first; None without any."""
    counted = Counter(names)
    return "+".join(name for name, _ in counted.most_common()) or None


def _left_to_framework(algorithm: Algorithm, layer: str) -> bool:
    return choice.requested(algorithm, layer) in choice.FRAMEWORK_CHOICES


def _share_of_work(
    shapes: Shapes, as_asked: Sequence[bool], missed: Sequence[Convolution]
) -> float | None:
    total = shapes.convolution_flops
    if not all(one.known for one in missed):
        return 0.0  # nothing says that it is more
    if not total:
        return None
    calls = zip(shapes.convolution_calls, as_asked, strict=True)
    without = sum(call.convolution_flops for call, met in calls if not met)
    return 100 * (total - without - sum(one.flops for one in missed)) / total


def _share_of_time(
    algorithm: Algorithm, shapes: Shapes, as_asked: Sequence[bool], times: Times | None
) -> float | None:
    """Return the share, or None where the time of a convolution is in no layer row of its own."""
    layers = [c for c in shapes.calls if c.conv is None and c.convolutions]
    timed = sum(call.convolution_flops for call in layers)
    complete = timed == sum(one.flops for one in shapes.outside)
    is_training = len(as_asked) > len(
        shapes.convolutions
    )  # the backward pass of `layers` has no row
    if times is None or len(times.outside) != len(layers) or not complete:
        return None
    if layers and is_training:
        return None
    parts = list(zip(times.of_choices, as_asked, strict=True))
    parts += [
        (ms, _left_to_framework(algorithm, call.layer))
        for ms, call in zip(times.outside, layers, strict=True)
    ]
    total = sum(ms for ms, _ in parts)
    return 100 * sum(ms for ms, met in parts if met) / total if total else None


def _told(missed: Sequence[Convolution], shapes: Shapes) -> str | None:
    """Return shares of work with operator and layer, unknown ones first, then by size."""
    total, work = shapes.convolution_flops, Counter[str]()
    known = all(one.known for one in missed)
    for one in missed:
        work[f"{one.operator} ({one.layer})" if one.layer else one.operator] += one.flops
    shown = [
        f"{100 * flops / total:.3g} % {name}" if flops and known else f"unknown share {name}"
        for name, flops in sorted(work.items(), key=lambda item: item[1] or total, reverse=True)
    ]
    rest = [f"and {len(work) - _SHOWN} more"] if len(work) > _SHOWN else []
    return "; ".join([*shown[:_SHOWN], *rest]) or None
