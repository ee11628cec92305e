"""What the library can do: each algorithm, type and layout, forward and in both gradients."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from benchmarks.gpu import convolutions
from hpcsweep import catalog
from hpcsweep.conv import backend as backends
from hpcsweep.measure.machine import framework

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.gpu.lab import Lab
    from hpcsweep.conv.backend import Backend
    from hpcsweep.conv.shape import ConvShape

TF32: Final = "tf32"
_TYPES: Final = ("float32", TF32, "float16", "bfloat16")
_LAYOUTS: Final = ("nchw", "nhwc")
_MOST_REASONS: Final = 4


def matrix(lab: Lab) -> None:
    """Ask for every combination over all distinct convolutions; the library tries each once."""
    shapes = tuple(convolutions.kinds(lab.options, lab.machine.kind).values())
    backend = backends.choose(lab.machine.kind)
    wanted = {
        f"{name} {dtype} {layout}": (name, dtype, layout)
        for dtype in _TYPES
        for layout in _LAYOUTS
        for name in convolutions.EXPLICIT
    }
    for key, (name, dtype, layout) in lab.each(wanted):
        framework.apply(catalog.axis_defaults("inference") | {"tf32": dtype == TF32})
        real = "float32" if dtype == TF32 else dtype
        of_type = [replace(shape, dtype=real, layout=layout, bias=False) for shape in shapes]
        with lab.entry(key) as facts:
            facts.update(can(backend, name, of_type))
    convolutions.full_precision()


def can(backend: Backend, name: str, shapes: Sequence[ConvShape]) -> dict[str, Any]:
    """Return of how many shapes each direction runs an algorithm, and why not the others.

    A gradient runs only where the forward pass does.
    """
    reasons: dict[str, list[str | None]] = {"forward": [], "data": [], "filter": []}
    for shape in shapes:
        why = backend.unsupported(name, shape)
        reasons["forward"].append(why)
        if why is None:
            for gradient in backend.gradients(name, shape):
                told = gradient.reason or "the framework's own"
                reasons[gradient.way.value].append(None if gradient.algorithm else told)
    return {way: _counted(found) for way, found in reasons.items()}


def _counted(found: Iterable[str | None]) -> dict[str, Any]:
    found = list(found)
    why = Counter(reason[:160] for reason in found if reason is not None)
    return {
        "can": found.count(None),
        "of": len(found),
        "reasons": dict(why.most_common(_MOST_REASONS)),
    }
