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
    from collections.abc import Iterable, Sequence

    from hpcsweep.catalog.columns import Row
    from hpcsweep.conv.choice import Algorithm, GradientChoice, LayerChoice
    from hpcsweep.measure.shape_pass import Convolution, Shapes

_SHOWN: Final = 3


@dataclass(frozen=True)
class Times:
    """Mean milliseconds of calls in the layer pass.

    `of_choices` are of the calls of plain convolutions, gradients last; `outside` of the layers
    that hold other convolutions.
    """

    of_choices: Sequence[float]
    outside: Sequence[float] = ()


def cells(
    algorithm: Algorithm,
    shapes: Shapes,
    choices: Sequence[LayerChoice],
    gradients: Sequence[GradientChoice] = (),
    times: Times | None = None,
) -> Row:
    """Return the columns about a point's convolutions; `times` is None without a layer pass."""
    missed = unmet(algorithm, shapes.outside)
    outside = shapes.outside
    calls: list[LayerChoice | GradientChoice] = [*choices, *gradients]
    reasons = Counter([*(c.reason for c in calls if c.reason), *map(reason, missed)])
    workspaces = [c.workspace_bytes for c in calls if c.workspace_bytes is not None]
    return {
        "backend": joined([*(c.backend for c in choices), *(FRAMEWORK for _ in outside)]),
        "algorithm_used": joined([*(c.used for c in choices), *(catalog.AUTO for _ in outside)]),
        "algorithm_coverage_pct": _share_of_work(shapes, choices, missed),
        "algorithm_coverage_time_pct": _share_of_time(algorithm, shapes, calls, times),
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
    return f"{one.operator} that is no call of a plain nn.Conv2d"


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
    shapes: Shapes, choices: Sequence[LayerChoice], missed: Sequence[Convolution]
) -> float | None:
    total = shapes.convolution_flops
    if not total:
        return None
    calls = zip(shapes.convolution_calls, choices, strict=True)
    without = sum(call.convolution_flops for call, c in calls if not c.as_requested)
    return 100 * (total - without - sum(one.flops for one in missed)) / total


def _share_of_time(
    algorithm: Algorithm,
    shapes: Shapes,
    calls: Sequence[LayerChoice | GradientChoice],
    times: Times | None,
) -> float | None:
    """Return the share, or None where the time of a convolution is in no layer row of its own."""
    layers = [c for c in shapes.calls if c.conv is None and c.convolutions]
    timed = sum(call.convolution_flops for call in layers)
    complete = timed == sum(one.flops for one in shapes.outside)
    is_training = len(calls) > len(shapes.convolutions)  # the backward pass of `layers` has no row
    if times is None or len(times.outside) != len(layers) or not complete:
        return None
    if layers and is_training:
        return None
    parts = [(ms, c.as_requested) for ms, c in zip(times.of_choices, calls, strict=True)]
    parts += [
        (ms, _left_to_framework(algorithm, call.layer))
        for ms, call in zip(times.outside, layers, strict=True)
    ]
    total = sum(ms for ms, _ in parts)
    return 100 * sum(ms for ms, as_asked in parts if as_asked) / total if total else None


def _told(missed: Sequence[Convolution], shapes: Shapes) -> str | None:
    """Return shares of work with operator and layer, the largest first."""
    work: Counter[str] = Counter()
    for one in missed:
        work[f"{one.operator} ({one.layer})" if one.layer else one.operator] += one.flops
    shown = [
        f"{100 * flops / shapes.convolution_flops:.3g} % {name}"
        for name, flops in work.most_common(_SHOWN)
    ]
    rest = [f"and {len(work) - _SHOWN} more"] if len(work) > _SHOWN else []
    return "; ".join([*shown, *rest]) or None
