"""What each convolution of a point runs: asked for, decided, and written into columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.catalog.columns import Row
from hpcsweep.conv import choice, swap
from hpcsweep.conv.backend import Backend
from hpcsweep.conv.choice import Algorithm, GradientChoice, LayerChoice
from hpcsweep.conv.errors import AlgorithmError
from hpcsweep.conv.errors import Unsupported as CannotRun
from hpcsweep.conv.proof import evidence
from hpcsweep.conv.proof.evidence import Evidence
from hpcsweep.errors import UsageError, suggest
from hpcsweep.measure import coverage
from hpcsweep.measure.bench_api import Unsupported
from hpcsweep.measure.shape_pass import Shapes

if TYPE_CHECKING:
    from torch import nn

Choice = LayerChoice | GradientChoice

MIB: Final = 1 << 20
_SHOWN: Final = 3


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
        Unsupported: a call cannot, and the policy is `skip`.
        AlgorithmError: a call cannot, and the policy is `error`.
        UsageError: a pattern of a map matches no convolution.
    """
    _refuse_idle_patterns(shapes, algorithm)
    swap.restore(model)
    calls = shapes.convolutions
    if algorithm in choice.FRAMEWORK_CHOICES:
        return [choice.decide(algorithm, *call, backend, _device_type(model)) for call in calls]
    swap.swap(model)
    try:
        most = settings["workspace_mib"] * MIB
        policy = settings["unsupported"]
        _refuse_outside(shapes, algorithm, policy)
        return swap.assign(model, calls, algorithm, policy, backend, most_workspace=most)
    except CannotRun as error:
        raise Unsupported(str(error)) from error


def names_of(shapes: Shapes) -> list[tuple[str, str]]:
    """Return what a pattern of a map may match: layers that convolve, and the keys of shapes."""
    named = [(layer, shape.unique_key) for layer, shape in shapes.convolutions]
    return named + [(one.layer, "") for one in shapes.outside]


def idle(algorithm: Algorithm, names: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the patterns of a map that match none of the names, each with the nearest layer."""
    layers = list(dict.fromkeys(layer for layer, _ in names))
    first = f"; layers are {', '.join(layers[:_SHOWN])} ..." if layers else ""
    patterns = choice.idle_patterns(algorithm, names)
    return {pattern: suggest(pattern, layers) or first for pattern in patterns}


def _refuse_idle_patterns(shapes: Shapes, algorithm: Algorithm) -> None:
    """Refuse a map of which a part is about no layer: what it asks for would not be measured."""
    for pattern, hint in idle(algorithm, names_of(shapes)).items():
        raise UsageError(
            f"algorithm: pattern '{pattern}' matches no convolution of the network{hint}"
        )


def _refuse_outside(shapes: Shapes, algorithm: Algorithm, policy: str) -> None:
    """Treat convolutions that nobody can swap as the policy says of those that cannot run."""
    missed = coverage.unmet(algorithm, shapes.outside)
    if missed and policy != swap.FALLBACK:
        refused = [(one.layer, coverage.reason(one)) for one in missed]
        kind = CannotRun if policy == swap.SKIP else AlgorithmError
        raise kind(refused, len(shapes.convolutions) + len(shapes.outside))


def call_cells(choices: Sequence[Choice], proofs: Sequence[Evidence]) -> list[Row]:
    """Return, for each convolution call, the cells about what it ran and how that is known."""
    return [
        {
            "backend": "+".join(choice.backends),
            "algorithm_used": "+".join(choice.algorithms),
            "algorithm_evidence": evidence.cell(proof),
            "fallback_reason": choice.reason,
            "workspace_bytes": choice.workspace_bytes,
            "kernel_ms": proof.seen.kernel_ms if proof.seen else None,
        }
        for choice, proof in zip(choices, proofs, strict=True)
    ]


def _device_type(model: nn.Module) -> str:
    return next((p.device.type for p in model.parameters()), "cpu")
