"""Tells which algorithms cuDNN has for a sweep's convolutions on a GPU, before the queue.

The libcudnn of this Python answers, in a process of its own, for devices whose properties it is
given (see `conv.libraries.cudnn_graph`); its answers are kept in the user's cache. Engines, plans
and the heuristic are told exactly, Winograd and FFT by the engines' notes. The GEMM family and
`direct` have no counterpart among engines, and the calls that hpcsweep makes for all of these names
may reach what no engine does. So their cells say what only the node can tell, and never yes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from hpcsweep import __version__, catalog, environment, files, messages
from hpcsweep.catalog import gpus
from hpcsweep.conv import choice
from hpcsweep.errors import HpcsweepError, ProfileError, UsageError
from hpcsweep.point import Point, canonical_json
from hpcsweep.spec import profile
from hpcsweep.spec.profile import Profile
from hpcsweep.store.folders import SweepDir
from hpcsweep.submit import check_inputs, prepare
from hpcsweep.submit.check_inputs import SHAPES
from hpcsweep.submit.request import Request

Algorithm = str | Mapping[str, str]
# the calls of each case, the engines by GPU and convolution, cuDNN's version, else what is lacking
_Answers = tuple[dict[str, Any], dict[str, dict[str, Any]], int | None, str]

UNKNOWN: Final = "unknown"
ON_NODE: Final = "unknown until the node"
SHEETS: Final = "data sheets"
_SECONDS: Final = 600.0  # for an answer of cuDNN about many cases
_QUICK: Final = 60.0  # for what a warning is worth
_MOST_CASES: Final = 200  # of a network
_FEW: Final = 5  # for a warning
_HOPPER: Final = 900  # compute capability from which on cuDNN has no fused Winograd at all
_WHEELS: Final = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
# by algorithm: the notes of which an engine has one
_NOTES: Final[Mapping[str, frozenset[str]]] = {
    "winograd": frozenset({"WINOGRAD_TILE_4x4"}),
    "winograd_nonfused": frozenset({"WINOGRAD_TILE_6x6", "WINOGRAD_TILE_13x13"}),
    "fft": frozenset({"FFT"}),
    "fft_tiling": frozenset({"FFT"}),
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
        if chosen and (path := chosen.device_file).is_file():
            return cls(name=name, properties=files.read_json(path), source=str(path))
        return cls(name=name, properties=gpus.cudnn_properties(name), source=SHEETS)

    @property
    def key(self) -> str:
        """What its answers are kept under."""
        return hashlib.sha256(canonical_json(dict(self.properties or {})).encode()).hexdigest()[:16]


def gpus_named(text: str) -> list[DescribedGpu]:
    """Return the GPUs of a list such as ``l40,h100``; a profile of that name has its own file."""
    described = []
    for name in filter(None, map(str.strip, text.split(","))):
        chosen = None
        with suppress(ProfileError):
            chosen = profile.load(name)
        described.append(DescribedGpu.of(name, chosen if chosen and chosen.gpu == name else None))
        if described[-1].properties is None and not gpus.vendor(name):
            raise UsageError(
                f"--gpu {name}: no such GPU; there are {', '.join(gpus.known_to_cudnn())}"
            )
    return described


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is known of an algorithm for a network on a GPU.

    `found` of `total` distinct convolutions have an engine, with `share_pct` of the operations;
    None is unknown. `sure`: where there is no engine, nothing else can run it, either.
    """

    algorithm: str
    total: int
    found: int | None = None
    share_pct: float | None = None
    sure: bool = False
    why: str = ON_NODE

    def __str__(self) -> str:
        if self.found is None:
            return self.why
        if not self.found:
            return "no engine" if self.sure else f"no engine; {ON_NODE}"
        return f"{self.found} of {self.total} ({self.share_pct:.3g} %)"


@dataclass
class Support:
    """The answers about the points of a sweep, by network and GPU."""

    gpus: Sequence[DescribedGpu]
    cases: Mapping[str, list[Mapping[str, Any]]]  # by network: of each case its convolution calls
    algorithms: Sequence[tuple[str, Algorithm]]  # as people are told of them, as points have them
    engines: Mapping[str, Mapping[str, Mapping[str, Any]]]  # by GPU and convolution
    cudnn: int | None = None
    lacking: str = ""
    unchecked: Mapping[str, str] = field(default_factory=dict)
    looked: Mapping[str, str] = field(default_factory=dict)  # "5 of 100 cases", where not at all

    @property
    def library(self) -> str:
        version = self.cudnn or 0
        return f"cuDNN {version // 10_000}.{version // 100 % 100}" if version else "no cuDNN"

    def cell(self, network: str, gpu: DescribedGpu, algorithm: Algorithm, label: str = "") -> Cell:
        """Return what is known of an algorithm; of a map, each layer has its own."""
        calls = self.cases[network]
        total = len({call["key"] for call in calls})
        about: dict[str, Any] = {"algorithm": label or str(algorithm), "total": total}
        if gpu.properties is None:
            return Cell(**about, why=UNKNOWN)
        if self.cudnn is None:
            return Cell(**about, why=f"{UNKNOWN} ({self.lacking})")
        engines_of = self.engines[gpu.name]
        wanted = [choice.requested(algorithm, call["layer"], call["key"]) for call in calls]
        has = [
            engines_for(name, engines_of[call["key"]])
            for name, call in zip(wanted, calls, strict=True)
        ]
        if None in has:
            return Cell(**about)
        both = list(zip(calls, has, strict=True))
        without = {call["key"] for call, engines in both if not engines}
        work = sum(call["flops"] for call in calls) or 1
        share = 100 * sum(call["flops"] for call, engines in both if engines) / work
        sure = all(_is_sure(name, gpu) for name in wanted)
        return Cell(**about, found=total - len(without), share_pct=share, sure=sure)

    def missing(self) -> list[str]:
        """Return a line for each algorithm that no convolution of a network can have on a GPU."""
        lines = []
        for network in self.cases:
            for gpu in self.gpus:
                for label, algorithm in self.algorithms:
                    cell = self.cell(network, gpu, algorithm, label)
                    if cell.found != 0:
                        continue
                    rest = "" if cell.sure else "; its older calls may have it: the node will tell"
                    if looked := self.looked.get(network):
                        rest = f"; looked at {looked}{rest}"
                    lines.append(
                        f"{label}: no engine for any convolution of {network} on {gpu.name} "
                        f"({self.library}){rest}"
                    )
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the plain record, with the engines of each distinct convolution."""
        return {
            "cudnn": self.cudnn,
            "lacking": self.lacking or None,
            "gpus": {gpu.name: gpu.source if gpu.properties else UNKNOWN for gpu in self.gpus},
            "networks": [self._network(name) for name in self.cases],
            "unchecked": dict(self.unchecked),
            "looked_at": dict(self.looked),
        }

    def _network(self, name: str) -> dict[str, Any]:
        cells = [
            {
                "gpu": gpu.name,
                "algorithm": label,
                "convolutions": cell.total,
                "with_engine": cell.found,
                "share_of_flops_pct": cell.share_pct,
                "says": str(cell),
            }
            for gpu in self.gpus
            for label, algorithm in self.algorithms
            for cell in [self.cell(name, gpu, algorithm, label)]
        ]
        calls = self.cases[name]
        keys = dict.fromkeys(call["key"] for call in calls)
        convolutions = [
            {
                "unique_key": key,
                "calls": sum(call["key"] == key for call in calls),
                "flops": next(call["flops"] for call in calls if call["key"] == key),
                "on": {gpu.name: self.engines.get(gpu.name, {}).get(key) for gpu in self.gpus},
            }
            for key in keys
        ]
        return {"network": name, "algorithms": cells, "convolutions": convolutions}


def engines_for(algorithm: str, answers: Mapping[str, Any]) -> list[str] | None:
    """Return what cuDNN has for an algorithm and a convolution; None: engines do not tell."""
    engines = answers["engines"]
    name = algorithm.partition("@")[0]
    if catalog.is_plan(name):
        names = {f"eng{engine['engine']}" for engine in engines} | {*answers["heuristic"]}
        return [name] if name in names else []
    if name == catalog.HEURISTIC:
        return list(answers["heuristic"][:1])
    if algorithm in choice.FRAMEWORK_CHOICES:
        return [f"eng{engine['engine']}" for engine in engines]
    notes = _NOTES.get(algorithm)
    if notes is None:
        return None
    return [f"eng{engine['engine']}" for engine in engines if not notes.isdisjoint(engine["notes"])]


def _is_sure(algorithm: str, gpu: DescribedGpu) -> bool:
    """Say whether what no engine does cannot run by the calls that hpcsweep makes, either."""
    if algorithm == "winograd":
        return bool(gpu.properties and gpu.properties["deviceVer"] >= _HOPPER)
    return algorithm not in _NOTES


def support_of(  # noqa: PLR0913 - the points, the GPUs, and how long
    points: Iterable[Point],
    gpus_asked: Sequence[DescribedGpu],
    named: Callable[[Any], str],
    folders: Sequence[str],
    *,
    most: int = _MOST_CASES,
    seconds: float = _SECONDS,
) -> Support:
    """Return what cuDNN has for points on GPUs; `named` turns a map of algorithms into its name.

    Of each network at most so many cases (sizes, types, layouts) are looked at. `say` is told when
    that will take a while.
    """
    cases: dict[str, dict[str, Any]] = {}  # by network: of each case the axes, by their JSON
    algorithms: dict[str, Algorithm] = {}
    workload = ""
    for point in points:
        workload = point.workload
        axes = {name: point.axes[name] for name in SHAPES if name in point.axes}
        cases.setdefault(axes["model"], {})[canonical_json(axes)] = axes
        algorithms.setdefault(named(point.axes["algorithm"]), point.axes["algorithm"])
    looked = {m: f"{most} of {len(c):,} cases" for m, c in cases.items() if len(c) > most}
    cases = {model: _spread(each, most) for model, each in cases.items()}
    every = {key: axes for each in cases.values() for key, axes in each.items()}
    question = {"search_path": folders, "workload": workload, "cases": every}
    able = [gpu for gpu in gpus_asked if gpu.properties]
    answers, engines, cudnn, lacking = _answers(question, able, seconds)
    answered = {m: [answers.get(key, {}) for key in each] for m, each in cases.items()}
    calls = {m: [call for c in each for call in c.get("calls", ())] for m, each in answered.items()}
    whys = {m: [c["unchecked"] for c in each if "unchecked" in c] for m, each in answered.items()}
    order = [*catalog.ALGORITHMS, *algorithms]
    return Support(
        gpus=gpus_asked,
        cases={model: each for model, each in calls.items() if each},
        algorithms=sorted(algorithms.items(), key=lambda item: order.index(item[0])),
        engines=engines,
        cudnn=cudnn,
        lacking=lacking,
        unchecked={model: why[0] for model, why in whys.items() if why},
        looked=looked,
    )


def warn(results: Path, requests: Sequence[Request]) -> None:
    """Say which algorithms no convolution of a network can have on the GPU of a profile.

    Points that have a result are left out: cuDNN's first answer takes long, and a lot of memory.
    """
    for request in requests:
        gpu = DescribedGpu.of(request.device, request.profile)
        if not catalog.WORKLOADS[request.sweep.workload].runs_network or gpu.properties is None:
            continue
        told = {*_NOTES, catalog.HEURISTIC}
        known = prepare.known_points(SweepDir(results / request.sweep.name), request, None)
        points = [
            point
            for point in prepare.unmeasured(request, known, {})
            for asked in [point.axes["algorithm"]]
            for names in [[asked] if isinstance(asked, str) else asked.values()]
            if any(name in told or catalog.is_plan(name) for name in names)
        ]
        if points:
            named = request.sweep.named
            folders = request.search_path
            support = support_of(points, [gpu], named, folders, most=_FEW, seconds=_QUICK)
            for line in support.missing():
                messages.warning(line)


def _spread(cases: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Return at most so many cases, from the first to the last."""
    keys = list(cases)
    if len(keys) > most:
        keys = [keys[round(at * (len(keys) - 1) / (most - 1))] for at in range(most)]
    return {key: cases[key] for key in keys}


def _answers(question: dict[str, Any], gpus: Sequence[DescribedGpu], seconds: float) -> _Answers:
    """Answer a question about cases: from the cache as far as it can, libcudnn tells the rest."""
    cases = question["cases"]
    begin = f"{question['workload']} "
    shapes = _AnswersFile("shapes", _software())
    kept = {gpu.name: _AnswersFile(gpu.key, _library()) for gpu in gpus}
    cached = {k: shapes.values[begin + k] for k in cases if begin + k in shapes.values}
    wanted = {call["key"]: call["shape"] for case in cached.values() for call in case["calls"]}
    engines = {name: {**each.values} for name, each in kept.items()}
    if len(cached) == len(cases) and all(wanted.keys() <= of.keys() for of in engines.values()):
        return cached, engines, next((of.get("cudnn") for of in engines.values()), None), ""
    rest = {key: axes for key, axes in cases.items() if key not in cached}
    if len(rest) > _FEW:
        names = ", ".join(gpu.name for gpu in gpus)
        messages.note(f"asks cuDNN about {len(rest)} cases on {names}: minutes, but only once")
    left = {
        "cases": [*rest.values()],
        "convolutions": wanted,
        "devices": {gpu.name: gpu.properties for gpu in gpus},
        "known": {name: sorted(of) for name, of in engines.items()},
    }
    new = check_inputs.ask({**question, **left}, seconds)
    if "failed" in new:
        return cached, engines, None, new["failed"]
    answered = dict(zip(rest, new["cases"], strict=True))
    builtin = [key for key, axes in rest.items() if ":" not in axes["model"]]
    shapes.add({begin + key: answered[key] for key in builtin if "calls" in answered[key]})
    for name, answers in new["engines"].items():
        kept[name].add({**answers, "cudnn": new["cudnn"]})
        engines[name] |= answers
    return {**cached, **answered}, engines, new["cudnn"], new.get("lacking", "")


@dataclass
class _AnswersFile:
    """A file of answers in the user's cache; one that cannot be read or written costs only time."""

    name: str
    stamp: str  # what the answers depend on; "": nothing is kept

    @cached_property
    def values(self) -> dict[str, Any]:
        with suppress(HpcsweepError, OSError, ValueError):
            return files.read_json(self._path) if self.stamp else {}
        return {}

    def add(self, answers: Mapping[str, Any]) -> None:
        """Keep answers besides those that are there."""
        if self.stamp and answers:
            with suppress(HpcsweepError, OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                files.write_json(self._path, {**self.values, **answers})

    @property
    def _path(self) -> Path:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        stamp = hashlib.sha256(f"{__version__} {self.stamp}".encode()).hexdigest()[:12]
        return cache / "hpcsweep" / "support" / f"{self.name}-{stamp}.json"


def _software() -> str:
    """Return the releases that the shapes of networks depend on; "": no torchvision is here."""
    with suppress(metadata.PackageNotFoundError):
        return f"{metadata.version('torchvision')} {metadata.version('torch')}"
    return ""


def _library() -> str:
    """Return which libcudnn would answer, without loading it; "": nobody can tell."""
    if named := os.environ.get(environment.CUDNN):
        with suppress(OSError):
            return f"{named} {Path(named).stat().st_mtime_ns}"
    versions = []
    for wheel in _WHEELS:
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{wheel} {metadata.version(wheel)}")
    return " ".join(versions)
