"""Refuses, before anything is written, a sweep whose packages, networks or files are not there.

What only torch can tell is asked in other processes (`hpcsweep.submit.questions`). A login node may
lack torch, so nothing of a factory runs here: its module is found as an import would find it, and
its source is read, whether it has the name. What only a job's Python can know is a note.
"""

from __future__ import annotations

import ast
import os
import pkgutil
import re
import shlex
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile, islice
from pathlib import Path
from typing import Any, Final

from hpcsweep import environment, extras, messages, sources
from hpcsweep.catalog import COMMAND, LAUNCHERS, ON_DISK, WORKLOADS, gpus
from hpcsweep.errors import SpecError, suggest
from hpcsweep.spec import document, lookup, template
from hpcsweep.spec.space import Sweep
from hpcsweep.submit import passes, questions
from hpcsweep.submit.comparison import Submit
from hpcsweep.submit.passes import Operations
from hpcsweep.submit.questions import Answer, Question
from hpcsweep.submit.request import Request, files_of, is_factory, named_gpus, names_on

_PYTHON: Final = re.compile(r"python[\d.]*")
_SWITCHES: Final = re.compile(r"-[bBdEiIOPqsSuvx]+")  # of Python, that take no value
# A module with one of these may have names that its source does not show.
_MAKE_NAMES: Final = re.compile(r"import \*|\b(?:__getattr__|exec|globals|locals|setattr|vars)\b")
# Points of a command whose programs are looked for: a sweep has few programs, and many points.
_MOST_POINTS: Final = 1000


@dataclass
class _Mistakes:
    """What is wrong with the inputs of a sweep: its own files first, then what only torch tells."""

    sweep: Sweep
    kept: list[tuple[str, object, Sequence[str], str]] = field(default_factory=list)
    networks: set[str] = field(default_factory=set)  # that are told, and need no other line
    operations: dict[str, Operations] = field(default_factory=dict)  # by network that was tried
    # by reason: what could not be tried, and at what
    untried: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))

    def add(
        self, request: Request, key: str, value: object, told: str, *, sure: bool = False
    ) -> None:
        """Keep what is wrong with a value; a note where the job's own Python may know better."""
        name = request.sweep.named(value)
        if request.profile.own_python and not sure:
            messages.note(f"{key} '{name}': {told}", "the job's own Python must have it")
        else:
            self.kept.append((key, value, (), f"'{name}': {told}"))

    def note(self, one: Question, answer: Answer) -> None:
        """Keep what torch says is `wrong`, or matches nothing, and what could not be tried."""
        if one.network in self.networks:
            return  # such as at its smallest input
        if one.key != "weights" and not answer.keys().isdisjoint({"wrong", "failed"}):
            self.networks.add(one.network)
        if "wrong" in answer:
            mend = "; mend it, or exclude it" if one.key == "model" else ""
            self.add(one.request, one.key, one.value, f"{one.at}: {answer['wrong']}{mend}")
        if "failed" in answer:
            name = one.request.sweep.named(one.value)
            self.untried[answer["failed"]].append((f"{one.key} '{name}'", one.at))
        if "gflops" in answer:
            of_image = passes.work({**one.about["axes"], "batch_size": 1})
            self.operations[one.network] = Operations(
                answer["gflops"] / of_image, len(answer["calls"])
            )
        for pattern, hint in answer.get("idle", {}).items():
            told = f"this pattern matches no convolution of {one.at}{hint}"
            self.kept.append((one.key, one.value, (pattern,), told))

    def tell(self) -> None:
        """Note what was not tried; raise `SpecError` with a line for each mistake and its place."""
        for why, some in self.untried.items():
            first, at = some[0]
            more = f" and {len(some) - 1} more" if len(some) > 1 else ""
            told = f"{first}{more} could not be tried here ({at}): {why}"
            messages.note(told, "its points will tell; or exclude it")
        if not self.kept:
            return
        doc = document.read_document(self.sweep.path, SpecError)
        wrong = document.Complaints(doc)
        for key, name, inside, told in self.kept:
            wrong.add((*_place(doc, key, name), *inside), told)
        wrong.tell()


def check_inputs(jobs: Sequence[Submit]) -> Sequence[Submit]:
    """Refuse packages, factories, files, weights and layers that no job of one sweep would find.

    The answer has what own networks compute, where they could be tried.

    `SpecError` has file, line and key of each, and the nearest name; `MissingDependency` the extra.
    """
    sweep = jobs[0].request.sweep
    runs_network = WORKLOADS[sweep.workload].runs_network
    mistakes = _Mistakes(sweep)
    for job in jobs:
        request = job.request
        _check_packages(request)
        if request.rehearsal:
            _tell_unknown_gpus(sweep)
        if sweep.workload == COMMAND.name:
            _check_program(request, mistakes)
        if runs_network:
            _check_names(request, mistakes)
            _check_data(request)
    if runs_network:
        _ask_torch(jobs, mistakes)
    mistakes.tell()
    return [replace(job, operations=mistakes.operations) for job in jobs]


def _ask_torch(jobs: Sequence[Submit], mistakes: _Mistakes) -> None:
    """Ask about weights, own networks and maps; all questions about a network are asked at once."""
    requests = [job.request for job in jobs]
    asked = questions.about_networks(jobs[0].sweep_dir, requests, mistakes.networks)
    if not asked:
        return
    by_network: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for question in asked:
        by_network[question.network].append(question.about)
    with questions.asking(requests[0].search_path) as ask:
        answers = {network: ask(network, about) for network, about in by_network.items()}
    for question in asked:
        mistakes.note(question, answers[question.network].pop(0))


def _tell_unknown_gpus(sweep: Sweep) -> None:
    """Say which GPUs of a rehearsed sweep neither a profile nor a data sheet has."""
    known = {*lookup.names(lookup.PROFILES), *gpus.known_to_cudnn()}
    for name in named_gpus(sweep):
        if name not in known and not gpus.vendor(name):
            told = f"gpu '{name}': no profile and no data sheet has it{suggest(name, known)}"
            messages.note(told)


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
        for point in islice(request.expansion, _MOST_POINTS)
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
    places = environment.programs(request.profile.env.get("PATH"))
    programs = dict.fromkeys(_program(template.words(run, values)) for values in every)
    for program, script in programs:
        if not program:
            yield "the command of a point is empty"
        elif not shutil.which(folder / program if "/" in program else program, path=places):
            yield f"there is no program {program}"
        elif not (folder / script).exists():
            scripts = sorted(path.name for path in folder.glob("*.py"))
            yield f"there is no {script} in {folder}{suggest(script, scripts)}"


def _program(words: Sequence[str]) -> tuple[str, str]:
    """Return the program of a command, and the script if that is a Python."""
    program, *rest = words or [""]
    script = next(dropwhile(_SWITCHES.fullmatch, rest), "")
    is_script = _PYTHON.fullmatch(Path(program).name) and script.endswith(".py")
    return program, script if is_script else ""


def _check_names(request: Request, mistakes: _Mistakes) -> None:
    for axis in sources.FACTORIES:
        for name in filter(is_factory, names_on(request.sweep, axis)):
            told, is_sure = factory_problem(name, request.search_path)
            if told:
                mistakes.networks.add(name)
                mistakes.add(request, axis, name, told, sure=is_sure)
    for key, names in files_of(request.sweep).items():
        for name in names:
            if sources.file(name, request.search_path).is_file():
                continue
            path = Path(name).expanduser()
            places = dict.fromkeys((folder / path).parent for folder in request.search_path)
            near = []
            for place in places:
                near += sorted(found.name for found in place.glob("*"))
            told = f"no such file in {' or '.join(map(str, places))}{suggest(path.name, near)}"
            mistakes.add(request, key, name, told, sure=True)


def factory_problem(name: str, folders: Sequence[str]) -> tuple[str, bool]:
    """Return what is wrong with a factory, "" for nothing, and whether that is sure.

    The job's Python may have a module that is not here.
    """
    module, _, attribute = name.partition(":")
    spec = sources.Sources(folders).spec(module)
    if spec is None:
        where = f"in {' or '.join(folders)}, or where Python looks"
        known = [found.name for found in pkgutil.iter_modules(folders)]
        return f"no module '{module}' {where}{suggest(module, known)}", False
    source = Path(spec.origin or "")
    if source.suffix != ".py" or not source.is_file():  # it is compiled, or a namespace
        return "", True
    try:
        ast.parse(source.read_bytes())
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        return f"{source}{line}: is not Python: {error}", True
    text = source.read_text(errors="replace")
    words = {*re.findall(r"\w+", text)}
    if attribute in words or _MAKE_NAMES.search(text):
        return "", True
    return f"{source} has no '{attribute}'{suggest(attribute, words)}", True


def _check_data(request: Request) -> None:
    """Say that a data set on disk has no folder, and what its points train on then."""
    if {**os.environ, **request.profile.env}.get(environment.DATA):
        return
    for name in filter(ON_DISK.__contains__, names_on(request.sweep, "dataset")):
        messages.warning(
            f"dataset '{name}': {environment.DATA} is not set on {request.profile.name}, so its "
            "points train on random images, and their rows have the flag synthetic_data",
            f"name the folder of your data in the profile: env: {{{environment.DATA}: /a/dir}}",
        )


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
