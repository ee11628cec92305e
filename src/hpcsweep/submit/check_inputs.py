"""Refuses, before anything is written, a sweep whose packages, networks or files are not there.

What only torch can tell, weights by torchvision's name and the layers that maps of algorithms name,
one process tells of all profiles (`hpcsweep.measure.inputs`). What only a job's Python can know is
a note.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from hpcsweep import environment, extras, messages, processes, search_path, sources
from hpcsweep.catalog import AXES, COMMAND, LAUNCHERS, ON_DISK, WORKLOADS, Role, gpus
from hpcsweep.errors import SpecError, suggest
from hpcsweep.spec import document, lookup, template
from hpcsweep.spec.space import Sweep
from hpcsweep.store import outcomes, runs
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.state import FAILED, PointStatus
from hpcsweep.submit import factories
from hpcsweep.submit.request import Request
from hpcsweep.submit.request import gpus as named_gpus
from hpcsweep.text import count

_PROGRAM: Final = "hpcsweep.measure.inputs"
_SECONDS: Final = 180.0  # a factory may wait for something
# the axes that the shapes of a network, and the types of its calls, depend on
SHAPES: Final = (
    *(
        name
        for name, axis in AXES.items()
        if axis.role & (Role.NETWORK | Role.INPUT) and Role.NUMBERS not in axis.role
    ),
    "amp",
)
_PYTHON: Final = re.compile(r"python[\d.]*")
_SWITCHES: Final = re.compile(r"-[bBdEiIOPqsSuvx]+")  # of Python, that take no value
_MOST_CASES: Final = 1000  # sizes of one network with one map


@dataclass(frozen=True)
class _Question:
    """What torch is asked `about`, of a value that the sweep names below a key; `at` in words."""

    request: Request
    key: str
    value: Any
    at: str
    about: dict[str, Any]


@dataclass
class _Mistakes:
    """What is wrong with the inputs of a sweep: its own files first, then what only torch tells."""

    sweep: Sweep
    kept: list[tuple[str, object, Sequence[str], str]] = field(default_factory=list)
    told_of: list[object] = field(default_factory=list)  # values

    def add(
        self, request: Request, key: str, name: object, told: str, *, sure: bool = False
    ) -> None:
        """Keep what is wrong with a value; a note where the job's own Python may know better."""
        self.told_of.append(name)
        if request.profile.own_python and not sure:
            messages.note(f"{key} '{name}': {told}", "the job's own Python must have it")
        else:
            what = f"'{name}': " if isinstance(name, str) else ""
            self.kept.append((key, name, (), f"{what}{told}"))

    def note(self, one: _Question, answer: Mapping[str, Any]) -> None:
        """Keep what torch says is `wrong`, or matches nothing; a note where nobody can tell."""
        if one.key == "model" and one.value in self.told_of:
            return  # at its smallest images
        if wrong := answer.get("wrong"):
            self.add(one.request, one.key, one.value, f"{one.at}: {wrong}")
        elif why := answer.get("unsure") or answer.get("failed"):
            self.told_of.append(one.value)
            name = one.request.sweep.named(one.value)
            messages.note(f"{one.key} '{name}' could not be tried here ({one.at}): {why}")
        for pattern, hint in answer.get("idle", {}).items():
            told = f"this pattern matches no convolution of {one.at}{hint}"
            self.kept.append((one.key, one.value, (pattern,), told))

    def tell(self) -> None:
        """Raise `SpecError` with a line for each, at the place where the sweep names it."""
        if not self.kept:
            return
        doc = document.read_document(self.sweep.path, SpecError)
        wrong = document.Complaints(doc)
        for key, name, inside, told in self.kept:
            wrong.add((*_place(doc, key, name), *inside), told)
        wrong.tell()


def check_inputs(results: Path, requests: Sequence[Request]) -> None:
    """Refuse packages, factories, files, weights and layers that no job of one sweep would find.

    `SpecError` has file, line and key of each, and the nearest name; `MissingDependency` the extra.
    """
    sweep = requests[0].sweep
    mistakes = _Mistakes(sweep)
    asked: list[_Question] = []
    for request in requests:
        _check_packages(request)
        if request.rehearsal:
            _tell_unknown_gpus(sweep)
        if sweep.workload == COMMAND.name:
            _check_program(request, mistakes)
        if WORKLOADS[sweep.workload].runs_network:
            _check_names(request, mistakes)
            _check_data(request)
            asked += _weights(request)
    if WORKLOADS[sweep.workload].runs_network:
        asked += _maps(requests)
        if not extras.lacking("measure"):
            asked += _own_networks(results, requests, mistakes)
    if asked:
        questions = [one.about for one in asked]
        found = ask({"search_path": requests[0].search_path, "questions": questions})
        for one, answer in zip(asked, found.get("answers", [found] * len(asked)), strict=True):
            mistakes.note(one, answer)
    mistakes.tell()


def _tell_unknown_gpus(sweep: Sweep) -> None:
    """Say which GPUs of a rehearsed sweep neither a profile nor a data sheet has."""
    known = {*lookup.names(lookup.PROFILES), *gpus.known_to_cudnn()}
    for name in named_gpus(sweep):
        if name not in known and not gpus.vendor(name):
            told = f"gpu '{name}': no profile and no data sheet has it{suggest(name, known)}"
            messages.note(told)


def _own_networks(
    results: Path, requests: Sequence[Request], mistakes: _Mistakes
) -> Iterator[_Question]:
    """Ask whether each own network takes the inputs of its points that are not measured."""
    sweep = requests[0].sweep
    if not any(map(_is_factory, named(sweep, "model"))):
        return
    measured = runs.statuses(SweepDir(results / sweep.name))
    cases: dict[str, _Cases] = {}
    for request in requests:
        for point in request.points():
            model = point.axes["model"]
            is_left = measured.get(point.point_id) is not PointStatus.OK
            if is_left and _is_factory(model) and model not in mistakes.told_of:
                cases.setdefault(model, _Cases()).add(request, point.axes)
    for model, of_model in cases.items():
        for request, axes in of_model.chosen():
            about = {"about": "network", "workload": sweep.workload, "axes": axes}
            yield _Question(request, "model", model, of_model.named(axes), about)


@dataclass
class _Cases:
    """Points to try a network at: of each number the least and the most, and each other value."""

    by_value: dict[tuple[str, object], tuple[Any, Request, dict[str, Any]]] = field(
        default_factory=dict
    )

    def add(self, request: Request, every: Mapping[str, Any]) -> None:
        axes = {name: every[name] for name in SHAPES if name in every}
        for name, value in axes.items():
            case = (value, request, axes)
            if isinstance(value, int | float):
                for end, better in (("least", min), ("most", max)):
                    before = self.by_value.setdefault((name, end), case)
                    self.by_value[name, end] = better(before, case, key=itemgetter(0))
            else:
                self.by_value.setdefault((name, value), case)

    def chosen(self) -> list[tuple[Request, dict[str, Any]]]:
        """Return them, each once; the smallest images come first."""
        once = {str(axes): (request, axes) for _, request, axes in self.by_value.values()}
        return sorted(once.values(), key=lambda case: case[1]["input_size"])

    def named(self, axes: Mapping[str, Any]) -> str:
        """Return a point in words: its images, and in what else it differs from the others."""
        others = [of for _, _, of in self.by_value.values()]
        names = [n for n in axes if n == "input_size" or any(of[n] != axes[n] for of in others)]
        return f"at {', '.join(f'{name} {axes[name]}' for name in names)}"


def _check_packages(request: Request) -> None:
    profile = request.profile
    if extra := LAUNCHERS[profile.launcher].extra:
        extras.need(extra, f"profile {profile.name} (launcher: {profile.launcher})")
    if not WORKLOADS[request.sweep.workload].runs_network or profile.own_python:
        return
    what = f"{request.sweep.name} on profile {profile.name}"
    other = ""
    if profile.in_slurm:
        what += ", whose jobs run this Python,"
        other = "; or name another `python`, `venv` or `conda` in the profile"
    extras.need("measure", what, other)


def _check_program(request: Request, mistakes: _Mistakes) -> None:
    """Refuse a command of which a program, script or word is wrong, or whose results are shared."""
    settings = request.sweep.measure
    every = [
        {**point.axes, template.OUT: f"/{point.point_id}"}
        for point in islice(request.points(), _MOST_CASES)
    ]
    wrong = _wrong_quotes if settings.get("shell") else _wrong_programs
    for told in wrong(request, every):
        mistakes.add(request, "run", settings["run"], told)
    file = template.results_file(settings.get("results", {}))
    written = Counter(template.filled(file, values) for values in every)
    path, points = written.most_common(1)[0] if written else ("", 0)
    if path and points > 1 and (request.profile.in_slurm or request.workers > 1):
        told = (
            f"'{path}': {points:,} points that may run at the same time write this file, and "
            f"would read each other's results; name the point's own folder, {{out}}/{path}"
        )
        mistakes.kept.append(("results", file, (), told))


def _wrong_quotes(request: Request, every: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what is wrong with quotes around values that a shell's line has quoted already."""
    for name in sorted(template.quoted_names(request.sweep.measure["run"])):
        for text in dict.fromkeys(template.as_text(values[name]) for values in every):
            if shlex.quote(text) != text:
                yield f"{{{name}}} stands in quotes, and is '{text}', which is quoted already"


def _wrong_programs(request: Request, every: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield which programs, and which scripts of Python, are not there."""
    run = request.sweep.measure["run"]
    folder = Path(request.search_path[0])
    path = search_path.programs(request.profile.env.get("PATH"))
    for program, script in dict.fromkeys(_program(template.words(run, of)) for of in every):
        if not program:
            yield "the command of a point is empty"
        elif not shutil.which(folder / program if "/" in program else program, path=path):
            yield f"there is no program {program}"
        elif not (folder / script).exists():
            there = sorted(one.name for one in folder.glob("*.py"))
            yield f"there is no {script} in {folder}{suggest(script, there)}"


def _program(words: Sequence[str]) -> tuple[str, str]:
    """Return the program of a command, and the script if that is a Python."""
    program, *rest = words or [""]
    script = next(dropwhile(_SWITCHES.fullmatch, rest), "")
    is_script = _PYTHON.fullmatch(Path(program).name) and script.endswith(".py")
    return program, script if is_script else ""


def _check_names(request: Request, mistakes: _Mistakes) -> None:
    for axis in sources.FACTORIES:
        for name in filter(_is_factory, named(request.sweep, axis)):
            told, is_sure = factories.problem(name, request.search_path)
            if told:
                mistakes.add(request, axis, name, told, sure=is_sure)
    for key, names in _files(request.sweep).items():
        for name in names:
            if search_path.file(name, request.search_path).is_file():
                continue
            path = Path(name).expanduser()
            places = list(dict.fromkeys((folder / path).parent for folder in request.search_path))
            there = [one.name for place in places for one in sorted(place.glob("*"))]
            told = f"no such file in {' or '.join(map(str, places))}{suggest(path.name, there)}"
            mistakes.add(request, key, name, told, sure=True)


def _check_data(request: Request) -> None:
    """Say that a data set on disk has no folder, and what its points train on then."""
    if {**os.environ, **request.profile.env}.get(environment.DATA):
        return
    for name in filter(ON_DISK.__contains__, named(request.sweep, "dataset")):
        messages.warning(
            f"dataset '{name}': {environment.DATA} is not set on {request.profile.name}, so its "
            "points train on random images, and their rows have the flag synthetic_data",
            f"name the folder of your data in the profile: env: {{{environment.DATA}: /a/dir}}",
        )


def named_weights(request: Request) -> list[tuple[str, str]]:
    """Return networks with the names of their weights, of those that torchvision publishes."""
    drawn = AXES["weights"].default
    if all(name == drawn or search_path.is_file(name) for name in named(request.sweep, "weights")):
        return []
    found = ((point.axes["model"], point.axes["weights"]) for point in request.points())
    return [
        (model, name)
        for model, name in dict.fromkeys(found)
        if name != drawn and not search_path.is_file(name) and not _is_factory(model)
    ]


def _weights(request: Request) -> Iterator[_Question]:
    """Ask for weights by torchvision's name that are not in torch's cache: no job downloads any."""
    home = search_path.torch_home(request.profile.env)
    for model, name in named_weights(request):
        about = {"about": "weights", "home": home, "model": model, "name": name}
        yield _Question(request, "weights", name, model, about)


def _maps(requests: Sequence[Request]) -> Iterator[_Question]:
    """Ask of each map, with each network that has it, for patterns that match no layer."""
    sweep = requests[0].sweep
    if not any(isinstance(value, dict) for value in sweep.values("algorithm")):
        return
    names = [name for name in SHAPES if sweep.workload in AXES[name].workloads]
    found: dict[tuple[str, int], tuple[dict[str, str], dict[tuple[Any, ...], None]]] = {}
    for request in requests:
        for point in request.points():
            layers = point.axes["algorithm"]
            if isinstance(layers, dict):
                key = point.axes["model"], id(layers)  # its values are the sweep's own objects
                _, cases = found.setdefault(key, (layers, {}))
                if len(cases) < _MOST_CASES:
                    cases[tuple(map(point.axes.__getitem__, names))] = None

    for (model, _), (layers, cases) in found.items():
        about = {
            "about": "map",
            "workload": sweep.workload,
            "layers": layers,
            "cases": [dict(zip(names, case, strict=True)) for case in cases],
        }
        yield _Question(requests[0], "algorithm", layers, model, about)


def ask(question: Mapping[str, Any], seconds: float = _SECONDS) -> dict[str, Any]:
    """Return what `measure.inputs` answers in a process of its own, or why it `failed`."""
    try:
        done = subprocess.run(
            processes.python(_PROGRAM),
            input=json.dumps(question),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=True,
        )
        found: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer within {seconds:.0f} s"}
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or "").strip()  # such as that there is no torch
        return {"failed": (said or str(error)).splitlines()[-1]}
    return found


def _is_factory(name: str | None) -> bool:
    return ":" in (name or "")  # of an axis that only `include` sets there is no value


def _files(sweep: Sweep) -> dict[str, list[str]]:
    """Return the files that a sweep names, by the key under which it does."""
    resumed = sweep.measure.get("resume_from")
    return {
        "weights": [*filter(search_path.is_file, named(sweep, "weights"))],
        "resume_from": [resumed] if resumed else [],
    }


def named(sweep: Sweep, axis: str) -> Iterator[str]:
    """Yield the values of an axis, each once; none where the workload has no such axis.

    Where all points are those of `include`, the axes themselves name nothing.
    """
    if axis in sweep.space.defaults:
        yield from (value for value in dict.fromkeys(sweep.values(axis)) if value is not None)


def _place(doc: document.Document, key: str, value: object) -> tuple[str | int, ...]:
    """Return where a file has a value below a key; nowhere, if it says it in another way."""
    return next((loc for loc in _places(doc.data, value) if key in loc), ())


def _places(
    data: object, value: object, loc: tuple[str | int, ...] = ()
) -> Iterator[tuple[str | int, ...]]:
    if data == value:
        yield loc
    elif isinstance(data, dict):
        for key, inner in data.items():
            yield from _places(inner, value, (*loc, key))
    elif isinstance(data, list):
        for index, inner in enumerate(data):
            yield from _places(inner, value, (*loc, index))


def changed(sweep_dir: SweepDir, request: Request) -> dict[str, str]:
    """Return what of the user's own is other by now than when a point was measured, by its id.

    Nobody can tell of modules that only the job's Python has, nor of points that are not measured.
    """
    factories = (name for axis in sources.FACTORIES for name in named(request.sweep, axis))
    has_own = any(map(_is_factory, factories)) or any(_files(request.sweep).values())
    if not WORKLOADS[request.sweep.workload].runs_network or not has_own:
        return {}
    made_of = _made_of(sweep_dir)
    now = sources.Sources(request.search_path)
    found = dict[str, str]()
    for point in request.points():
        if point.point_id in made_of:
            before = sources.parts(made_of[point.point_id])
            is_now = sources.parts(now.cell(point))
            if other := [axis for axis, digest in is_now.items() if before.get(axis) != digest]:
                values = (point.axes.get(axis, point.measure.get(axis)) for axis in other)
                found[point.point_id] = ", ".join(map(str, values))
    return found


def other_than(made_of: Mapping[str, str], request: Request) -> list[str]:
    """Return the networks of a sweep whose own files are others by now than in these cells."""
    now = sources.Sources(request.search_path)
    models = {p.axes["model"] for p in request.points()}
    return [
        model
        for model in sorted(models)
        if model in made_of
        and sources.parts(made_of[model]).get("model", "") != now.digest("model", model)
    ]


def told_of_changes(sweep_dir: SweepDir, request: Request) -> Request:
    """Say which measured points were made of other files than there are now.

    A network that failed was mended: the request takes all its points again, since one table needs
    one version. Without a failure a row is kept until a person asks.
    """
    if request.only or request.options.again:
        return request
    found = changed(sweep_dir, request)
    statuses = runs.statuses(sweep_dir) if found else {}
    mended = {what for point_id, what in found.items() if statuses[point_id] in FAILED}
    anew = {point_id: what for point_id, what in found.items() if what in mended}
    for some in (anew, {name: what for name, what in found.items() if name not in anew}):
        points = count(len(some), "point")
        what = ", ".join(f"{name} ({number:,})" for name, number in Counter(some.values()).items())
        if some and some is anew:
            messages.note(f"{points} measured again, since some failed and files changed: {what}")
        elif some:
            messages.note(
                f"{points} of {sweep_dir.name} measured with another "
                f"version, or an unknown one, of your own files: {what}; they keep their rows",
                f"to measure them again: {sweep_dir.command('retry', '--changed')}",
            )
    return replace(request, anew=frozenset(anew))


def _made_of(sweep_dir: SweepDir) -> dict[str, str]:
    """Return the cell `own_files` of the row that counts, of each point that has one."""

    def kept(row: Mapping[str, Any]) -> dict[str, str]:
        return {"status": row["status"], "own_files": row.get("own_files", "")}

    rows = outcomes.rows_of(sweep_dir.shards(), kept)
    profiled = PointStatus.PROFILED
    return {name: row["own_files"] for name, row in rows.items() if row["status"] != profiled}
