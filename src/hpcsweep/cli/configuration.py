"""The command `config`: what is set, and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from hpcsweep.cli import settings
from hpcsweep.cli.answer import Answer, note
from hpcsweep.cli.settings import Shown
from hpcsweep.errors import UsageError, suggest
from hpcsweep.text import aligned


@click.command()
@click.argument("command", required=False)
@click.option("--all", "everything", is_flag=True, help="Show defaults, too.")
@click.pass_context
def config(ctx: click.Context, command: str | None, *, everything: bool) -> Answer:
    """Show the options that are set, and where each value comes from.

    That is: the command line, an environment variable, FILE:LINE, or the default. With COMMAND,
    shows every option of this command.

    \b
    hpcsweep config
    hpcsweep config submit
    """
    found = list(settings.shown(ctx))
    if command:
        chosen = _of_command(found, command)
    else:
        chosen = [
            one for one in found if everything or one.source != "default" or "." not in one.name
        ]
    root = ctx.find_root().command
    assert isinstance(root, click.Group)  # noqa: S101 - the program
    for unknown in settings.unknown_variables(root):
        note(f"note: {unknown}")
    files = [str(path) for path, _ in settings.files()]
    return Answer(
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
    values = (
        [*map(_plain, one.value)] if isinstance(one.value, (list, tuple)) else _plain(one.value)
    )
    return {"name": one.name, "value": values, "from": one.source, "variable": one.variable}


def _plain(value: object) -> object:
    return value if isinstance(value, (int, float, str)) or value is None else str(value)


def _lines(chosen: Sequence[Shown], files: Sequence[str]) -> list[str]:
    rows = [(one.name, _told(one.value), one.source) for one in chosen]
    return [*aligned([("option", "value", "from"), *rows]), f"files: {', '.join(files) or 'none'}"]


def _told(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value in {None, ""} else str(value)
