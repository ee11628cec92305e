"""Tells which algorithms cuDNN has for a sweep's convolutions on a GPU, before the queue.

The libcudnn of this Python answers, in a process of its own, for devices whose properties it is
given (see `conv.libraries.cudnn_plans`); its answers are kept in the user's cache. Engines, plans
and the heuristic are told exactly, Winograd and FFT by the engines' notes. The GEMM family and
`direct` have no counterpart among engines, and the calls that hpcsweep makes for all of these names
may reach what no engine does. So their cells say what only the node can tell, and never yes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any, Final

from hpcsweep import catalog, environment, files, messages
from hpcsweep.catalog import gpus
from hpcsweep.errors import HpcsweepError, ProfileError, UsageError
from hpcsweep.point import Point, canonical_json
from hpcsweep.spec import profile
from hpcsweep.spec.profile import Profile
from hpcsweep.spec.space import Sweep
from hpcsweep.submit import questions
from hpcsweep.submit.comparison import SettledPoints, Submit, known_points, unmeasured
from hpcsweep.submit.questions import Answer
from hpcsweep.submit.request import is_factory
from hpcsweep.version import __version__

Algorithm = str | Mapping[str, str]

UNKNOWN: Final = "unknown"
ON_NODE: Final = "unknown until the node"
_NONE: Final = "no engine"
SHEETS: Final = "data sheets"
# For an answer of cuDNN about many cases: a person asked for it, and it is kept.
_SECONDS: Final = 600.0
_QUICK_SECONDS: Final = 60.0  # for what a warning is worth
# Cases of a network. Each new size has convolutions of its own, and asking takes minutes.
_MOST_CASES: Final = 200
_FEW: Final = 5  # for a warning: the ends and the middle
_HOPPER: Final = 900  # compute capability from which on cuDNN has no fused Winograd at all
# by algorithm: the notes of which an engine has one
_NOTES: Final[Mapping[str, frozenset[str]]] = {
    name: known.notes for name, known in catalog.ALGORITHMS.items() if known.notes
}


@dataclass(frozen=True, kw_only=True)
class DescribedGpu:
    """A GPU as libcudnn is told of it; without properties nothing can be said of it."""

    name: str
    properties: Mapping[str, Any] | None
    source: str

    @classmethod
    def of(cls, name: str, chosen: Profile | None = None) -> DescribedGpu:
        """Take what doctor wrote beside the profile, else what data sheets say."""
        path = chosen.device_file if chosen else None
        if path and path.is_file():
            return cls(name=name, properties=files.read_json(path), source=str(path))
        return cls(name=name, properties=gpus.cudnn_properties(name), source=SHEETS)


def gpus_named(text: str) -> list[DescribedGpu]:
    """Return the GPUs of a list such as ``l40,h100``; a profile of that name has its own file."""
    described = []
    for part in text.split(","):
        name = part.strip()
        if not name:
            continue
        chosen = None
        with suppress(ProfileError):
            chosen = profile.load(name)
        if chosen and chosen.gpu != name:
            chosen = None
        gpu = DescribedGpu.of(name, chosen)
        if gpu.properties is None and not gpus.vendor(name):
            there = ", ".join(gpus.known_to_cudnn())
            raise UsageError(f"--gpu {name}: no such GPU; there are {there}")
        described.append(gpu)
    return described


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is known of an algorithm for a network on a GPU.

    `found` of `total` distinct convolutions have an engine, with `share_pct` of the operations;
    None is unknown.
    """

    network: str
    gpu: str
    algorithm: str
    total: int
    says: str = ON_NODE
    found: int | None = None
    share_pct: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        return {
            "gpu": self.gpu,
            "algorithm": self.algorithm,
            "convolutions": self.total,
            "with_engine": self.found,
            "share_of_flops_pct": self.share_pct,
            "says": self.says,
        }


@dataclass(frozen=True, kw_only=True)
class Support:
    """The answers about the points of a sweep: a cell for each network, GPU and algorithm."""

    gpus: Sequence[DescribedGpu]
    calls: Mapping[str, list[Mapping[str, Any]]]  # of convolutions, by network
    engines: Mapping[str, Mapping[str, Mapping[str, Any]]]  # by GPU and convolution
    cells: Sequence[Cell]
    cudnn: int | None
    lacking: str
    unchecked: Mapping[str, str]
    looked: Mapping[str, str]  # "5 of 100 cases", where not at all

    @property
    def library(self) -> str:
        version = self.cudnn or 0
        if not version:
            return "no cuDNN answers"
        return f"cuDNN {version // 10_000}.{version // 100 % 100}"  # 91002 is 9.10.2

    def missing(self) -> list[str]:
        """Return a line for each algorithm that no convolution of a network can have on a GPU."""
        lines = []
        for cell in self.cells:
            if cell.found != 0:
                continue
            sure = cell.says == _NONE
            rest = "" if sure else "; its older calls may have it: the node will tell"
            if cell.network in self.looked:
                rest = f"; looked at {self.looked[cell.network]}{rest}"
            lines.append(
                f"{cell.algorithm}: no engine for any convolution of {cell.network} on {cell.gpu} "
                f"({self.library}){rest}"
            )
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the plain record, with the engines of each distinct convolution."""
        networks = []
        for name, calls in self.calls.items():
            cells = [cell.to_json() for cell in self.cells if cell.network == name]
            convolutions = [*self._convolutions(calls)]
            network = {"network": name, "algorithms": cells, "convolutions": convolutions}
            networks.append(network)
        return {
            "cudnn": self.cudnn,
            "lacking": self.lacking or None,
            "gpus": {gpu.name: gpu.source if gpu.properties else UNKNOWN for gpu in self.gpus},
            "networks": networks,
            "unchecked": dict(self.unchecked),
            "looked_at": dict(self.looked),
        }

    def _convolutions(self, calls: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        number = Counter(call["key"] for call in calls)
        for key, call in {call["key"]: call for call in calls}.items():
            on = {gpu.name: self.engines.get(gpu.name, {}).get(key) for gpu in self.gpus}
            yield {"unique_key": key, "calls": number[key], "flops": call["flops"], "on": on}


def has_engine(algorithm: str, answers: Mapping[str, Any]) -> bool | None:
    """Say whether cuDNN has an engine for an algorithm and a convolution; None: nobody can tell."""
    from hpcsweep.conv import choice  # noqa: PLC0415 - for sweeps of a GPU's algorithms

    engines = answers["engines"]
    name = algorithm.partition("@")[0]
    if catalog.is_plan(name):
        return name in answers["heuristic"] or name in {f"eng{one['engine']}" for one in engines}
    if name == catalog.HEURISTIC:
        return bool(answers["heuristic"])
    if algorithm in choice.FRAMEWORK_CHOICES:
        return bool(engines)
    if algorithm not in _NOTES:
        return None
    return any(not _NOTES[algorithm].isdisjoint(one["notes"]) for one in engines)


def _is_sure(algorithm: str, gpu: DescribedGpu) -> bool:
    """Say whether what no engine does cannot run by the calls that hpcsweep makes, either."""
    if algorithm == "winograd":
        return bool(gpu.properties and gpu.properties["deviceVer"] >= _HOPPER)
    return algorithm not in _NOTES


@dataclass(frozen=True)
class Cases:
    """What points ask of cuDNN: of each network the cases, and the algorithms by their names."""

    sweep: Sweep
    by_network: dict[str, dict[str, Any]] = field(default_factory=dict)  # axes, by their JSON
    algorithms: dict[str, Algorithm] = field(default_factory=dict)


def cases_of(sweep: Sweep, points: Iterable[Point]) -> Cases:
    """Return what points of a sweep ask of cuDNN."""
    cases = Cases(sweep)
    for point in points:
        axes = questions.shape_axes(point)
        cases.by_network.setdefault(axes["model"], {})[canonical_json(axes)] = axes
        algorithm = point.axes["algorithm"]
        cases.algorithms.setdefault(sweep.named(algorithm), algorithm)
    return cases


def support_of(
    asked: Cases,
    gpus_asked: Sequence[DescribedGpu],
    folders: Sequence[str],
    *,
    most: int = _MOST_CASES,
    seconds: float = _SECONDS,
) -> Support:
    """Return what cuDNN has for cases on GPUs.

    Of each network at most so many cases (sizes, types, layouts) are looked at.
    """
    cases = asked.by_network
    algorithms = asked.algorithms
    workload = asked.sweep.workload
    order = [*catalog.ALGORITHMS, *algorithms]
    networks: dict[str, list[dict[str, Any]]] = {}
    looked: dict[str, str] = {}
    for model, of_model in cases.items():
        chosen = _spread(of_model, most)
        networks[model] = [questions.about_network(workload, axes) for axes in chosen]
        if len(chosen) < len(of_model):
            looked[model] = f"{most} of {len(of_model):,} cases"
    devices = {gpu.name: gpu.properties for gpu in gpus_asked if gpu.properties}
    answers, cudnn = _answers(folders, networks, devices, seconds)
    calls: dict[str, list[Mapping[str, Any]]] = {}
    unchecked: dict[str, str] = {}
    for model, of_network in answers.items():
        for answer in of_network:
            if "calls" not in answer:
                unchecked.setdefault(model, answer.get("failed") or answer["wrong"])
            elif answer["calls"]:
                calls.setdefault(model, []).extend(answer["calls"])
    labels = sorted(algorithms, key=order.index)
    cells: list[Cell] = []
    for model, known in calls.items():
        for gpu in gpus_asked:
            cells += [_cell(model, gpu, one, algorithms[one], known, cudnn) for one in labels]
    return Support(
        gpus=gpus_asked,
        calls=calls,
        engines=cudnn.get("engines", {}),
        cells=cells,
        cudnn=cudnn.get("cudnn"),
        lacking=cudnn.get("failed", ""),
        unchecked=unchecked,
        looked=looked,
    )


def _cell(  # noqa: PLR0913, PLR0917 - what a cell is about
    network: str,
    gpu: DescribedGpu,
    label: str,
    algorithm: Algorithm,
    calls: Sequence[Mapping[str, Any]],
    cudnn: Answer,
) -> Cell:
    """Return what is known of an algorithm; of a map, each layer has its own."""
    from hpcsweep.conv import choice  # noqa: PLC0415 - as above

    total = len({call["key"] for call in calls})
    unknown = Cell(network=network, gpu=gpu.name, algorithm=label, total=total)
    if gpu.properties is None:
        return replace(unknown, says=UNKNOWN)
    if "failed" in cudnn:
        return replace(unknown, says=f"{UNKNOWN} ({cudnn['failed']})")
    wanted = set[str]()
    without = set[str]()
    flops = 0
    flops_with = 0
    for call in calls:
        name = choice.requested(algorithm, call["layer"], call["key"])
        has = has_engine(name, cudnn["engines"][gpu.name][call["key"]])
        if has is None:
            return unknown
        wanted.add(name)
        flops += call["flops"]
        if has:
            flops_with += call["flops"]
        else:
            without.add(call["key"])
    share = 100 * flops_with / max(flops, 1)
    found = total - len(without)
    says = f"{found} of {total} ({share:.3g} %)"
    if not found:
        says = _NONE
        if not all(_is_sure(name, gpu) for name in wanted):  # older calls may do it
            says += f"; {ON_NODE}"
    return replace(unknown, found=found, share_pct=share, says=says)


def check_support(jobs: Sequence[Submit]) -> Sequence[Submit]:
    """Say which algorithms no convolution of a network can have on the GPU of a profile.

    Points that have a result are left out: cuDNN's first answer takes long, and a lot of memory.
    """
    for job in jobs:
        request = job.request
        gpu = DescribedGpu.of(request.device, request.profile)
        if not catalog.WORKLOADS[request.sweep.workload].runs_network or gpu.properties is None:
            continue
        job_now = replace(job, known=known_points(job))
        left = unmeasured(job_now, SettledPoints())
        points = (point for point in left if _engines_tell(point.axes["algorithm"]))
        cases = cases_of(request.sweep, points)
        if cases.by_network:
            folders = request.search_path
            support = support_of(cases, [gpu], folders, most=_FEW, seconds=_QUICK_SECONDS)
            for line in support.missing():
                messages.warning(line)
    return jobs


def _engines_tell(algorithm: Algorithm) -> bool:
    """Say whether an algorithm, or one of a map, is one that a GPU may lack by its engines."""
    names = [algorithm] if isinstance(algorithm, str) else algorithm.values()
    told = {*_NOTES, catalog.HEURISTIC}
    return any(name in told or catalog.is_plan(name) for name in names)


def _spread(cases: Mapping[str, Any], most: int) -> list[Any]:
    """Return at most so many cases, from the first to the last."""
    every = [*cases.values()]
    if len(every) > most:
        every = [every[round(at * (len(every) - 1) / (most - 1))] for at in range(most)]
    return every


def _answers(
    folders: Sequence[str],
    networks: Mapping[str, Sequence[Mapping[str, Any]]],
    devices: Mapping[str, Any],
    seconds: float,
) -> tuple[dict[str, list[Answer]], Answer]:
    """Return what networks and libcudnn tell, from the user's cache where that was asked before.

    Networks of one's own may have changed meanwhile. A cache that cannot be read or written costs
    only time.
    """
    question = json.dumps([folders, networks, devices, *_versions()])
    stamp = hashlib.sha256(question.encode()).hexdigest()[:24]
    path = environment.cache_folder() / "support" / f"{stamp}.json"
    with suppress(HpcsweepError, OSError, ValueError, KeyError):
        kept = files.read_json(path)
        return kept["networks"], kept["cudnn"]
    cases = sum(len(of_network) for of_network in networks.values())
    if cases > _FEW:
        names = ", ".join(devices)
        messages.note(f"asks cuDNN about {cases} cases on {names}: minutes, but only once")
    with questions.asking(folders, seconds) as ask:
        answers = {model: ask(model, asked) for model, asked in networks.items()}
        every = [*chain.from_iterable(answers.values())]
        shapes: dict[str, Any] = {}
        for answer in every:
            shapes |= {call["key"]: call["shape"] for call in answer.get("calls", ())}
        about = {"about": "engines", "devices": devices, "convolutions": shapes}
        (cudnn,) = ask("cuDNN", [about])
    answered = not any({"failed", "wrong"} & answer.keys() for answer in (*every, cudnn))
    if answered and not any(map(is_factory, networks)):
        with suppress(HpcsweepError, OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(path, {"networks": answers, "cudnn": cudnn})
    return answers, cudnn


def _versions() -> Iterator[str]:
    """Yield the releases that an answer depends on, without loading any."""
    yield __version__
    library = os.environ.get(environment.CUDNN)
    if library:
        with suppress(OSError):
            yield f"{library} {Path(library).stat().st_mtime_ns}"
    for wheel in ("torch", "torchvision", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12"):
        with suppress(metadata.PackageNotFoundError):
            yield f"{wheel} {metadata.version(wheel)}"
