"""Asks torch about the networks of a sweep, in another process: `submit` itself imports no torch.

Own networks are tried with their smallest and their largest input, maps of algorithms are compared
with the layers of the networks that have them, and weights by torchvision's name must be there.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hpcsweep import messages, processes, search_path
from hpcsweep.catalog import AXES, Role
from hpcsweep.point import Point
from hpcsweep.store import runs
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.state import PointStatus
from hpcsweep.submit.factories import is_factory, named
from hpcsweep.submit.request import Request

Answer = dict[str, Any]
_Axes = Mapping[str, Any]  # of a point, those that shapes depend on
Ask = Callable[[str, Sequence[Mapping[str, Any]]], list[Answer]]

_PROGRAM: Final = "hpcsweep.measure.trials"
_SECONDS: Final = 120.0  # of one network: its factory may compile something, or wait for a disk
_SLOW_SECONDS: Final = 10.0  # after which a person wonders what is going on
# the axes that the shapes of a network, and the types of its calls, depend on
_SHAPES: Final = (
    *(
        name
        for name, axis in AXES.items()
        if axis.role & (Role.NETWORK | Role.INPUT) and Role.NUMBERS not in axis.role
    ),
    "amp",
)
# Sizes of one network with one map; mostly the first one has all layers that a pattern may name.
_MOST_CASES: Final = 1000


@dataclass(frozen=True)
class Question:
    """What torch is asked `about` a value that the sweep names below a key; `at` in words."""

    request: Request
    network: str
    key: str
    value: Any
    at: str
    about: Mapping[str, Any]


@contextmanager
def asking(folders: Sequence[str], seconds: float = _SECONDS) -> Iterator[Ask]:
    """Give a function that answers what is asked about a network, which has a process of its own.

    So many seconds are for all that is asked at once. What was not answered has `failed`, the
    reason.
    """
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryFile("w+") as said:
        with theirs:
            # it hears no Ctrl-C, and ends with what it started when the socket is closed
            child = subprocess.Popen(
                processes.python(_PROGRAM, *folders),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=said,
                start_new_session=True,
            )

        def ask(network: str, questions: Sequence[Mapping[str, Any]]) -> list[Answer]:
            asked = {"network": network, "questions": questions, "seconds": seconds}
            with suppress(ConnectionError):  # it has ended
                ours.sendall(json.dumps(asked).encode() + b"\n")
            is_ready, _, _ = select.select([ours], [], [], _SLOW_SECONDS)
            if not is_ready:
                messages.progress(f"waits for {network}, for {seconds:.0f} s at most")
            reply = ""
            with suppress(ConnectionError):
                reply = replies.readline()
            if reply:
                answers: list[Answer] = json.loads(reply)
                return answers
            code = child.wait()
            said.seek(0)
            lines = said.read().strip().splitlines() or [f"exit code {code}"]
            return [{"failed": lines[-1]}] * len(questions)  # such as that there is no torch

        with child, ours, ours.makefile() as replies:
            replies.readline()  # it has torch now, or has ended
            yield ask


def shape_axes(point: Point) -> dict[str, Any]:
    """Return the axes of a point on which its shapes depend."""
    return {name: point.axes[name] for name in _SHAPES if name in point.axes}


def about_network(workload: str, axes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the question whether a network takes an input, and what it computes then."""
    return {"about": "network", "workload": workload, "axes": axes}


def own_networks(
    results: Path, requests: Sequence[Request], wrong: Collection[object]
) -> Iterator[Question]:
    """Ask of each own network about its smallest and its largest input that is not measured.

    Those that are known to be `wrong` are not tried.
    """
    sweep = requests[0].sweep
    if not any(map(is_factory, named(sweep, "model"))):
        return
    measured = runs.statuses(SweepDir(results / sweep.name))
    ends: dict[str, tuple[_Axes, _Axes]] = {}
    asked_by: dict[str, Request] = {}
    for request in requests:
        for point in request.points():
            model = point.axes["model"]
            is_measured = measured.get(point.point_id) is PointStatus.OK
            if is_measured or not is_factory(model) or model in wrong:
                continue
            axes = shape_axes(point)
            least, most = ends.get(model, (axes, axes))
            ends[model] = min(least, axes, key=_numbers), max(most, axes, key=_numbers)
            # what this Python says is sure as soon as one profile's jobs run it
            if model not in asked_by or asked_by[model].profile.own_python:
                asked_by[model] = request
    for model, (least, most) in ends.items():
        differ = [name for name in least if name == "input_size" or least[name] != most[name]]
        for case in [least] if least is most else [least, most]:
            at = "at " + ", ".join(f"{name} {case[name]}" for name in differ)
            about = about_network(sweep.workload, case)
            yield Question(asked_by[model], model, "model", model, at, about)


def _numbers(axes: _Axes) -> int:
    """Return how many numbers a batch has, without a factor that is the same for all."""
    height = axes["input_size"]
    pixels = height * (axes.get("input_width") or height)
    return int(pixels * (axes.get("input_channels") or 1) * axes["batch_size"])


def weights(request: Request) -> Iterator[Question]:
    """Ask for weights by torchvision's name that are not in torch's cache: no job downloads any."""
    home = search_path.torch_home(request.profile.env)
    for model, name in named_weights(request):
        about = {"about": "weights", "home": home, "model": model, "name": name}
        yield Question(request, model, "weights", name, model, about)


def named_weights(request: Request) -> list[tuple[str, str]]:
    """Return networks with the names of their weights, of those that torchvision publishes."""
    drawn = AXES["weights"].default
    if all(name == drawn or search_path.is_file(name) for name in named(request.sweep, "weights")):
        return []
    found = ((point.axes["model"], point.axes["weights"]) for point in request.points())
    return [
        (model, name)
        for model, name in dict.fromkeys(found)
        if name != drawn and not search_path.is_file(name) and not is_factory(model)
    ]


def maps(requests: Sequence[Request]) -> Iterator[Question]:
    """Ask of each map, with each network that has it, for patterns that match no layer."""
    sweep = requests[0].sweep
    if not any(isinstance(value, dict) for value in sweep.values("algorithm")):
        return
    found: dict[tuple[str, int], tuple[dict[str, str], dict[object, Mapping[str, Any]]]] = {}
    for request in requests:
        for point in request.points():
            layers = point.axes["algorithm"]
            if isinstance(layers, dict):
                key = point.axes["model"], id(layers)  # its values are the sweep's own objects
                _, cases = found.setdefault(key, (layers, {}))
                if len(cases) < _MOST_CASES:
                    axes = shape_axes(point)
                    cases[tuple(axes.values())] = axes
    for (model, _), (layers, cases) in found.items():
        about = {
            "about": "map",
            "workload": sweep.workload,
            "layers": layers,
            "cases": list(cases.values()),
        }
        yield Question(requests[0], model, "algorithm", layers, model, about)
