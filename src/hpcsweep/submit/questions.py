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
from typing import Any, Final

from hpcsweep import environment, files, messages, processes, sources
from hpcsweep.catalog import AXES, Role
from hpcsweep.point import Point
from hpcsweep.spec.space import Sweep
from hpcsweep.store import runs
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.state import PointStatus
from hpcsweep.submit.request import Request, is_factory, names_on

Answer = dict[str, Any]
_Axes = Mapping[str, Any]  # of a point, those that shapes depend on
# by network and identity of a map: the map, and the cases that it is compared with
_Maps = dict[tuple[str, int], tuple[dict[str, str], dict[object, _Axes]]]
Ask = Callable[[str, Sequence[Mapping[str, Any]]], list[Answer]]

_PROGRAM: Final = "hpcsweep.measure.trials"
# Of one network: its factory may compile something, or wait for a disk. Whoever hangs costs two
# minutes once, and its points are submitted all the same.
_SECONDS: Final = 120.0
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
_DRAWN: Final = AXES["weights"].default  # at random: there is no file
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
    with tempfile.TemporaryFile() as said:
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
            lines = [line for line in files.last_lines(said) if line.strip()]
            lines = lines or [f"exit code {code}"]
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


def about_networks(
    sweep_dir: SweepDir, requests: Sequence[Request], wrong: Collection[object]
) -> list[Question]:
    """Return what to ask of weights, own networks and maps, after one run through the points.

    Points are not looked at where the sweep has nothing of the three. Own networks that are known
    to be `wrong` are not tried, nor with an input that is measured.
    """
    sweep = requests[0].sweep
    has_own = any(map(is_factory, names_on(sweep, "model")))
    has_maps = any(isinstance(value, dict) for value in sweep.values("algorithm"))
    if not (has_own or has_maps or _names_weights(sweep)):
        return []
    measured = runs.statuses(sweep_dir) if has_own else {}
    weights: dict[tuple[str, str], Request] = {}  # by network and name: who asks for them first
    ends: dict[str, tuple[_Axes, _Axes]] = {}  # of own networks: the smallest and largest input
    asked_by: dict[str, Request] = {}
    maps: _Maps = {}
    for request in requests:
        for point in request.expansion:
            model = point.axes["model"]
            if _is_published(point):
                weights.setdefault((model, point.axes["weights"]), request)
            is_measured = measured.get(point.point_id) is PointStatus.OK
            if is_factory(model) and model not in wrong and not is_measured:
                axes = shape_axes(point)
                least, most = ends.get(model, (axes, axes))
                ends[model] = min(least, axes, key=_numbers), max(most, axes, key=_numbers)
                # what this Python says is sure as soon as one profile's jobs run it
                if model not in asked_by or asked_by[model].profile.own_python:
                    asked_by[model] = request
            if isinstance(point.axes["algorithm"], dict):
                _keep_case(maps, point)
    asked = [_about_weights(request, *names) for names, request in weights.items()]
    for model, (least, most) in ends.items():
        asked += _about_own(asked_by[model], model, least, most)
    for (model, _), (layers, cases) in maps.items():
        asked.append(_about_map(requests[0], model, layers, [*cases.values()]))
    return asked


def _keep_case(maps: _Maps, point: Point) -> None:
    """Add the input of a point to those that its map is compared with."""
    layers = point.axes["algorithm"]
    key = point.axes["model"], id(layers)  # its values are the sweep's own objects
    _, cases = maps.setdefault(key, (layers, {}))
    if len(cases) < _MOST_CASES:
        axes = shape_axes(point)
        cases[tuple(axes.values())] = axes


def _names_weights(sweep: Sweep) -> bool:
    """Say whether a sweep names weights that are neither drawn at random nor a file."""
    names = names_on(sweep, "weights")
    return not all(name == _DRAWN or sources.is_weights_file(name) for name in names)


def _is_published(point: Point) -> bool:
    """Say whether the weights of a point are some that torchvision publishes."""
    name = point.axes.get("weights", _DRAWN)
    own = is_factory(point.axes["model"]) or sources.is_weights_file(name)
    return name != _DRAWN and not own


def named_weights(request: Request) -> list[tuple[str, str]]:
    """Return networks with the names of their weights, of those that torchvision publishes."""
    if not _names_weights(request.sweep):
        return []
    published = filter(_is_published, request.expansion)
    names = ((point.axes["model"], point.axes["weights"]) for point in published)
    return list(dict.fromkeys(names))


def _about_weights(request: Request, model: str, name: str) -> Question:
    """Ask whether weights are in torch's cache: no job downloads any."""
    home = environment.torch_home(request.profile.env)
    about = {"about": "weights", "home": home, "model": model, "name": name}
    return Question(request, model, "weights", name, model, about)


def _about_own(request: Request, model: str, least: _Axes, most: _Axes) -> Iterator[Question]:
    """Ask about the smallest and the largest input of an own network."""
    differ = [name for name in least if name == "input_size" or least[name] != most[name]]
    for case in [least] if least is most else [least, most]:
        at = "at " + ", ".join(f"{name} {case[name]}" for name in differ)
        about = about_network(request.sweep.workload, case)
        yield Question(request, model, "model", model, at, about)


def _numbers(axes: _Axes) -> int:
    """Return how many numbers a batch has, without a factor that is the same for all."""
    height = axes["input_size"]
    pixels = height * (axes.get("input_width") or height)
    return int(pixels * (axes.get("input_channels") or 1) * axes["batch_size"])


def _about_map(
    request: Request, model: str, layers: dict[str, str], cases: Sequence[_Axes]
) -> Question:
    """Ask which patterns of a map match no layer of a network that has it."""
    about = {
        "about": "map",
        "workload": request.sweep.workload,
        "layers": layers,
        "cases": cases,
    }
    return Question(request, model, "algorithm", layers, model, about)
