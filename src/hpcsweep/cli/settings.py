"""What configuration files and environment variables set: click's `default_map`, checked by line.

A key at the top of a file is an option of the program, or `cluster`, the default profile; a table
has the options of a command. The command line goes before variables, and these before files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from hpcsweep import environment
from hpcsweep.cli.answer import CommandResult, note
from hpcsweep.errors import ConfigError, UsageError, suggest
from hpcsweep.records import dataclass
from hpcsweep.spec import lookup
from hpcsweep.text import aligned

Loc = tuple[str, ...]

PREFIX: Final = "HPCSWEEP"  # of all variables: click's `auto_envvar_prefix`
CLUSTER: Final = ("cluster",)  # the default profile of the commands in _DEFAULT_CLUSTER
_DEFAULT_CLUSTER: Final = (("submit", "cluster"), ("estimate", "cluster"))
_META: Final = "hpcsweep.settings"
_WRONG: Final = "hpcsweep.settings.wrong"


flag = partial(click.option, is_flag=True)


class Names(click.types.StringParamType):
    """Text; where an option may be repeated, its variable holds several joined by commas."""

    envvar_list_splitter = ","


class ByHand(click.Option):
    """An option that the command line alone gives: set for good, it would act with every call."""

    def resolve_envvar_value(self, ctx: click.Context) -> None:
        """Take nothing from a variable, and say so if it is set."""
        name = _variable_of(self, ctx)
        if os.environ.get(name) and not ctx.resilient_parsing:
            note(f"note: {name} is not taken: only the command line gives {self.opts[0]}")


@dataclass(frozen=True)
class Value:
    """The value of an option, and the line of a file or the variable that sets it."""

    value: Any
    where: str


@dataclass(frozen=True)
class Shown:
    """An option with its value, where that comes from, and the variable that can set it."""

    name: str
    value: Any
    source: str
    variable: str


def options(command: click.Command, above: Loc = ()) -> Iterator[tuple[Loc, click.Option]]:
    """Yield the options of the program and of its commands, by their keys in a file."""
    for param in command.params:
        if isinstance(param, click.Option) and param.expose_value:
            name = max(param.opts, key=len).removeprefix("--").replace("-", "_")
            yield (*above, name.removeprefix("no_")), param  # `doctor = false` is --no-doctor
    for name, inner in command.commands.items() if isinstance(command, click.Group) else ():
        yield from options(inner, (*above, name))


def variable(loc: Loc) -> str:
    """Return the name of the environment variable of an option."""
    return "_".join((PREFIX, *loc)).upper().replace("-", "_")


def load(ctx: click.Context) -> None:
    """Make what files and HPCSWEEP_CLUSTER set the defaults of the program and of its commands.

    What is wrong with a file is kept for `check`, so that it never hides --help.
    """
    params, found = dict(options(ctx.command)), dict[Loc, Value]()
    try:
        found = of_files(params)
    except ConfigError as error:
        ctx.meta[_WRONG] = error
    if clusters := os.environ.get(environment.CLUSTER):
        given = Value(clusters.split(","), f"environment: {environment.CLUSTER}")
        found |= dict.fromkeys(_DEFAULT_CLUSTER, given)
    ctx.meta[_META], ctx.default_map = found, dict[str, Any]()
    for loc, one in found.items():
        inner = ctx.default_map
        for step in loc[:-1]:
            inner = inner.setdefault(step, {})
        inner[params[loc].name or ""] = one.value


def check(ctx: click.Context) -> None:
    """Raise `ConfigError`, with a line for each mistake, if a file is wrong."""
    if _WRONG in ctx.meta:
        raise ctx.meta[_WRONG]


def of_files(params: Mapping[Loc, click.Option]) -> dict[Loc, Value]:
    """Return what the files set; `ConfigError` has a line for each mistake of a file."""
    found: dict[Loc, Value] = {}
    for path, table in lookup.config_files():
        found |= _ConfigFile(path, table, params).values()
    if chosen := found.pop(CLUSTER, None):
        found = {**dict.fromkeys(_DEFAULT_CLUSTER, chosen), **found}
    return found


def default_clusters(program: click.Command) -> list[str]:
    """Return the default profiles that the files set."""
    found = of_files(dict(options(program))).get(_DEFAULT_CLUSTER[0])
    return found.value if found else []


class _ConfigFile:
    """Checks a configuration file against the options that there are."""

    def __init__(self, path: Path, table: Loc, params: Mapping[Loc, click.Option]) -> None:
        from hpcsweep.spec import configuration, document

        self._doc = configuration.read(path, table)
        self._complaints = document.Complaints(self._doc)
        allowed = {loc: one for loc, one in params.items() if loc != ("debug",)}  # see `run`
        self._by_hand = {loc for loc, one in allowed.items() if isinstance(one, ByHand)}
        self._params = {loc: one for loc, one in allowed.items() if loc not in self._by_hand}
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
        if loc in self._by_hand:
            return "only the command line gives it, or each call would do it again"
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
    if not param.multiple:
        return _single(param, value, folder)
    return [_single(param, one, folder) for one in (value if isinstance(value, list) else [value])]


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
    if isinstance(value, str) and (
        isinstance(param.type, click.Path) or (param.name == "cluster" and lookup.is_path(value))
    ):
        value = str(folder / Path(value).expanduser())
    return param.type.convert(value, param, None)


def shown(ctx: click.Context) -> Iterator[Shown]:
    """Yield every option with its value and its source, as a command would find them now."""
    root, found = ctx.find_root(), ctx.meta[_META]
    contexts: dict[Loc, click.Context] = {(): root}
    for loc, param in options(root.command):
        if loc[:-1] not in contexts:
            assert isinstance(root.command, click.Group)  # noqa: S101 - it has this command
            contexts[loc[:-1]] = root.command.commands[loc[0]].make_context(
                loc[0], [], parent=root, resilient_parsing=True
            )
        within, name = contexts[loc[:-1]], param.name or ""
        source = within.get_parameter_source(name)
        named = "" if isinstance(param, ByHand) else variable(loc)
        where = {
            ParameterSource.COMMANDLINE: "command line",
            ParameterSource.ENVIRONMENT: f"environment: {variable(loc)}",
            ParameterSource.DEFAULT_MAP: found[loc].where if loc in found else "",
        }.get(source, "default")  # type: ignore[arg-type]
        yield Shown(".".join(loc), within.params.get(name), where, named)


def blamed(error: click.ClickException) -> str:
    """Return `` (from VARIABLE)`` if a wrong value of an option stands in a variable."""
    param, ctx = getattr(error, "param", None), getattr(error, "ctx", None)
    if param is None or ctx is None:
        return ""
    is_set = ctx.get_parameter_source(param.name) is ParameterSource.ENVIRONMENT
    return f" (from {_variable_of(param, ctx)})" if is_set else ""


def _variable_of(param: click.Parameter, ctx: click.Context) -> str:
    return str(param.envvar or f"{ctx.auto_envvar_prefix}_{param.name}".upper())


def unknown_variables(program: click.Command) -> list[str]:
    """Return a line for each variable that looks like one of ours and is none."""
    known = {variable(loc) for loc, one in options(program) if not isinstance(one, ByHand)}
    known |= {one for one in vars(environment).values() if isinstance(one, str)}
    ours = sorted(name for name in os.environ if name.startswith(f"{PREFIX}_"))
    return [f"{name}: no such variable{suggest(name, known)}" for name in ours if name not in known]


@click.command()
@click.argument("command", required=False)
@flag("--all", help="Show defaults, too.")
@click.pass_context
def config(ctx: click.Context, command: str | None, *, all: bool) -> CommandResult:
    """Show the options that are set, and where each value comes from.

    That is: the command line, an environment variable, FILE:LINE, or the default. With COMMAND,
    shows every option of this command.

    \b
    hpcsweep config
    hpcsweep config submit
    """
    found = list(shown(ctx))
    if command:
        chosen = _of_command(found, command)
    else:
        chosen = [one for one in found if all or one.source != "default" or "." not in one.name]
    for unknown in unknown_variables(ctx.find_root().command):
        note(f"note: {unknown}")
    files = [str(path) for path, _ in lookup.config_files()]
    return CommandResult(
        record=lambda: {"read": files, "settings": [_record(one) for one in chosen]},
        text=lambda: _lines(chosen, files),
    )


def _of_command(found: Sequence[Shown], command: str) -> list[Shown]:
    chosen = [one for one in found if one.name.startswith(f"{command}.")]
    if not chosen:
        known = {one.name.rpartition(".")[0] for one in found} - {""}
        text = f"no command '{command}' has options{suggest(command, known)}"
        raise UsageError(f"{text} (there are: {', '.join(sorted(known))})")
    return chosen


def _record(one: Shown) -> dict[str, Any]:
    is_list = isinstance(one.value, (list, tuple))
    values = [*map(_plain, one.value)] if is_list else _plain(one.value)
    return {"name": one.name, "value": values, "from": one.source, "variable": one.variable}


def _plain(value: object) -> object:
    return value if isinstance(value, (int, float, str)) or value is None else str(value)


def _lines(chosen: Sequence[Shown], files: Sequence[str]) -> list[str]:
    rows = [(one.name, _written(one.value), one.source) for one in chosen]
    return [*aligned([("option", "value", "from"), *rows]), f"files: {', '.join(files) or 'none'}"]


def _written(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "-"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return "-" if value in {None, ""} else text
