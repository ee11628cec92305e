"""Asks torch, in a process of its own, what a sweep needs before anything enters the queue.

`submit` itself loads no torch. One process (`hpcsweep.measure.ahead`) answers for all profiles,
and it is started only if the sweep has weights by torchvision's name or maps of algorithms.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import processes, search_path
from hpcsweep.catalog import AXES, Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcsweep.submit.request import Request

    Weights = Sequence[tuple[str, str]]  # networks, and names of their weights

_PROGRAM: Final = "hpcsweep.measure.ahead"
_SECONDS: Final = 180.0  # a factory may wait for something
# the axes that the shapes of a network, and the types of its calls, depend on
_SHAPES: Final = (
    *(
        name
        for name, axis in AXES.items()
        if axis.role & (Role.NETWORK | Role.INPUT) and Role.NUMBERS not in axis.role
    ),
    "amp",
)
_MOST_CASES: Final = 1000  # sizes of one network with one map


@dataclass(frozen=True, kw_only=True)
class Look:
    """A map on a network: the patterns that match no layer, each with a hint, or why not known."""

    model: str
    layers: Mapping[str, str]
    idle: Mapping[str, str] = field(default_factory=dict)
    unchecked: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What torch says: for each request a problem or "" for each of its weights, and the maps."""

    weights: Sequence[Sequence[str]]
    maps: Sequence[Look]


def ask(requests: Sequence[Request], wanted: Sequence[Weights]) -> Answer:
    """Ask for requests of one sweep, and the weights that each needs; starts nothing in vain."""
    maps = _maps(requests)
    if not maps and not any(wanted):
        return Answer(weights=[[] for _ in requests], maps=[])
    homes = [search_path.torch_home(asked.profile.env) for asked in requests]
    question = {
        "search_path": requests[0].search_path,
        "weights": [{"home": h, "wanted": w} for h, w in zip(homes, wanted, strict=True)],
        "maps": maps,
    }
    try:
        found = _run(json.dumps(question))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        found = _unknown(question, _why(error))
    looks = [
        Look(model=one["cases"][0]["model"], layers=one["layers"], **seen)
        for one, seen in zip(maps, found["maps"], strict=True)
    ]
    return Answer(weights=found["weights"], maps=looks)


def _maps(requests: Sequence[Request]) -> list[dict[str, Any]]:
    """Return each map with each network that has it, and the cases of shapes in which it does."""
    sweep = requests[0].sweep
    if not any(isinstance(value, dict) for value in sweep.values("algorithm")):
        return []
    names = [name for name in _SHAPES if sweep.workload in AXES[name].workloads]
    found: dict[tuple[str, int], tuple[dict[str, str], dict[tuple[Any, ...], None]]] = {}
    for asked in requests:
        for point in asked.points():
            layers = point.axes["algorithm"]
            if isinstance(layers, dict):
                key = point.axes["model"], id(layers)  # its values are the sweep's own objects
                _, cases = found.setdefault(key, (layers, {}))
                if len(cases) < _MOST_CASES:
                    cases[tuple(map(point.axes.__getitem__, names))] = None
    return [
        {
            "workload": sweep.workload,
            "layers": layers,
            "cases": [dict(zip(names, case, strict=True)) for case in cases],
        }
        for layers, cases in found.values()
    ]


def _run(question: str) -> dict[str, Any]:
    done = subprocess.run(
        processes.python(_PROGRAM),
        input=question,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _why(error: Exception) -> str:
    """Return why there is no answer: the last words of the process, such as that torch lacks."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer within {_SECONDS:.0f} s"
    said = getattr(error, "stderr", None) or str(error)
    return str(said).strip().splitlines()[-1]


def _unknown(question: Mapping[str, Any], why: str) -> dict[str, Any]:
    """Return the answer of a machine that cannot tell."""
    told = f"nobody could tell whether they are there ({why})"
    return {
        "weights": [[told for _ in one["wanted"]] for one in question["weights"]],
        "maps": [{"unchecked": why} for _ in question["maps"]],
    }
