"""What configuration files and environment variables set: values of options, and where from.

Two files are read: `config.toml` in the user's configuration folder, then `hpcsweep.toml`, or the
table `tool.hpcsweep` of `pyproject.toml`, in the working directory or the nearest folder above. A
key at the top is an option of the program, or `cluster`, the default profile; a table has the
options of a command. The variable of an option is HPCSWEEP_, its command and its name. The command
line goes before variables, these before the project's file, that before the user's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from hpcsweep import environment
from hpcsweep.errors import ConfigError, suggest
from hpcsweep.spec import lookup

if TYPE_CHECKING:
    from hpcsweep.spec.document import Document

Loc = tuple[str, ...]

CLUSTER: Final = ("cluster",)  # the default profile of the commands in _DEFAULT_CLUSTER
USER_FILE: Final = "config.toml"
_PROJECT_FILES: Final = (("hpcsweep.toml", ()), ("pyproject.toml", ("tool", "hpcsweep")))
_DEFAULT_CLUSTER: Final = (("submit", "cluster"), ("estimate", "cluster"))
_NOT_HERE: Final = ("cluster", "debug")
_META: Final = "hpcsweep.settings"


class Names(click.types.StringParamType):
    """Text; where an option may be repeated, its variable holds several joined by commas."""

    envvar_list_splitter = ","


@dataclass(frozen=True)
class Value:
    """A value of a configuration file, and the line that sets it."""

    value: Any
    where: str


@dataclass(frozen=True)
class Shown:
    """An option with its value, where that comes from, and the variable that can set it."""

    name: str
    value: Any
    source: str
    variable: str


def options(group: click.Group, above: Loc = ()) -> Iterator[tuple[Loc, click.Option]]:
    """Yield the options of a group and of its commands, by their keys in a configuration file."""
    for param in group.params if not above else ():
        yield from _keyed(param, above)
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from options(command, (*above, name))
        else:
            for param in command.params:
                yield from _keyed(param, (*above, name))


def _keyed(param: click.Parameter, above: Loc) -> Iterator[tuple[Loc, click.Option]]:
    if not isinstance(param, click.Option) or not param.expose_value:
        return
    name = max(param.opts, key=len).lstrip("-")
    if param.is_flag and param.flag_value is False:
        name = name.removeprefix("no-")
    yield (*above, name.replace("-", "_")), param


def variable(loc: Loc) -> str:
    """Return the name of the environment variable of an option."""
    return "_".join(("HPCSWEEP", *loc)).upper().replace("-", "_")


def bind(group: click.Group) -> None:
    """Let each option take its environment variable; several values are joined by commas."""
    for loc, param in options(group):
        param.envvar = [variable(loc), *([environment.CLUSTER] if loc in _DEFAULT_CLUSTER else [])]
        if param.multiple and param.type is click.STRING:
            param.type = Names()


def apply(ctx: click.Context) -> None:
    """Make what the files set the defaults of the program's options and of its commands."""
    assert isinstance(ctx.command, click.Group)  # noqa: S101 - the program
    params = dict(options(ctx.command))
    found = ctx.meta[_META] = read(params)
    defaults: dict[str, Any] = {}
    for loc, one in found.items():
        name = params[loc].name or ""
        if len(loc) > 1:
            inner = defaults
            for step in loc[:-1]:
                inner = inner.setdefault(step, {})
            inner[name] = one.value
        elif ctx.get_parameter_source(name) is ParameterSource.DEFAULT:
            ctx.params[name] = one.value
            ctx.set_parameter_source(name, ParameterSource.DEFAULT_MAP)
    ctx.default_map = defaults


def default_clusters(ctx: click.Context) -> Sequence[str]:
    """Return the default profiles that the files set."""
    found: Mapping[Loc, Value] = ctx.meta[_META]
    return found[_DEFAULT_CLUSTER[0]].value if _DEFAULT_CLUSTER[0] in found else ()


def read(params: Mapping[Loc, click.Option]) -> dict[Loc, Value]:
    """Return what the files set; `ConfigError` has a line for each mistake of a file."""
    found: dict[Loc, Value] = {}
    for path, table in files():
        found |= _File(path, table, params).values()
    if chosen := found.pop(CLUSTER, None):
        found = {**dict.fromkeys(_DEFAULT_CLUSTER, chosen), **found}
    return found


def files() -> Iterator[tuple[Path, Loc]]:
    """Yield the files that exist, each with the table of it that is ours; later ones win."""
    user = lookup.config_folder() / USER_FILE
    if user.is_file() and lookup.is_safe(user, user.parent):
        yield user, ()
    with suppress(FileNotFoundError):  # the working directory is gone
        here = Path.cwd()
        for folder in (here, *here.parents):
            for name, table in _PROJECT_FILES:
                path = folder / name
                if not path.is_file() or not _has_table(path, ".".join(table)):
                    continue
                if lookup.is_safe(path, folder):
                    yield path.relative_to(here) if folder == here else path, table
                    return


def _has_table(path: Path, name: str) -> bool:
    if not name:
        return True
    with suppress(OSError, UnicodeDecodeError):
        return f"[{name}" in path.read_text(encoding="utf-8")
    return False


def results_folder(given: str | os.PathLike[str] = "") -> Path:
    """Return the folder of all results: the one given, else as variables and files say."""
    if given or os.environ.get(environment.RESULTS):
        return environment.results_folder(given)
    from hpcsweep.cli import main

    found = read(dict(options(main))).get(("results",))
    return Path(found.value) if found else environment.results_folder()


class _File:
    """Checks a configuration file against the options that there are."""

    def __init__(self, path: Path, table: Loc, params: Mapping[Loc, click.Option]) -> None:
        from hpcsweep.spec import document, toml_file

        self._doc: Document = toml_file.read(path, ConfigError, table)
        self._complaints = document.Complaints(self._doc)
        # the commands of `cluster` have no place beside the key of that name; see `run` for debug
        self._params = {loc: one for loc, one in params.items() if loc[0] not in _NOT_HERE}
        self._params[CLUSTER] = params[_DEFAULT_CLUSTER[0]]

    def values(self) -> dict[Loc, Value]:
        """Return the values by their keys."""
        found = dict(self._in(self._doc.data, ()))
        self._complaints.tell()
        return found

    def _in(self, data: Mapping[str, Any], above: Loc) -> Iterator[tuple[Loc, Value]]:
        for key, value in data.items():
            loc = (*above, key)
            if loc in self._params:
                try:
                    taken = _taken(self._params[loc], value, self._doc.path.parent)
                    yield loc, Value(taken, f"{self._doc.path}:{self._doc.line(loc)}")
                except (ValueError, OverflowError, click.BadParameter) as error:
                    self._complaints.add(loc, _found(value, error))
            elif loc not in {one[: len(loc)] for one in self._params}:
                self._complaints.add(loc, self._unknown(loc))
            elif isinstance(value, dict):
                yield from self._in(value, loc)
            else:
                self._complaints.add(loc, _found(value, ValueError(f"needs a table: [{key}]")))

    def _unknown(self, loc: Loc) -> str:
        above, key = loc[:-1], loc[-1]
        known = [one[len(above)] for one in self._params if one[: len(above)] == above]
        allowed = list(dict.fromkeys(known))
        homes = [".".join(one[:-1]) for one in self._params if one[-1] == key and one[:-1]]
        where = f"; it belongs below [{'] or ['.join(homes)}]" if homes else suggest(key, allowed)
        return f"unknown key, allowed are {', '.join(allowed)}{where}"


def _found(value: object, error: Exception) -> str:
    from hpcsweep.spec import document

    said = error.message if isinstance(error, click.BadParameter) else str(error)
    return f"found {document.show(value)}, {said.rstrip('.')}"


def _taken(param: click.Option, value: object, folder: Path) -> object:
    """Return a value as click takes it as a default; paths are relative to the file's folder."""
    if param.is_flag:
        if not isinstance(value, bool):
            raise ValueError("needs true or false")
        return value
    if param.multiple:
        return [
            _single(param, one, folder) for one in (value if isinstance(value, list) else [value])
        ]
    return _single(param, value, folder)


def _single(param: click.Option, value: object, folder: Path) -> object:
    kinds: Iterable[tuple[type[Any], type | tuple[type, ...], str]] = (
        (click.types.IntParamType, int, "needs a whole number"),
        (click.types.FloatParamType, (int, float), "needs a number"),
        (click.ParamType, str, "needs text; quote it if it is"),
    )
    wanted, needs = next(
        (kind, needs) for type_, kind, needs in kinds if isinstance(param.type, type_)
    )
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise ValueError(needs)  # noqa: TRY004 - a mistake of the file
    if isinstance(value, str) and (isinstance(param.type, click.Path) or _is_profile(param, value)):
        value = str(folder / Path(value).expanduser())
    return param.type.convert(value, param, None)


def _is_profile(param: click.Option, value: str) -> bool:
    return param.name == "clusters" and lookup.is_path(value)


def shown(ctx: click.Context) -> Iterator[Shown]:
    """Yield every option with its value and its source, as a command would find them now."""
    root = ctx.find_root()
    assert isinstance(root.command, click.Group)  # noqa: S101 - the program
    contexts: dict[Loc, click.Context] = {(): root}
    for loc, param in options(root.command):
        for length in range(1, len(loc)):
            above = contexts[loc[: length - 1]]
            if loc[:length] not in contexts:
                assert isinstance(above.command, click.Group)  # noqa: S101 - it has this command
                command = above.command.commands[loc[length - 1]]
                contexts[loc[:length]] = command.make_context(
                    loc[length - 1], [], parent=above, resilient_parsing=True
                )
        within, name = contexts[loc[:-1]], param.name or ""
        source = _source(within.get_parameter_source(name), loc, param, ctx.meta[_META])
        yield Shown(".".join(loc), within.params.get(name), source, variable(loc))


def _source(
    source: ParameterSource | None, loc: Loc, param: click.Option, found: Mapping[Loc, Value]
) -> str:
    if source is ParameterSource.COMMANDLINE:
        return "command line"
    if source is ParameterSource.ENVIRONMENT:
        return f"environment: {_set_by(param)[0]}"
    return found[loc].where if source is ParameterSource.DEFAULT_MAP else "default"


def blamed(param: click.Parameter | None) -> str:
    """Return `` (from VARIABLE)`` if a wrong value of an option stands in a variable."""
    if param is None or any(word.partition("=")[0] in param.opts for word in sys.argv):
        return ""
    return "".join(f" (from {name})" for name in _set_by(param)[:1])


def _set_by(param: click.Parameter) -> list[str]:
    names = [param.envvar] if isinstance(param.envvar, str) else param.envvar or ()
    return [name for name in names if os.environ.get(name)]


def unknown_variables(group: click.Group) -> list[str]:
    """Return a line for each variable that looks like one of ours and is none."""
    known = {variable(loc) for loc, _ in options(group)}
    known |= {one for one in vars(environment).values() if isinstance(one, str)}
    ours = sorted(name for name in os.environ if name.startswith("HPCSWEEP_"))
    return [f"{name}: no such variable{suggest(name, known)}" for name in ours if name not in known]
