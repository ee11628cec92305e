"""Which algorithm each convolution call gets, decided before anything is timed.

A request is one name for the whole network, or a map of shell patterns to names. A pattern is held
against the layer's name and against its `ConvShape.unique_key`; the first that matches wins, then
the key `default`, then `auto`::

    {"conv1": "implicit_gemm", "*_3x3_s1x1_*": "winograd", "default": "gemm"}

`auto` is the framework's own default. `autotune` is the framework's own benchmark; where the
framework has none (everywhere but CUDA and HIP) the call runs, and is recorded as, `auto`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from hpcsweep import catalog
from hpcsweep.conv.backend import FRAMEWORK
from hpcsweep.conv.errors import UnknownAlgorithm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpcsweep.conv.backend import Backend
    from hpcsweep.conv.shape import ConvShape

Algorithm = str | Mapping[str, str]

DEFAULT: Final = "default"
FRAMEWORK_CHOICES: Final = (catalog.AUTO, catalog.AUTOTUNE)


@dataclass(frozen=True)
class LayerChoice:
    """What one convolution call runs, and why it is not what was asked for.

    `fallback` says that the request could not be met; `reason` is then never empty.
    """

    layer: str
    shape: ConvShape
    requested: str
    used: str
    backend: str
    reason: str | None = None
    fallback: bool = False
    workspace_bytes: int | None = None
    call_index: int | None = None


def check(algorithm: Algorithm) -> None:
    """Refuse names that the taxonomy does not have."""
    names = algorithm.values() if isinstance(algorithm, Mapping) else (algorithm,)
    for name in names:
        if name not in catalog.ALGORITHMS:
            raise UnknownAlgorithm(name)


def requested(algorithm: Algorithm, layer: str, shape: ConvShape) -> str:
    """Return the name that a request has for one call."""
    if isinstance(algorithm, str):
        return algorithm
    for pattern, name in algorithm.items():
        if pattern != DEFAULT and _matches(pattern, layer, shape.unique_key):
            return name
    return algorithm.get(DEFAULT, catalog.AUTO)


def idle_patterns(algorithm: Algorithm, calls: Iterable[tuple[str, str]]) -> list[str]:
    """Return the patterns of a map that match no (layer, unique key): probably misspelt."""
    if isinstance(algorithm, str):
        return []
    names = set(calls)
    return [
        pattern
        for pattern in algorithm
        if pattern != DEFAULT and not any(_matches(pattern, *name) for name in names)
    ]


def decide(
    algorithm: Algorithm, layer: str, shape: ConvShape, backend: Backend, device_type: str
) -> LayerChoice:
    """Ask the back-end for one call; what it cannot do falls back to `auto`."""
    name = requested(algorithm, layer, shape)
    if name == catalog.AUTOTUNE and device_type != "cuda":
        untuned = f"the framework has no autotuner on {device_type}"
        return LayerChoice(layer, shape, name, catalog.AUTO, FRAMEWORK, untuned)
    if name in FRAMEWORK_CHOICES:
        return LayerChoice(layer, shape, name, name, FRAMEWORK)
    reason = backend.unsupported(name, shape)
    if reason is not None:
        return refused(layer, shape, name, reason)
    workspace = backend.workspace_bytes(name, shape)
    return LayerChoice(layer, shape, name, name, backend.name, workspace_bytes=workspace)


def refused(layer: str, shape: ConvShape, name: str, reason: str) -> LayerChoice:
    """Return the choice of a call that cannot run as asked."""
    return LayerChoice(layer, shape, name, catalog.AUTO, FRAMEWORK, reason, fallback=True)


def _matches(pattern: str, layer: str, unique_key: str) -> bool:
    return fnmatchcase(layer, pattern) or fnmatchcase(unique_key, pattern)
