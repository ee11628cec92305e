"""Refuses, before anything is written, a sweep whose packages, networks or files are not there.

What only torch can tell, weights by torchvision's name and the layers that maps of algorithms name,
one process tells of all profiles (`hpcsweep.measure.inputs`). What only a job's Python can know is
a note.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hpcsweep import environment, extras, messages, processes, search_path, sources
from hpcsweep.catalog import AXES, COMMAND, LAUNCHERS, ON_DISK, WORKLOADS, Role
from hpcsweep.errors import SpecError, suggest
from hpcsweep.spec import document, template
from hpcsweep.spec.space import Sweep
from hpcsweep.store import shards, state
from hpcsweep.store.folders import SweepDir
from hpcsweep.submit import factories
from hpcsweep.submit.request import Request
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
_MOST_CASES: Final = 1000  # sizes of one network with one map


def check_inputs(requests: Sequence[Request]) -> None:
    """Refuse packages, factories, files, weights and layers that no job of one sweep would find.

    `SpecError` has file, line and key, and the nearest name; `MissingDependency` the extra.
    """
    for request in requests:
        _check_packages(request)
        if request.sweep.workload == COMMAND.name:
            _check_program(request)
    if not WORKLOADS[requests[0].sweep.workload].runs_network:
        return
    for request in requests:
        _check_names(request)
        _check_data(request)
    weights = [named_weights(request) for request in requests]
    maps = _maps(requests)
    if not maps and not any(weights):
        return
    homes = [search_path.torch_home(request.profile.env) for request in requests]
    by_home = [{"home": h, "wanted": w} for h, w in zip(homes, weights, strict=True)]
    question = {"search_path": requests[0].search_path, "weights": by_home, "maps": maps}
    answer = _ask_torch(question)
    for request, wanted, problems in zip(requests, weights, answer["weights"], strict=True):
        _check_weights(request, wanted, problems)
    _check_maps(requests[0].sweep, maps, answer["maps"])


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


def _check_program(request: Request) -> None:
    """Refuse a command whose program, or whose script of Python, is not there."""
    sweep = request.sweep
    run = sweep.measure["run"]
    if sweep.measure.get("shell"):
        return
    axes = next(request.points()).axes
    program, *rest = template.words(run, {**axes, template.OUT: "/"})
    folder = Path(request.search_path[0])
    path = search_path.programs(request.profile.env.get("PATH"))
    script = next((name for name in rest if name.endswith(".py")), "")
    if not shutil.which(folder / program if "/" in program else program, path=path):
        told = f"there is no program {program}"
    elif not (folder / script).exists():
        there = sorted(one.name for one in folder.glob("*.py"))
        told = f"there is no {script} in {folder}{suggest(script, there)}"
    else:
        return
    if not request.profile.own_python:
        raise _complaint(sweep, "run", run, told)
    messages.note(told, "the job's own environment must have it")


def _check_names(request: Request) -> None:
    for axis in sources.FACTORIES:
        for name in filter(_is_factory, named(request.sweep, axis)):
            _check_factory(request, axis, name)
    for key, names in _files(request.sweep).items():
        for name in names:
            if search_path.file(name, request.search_path).is_file():
                continue
            path = Path(name).expanduser()
            places = list(dict.fromkeys((folder / path).parent for folder in request.search_path))
            there = [one.name for place in places for one in sorted(place.glob("*"))]
            told = f"no such file in {' or '.join(map(str, places))}{suggest(path.name, there)}"
            raise _complaint(request.sweep, key, name, told)


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


def _check_weights(
    request: Request,
    wanted: Sequence[tuple[str, str]],
    problems: Sequence[Mapping[str, str]],
) -> None:
    """Refuse weights by torchvision's name that are not in torch's cache: no job downloads any."""
    where = ["--cluster", request.profile.name, "--download"]
    command = shlex.join(["hpcsweep", "submit", str(request.sweep.path), *where])
    for (model, name), problem in zip(wanted, problems, strict=True):
        if not problem:
            continue
        told = problem.get("wrong") or (
            f"{model}: {problem['missing']}; `{command}` on a login node downloads what is missing"
        )
        if not request.profile.own_python:
            raise _complaint(request.sweep, "weights", name, told)
        messages.note(f"weights '{name}' of {told}")


def _check_maps(
    sweep: Sweep, maps: Sequence[dict[str, Any]], answers: Sequence[dict[str, Any]]
) -> None:
    """Refuse patterns of maps that match no layer; each is one line."""
    doc = document.read_document(sweep.path, SpecError)
    unchecked = dict[str, dict[str, None]]()
    wrong = document.Complaints(doc)
    for question, answer in zip(maps, answers, strict=True):
        model = question["cases"][0]["model"]
        if why := answer.get("unchecked"):
            unchecked.setdefault(why, {})[model] = None
        for pattern, hint in answer.get("idle", {}).items():
            told = f"this pattern matches no convolution of {model}{hint}"
            wrong.add((*_place(doc, "algorithm", question["layers"]), pattern), told)
    wrong.tell()
    for why, models in unchecked.items():
        messages.note(f"map patterns are not checked here: {why} ({', '.join(models)})")


def _maps(requests: Sequence[Request]) -> list[dict[str, Any]]:
    """Return each map with each network that has it, and the cases of shapes in which it does."""
    sweep = requests[0].sweep
    if not any(isinstance(value, dict) for value in sweep.values("algorithm")):
        return []
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
    return [
        {
            "workload": sweep.workload,
            "layers": layers,
            "cases": [dict(zip(names, case, strict=True)) for case in cases],
        }
        for layers, cases in found.values()
    ]


def _ask_torch(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return a problem or "" of each weights, and what no layer matches or why that is unknown."""
    found = ask(question)
    if why := found.get("failed"):
        told = f"nobody could tell whether they are there ({why})"
        return {
            "weights": [[{"missing": told} for _ in one["wanted"]] for one in question["weights"]],
            "maps": [{"unchecked": why} for _ in question["maps"]],
        }
    return found


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


def _check_factory(request: Request, axis: str, name: str) -> None:
    try:
        problem = factories.problem(axis, name, request.search_path)
    except factories.NoModule as missing:
        if request.profile.own_python:
            messages.note(f"{axis} '{name}': {missing}", "the job's own Python must have it")
            return
        problem = str(missing)
    if problem:
        raise _complaint(request.sweep, axis, name, problem)


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


def _complaint(sweep: Sweep, key: str, name: object, problem: str) -> SpecError:
    """Return the error with the line at which the sweep names it."""
    doc = document.read_document(sweep.path, SpecError)
    what = f"'{name}'" if isinstance(name, str) else name
    error = doc.complaint(_place(doc, key, name), f"{what}: {problem}")
    assert isinstance(error, SpecError)  # noqa: S101 - as `document.read` was told
    return error


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


def tell_changed(sweep_dir: SweepDir, request: Request) -> None:
    """Say which measured points were made of other files than there are now."""
    if found := changed(sweep_dir, request):
        what = ", ".join(f"{name} ({number:,})" for name, number in Counter(found.values()).items())
        messages.note(
            f"{count(len(found), 'point')} of {sweep_dir.name} measured with another "
            f"version, or an unknown one, of your own files: {what}; they keep their rows",
            f"to measure them again: {sweep_dir.command('retry', '--changed')}",
        )


def _made_of(sweep_dir: SweepDir) -> dict[str, str]:
    """Return the cell `own_files` of the row that counts, of each point that has one."""
    rows = [
        (row["point_id"], state.PointStatus(row["status"]), row.get("own_files", ""))
        for shard in sweep_dir.shards()
        for row in shards.read_shard(shard).rows
        if row["status"] != state.PointStatus.PROFILED
    ]
    statuses = state.best((row[0], row[1]) for row in rows)
    found = dict[str, str]()
    for point_id, status, cell in rows:  # of equal ones the last counts, as everywhere
        if statuses[point_id] is status:
            found[point_id] = cell
    return found
