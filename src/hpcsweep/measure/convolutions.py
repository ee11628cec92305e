"""Gives each convolution of a point its algorithm; makes the columns on what it ran.

All convolutions of a pass count, whatever calls them. Back-ends run the calls of plain `nn.Conv2d`
layers; functions, other kinds of convolution and subclasses stay with the framework. If the point
has an explicit algorithm, these are *uncovered*, and a column names them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import nn

from hpcsweep import catalog
from hpcsweep.catalog.columns import Row
from hpcsweep.conv import choice, swap
from hpcsweep.conv.backend import FRAMEWORK, Backend
from hpcsweep.conv.choice import Algorithm, GradientChoice, LayerChoice
from hpcsweep.conv.errors import AlgorithmError
from hpcsweep.conv.errors import Unsupported as CannotRun
from hpcsweep.conv.proof import evidence
from hpcsweep.conv.proof.evidence import Evidence, Proof
from hpcsweep.conv.proof.kernels import recognise
from hpcsweep.errors import UsageError, suggest
from hpcsweep.measure import models
from hpcsweep.measure.bench_api import CannotMeasure
from hpcsweep.measure.operations import Convolution
from hpcsweep.measure.shape_pass import Shapes

Choice = LayerChoice | GradientChoice
MIB: Final = 1 << 20
_SHOWN: Final = 3


@dataclass(frozen=True)
class Times:
    """Mean milliseconds of calls in the layer pass.

    `of_choices` has those of plain convolutions, gradients last; `outside` those of layers with
    other convolutions.
    """

    of_choices: Sequence[float]
    outside: Sequence[float] = ()


def algorithm_use(  # noqa: PLR0913, PLR0917 - all evidence on a point
    algorithm: Algorithm,
    shapes: Shapes,
    choices: Sequence[LayerChoice],
    gradients: Sequence[GradientChoice],
    proof: Proof,
    times: Times | None,
) -> tuple[Row, dict[str, bool]]:
    """Return the columns and flags that say whether a point used its algorithm.

    1. Each call of a plain `nn.Conv2d` has a choice, made by `choose`: as requested, or a fallback
       with its reason.
    2. The evidence of a call (`Proof.calls`, by the profiler or the library) may refute its choice.
    3. Other convolutions run in the framework: they are uncovered if the algorithm is an explicit
       one; so are those that the profiler saw and the shape pass did not.
    4. The share of calls that used the algorithm is by work and, with a layer pass, by time.
    """
    refuted = {at for at, call in enumerate(proof.calls) if call.problem is not None}
    names = [*map(ran, choices, proof.calls)]
    row = cells(algorithm, shapes, choices, gradients, times, refuted=refuted, names=names)
    row["algorithm_uncovered"] = row["algorithm_uncovered"] or unforeseen(
        algorithm, shapes, proof.outside
    )
    return row, {
        "algorithm_mismatch": bool(refuted),
        "algorithm_absent": is_absent(algorithm, choices),
        "fallback": bool(row["conv_fallbacks"]) or any(c.fallback for c in gradients),
    }


def cells(  # noqa: PLR0913 - all evidence on a point
    algorithm: Algorithm,
    shapes: Shapes,
    choices: Sequence[LayerChoice],
    gradients: Sequence[GradientChoice] = (),
    times: Times | None = None,
    *,
    refuted: Container[int] = (),
    names: Sequence[str] = (),
) -> Row:
    """Return the columns on a point's convolutions; `times` is None without a layer pass.

    `refuted` are the indices of calls, choices first, whose evidence contradicts their algorithm;
    `names` are the algorithms that the choices ran by their evidence.
    """
    missed = unmet(algorithm, shapes.outside)
    outside = shapes.outside
    calls: list[Choice] = [*choices, *gradients]
    as_asked = [c.as_requested and at not in refuted for at, c in enumerate(calls)]
    reasons = Counter([*(c.reason for c in calls if c.reason), *map(reason, missed)])
    used = names or [c.used for c in choices]
    workspaces = [c.workspace_bytes for c in calls if c.workspace_bytes is not None]
    return {
        "backend": joined([*(c.backend for c in choices), *(FRAMEWORK for _ in outside)]),
        "algorithm_used": joined([*used, *(catalog.AUTO for _ in outside)]),
        "algorithm_coverage_pct": _share_of_work(shapes, as_asked[: len(choices)], missed),
        "algorithm_coverage_time_pct": _share_of_time(algorithm, shapes, as_asked, times),
        "algorithm_uncovered": _shares_text(uncovered(algorithm, shapes, choices), shapes),
        "conv_calls": len(choices) + len(outside),
        "conv_fallbacks": sum(c.fallback for c in choices) + len(missed),
        "fallback_reason": reasons.most_common(1)[0][0] if reasons else None,
        "workspace_bytes": max(workspaces, default=None),
    }


def unmet(algorithm: Algorithm, outside: Iterable[Convolution]) -> list[Convolution]:
    """Return the convolutions with an explicit algorithm that cannot be swapped."""
    return [conv for conv in outside if not _left_to_framework(algorithm, conv.layer)]


def uncovered(
    algorithm: Algorithm, shapes: Shapes, choices: Sequence[LayerChoice]
) -> list[Convolution]:
    """Return the convolutions that cannot be swapped: outside of layers, or in subclasses."""
    calls = zip(shapes.convolution_calls, choices, strict=True)
    own = [conv for call, c in calls if not c.swappable for conv in call.convolutions]
    return [*own, *unmet(algorithm, shapes.outside)]


def reason(conv: Convolution) -> str:
    """Return why a convolution cannot be swapped."""
    return f"{conv.operator} {conv.part or 'that is no call of a plain nn.Conv2d'}"


def unforeseen(algorithm: Algorithm, shapes: Shapes, seen: Sequence[str]) -> str | None:
    """Return a message about convolutions that only the profiler saw; None without any."""
    if not seen or shapes.outside or _left_to_framework(algorithm, ""):
        return None
    return f"the profiler saw {', '.join(seen)}"


def is_absent(algorithm: Algorithm, choices: Iterable[LayerChoice]) -> bool:
    """Say whether the point has an explicit algorithm, and no convolution runs one."""
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
    if not all(conv.counted for conv in missed):
        return 0.0  # a lower bound
    if not total:
        return None
    calls = zip(shapes.convolution_calls, as_asked, strict=True)
    without = sum(call.convolution_flops for call, met in calls if not met)
    return 100 * (total - without - sum(conv.flops for conv in missed)) / total


def _share_of_time(
    algorithm: Algorithm, shapes: Shapes, as_asked: Sequence[bool], times: Times | None
) -> float | None:
    """Return the share of time as wanted; None if a convolution has no layer row of its own."""
    layers = [c for c in shapes.calls if c.conv is None and c.convolutions]
    timed = sum(call.convolution_flops for call in layers)
    complete = timed == sum(conv.flops for conv in shapes.outside)
    # the backward pass of `layers` has no row
    is_training = len(as_asked) > len(shapes.convolutions)
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


def _shares_text(missed: Sequence[Convolution], shapes: Shapes) -> str | None:
    """Return shares of work with operator and layer, unknown ones first, then by size."""
    total = shapes.convolution_flops
    work = Counter[str]()
    counted = all(conv.counted for conv in missed)
    for conv in missed:
        work[f"{conv.operator} ({conv.layer})" if conv.layer else conv.operator] += conv.flops
    shown = [
        f"{100 * flops / total:.3g} % {name}" if flops and counted else f"unknown share {name}"
        for name, flops in sorted(work.items(), key=lambda item: item[1] or total, reverse=True)
    ]
    rest = [f"and {len(work) - _SHOWN} more"] if len(work) > _SHOWN else []
    return "; ".join([*shown[:_SHOWN], *rest]) or None


def choose(
    model: nn.Module,
    shapes: Shapes,
    algorithm: Algorithm,
    settings: Mapping[str, Any],
    backend: Backend,
) -> list[LayerChoice]:
    """Make the network run an algorithm; return the choice of each convolution call, in order.

    The setting `unsupported` is the policy for calls that cannot run it, `workspace_mib` the most
    scratch memory of a call. The framework's own choices run on its own layers, without a swap.

    Raises:
        CannotMeasure: a call cannot, and the policy is `skip`.
        AlgorithmError: a call cannot, and the policy is `error`.
        UsageError: a pattern of a map matches no convolution.
    """
    for pattern, hint in idle(algorithm, names_of(shapes)).items():  # nothing would measure it
        why = f"matches no convolution of the network{hint}"
        raise UsageError(f"algorithm: pattern '{pattern}' {why}")
    swap.restore(model)
    calls = shapes.convolutions
    if algorithm in choice.FRAMEWORK_CHOICES:
        device = models.device_type(model)
        return [choice.decide(algorithm, *call, backend, device) for call in calls]
    swap.swap(model)
    try:
        most = settings["workspace_mib"] * MIB
        policy = settings["unsupported"]
        missed = unmet(algorithm, shapes.outside)
        if missed and policy != swap.FALLBACK:
            refused = [(conv.layer, reason(conv)) for conv in missed]
            kind = CannotRun if policy == swap.SKIP else AlgorithmError
            raise kind(refused, len(calls) + len(shapes.outside))
        return swap.assign(model, calls, algorithm, policy, backend, most_workspace=most)
    except CannotRun as error:
        raise CannotMeasure(str(error)) from error


def names_of(shapes: Shapes) -> list[tuple[str, str]]:
    """Return layers and keys of shapes of all convolutions, which patterns of a map may match."""
    named = [(layer, shape.unique_key) for layer, shape in shapes.convolutions]
    return named + [(conv.layer, "") for conv in shapes.outside]


def idle(algorithm: Algorithm, names: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the patterns of a map that match none of `names`, each with the nearest layer."""
    layers = list(dict.fromkeys(layer for layer, _ in names))
    first = f"; layers are {', '.join(layers[:_SHOWN])} ..." if layers else ""
    patterns = choice.idle_patterns(algorithm, names)
    return {pattern: suggest(pattern, layers) or first for pattern in patterns}


def ran(choice: Choice, proof: Evidence) -> str:
    """Return the algorithm that a call ran, for a forward call of the library's choice by kernels.

    The kernels of a backward call belong to two directions, so their names prove neither.
    """
    left = isinstance(choice, LayerChoice) and choice.used in catalog.CHOOSING
    if left and proof.seen and proof.seen.computing:
        return recognise(proof.seen.kernels).name
    return "+".join(choice.algorithms)


def call_cells(choices: Sequence[Choice], proofs: Sequence[Evidence]) -> list[Row]:
    """Return, for each convolution call, the cells on its algorithm and the evidence."""
    return [
        {
            "backend": "+".join(choice.backends),
            "algorithm_used": ran(choice, proof),
            "algorithm_evidence": evidence.cell(proof),
            "fallback_reason": choice.reason,
            "workspace_bytes": choice.workspace_bytes,
            "plan": choice.plan,
            "plan_notes": choice.plan_notes,
            "kernel_ms": proof.seen.kernel_ms if proof.seen else None,
        }
        for choice, proof in zip(choices, proofs, strict=True)
    ]
