"""What each convolution of a point runs: asked for, decided, and written into columns."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.conv import choice, swap
from hpcsweep.conv.errors import Unsupported as CannotRun
from hpcsweep.conv.proof import evidence
from hpcsweep.measure.bench_api import Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import nn

    from hpcsweep.catalog.columns import Row
    from hpcsweep.conv.backend import Backend
    from hpcsweep.conv.choice import Algorithm, GradientChoice, LayerChoice
    from hpcsweep.conv.proof.evidence import Evidence
    from hpcsweep.measure.shape_pass import Shapes

    Choice = LayerChoice | GradientChoice

_MIB: Final = 1 << 20


def choose(
    model: nn.Module,
    shapes: Shapes,
    algorithm: Algorithm,
    settings: Mapping[str, Any],
    backend: Backend,
) -> list[LayerChoice]:
    """Make the network run an algorithm; return what each convolution call got, in order.

    Of the settings, `unsupported` says what becomes of calls that cannot run it, and
    `workspace_mib` how much scratch memory one may take.

    The framework's own choices run on its own layers, untouched.

    Raises:
        Unsupported: a call cannot, and the policy is `skip`.
        AlgorithmError: a call cannot, and the policy is `error`.

    """
    swap.restore(model)
    calls = shapes.convolutions
    if algorithm in choice.FRAMEWORK_CHOICES:
        return [choice.decide(algorithm, *call, backend, _device_type(model)) for call in calls]
    swap.swap(model)
    try:
        most = settings["workspace_mib"] * _MIB
        policy = settings["unsupported"]
        return swap.assign(model, calls, algorithm, policy, backend, most_workspace=most)
    except CannotRun as error:
        raise Unsupported(str(error)) from error


def coverage_cells(
    choices: Sequence[LayerChoice],
    mean_ms: Sequence[float],
    gradients: Sequence[GradientChoice] = (),
) -> Row:
    """Return the columns that say how much of a point ran the algorithm that was asked for.

    `mean_ms` are the times of the calls in the layer pass, those of `gradients` last; empty without
    such a pass.
    """
    calls: list[Choice] = [*choices, *gradients]
    reasons = Counter(c.reason for c in calls if c.reason)
    workspaces = [c.workspace_bytes for c in calls if c.workspace_bytes is not None]
    return {
        "backend": joined(c.backend for c in choices),
        "algorithm_used": joined(c.used for c in choices),
        "algorithm_coverage_pct": _share(choices, [c.shape.flops for c in choices]),
        "algorithm_coverage_time_pct": _share(calls, mean_ms),
        "conv_calls": len(choices),
        "conv_fallbacks": sum(c.fallback for c in choices),
        "fallback_reason": reasons.most_common(1)[0][0] if reasons else None,
        "workspace_bytes": max(workspaces, default=None),
    }


def call_cells(choices: Sequence[Choice], proofs: Sequence[Evidence]) -> list[Row]:
    """Return, for each convolution call, the cells about what it ran and how that is known."""
    return [
        {
            "backend": "+".join(choice.backends),
            "algorithm_used": "+".join(choice.algorithms),
            "algorithm_evidence": evidence.cell(proof),
            "fallback_reason": choice.reason,
            "workspace_bytes": choice.workspace_bytes,
        }
        for choice, proof in zip(choices, proofs, strict=True)
    ]


def _share(choices: Sequence[Choice], weights: Sequence[float]) -> float | None:
    """Return the share of the request by weight; None without weights."""
    total = sum(weights)
    if not total:
        return None
    pairs = zip(choices, weights, strict=True)
    return 100 * sum(weight for c, weight in pairs if c.as_requested) / total


def joined(names: Iterable[str]) -> str | None:
    """Return distinct names joined by `+`, the commonest first; None without any."""
    counted = Counter(names)
    return "+".join(name for name, _ in counted.most_common()) or None


def _device_type(model: nn.Module) -> str:
    return next((p.device.type for p in model.parameters()), "cpu")
