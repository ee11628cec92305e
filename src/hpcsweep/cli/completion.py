"""Completes the names of sweeps, profiles, points and columns in bash, zsh and fish.

click writes the scripts of the shells; here is what the arguments of all commands may be.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from hpcsweep.cli.settings import Names
from hpcsweep.errors import HpcsweepError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hpcsweep.store.rundir import RunDir


class _Name(Names):
    """Text that is completed to one of the names that are known when TAB is pressed."""

    def __init__(self, known: Callable[[click.Context], Iterable[str]], *, files: bool) -> None:
        self._known, self._files = known, files

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[CompletionItem]:
        """Return the names that begin so; where there is none, let the shell look for files."""
        found: list[CompletionItem] = []
        before, comma, last = incomplete.rpartition(",")
        with suppress(HpcsweepError, OSError):
            names = [name for name in self._known(ctx) if name.startswith(last)]
            found = [CompletionItem(f"{before}{comma}{name}") for name in names]
        return found or [CompletionItem(incomplete, type="file")] * self._files


def complete_in(group: click.Group) -> None:
    """Let the arguments of all commands of a group be completed, by their names."""
    for command in group.commands.values():
        for param in command.params:
            if param.name in _KNOWN and type(param.type) in {Names, type(click.STRING)}:
                known = _KNOWN[param.name]
                param.type = _Name(known, files=known in {_sweeps, _profiles})


def _sweeps(_ctx: click.Context) -> Iterable[str]:
    from hpcsweep.spec import lookup

    return lookup.names(lookup.SWEEPS)


def _profiles(_ctx: click.Context) -> Iterable[str]:
    from hpcsweep.spec import profile

    return profile.names()


def _measured(ctx: click.Context) -> list[str]:
    return [run.name for run in _runs(ctx)]


def _points(ctx: click.Context) -> Iterable[str]:
    """Return the ids of the points of the sweep that is named already, else of all."""
    from hpcsweep.store import chunk_file

    for run in _runs(ctx):
        if ctx.params.get("sweep") in {None, run.name}:
            for submission in run.submissions():
                for _chunk, ids in chunk_file.read_ids(submission.chunks):
                    yield from ids


def _columns(ctx: click.Context) -> Iterable[str]:
    """Return the columns of the table that the command reads, or those that such a table has."""
    from hpcsweep.catalog import columns

    layers = "layers" in {
        ctx.command.name,
        *(name for name, on in ctx.params.items() if on is True),
    }
    name = ctx.params.get("sweep") or ctx.params.get("first")
    for run in _runs(ctx):
        path = run.layers if layers else run.overall
        if run.name == name and path.is_file():
            with path.open(encoding="utf-8") as file:
                return file.readline().strip().split(",")
    return [column.name for column in (columns.LAYERS if layers else columns.OVERALL)]


def _runs(ctx: click.Context) -> list[RunDir]:
    from hpcsweep.store import rundir

    return rundir.all_runs(ctx.find_root().params["results"])


_KNOWN: dict[str | None, Callable[[click.Context], Iterable[str]]] = {
    "spec": _sweeps,
    "cluster": _profiles,
    "sweep": _measured,
    "sweeps": _measured,
    "first": _measured,
    "others": _measured,
    "point": _points,
    "what": _points,
    **dict.fromkeys(("metric", "x", "y", "by", "where", "across", "baseline"), _columns),
}
