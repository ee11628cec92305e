"""Reads a file of `cluster_profiles/` into a frozen `Profile`: where and how to run.

A profile may extend another: its own keys win, `env` is merged name by name, and null removes a
value. Paths (`venv`, `python`) are relative to the file that names them; `~` is the home of the
user who submits.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from hpcsweep import numerals
from hpcsweep.catalog import LAUNCHERS
from hpcsweep.errors import ProfileError, UsageError
from hpcsweep.spec import directives, document, lookup
from hpcsweep.spec.validation import (
    LINE_ENDS,
    NAME,
    Count,
    Line,
    Name,
    Positive,
    Shape,
    check,
    entry,
    integral,
    schema_text,
)

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATHS: Final = ("venv", "python")


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"needs a regular expression ({error})") from error
    return text


def _read_by(parse: Callable[[str], object]) -> AfterValidator:
    """Return a check that `parse` accepts a text, which stays unchanged."""

    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


def _variables(env: dict[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name) or not LINE_ENDS.isdisjoint(value):
            raise ValueError(f"needs NAME: text, one line each, not {name!r}")
    return env


def _digits(value: object) -> object:
    """Turn a whole number into text, for `OMP_NUM_THREADS: 4` or `time: 60`."""
    return str(value) if type(value) is int else value


_Time = Annotated[str, _read_by(numerals.slurm_seconds), BeforeValidator(_digits)]
_Memory = Annotated[str, _read_by(numerals.slurm_megabytes), BeforeValidator(_digits)]


class ProfileFile(Shape):
    """A cluster profile: where and how the points of one GPU type run."""

    extends: Line | None = entry("profile to inherit from; the keys of this file win")
    launcher: Literal[tuple(LAUNCHERS)] = entry(  # type: ignore[valid-type]
        "how chunks are started", default="sbatch"
    )
    gpu: Name | None = entry("value of the axis `gpu` that this profile serves")
    gpu_name: Annotated[str, AfterValidator(_regex)] = entry(
        "regular expression that the name of the device must match; '': any", default=""
    )
    min_memory_gb: Positive | None = entry("GB of memory that the device must have")
    partition: Line | None = entry("sbatch --partition")
    constraint: Line | None = entry("sbatch --constraint")
    gres: Line | None = entry("sbatch --gres")
    time: _Time | None = entry(f"sbatch --time: {numerals.TIME_FORMS}")
    # On shared cores sweeps took up to 1.7 times their estimate; a slow node, or a size far from
    # those that were measured, may add to that. What is cut short costs another job.
    time_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = entry(
        "where measured rows of the same kind tell how long a chunk takes, jobs ask for so many "
        "times that and for their start and end, at most for `time`; null: always for `time`",
        default=3.0,
    )
    mem: _Memory | None = entry(f"sbatch --mem: {numerals.MEMORY_FORMS}")
    cpus_per_task: Count | None = entry("sbatch --cpus-per-task")
    nodes: Count = entry("sbatch --nodes", default=1)
    nodelist: Line | None = entry("sbatch --nodelist")
    exclude: Line | None = entry("sbatch --exclude")
    account: Line | None = entry("sbatch --account")
    qos: Line | None = entry("sbatch --qos")
    gpus_per_job: Count = entry(
        "GPUs of a job: each measures a chunk of its own beside the others", default=1
    )
    array_throttle: Count | None = entry("most tasks of a submission that run at once")
    sbatch_options: list[Annotated[Line, AfterValidator(directives.checked)]] = entry(
        "more options of sbatch, which win over all others; SBATCH_* variables add to them",
        default=[],
    )
    init: list[Line] = entry(
        "lines to run before `modules`, such as the script that defines `module`; as `setup`",
        default=[],
    )
    modules: list[Line] = entry("modules to load with `module load`, before `setup`", default=[])
    setup: list[Line] = entry(
        "lines to run before the worker; the first that fails ends the job", default=[]
    )
    conda: Line | None = entry("conda environment to activate")
    venv: Line | None = entry("virtual environment to activate")
    python: Line | None = entry(
        "Python interpreter; default: that of `conda` or `venv`, else yours"
    )
    env: Annotated[
        dict[str, Annotated[str, BeforeValidator(_digits)]], AfterValidator(_variables)
    ] = entry("environment variables of the worker", default={})
    then: Line | None = entry(
        "command that bash runs after the last point of a submission, in the folder of `submit`; "
        "in Slurm in a job of half an hour, with the partition, account, QOS and setup of this file"
    )
    wrapper: Literal["none", "nsys", "ncu", "rocprofv3"] = entry(
        "profiler around the measurements of a job; its rows hold no times", default="none"
    )
    wrapper_options: list[Line] = entry("more arguments of the profiler, one word each", default=[])
    workers: Count = entry("local runs: points measured side by side", default=1)
    # 30 s is the default of Slurm's own KillWait
    kill_wait: Annotated[float, Field(ge=0, allow_inf_nan=False)] = entry(
        "seconds between the scheduler's SIGTERM and its SIGKILL", default=30.0
    )
    # sbatch --signal takes at most 65,535 s. In two minutes most points end;
    # of a job of an hour they are a thirtieth.
    signal_lead: Annotated[int, Field(ge=0, le=65535), BeforeValidator(integral)] = entry(
        "seconds before the time limit at which a job is told to finish", default=120
    )
    # beside an hour the start of a job is little; shorter chunks run side by side on free nodes
    chunk_minutes: Positive | None = entry(
        "expected minutes of one chunk; null: what the time limit allows", default=60.0
    )
    # where points take milliseconds: a task that is lost costs no more than so many of them
    max_points_per_chunk: Count = entry("most points of one chunk", default=2000)


class Profile(ProfileFile):
    """A profile, merged with the profiles that it extends."""

    name: str
    path: Path
    places: dict[str, str] = Field(default={}, exclude=True, repr=False)  # key to FILE:LINE

    def where(self, key: str) -> str:
        """Return FILE:LINE of a key; the profile's path if no file sets it."""
        return self.places.get(key, str(self.path))

    def where_option(self, entry: str) -> str:
        """Return FILE:LINE of an entry of `sbatch_options`, or the variable that sets it."""
        return self.places.get(entry) or self.where("sbatch_options")

    @property
    def device_file(self) -> Path:
        """The file with the properties of its GPU, which `doctor` writes on a node with one."""
        return self.path.with_suffix(".device.json")

    @property
    def in_slurm(self) -> bool:
        """Whether its launcher sends chunks to Slurm's queue."""
        return LAUNCHERS[self.launcher].in_slurm

    @property
    def own_python(self) -> bool:
        """Whether its jobs use another Python or other modules than this process."""
        own = self.conda, self.venv, self.python, self.init, self.modules, self.setup
        return self.in_slurm and (any(own) or "PYTHONPATH" in self.env)

    @property
    def time_limit(self) -> str | None:
        """Time limit of its jobs, as sbatch takes it: `sbatch_options` override `time`."""
        return directives.named(self.sbatch_options).get("time", self.time)

    @property
    def time_seconds(self) -> int | None:
        """The same in seconds; None without one."""
        return None if self.time_limit is None else numerals.slurm_seconds(self.time_limit)

    @property
    def mem_mb(self) -> int | None:
        """Memory in MiB; None if the profile sets none."""
        return None if self.mem is None else numerals.slurm_megabytes(self.mem)


def load(name_or_path: str | os.PathLike[str]) -> Profile:
    """Read a profile by name or path; `ProfileError` has file, line and key of each mistake."""
    path = lookup.find(lookup.PROFILES, name_or_path, ProfileError)
    doc = document.read_document(path, ProfileError)
    places: dict[str, str] = {}
    data = _with_parents(doc, [path], places)
    if not NAME.fullmatch(path.stem):
        text = f"the file's name is the profile's: found {document.show(path.stem)}"
        raise doc.complaint((), f"{text}, needs letters, digits, `_`, `-`, `.`")
    profile = Profile(**data, name=path.stem, path=path, places=places)
    if profile.in_slurm:
        profile = _with_variables(profile)
    complaints = document.Complaints(doc)
    for keys, text in _mistakes(profile):
        in_this_file = [key for key in keys if key in doc.data]  # and in none that it extends
        complaints.add(in_this_file[:1] or keys[-1:], text)
    complaints.tell()
    return profile


def asking_for(profile: Profile, *, time: str | None, mem: str | None) -> Profile:
    """Return a profile whose jobs ask for another time or memory, as options of a command say it.

    Raises:
        UsageError: a value is wrong, or the launcher measures on this machine.
    """
    given = {key: value for key, value in (("time", time), ("mem", mem)) if value is not None}
    if not given:
        return profile
    update: dict[str, Any] = {"places": {**profile.places}}
    for key, value in given.items():
        option = f"--{key} {value}"
        if not profile.in_slurm:
            here = f"profile '{profile.name}' measures on this machine, where no job has a limit"
            raise UsageError(f"{option}: {here}; leave it out")
        try:
            update[key] = _READ[key](value)
        except ValueError as error:
            raise UsageError(f"{option}: {error}") from None
        update["places"][key] = option
    if time is not None:
        update["time_factor"] = None  # what a person asks for is not shortened
    replaced = {name for key in given for name in directives.alternatives(key)}
    update["sbatch_options"] = directives.without(profile.sbatch_options, replaced)
    asking = profile.model_copy(update=update)
    for keys, text in _mistakes(asking):
        raise UsageError(f"{asking.where(keys[0]) if keys else profile.name}: {text}")
    return asking


def _memory_of_option(text: str) -> str:
    numerals.slurm_megabytes(text)
    return text.strip()


_READ: Final = {"time": numerals.time_of_option, "mem": _memory_of_option}


def schema() -> str:
    """Return the JSON Schema of profiles (cluster_profiles/schema.json)."""
    return schema_text(ProfileFile, "A cluster profile of hpcsweep")


def _with_parents(
    doc: document.Document, chain: list[Path], places: dict[str, str]
) -> dict[str, Any]:
    """Check a file and those that it extends; return their values, merged."""
    file = check(ProfileFile, doc)
    if len(chain) > 1:
        document.Complaints(doc).tell()
    own = {key: getattr(file, key) for key in doc.data}
    for key in own:
        places.setdefault(key, f"{doc.path}:{doc.line((key,))}")
    for key in _PATHS:
        if own.get(key):
            own[key] = _absolute(own[key], doc.path.parent, bare=key == "python")
    if file.extends is None:
        return own
    parent = _parent(doc, file.extends)
    if any(parent.samefile(seen) for seen in chain):
        circle = " extends ".join(path.stem for path in [*chain, parent])
        raise doc.complaint(("extends",), f"profiles extend each other in a circle: {circle}")
    base = _with_parents(document.read_document(parent, ProfileError), [*chain, parent], places)
    merged = {**base, **own}
    env = {**base.get("env", {}), **own.get("env", {})}
    if env:
        merged["env"] = env
    return merged


def _with_variables(profile: Profile) -> Profile:
    """Add what variables of sbatch say, where the profile says nothing of it, before its options.

    The place of such an option is its variable.
    """
    own = {*directives.named(profile.sbatch_options)}
    for key, value in profile:
        if value is not None:
            own.add(key.replace("_", "-"))
    places = {**profile.places}
    entries = []
    for variable in directives.taken(os.environ, own):
        try:
            entries.append(directives.checked(variable.entry))
        except ValueError as error:
            raise ProfileError(f"{variable.source}: found {variable.value!r}, {error}") from error
        places[variable.entry] = variable.source
    options = [*entries, *profile.sbatch_options]
    return profile.model_copy(update={"sbatch_options": options, "places": places})


def _variable_of(profile: Profile, option: str) -> str:
    """Return `` (VARIABLE)`` if one sets an option."""
    for one in profile.sbatch_options:
        if one in profile.places and option in directives.named([one]):
            return f" ({profile.places[one]})"
    return ""


def _parent(doc: document.Document, name: str) -> Path:
    """Return the file that a profile extends: beside it, or by `lookup`."""
    file = name if name.endswith(lookup.SUFFIXES) else f"{name}.yaml"
    for folder in (doc.path.parent, *lookup.folders(lookup.PROFILES)):
        # a profile may extend another one of its own name, such as the shipped one
        if lookup.is_file(folder / file) and not (folder / file).samefile(doc.path):
            return folder / file
    try:
        return lookup.find(lookup.PROFILES, name, ProfileError)
    except ProfileError as error:
        raise doc.complaint(("extends",), str(error)) from None


def _absolute(text: str, folder: Path, *, bare: bool) -> str:
    """Return an absolute path; a program's bare name is found by the PATH of the node."""
    if bare and "/" not in text:
        return text
    path = Path(text).expanduser() if text.startswith("~") else Path(text)
    return os.path.abspath(folder / path)  # noqa: PTH100 - keeps links, as environments need


def _other_python(profile: Profile) -> str:
    """Return the first key that selects another Python or environment; empty without."""
    own_pythons = {f"{sys.prefix}/bin/python", f"{sys.prefix}/bin/python3", sys.executable}
    if profile.python and shutil.which(profile.python) not in own_pythons:
        return "python"
    if profile.venv and profile.venv != sys.prefix:
        return "venv"
    if profile.conda and profile.conda not in {sys.prefix, os.getenv("CONDA_DEFAULT_ENV")}:
        return "conda"
    for key in ("init", "modules", "setup"):
        if getattr(profile, key):
            return key
    return ""


def _mistakes(profile: Profile) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield keys that do not go together, one of which must change, with the complaint."""
    launcher = LAUNCHERS[profile.launcher]
    limit = profile.time_seconds
    if launcher.in_slurm and profile.gpu is None:
        what = "the value of the axis `gpu` that this profile serves, such as l40"
        yield (), f"`gpu` is missing: {what}"
    key = "" if launcher.in_slurm else _other_python(profile)
    if key:
        text = f"launcher {profile.launcher} does not heed `{key}`: it measures with the Python and"
        text += f" environment of this command ({sys.executable}); start hpcsweep in what `{key}`"
        yield (key, "launcher"), f"{text} names, and remove it here (or set it to null)"
    if profile.conda and profile.venv:
        yield ("venv", "conda"), "`conda` and `venv` exclude each other; set one to null"
    if profile.wrapper != "none" and not launcher.runs_profilers:
        able = " or ".join(name for name, other in LAUNCHERS.items() if other.runs_profilers)
        text = f"{profile.wrapper} needs launcher: {able}; without it, set wrapper: none"
        yield ("wrapper", "launcher"), text
    if profile.gpus_per_job > 1 and not launcher.in_slurm:
        text = f"`gpus_per_job` is about jobs of Slurm, and launcher {profile.launcher} sends none"
        yield ("gpus_per_job", "launcher"), f"{text}; remove it here (`workers` run side by side)"
    if profile.gpus_per_job > 1 and profile.wrapper != "none":
        # one report of all GPUs would be of none, and two profilers contend for the counters
        text = f"{profile.wrapper} profiles one GPU, and `gpus_per_job` is {profile.gpus_per_job}"
        yield ("gpus_per_job", "wrapper"), f"{text}; set gpus_per_job: 1, or wrapper: none"
    if profile.wrapper_options and profile.wrapper == "none":
        yield (), "`wrapper_options` need a `wrapper`; set one, or remove the options"
    if launcher.needs_time and profile.time_limit is None:
        text = f'`time` is missing, and launcher {profile.launcher} needs one, such as "24:00:00"'
        yield ("time", "launcher"), f"{text} or UNLIMITED"
    if limit is not None and limit <= profile.signal_lead and launcher.in_slurm:
        by = _variable_of(profile, "time")
        text = f"a time limit of {limit} s{by} ends before `signal_lead`, {profile.signal_lead} s"
        yield ("time", "signal_lead"), f"{text}; set a longer time or a shorter lead"
