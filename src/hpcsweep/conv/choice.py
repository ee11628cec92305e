"""Which algorithm each convolution call gets, decided before anything is timed; `swap` runs it.

A request is one name for the whole network, or a map of shell patterns to names. A pattern is
compared with the layer's name and with its `ConvShape.unique_key`. Of the patterns that match, one
without wildcards wins, then the one with the most literal characters (a map has no order, in YAML
or in a point's id), then the key `default`, then `auto`::

    {"conv1": "implicit_gemm", "*_3x3_s1x1_*": "winograd", "default": "gemm"}

`auto` is the framework's own default. `autotune` is the framework's own benchmark; a call that a
map gives to it where the framework has none (everywhere but CUDA and HIP) falls back to `auto`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from hpcsweep import catalog
from hpcsweep.conv.backend import FRAMEWORK, Backend, Gradient, UnknownAlgorithm
from hpcsweep.conv.shape import ConvShape
from hpcsweep.errors import HpcsweepError

Algorithm = str | Mapping[str, str]

DEFAULT: Final = "default"
# what is no literal character of a shell pattern: a set, or a wildcard
_WILD: Final = re.compile(r"\[[^]]*\]|[*?]")
# layers in a message of two lines; of the others their number is told
_SHOWN: Final = 3
# what runs on the framework's own layers: there is nothing to swap, and nothing to prove
FRAMEWORK_CHOICES: Final = (catalog.AUTO, catalog.AUTOTUNE)


class _Refusal(HpcsweepError):
    """Some layers cannot run the requested algorithm, and the policy forbids a fallback."""

    def __init__(self, refused: Sequence[tuple[str, str]], convolutions: int) -> None:
        """Take (layer, ``algorithm: reason``) pairs and the number of convolution calls."""
        self.refused = tuple(refused)
        shown = [f"{layer or 'the network'}: {why}" for layer, why in refused[:_SHOWN]]
        if len(refused) > _SHOWN:
            shown.append(f"and {len(refused) - _SHOWN} more")
        super().__init__(
            f"{len(refused)} of {convolutions} convolutions cannot run as asked: "
            f"{'; '.join(shown)}\nwith `unsupported: fallback` they run the framework's default"
        )


class Unsupported(_Refusal):
    """Policy `skip`: the point is not measured; its row says `unsupported`."""


class AlgorithmError(_Refusal):
    """Policy `error`: the point is not measured; its row says `error`."""


@dataclass(frozen=True)
class LayerChoice:
    """What one convolution call runs, and the reason if it is not what was asked for.

    `plan` is the library's own name of what runs, where it has one, with the library's notes on it.
    `fallback` says that the request could not be met; `reason` is then never empty. `swappable` is
    false for a layer that computes by code of its own. `backward`: this is what the gradients run,
    two algorithms joined by `+` where they differ.
    """

    layer: str
    shape: ConvShape
    requested: str
    used: str
    backend: str
    reason: str | None = None
    fallback: bool = False
    workspace_bytes: int | None = None
    plan: str | None = None
    plan_notes: str | None = None
    swappable: bool = True
    backward: bool = False

    @property
    def as_requested(self) -> bool:
        """Whether the call runs what was asked for."""
        return self.used == self.requested


def gradients_of(call: LayerChoice, backend: Backend) -> tuple[Gradient, ...]:
    """Return how the back-end computes the gradients of a call; none of the framework's own."""
    framework = call.used in FRAMEWORK_CHOICES
    return () if framework else backend.gradients(call.used, call.shape)


def backward_choice(call: LayerChoice, gradients: Sequence[Gradient]) -> LayerChoice:
    """Return what the gradients of a call run; without any the framework computes them."""
    if not gradients:
        return replace(call, backward=True)
    used = []
    backends = []
    reasons = []
    workspaces = []
    for gradient in gradients:
        if gradient.algorithm is None:
            used.append(catalog.AUTO)
            backends.append(FRAMEWORK)
        else:
            # a plan is of one direction, so its gradients take the heuristic's
            is_plans = gradient.algorithm == catalog.HEURISTIC
            used.append(catalog.HEURISTIC if is_plans else call.used)
            backends.append(call.backend)
        if gradient.reason:
            reasons.append(gradient.reason)
        if gradient.workspace_bytes is not None:
            workspaces.append(gradient.workspace_bytes)
    return LayerChoice(
        call.layer,
        call.shape,
        call.requested,
        used=_joined("+", used),
        backend=_joined("+", backends),
        reason=_joined("; ", reasons) or None,
        fallback=bool(reasons),
        workspace_bytes=max(workspaces, default=None),
        backward=True,
    )


def _joined(between: str, words: Sequence[str]) -> str:
    """Join words in order, each once."""
    return between.join(dict.fromkeys(words))


def check(algorithm: Algorithm) -> None:
    """Raise `UnknownAlgorithm` for a name that is neither in the catalogue nor a plan's."""
    names = algorithm.values() if isinstance(algorithm, Mapping) else (algorithm,)
    for name in names:
        if not catalog.is_algorithm(name):
            raise UnknownAlgorithm(name)


def requested(algorithm: Algorithm, layer: str, unique_key: str = "") -> str:
    """Return the name that a request has for one call; without a key its layer alone counts."""
    if isinstance(algorithm, str):
        return algorithm
    matching = []
    for pattern in algorithm:
        if pattern != DEFAULT and _matches(pattern, layer, unique_key or layer):
            literal = _WILD.sub("", pattern)
            # names before patterns, then by the number of literal characters
            matching.append((literal != pattern, -len(literal), pattern))
    if matching:
        return algorithm[min(matching)[-1]]
    return algorithm.get(DEFAULT, catalog.AUTO)


def idle_patterns(algorithm: Algorithm, calls: Iterable[tuple[str, str]]) -> list[str]:
    """Return the patterns of a map that match no (layer, unique key); they may be misspelt."""
    if isinstance(algorithm, str):
        return []
    names = set(calls)
    idle = []
    for pattern in algorithm:
        is_used = any(_matches(pattern, layer, key) for layer, key in names)
        if pattern != DEFAULT and not is_used:
            idle.append(pattern)
    return idle


def decide(
    algorithm: Algorithm, layer: str, shape: ConvShape, backend: Backend, device_type: str
) -> LayerChoice:
    """Decide one call: a shape that the back-end cannot do falls back to `auto`."""
    name = requested(algorithm, layer, shape.unique_key)
    if name == catalog.AUTOTUNE and device_type != "cuda":
        return refused(layer, shape, name, f"the framework has no autotuner on {device_type}")
    if name in FRAMEWORK_CHOICES:
        return LayerChoice(layer, shape, name, name, FRAMEWORK)
    reason = backend.unsupported(name, shape)
    if reason is not None:
        return refused(layer, shape, name, reason)
    workspace, plan, notes = backend.about(name, shape)
    return LayerChoice(
        layer,
        shape,
        requested=name,
        used=name,
        backend=backend.name,
        workspace_bytes=workspace,
        plan=plan,
        plan_notes=notes,
    )


def refused(layer: str, shape: ConvShape, name: str, reason: str) -> LayerChoice:
    """Return the choice of a call that cannot run as asked."""
    return LayerChoice(layer, shape, name, catalog.AUTO, FRAMEWORK, reason, fallback=True)


def one_plan_per_shape(picked: Sequence[LayerChoice]) -> list[LayerChoice]:
    """Let a call that is to be tuned fall back where another one of its shape is not.

    torch keeps one plan for a shape, so the two would run alike, as whichever came first.
    """
    usual = {call.shape for call in picked if call.used == catalog.AUTO}
    why = "another layer of this shape runs auto, and torch keeps one plan for both"
    choices = list(picked)
    for place, call in enumerate(picked):
        if call.used == catalog.AUTOTUNE and call.shape in usual:
            choices[place] = refused(call.layer, call.shape, call.requested, why)
    return choices


def _matches(pattern: str, layer: str, unique_key: str) -> bool:
    return fnmatchcase(layer, pattern) or fnmatchcase(unique_key, pattern)
