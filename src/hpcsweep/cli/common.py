"""What the commands share: options, the sweeps that were named, text for a terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcsweep.errors import UsageError, suggest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcsweep.store.rundir import RunDir
    from hpcsweep.submit.prepare import Request


class Commands(click.Group):
    """A group that names the nearest command, and lists all in the order in which one uses them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the commands as they were added."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an unknown one is told with the nearest spelling."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            known = self.list_commands(ctx)
            raise UsageError(
                f"no command '{args[0]}'{suggest(args[0], known)} (there are: {', '.join(known)})"
            )
        return super().resolve_command(ctx, args)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json`, as the argument `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Pure JSON on stdout.")(command)


cluster_option = click.option(
    "--cluster", "clusters", multiple=True, metavar="NAME|PATH", help="Cluster profile; repeatable."
)
sample_option = click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="N",
    help="N evenly spread values of input_size and batch_size for every other combination.",
)
workers_option = click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Local: points measured side by side.",
)
check_option = click.option(
    "--no-check",
    "check",
    is_flag=True,
    default=True,
    flag_value=False,
    help="Do not compare the profile with its cluster first.",
)


def request_of(sweep: Any, cluster: str, **options: Any) -> Request:  # noqa: ANN401 - passed on
    """Return what is asked of a cluster (its profile's name or file); options as of `request`."""
    from hpcsweep.spec import profile
    from hpcsweep.submit import workflow

    chosen = profile.load(cluster)
    return workflow.request(sweep, chosen, argv=tuple(sys.argv[1:]), **options)


def runs(results: Path, names: Sequence[str], *, single: bool = False) -> list[RunDir]:
    """Return the sweeps that were named; without names, all of them, or the only one."""
    from hpcsweep.store import rundir

    if names:
        return [rundir.open_run(results, sweep_name(name)) for name in names]
    found = rundir.all_runs(results)
    if not found:
        raise UsageError(f"{results}: no results yet; `hpcsweep submit SPEC` makes some")
    if single and len(found) > 1:
        raise UsageError(f"which sweep? {results} has: {', '.join(one.name for one in found)}")
    return found


def sweep_name(text: str) -> str:
    """Accept a sweep file, or the folder of its results, where the sweep is meant."""
    from hpcsweep.spec import lookup

    path = Path(text)
    if path.suffix not in lookup.SUFFIXES:
        return path.name if path.is_dir() and (path / "submissions").is_dir() else text
    if not path.is_file():
        return path.stem
    from hpcsweep.errors import SpecError
    from hpcsweep.spec import sweep_file

    try:
        return sweep_file.load(path).name
    except SpecError:  # it may be half edited; what it measured is there
        return path.stem


def say(text: str) -> None:
    """Tell the user something; stdout, flushed, since a local run lasts."""
    print(text, flush=True)
