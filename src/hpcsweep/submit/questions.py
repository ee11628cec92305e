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

from hpcsweep import environment, messages, processes, sources
from hpcsweep.catalog import AXES, Role
from hpcsweep.point import Point
from hpcsweep.spec.space import Sweep
from hpcsweep.store import runs
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.state import PointStatus
from hpcsweep.submit.request import Request, is_factory, names_on

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


def about_networks(
    sweep_dir: SweepDir, requests: Sequence[Request], wrong: Collection[object]
) -> list[Question]:
    """Return what to ask of weights, own networks and maps, after one run through the points.

    There is none where the sweep has nothing of the three. Own networks that are known to be
    `wrong` are not tried.
    """
    sweep = requests[0].sweep
    weights = NamedWeights()
    networks = _OwnNetworks(sweep_dir, wrong)
    maps = _Maps()
    wanted: list[NamedWeights | _OwnNetworks | _Maps] = []
    if weights.may_be_in(sweep):
        wanted.append(weights)
    if any(map(is_factory, names_on(sweep, "model"))):
        wanted.append(networks)
    if any(isinstance(value, dict) for value in sweep.values("algorithm")):
        wanted.append(maps)
    if wanted:
        for request in requests:
            for point in request.points():
                for each in wanted:
                    each.see(request, point)
    return [question for each in wanted for question in each.questions()]


class NamedWeights:
    """Weights by torchvision's name, which have to be in torch's cache: no job downloads any."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], Request] = {}  # by network and name

    @staticmethod
    def may_be_in(sweep: Sweep) -> bool:
        """Say whether the sweep names weights that are neither drawn at random nor a file."""
        names = names_on(sweep, "weights")
        return not all(name == _DRAWN or sources.is_weights_file(name) for name in names)

    def see(self, request: Request, point: Point) -> None:
        """Keep the weights of a point, if they are of this kind."""
        model = point.axes["model"]
        name = point.axes["weights"]
        if name != _DRAWN and not sources.is_weights_file(name) and not is_factory(model):
            self.found.setdefault((model, name), request)

    def questions(self) -> Iterator[Question]:
        """Yield what to ask: whether the cache has them."""
        for (model, name), request in self.found.items():
            home = environment.torch_home(request.profile.env)
            about = {"about": "weights", "home": home, "model": model, "name": name}
            yield Question(request, model, "weights", name, model, about)


def named_weights(request: Request) -> list[tuple[str, str]]:
    """Return networks with the names of their weights, of those that torchvision publishes."""
    weights = NamedWeights()
    if weights.may_be_in(request.sweep):
        for point in request.points():
            weights.see(request, point)
    return [*weights.found]


class _OwnNetworks:
    """Own networks with their smallest and their largest input that is not measured."""

    def __init__(self, sweep_dir: SweepDir, wrong: Collection[object]) -> None:
        self._measured = runs.statuses(sweep_dir)
        self._wrong = wrong
        self._ends: dict[str, tuple[_Axes, _Axes]] = {}
        self._asked_by: dict[str, Request] = {}

    def see(self, request: Request, point: Point) -> None:
        model = point.axes["model"]
        is_measured = self._measured.get(point.point_id) is PointStatus.OK
        if is_measured or not is_factory(model) or model in self._wrong:
            return
        axes = shape_axes(point)
        least, most = self._ends.get(model, (axes, axes))
        self._ends[model] = min(least, axes, key=_numbers), max(most, axes, key=_numbers)
        # what this Python says is sure as soon as one profile's jobs run it
        if model not in self._asked_by or self._asked_by[model].profile.own_python:
            self._asked_by[model] = request

    def questions(self) -> Iterator[Question]:
        for model, (least, most) in self._ends.items():
            request = self._asked_by[model]
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


class _Maps:
    """Maps of algorithms, each with each network that has it: a pattern may match no layer."""

    def __init__(self) -> None:
        self._layers: dict[tuple[str, int], dict[str, str]] = {}
        self._cases: dict[tuple[str, int], dict[object, _Axes]] = {}
        self._request: Request | None = None

    def see(self, request: Request, point: Point) -> None:
        layers = point.axes["algorithm"]
        if not isinstance(layers, dict):
            return
        self._request = self._request or request
        key = point.axes["model"], id(layers)  # its values are the sweep's own objects
        self._layers[key] = layers
        cases = self._cases.setdefault(key, {})
        if len(cases) < _MOST_CASES:
            axes = shape_axes(point)
            cases[tuple(axes.values())] = axes

    def questions(self) -> Iterator[Question]:
        for (model, place), layers in self._layers.items():
            assert self._request  # noqa: S101 - whose map this is
            about = {
                "about": "map",
                "workload": self._request.sweep.workload,
                "layers": layers,
                "cases": [*self._cases[model, place].values()],
            }
            yield Question(self._request, model, "algorithm", layers, model, about)
