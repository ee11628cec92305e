"""Writes the parts of the documentation that come from the code: tables, and the JSON Schemas.

::

    python docs/generate.py

A table stands between ``<!-- NAME: generated -->`` and ``<!-- end -->`` in a page. The tests
compare every page and schema with what this script would write.
"""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

from hpcsweep import errors
from hpcsweep.catalog import ALGORITHMS, AXES, COMMAND, INJECTIONS, SETTINGS, WORKLOADS
from hpcsweep.catalog import columns as records
from hpcsweep.catalog.checks import CHECKS
from hpcsweep.catalog.models import MODELS
from hpcsweep.cli import main as program
from hpcsweep.cli.program import WORDS
from hpcsweep.cluster import slurm
from hpcsweep.extras import EXTRAS
from hpcsweep.spec import profile, sweep_keys
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pydantic.fields import FieldInfo

    from hpcsweep.catalog.columns import Column

ROOT = Path(__file__).parents[1]
PIPE = r"\|"  # understood in a cell, and in code inside of a cell
SHARED = 3  # commands from which on an option is told once for all
BLOCK = re.compile(r"(<!-- ([a-z ]+): generated -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Bring every generated file up to date."""
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")


def files() -> dict[Path, str]:
    """Return the files that hold generated text, as they should be."""
    pages = {path: page(path.read_text(encoding="utf-8")) for path in ROOT.glob("docs/**/*.md")}
    return {
        **pages,
        ROOT / "sweeps" / "schema.json": sweep_keys.schema(),
        ROOT / "cluster_profiles" / "schema.json": profile.schema(),
    }


def page(text: str) -> str:
    """Return a page with its tables made anew."""
    return BLOCK.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(
        f"| {' | '.join(cell.replace('|', PIPE) for cell in line)} |\n" for line in lines
    )


def axes() -> str:
    """Return the axes with their values and defaults."""
    ours = {*WORKLOADS} - {COMMAND.name}
    return table(
        ("axis", "values", "default", "workloads", "meaning"),
        (
            (
                f"`{axis.name}`",
                _values(axis.kind, axis.choices, axis.minimum),
                _default(axis.default),
                "all" if {*axis.workloads} >= ours else ", ".join(axis.workloads),
                axis.doc,
            )
            for axis in AXES.values()
        ),
    )


def settings() -> str:
    """Return the keys of `measure`."""
    return table(
        ("key", "values", "default", "workloads", "meaning"),
        (
            (
                f"`{item.name}`",
                _values(item.kind, item.choices, item.minimum),
                _default(item.default),
                ", ".join(item.workloads),
                item.doc,
            )
            for item in SETTINGS.values()
        ),
    )


def algorithms() -> str:
    """Return the taxonomy of algorithms."""
    return table(
        ("algorithm", "meaning"), ((f"`{n}`", known.doc) for n, known in ALGORITHMS.items())
    )


def checks() -> str:
    """Return the checks: what each finds, which flags it raises, what it costs."""
    return table(
        ("check", "finds", "flags", "costs", "of"),
        (
            (
                f"`{name}`",
                check.finds,
                ", ".join(f"`{flag.name}`" for flag in check.flags),
                check.costs
                + (f"; `{check.setting}: false` leaves it out" if check.setting else ""),
                ", ".join(check.workloads) or "all",
            )
            for name, check in CHECKS.items()
        ),
    )


def injections() -> str:
    """Return the failures that a no-op point can have."""
    return table(("`how`", "what happens"), ((f"`{n}`", doc) for n, doc in INJECTIONS.items()))


def models() -> str:
    """Return the networks with their sizes and work."""
    return table(
        ("model", "smallest image", "GFLOPs at 224", "million parameters"),
        (
            (
                f"`{name}`",
                f"{model.size} only" if model.fixed else str(model.size),
                f"{model.gflops:.2f}",
                f"{model.params / 1e6:.2f}",
            )
            for name, model in MODELS.items()
        ),
    )


def commands() -> str:
    """Return every command with its help and arguments, and the options that are its own."""
    return "\n".join(_command(context) for context in all_commands())


def shared_options() -> str:
    """Return the options that several commands have, in the same words."""
    return table(("option", "meaning"), _shared())


def all_commands(parent: click.Context | None = None) -> Iterator[click.Context]:
    """Return a context for the program and each of its commands, groups before their members."""
    context = parent or click.Context(program, info_name="hpcsweep", **program.context_settings)
    yield context
    group = context.command
    for name, command in group.commands.items() if isinstance(group, click.Group) else ():
        yield from all_commands(click.Context(command, info_name=name, parent=context))


def exit_codes() -> str:
    """Return what each exit code means, from the exceptions that cause it."""
    meanings: dict[int, list[str]] = {0: ["Everything that the command was asked for is done."]}
    for cls in vars(errors).values():
        if isinstance(cls, type) and issubclass(cls, errors.HpcsweepError):
            meanings.setdefault(cls.exit_code, []).append((cls.__doc__ or "").splitlines()[0])
    meanings[1] = ["An unexpected error; `hpcsweep --debug ...` shows the traceback."]
    meanings[errors.EXIT_REQUEUE] = ["Only the supervisor of a job: points remain, requeue it."]
    meanings[errors.EXIT_INTERRUPTED] = ["Interrupted by Ctrl-C."]
    return table(
        ("code", "meaning"), ((str(code), " ".join(meanings[code])) for code in sorted(meanings))
    )


def words() -> str:
    """Return the words of hpcsweep."""
    return table(("word", "meaning"), WORDS.items())


def extras() -> str:
    """Return the extras of pip, with their packages and what needs them."""
    return table(
        ("extra", "packages", "what needs it"),
        (
            (f"`{name}`", ", ".join(dict.fromkeys(extra.packages.values())), extra.serves)
            for name, extra in EXTRAS.items()
        ),
    )


def slurm_states() -> str:
    """Return which states of Slurm mean which state of a chunk."""
    of: dict[str, list[str]] = {}
    for state in slurm.STATES:
        of.setdefault(state.meaning.value, []).append(f"`{state.name}`")
    return table(("chunk", "states of Slurm"), ((f"`{c}`", ", ".join(of[c])) for c in of))


def keys_of_sweeps() -> str:
    """Return the keys of a sweep file."""
    return _fields(sweep_keys.SweepFile.model_fields)


def profile_keys() -> str:
    """Return the keys of a profile."""
    return _fields(profile.ProfileFile.model_fields)


_OF_POINTS = {column.name: column for column in (*records.OVERALL, *records.COLLECTED)}


def overall_columns() -> str:
    """Return the columns that people read, which stand in overall.csv, in their order."""
    names = (*records.SEED, *records.READ)
    return _columns(_OF_POINTS[name] for name in names)


def detail_columns() -> str:
    """Return the columns of details.csv, a table per group."""
    return _grouped(_OF_POINTS[name] for name in records.DETAILS if name not in AXES)


def detail_axes() -> str:
    """Return the axes that are columns of details.csv where all rows have their default."""
    return ", ".join(f"`{name}`" for name in records.DETAILS if name in AXES) + ".\n"


def layer_columns() -> str:
    """Return the columns of layers.csv: those of points by name, its own with their meaning."""
    every = (*records.LAYERS, *(_OF_POINTS[name] for name in records.OF_POINT))
    known = {column.name: column.doc for column in _OF_POINTS.values()}
    same = [column for column in every if known.get(column.name) == column.doc]
    names = ", ".join(f"`{column.name}`" for column in same)
    own = (column for column in every if column not in same)
    return f"As in the tables of points: {names}.\n\n{_columns(own)}"


def sample_columns() -> str:
    """Return the columns of samples.csv."""
    return _columns(records.SAMPLES)


def statuses() -> str:
    """Return the statuses of a point."""
    return table(("status", "meaning"), ((f"`{one}`", one.says) for one in PointStatus))


def flags() -> str:
    """Return the flags of a row, and which of them put its times in doubt."""
    return table(
        ("flag", "meaning", "`valid`"),
        (
            (f"`{name}`", doc, "false" if name in records.DOUBTFUL else "")
            for name, doc in records.FLAGS.items()
        ),
    )


def stop_reasons() -> str:
    """Return why a timing loop ended."""
    return table(
        ("`stop_reason`", "meaning"), ((f"`{n}`", doc) for n, doc in records.STOP_REASONS.items())
    )


def _command(context: click.Context) -> str:
    """Return a section about a command: usage, help, options; help's examples stay as they are."""
    usage = " ".join([context.command_path, *context.command.collect_usage_pieces(context)])
    parts = [f"## {context.command_path}\n", f"```text\n{usage}\n```\n"]
    for paragraph in inspect.cleandoc(context.command.help or "").split("\n\n"):
        lines = paragraph.splitlines()
        if lines[:1] == ["\b"]:
            lines = ["```text", *lines[1:], "```"]
        parts.append("\n".join(lines) + "\n")
    options = _options(context)
    shared = _shared()
    own = [row for row in options if row not in shared]
    if own:
        parts.append(table(("option", "meaning"), own))
    if len(own) < len(options):
        names = (row[0].partition(" ")[0].strip("`,") for row in options if row in shared)
        parts.append(f"Shared: {', '.join(f'`{name}`' for name in names)}.\n")
    return "\n".join(parts)


def _shared() -> list[tuple[str, str]]:
    """Return the options, with their meanings, that three commands or more have."""
    counted = Counter(row for context in all_commands() for row in _options(context))
    return [row for row, count in counted.items() if count >= SHARED]


def _options(context: click.Context) -> list[tuple[str, str]]:
    found = (param for param in context.command.params if isinstance(param, click.Option))
    return [_option(one, context) for one in found]


def _option(option: click.Option, context: click.Context) -> tuple[str, str]:
    value = "" if option.is_flag else f" {option.make_metavar(context)}"
    told = isinstance(option.show_default, str)  # in words, else the value itself
    default = option.show_default if told else f"`{option.default}`"
    shown = f" Default: {default}." if option.show_default else ""
    return f"`{', '.join(option.opts)}{value}`", f"{option.help or ''}{shown}".strip()


def _grouped(columns: Iterable[Column]) -> str:
    groups: dict[str, list[Column]] = {}
    for column in columns:
        groups.setdefault(column.group, []).append(column)
    return "\n".join(
        f"### {name[0].upper()}{name[1:]}\n\n{_columns(of)}" for name, of in groups.items()
    )


def _columns(columns: Iterable[Column]) -> str:
    return table(("column", "type", "meaning"), ((f"`{c.name}`", c.kind, c.doc) for c in columns))


def _fields(fields: dict[str, FieldInfo]) -> str:
    rows = (
        (f"`{name}`", _field_default(field), f"{field.description or ''}{_choices(field)}")
        for name, field in fields.items()
    )
    return table(("key", "default", "meaning"), rows)


def _field_default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return "" if field.default_factory else _default(field.default)


def _choices(field: FieldInfo) -> str:
    if get_origin(field.annotation) is not Literal:
        return ""
    return ": " + ", ".join(f"`{choice}`" for choice in get_args(field.annotation))


def _yaml(choice: object) -> str:
    """Return a value as it is written in YAML."""
    return choice if isinstance(choice, str) else json.dumps(choice)


def _values(kind: str, choices: tuple[Any, ...], minimum: float | None) -> str:
    if choices:
        return ", ".join(f"`{_yaml(choice)}`" for choice in choices)
    if kind in {"int", "float"}:
        name = "whole number" if kind == "int" else "number"
        return name if minimum is None else f"{name} from {minimum:g}"
    names = {
        "str": "text",
        "bool": "`true`, `false`",
        "list": "list",
        "algorithm": "name, or map of layers to names",
    }
    return names.get(kind, "name")


def _default(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "" if value in ("", [], (), {}) else f"`{value}`"


TABLES: dict[str, Callable[[], str]] = {
    "axes": axes,
    "settings": settings,
    "algorithms": algorithms,
    "checks": checks,
    "injections": injections,
    "models": models,
    "commands": commands,
    "shared options": shared_options,
    "exit codes": exit_codes,
    "extras": extras,
    "words": words,
    "slurm states": slurm_states,
    "sweep keys": keys_of_sweeps,
    "profile keys": profile_keys,
    "overall columns": overall_columns,
    "detail columns": detail_columns,
    "detail axes": detail_axes,
    "layer columns": layer_columns,
    "sample columns": sample_columns,
    "statuses": statuses,
    "flags": flags,
    "stop reasons": stop_reasons,
}


if __name__ == "__main__":
    main()
