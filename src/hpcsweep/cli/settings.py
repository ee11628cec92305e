"""What configuration files and environment variables set: click's `default_map`, checked by line.

A key at the top of a file is an option of the program, or `cluster`, the default profile; a table
has the options of a command. The command line goes before variables, and these before files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from hpcsweep import environment
from hpcsweep.cli.answer import Answer
from hpcsweep.errors import ConfigError, suggest
from hpcsweep.spec import lookup
from hpcsweep.text import aligned

Loc = tuple[str, ...]

PREFIX: Final = "HPCSWEEP"  # of all variables: click's `auto_envvar_prefix`
CLUSTER: Final = ("cluster",)  # the default profile of the commands in _DEFAULT_CLUSTER
_DEFAULT_CLUSTER: Final = (("submit", "cluster"), ("estimate", "cluster"))
_META: Final = "hpcsweep.settings"
WRONG: Final = "hpcsweep.settings.wrong"


class Names(click.types.StringParamType):
    """Text; where an option may be repeated, its variable holds several joined by commas."""

    envvar_list_splitter = ","


def option(declared: str, help: str, *parameter: str, **attributes: Any) -> Callable[[Any], Any]:
    """Declare an option as its help shows it, such as ``--top N``.

    `parameter` is the name of the function's parameter, where it is another one.
    """
    words = declared.split()
    metavar = None if words[-1].startswith("-") else words.pop()
    return click.option(*words, *parameter, metavar=metavar, help=help, **attributes)


flag = partial(option, is_flag=True)
off = partial(flag, default=True, flag_value=False)  # such as --no-doctor of `doctor`
several = partial(option, type=Names(), multiple=True)
COUNT: Final = click.IntRange(min=1)
COUNT.name = "whole number"  # as click's complaints name it
PATH: Final = click.Path(path_type=Path)
# by the type of an option: the type that a file's value must have
_NEEDS: Final = (
    (click.types.BoolParamType, bool, "needs true or false"),
    (click.types.IntParamType, int, "needs a whole number"),
    (click.types.FloatParamType, (int, float), "needs a number"),
    (click.ParamType, str, "needs text; quote it if it is"),
)


# the command line alone gives it: set for good, it would act with every call
by_hand = partial(flag, allow_from_autoenv=False)


@dataclass(frozen=True)
class Value:
    """The value of an option, and the line of a file or the variable that sets it."""

    value: Any
    where: str


def options(command: click.Command, above: Loc = ()) -> Iterator[tuple[Loc, click.Option]]:
    """Yield the options of the program and of its commands, by their keys in a file."""
    for param in command.params:
        if isinstance(param, click.Option) and param.expose_value:
            name = max(param.opts, key=len).removeprefix("--").replace("-", "_")
            yield (*above, name.removeprefix("no_")), param  # `doctor = false` is --no-doctor
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from options(inner, (*above, name))


def variable(loc: Loc) -> str:
    """Return the name of the environment variable of an option."""
    return "_".join((PREFIX, *loc)).upper().replace("-", "_")


def load(ctx: click.Context) -> None:
    """Make what files and HPCSWEEP_CLUSTER set the defaults of the program and of its commands.

    What is wrong with a file is kept at `WRONG` of `meta`, so that it never hides --help.
    """
    params = dict(options(ctx.command))
    values = dict[Loc, Value]()
    try:
        # the user's own file comes before the project's, which wins
        values = _of_files(params)
    except ConfigError as error:
        ctx.meta[WRONG] = error
    clusters = os.environ.get(environment.CLUSTER)
    if clusters:
        given = Value(clusters.split(","), f"environment: {environment.CLUSTER}")
        values |= dict.fromkeys(_DEFAULT_CLUSTER, given)
    ctx.meta[_META] = values
    ctx.default_map = dict[str, Any]()
    for loc, setting in values.items():
        inner = ctx.default_map
        for step in loc[:-1]:
            inner = inner.setdefault(step, {})
        inner[params[loc].name or ""] = setting.value


def _of_files(params: Mapping[Loc, click.Option]) -> dict[Loc, Value]:
    """Return what the files set; `ConfigError` has a line for each mistake of a file."""
    params = {**params, CLUSTER: params[_DEFAULT_CLUSTER[0]]}
    del params["debug",]  # see `run`
    values: dict[Loc, Value] = {}
    for path in lookup.config_files():
        values |= _of_file(path, params)
    clusters = values.pop(CLUSTER, None)
    if clusters:
        values = {**dict.fromkeys(_DEFAULT_CLUSTER, clusters), **values}
    return values


def default_clusters(program: click.Command) -> list[str]:
    """Return the default profiles that the files set."""
    clusters = _of_files(dict(options(program))).get(_DEFAULT_CLUSTER[0])
    return clusters.value if clusters else []


def _of_file(path: Path, params: Mapping[Loc, click.Option]) -> dict[Loc, Value]:
    """Return what a file sets, checked against the options that there are."""
    from hpcsweep.spec import document

    doc = document.read_toml(path)
    wrong = document.Complaints(doc)
    values: dict[Loc, Value] = {}

    def look(data: Mapping[str, Any], above: Loc) -> None:
        for key, value in data.items():
            loc = (*above, key)
            param = params.get(loc)
            found = f"found {document.show(value)}"
            if param and not param.allow_from_autoenv:
                wrong.add(loc, "only the command line gives it, or each call would do it again")
            elif param:
                try:
                    values[loc] = Value(_taken(param, value, path), f"{path}:{doc.line(loc)}")
                except click.BadParameter as error:
                    wrong.add(loc, f"{found}, {error.message.rstrip('.')}")
                except (ValueError, OverflowError) as error:
                    wrong.add(loc, f"{found}, {error}")
            elif loc not in {known[: len(loc)] for known in params}:
                wrong.add(loc, _unknown(loc, params))
            elif isinstance(value, dict):
                look(value, loc)
            else:
                wrong.add(loc, f"{found}, needs a table: [{key}]")

    look(doc.data, ())
    wrong.tell()
    return values


def _unknown(loc: Loc, params: Iterable[Loc]) -> str:
    *above, key = loc
    allowed: dict[str, None] = {}  # each once, in their order
    homes = []
    for known in params:
        if [*known[: len(above)]] == above:
            allowed[known[len(above)]] = None
        if known[-1] == key and len(known) > 1:
            homes.append(".".join(known[:-1]))
    where = suggest(key, allowed)
    if homes:
        where = f"; it belongs below [{'] or ['.join(homes)}]"
    return f"unknown key, allowed are {', '.join(allowed)}{where}"


def _taken(param: click.Option, value: object, path: Path) -> object:
    """Return a value as click takes it as a default; paths are relative to the file's folder."""
    if param.multiple and isinstance(value, list):
        return [_single(param, item, path.parent) for item in value]
    single = _single(param, value, path.parent)
    return [single] if param.multiple else single


def _single(param: click.Option, value: object, folder: Path) -> object:
    # click would convert: the text "3" to a number, 1 to true; a file says what it means
    for kind, wanted, needs in _NEEDS:
        if isinstance(param.type, kind):
            if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
                raise ValueError(needs)
            break
    text = str(value)
    if isinstance(param.type, click.Path) or (param.name == "cluster" and lookup.is_path(text)):
        value = str(folder / Path(text).expanduser())
    return param.type.convert(value, param, None)


def shown(ctx: click.Context) -> Iterator[dict[str, Any]]:
    """Yield every option with its value and its source, as a command would find them now.

    `variable` is the one that can set it.
    """
    root = ctx.find_root()
    assert isinstance(root.command, click.Group)  # noqa: S101 - the program, for the type checker
    contexts: dict[Loc, click.Context] = {(): root}
    for name, command in root.command.commands.items():
        contexts[name,] = command.make_context(name, [], root, resilient_parsing=True)
    values = ctx.meta[_META]
    for loc, param in options(root.command):
        within = contexts[loc[:-1]]
        name = param.name or ""
        by = variable(loc) if param.allow_from_autoenv else ""
        source = within.get_parameter_source(name)
        where = "default"
        if source is ParameterSource.COMMANDLINE:
            where = "command line"
        elif source is ParameterSource.ENVIRONMENT:
            where = f"environment: {by}"
        elif source is ParameterSource.DEFAULT_MAP:
            where = values[loc].where
        value = _plain(within.params.get(name))
        yield {"name": ".".join(loc), "value": value, "from": where, "variable": by}


def default_is_from(name: str) -> str:
    """Return where an option of this command got its default, such as `` (from FILE:LINE)``."""
    ctx = click.get_current_context()
    # a wrong default is blamed on the file that sets it, not on who typed the command
    setting = ctx.meta[_META].get((ctx.info_name, name))
    is_default = ctx.get_parameter_source(name) is ParameterSource.DEFAULT_MAP
    return f" (from {setting.where})" if setting and is_default else ""


def blamed(error: click.ClickException) -> str:
    """Return `` (from VARIABLE)`` if a wrong value of an option stands in a variable."""
    param = getattr(error, "param", None)
    ctx = getattr(error, "ctx", None)
    if not param or not ctx:
        return ""
    if ctx.get_parameter_source(param.name) is not ParameterSource.ENVIRONMENT:
        return ""
    by_click = f"{ctx.auto_envvar_prefix}_{param.name}".upper()
    return f" (from {param.envvar or by_click})"


@click.command()
@flag("--all", "Show defaults, too.")
@click.pass_context
def config(ctx: click.Context, *, all: bool) -> Answer:
    """Show the options that are set, and where each value comes from.

    That is: the command line, an environment variable, FILE:LINE, or the default. `sbatch.*` are
    sbatch's own variables, which count where a profile says nothing of it.
    """
    from hpcsweep.spec import directives

    chosen = []
    rows = [("option", "value", "from")]
    for setting in shown(ctx):
        of_the_program = "." not in setting["name"]
        if all or of_the_program or setting["from"] != "default":
            chosen.append(setting)
            rows.append((setting["name"], _cell(setting["value"]), setting["from"]))
    refused = []
    for one in directives.variables(os.environ):
        if one.why_not:
            refused.append(one)
        else:
            name = f"sbatch.{one.option}"
            value = one.value or True
            chosen.append({"name": name, "value": value, "from": one.source, "variable": one.name})
            rows.append((name, _cell(value), one.source))
    files = [str(path) for path in lookup.config_files()]
    return Answer(
        record=lambda: {
            "read": files,
            "settings": chosen,
            "not_taken": {one.name: one.why_not for one in refused},
        },
        text=lambda: [
            *aligned(rows),
            *(one.refusal for one in refused),
            f"files: {', '.join(files) or 'none'}",
        ],
    )


def _cell(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return {"None": "-", "": "-", "True": "true", "False": "false"}.get(text, text)


def _plain(value: object) -> object:
    """Return a value as JSON has it; a path is its text."""
    if isinstance(value, (list, tuple)):
        return [_plain(single) for single in value]
    return value if isinstance(value, (int, float, str)) or value is None else str(value)
