"""What the commands share: options, and how a sweep or a profile is named."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from hpcsweep import environment
from hpcsweep.cli import answer
from hpcsweep.cli.answer import CommandResult, say, show
from hpcsweep.cli.settings import ByHand, Names, flag
from hpcsweep.errors import UsageError
from hpcsweep.records import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcsweep.analysis.formats import View
    from hpcsweep.spec.space import Sweep
    from hpcsweep.store.rundir import RunDir
    from hpcsweep.submit.request import Options, Request


class _Form(click.Choice):  # type: ignore[type-arg]  # generic since click 8.2
    """The forms of a table; their longer names are taken, too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the form that is meant."""
        return super().convert({"markdown": "md", "tex": "latex"}.get(value, value), param, ctx)


_FORMATS: Final = _Form(("table", "csv", "md", "latex", "json"))


_ROWS: Final = 60  # of a table that people read


def format_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--format`, and `--all`."""
    chosen = click.option(
        "--format",
        type=_FORMATS,
        default="table",
        show_default=True,
        callback=_form,
        help="Print the table in this form.",
    )
    whole = flag(
        "--all",
        expose_value=False,
        callback=_whole,
        help=f"Print each row of a table, not only the first {_ROWS}.",
    )
    return chosen(whole(command))


def _form(ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Take --format json for --json; forms for programs have no colour."""
    if not ctx.resilient_parsing:  # as `hpcsweep config` looks at every command
        answer.mode.json |= value == "json"
        answer.mode.plain |= value != "table"
    return value


def _whole(ctx: click.Context, _param: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's
    if not ctx.resilient_parsing:
        answer.mode.whole = value


where_option = click.option(
    "--where",
    type=Names(),
    multiple=True,
    metavar="A=B,...",
    callback=lambda _ctx, _param, given: ",".join(given),
    help="Take only rows with these values. A column given twice means either value; also A!=B, "
    "A<B, A<=B, A>B, A>=B (in quotes), and A=LOW..HIGH.",
)
unreliable_option = flag("--unreliable", help="Take unreliable points, too.")
layers_option = flag("--layers", help="Show layers instead of points.")
top_option = click.option(
    "--top",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="Show so many layers.",
)


def tables(views: Sequence[View], form: str, files: Sequence[Path | None] = ()) -> CommandResult:
    """Return tables as an answer; where stdout is for programs, the files are told on stderr."""
    if form in {"csv", "md", "latex"}:
        for path in filter(None, files):
            answer.note(f"   {path}")
        files = ()
    return CommandResult(
        record=views[0].to_json,
        text=lambda: as_text(views, form),
        files=files,
    )


def as_text(views: Sequence[View], form: str) -> str:
    """Return tables as this call of the program prints them."""
    from hpcsweep.analysis import formats

    return formats.written(views, form, answer.width(), None if answer.mode.whole else _ROWS)


cluster_option = click.option(
    "--cluster",
    type=Names(),
    multiple=True,
    metavar="NAME|PATH",
    help="Cluster profile, by name or file; repeatable.",
)
sample_option = click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="N",
    help="Take only N evenly spread values of input_size and batch_size for each combination of "
    "the other axes.",
)
again_option = click.option(
    "--again",
    cls=ByHand,
    is_flag=True,
    help="Measure everything once more, as a new run; go on with the last one if it lacks points.",
)
nodes_option = click.option(
    "--nodes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Spread the points over N tasks of Slurm, which may run on N nodes at a time; more tasks "
    "where one would exceed the limits of the profile.",
)
workers_option = click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Measure N points side by side (local runs only).",
)
doctor_option = click.option(
    "--no-doctor",
    "doctor",
    is_flag=True,
    default=True,
    flag_value=False,
    help="Do not check the profile against its cluster first.",
)


def percentage(option: str, text: str) -> float:
    """Return ``3%`` as 0.03; `UsageError` for what is no percentage between 0 and 100."""
    number = text.strip().removesuffix("%").strip()
    try:
        share = float(number) / 100
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise UsageError(f"{option} {text}: needs a percentage above 0, such as {option} 3%")
    if not text.strip().endswith("%"):
        raise UsageError(f"{option} {text}: the percent sign is missing; write {option} {number}%")
    return share


def request_of(sweep: Sweep, cluster: str, options: Options) -> Request:
    """Return the request that a sweep makes of a cluster, by the profile's name or file."""
    from hpcsweep.submit import request

    options = replace(options, argv=tuple(sys.argv[1:]), quiet=answer.mode.quiet)
    return request.of_cluster(sweep, cluster, options)


def meant_for(sweep: Sweep, clusters: tuple[str, ...]) -> tuple[str, ...]:
    """Return the profiles to submit to: those that are named, or `local` if it is meant."""
    if clusters:
        return clusters
    from hpcsweep import slurm
    from hpcsweep.preflight import local_device
    from hpcsweep.spec import profile
    from hpcsweep.submit import request

    gpus = request.gpus(sweep)
    if gpus and (here := local_device.local_device()) not in gpus:
        why = f"the sweep asks for gpu: {', '.join(gpus)}; this machine has: {here}"
    elif slurm.available():
        why = "this machine has sbatch, so it may be a login node"
    else:
        return ("local",)
    raise UsageError(
        f"{sweep.name}: --cluster is missing: {why}. Name a profile ({', '.join(profile.names())}; "
        f"local measures here), or set `cluster` with `hpcsweep init` or {environment.CLUSTER}"
    )


def tables_of(results: Path, text: str | None) -> RunDir:
    """Return the results of ``SWEEP[@RUN]`` with tables of all rows that there are now."""
    from hpcsweep.store import runs

    return renewed(runs.of_run(results, text))


def renewed(run: RunDir) -> RunDir:
    """Return a sweep's results with tables of all rows that there are now; say what is amiss."""
    from hpcsweep.collect import fresh

    found, notes = fresh.tables_of(run)
    for line in notes:
        answer.note(f"note: {run.name}: {line}")
    return found


break_lock_option = click.option(
    "--break-lock",
    cls=ByHand,
    is_flag=True,
    help="Remove the lock of a process that was killed on another host.",
)


def told_damage(run: RunDir) -> int:
    """Say which submissions are damaged; return the exit code for that, or 0."""
    from hpcsweep.errors import ResultsError

    problems = run.damage()
    for problem in problems:
        show(f"hpcsweep: {problem}", file=sys.stderr)
    return ResultsError.exit_code if problems else 0


def break_lock(run: RunDir) -> None:
    """Remove the lock of a process that is gone, and say whose it was."""
    from hpcsweep.store import locks

    say(locks.break_open(run))
