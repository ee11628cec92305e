"""What the commands share: options, and how a sweep or a profile is named."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from hpcsweep import environment, messages
from hpcsweep.cli import answer, settings
from hpcsweep.cli.answer import Answer, show
from hpcsweep.cli.settings import COUNT, by_hand, flag, off, option, several
from hpcsweep.errors import ProfileError, UsageError

if TYPE_CHECKING:
    from hpcsweep.analysis.formats import View
    from hpcsweep.spec.space import Sweep
    from hpcsweep.store.folders import SweepDir
    from hpcsweep.submit.request import Request

_ROWS: Final = 60  # of a table that people read: a screen on end


class _Form(click.Choice):  # type: ignore[type-arg]  # generic since click 8.2
    """The forms of a table; their longer names are taken, too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert({"markdown": "md", "tex": "latex"}.get(value, value), param, ctx)


def format_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--format`, and `--all`."""
    forms = _Form(("table", "csv", "md", "latex", "json"))
    words = "Print the table in this form."
    form = option("--format", words, type=forms, default="table", show_default=True, callback=_form)
    words = f"Print each row of a table, not only the first {_ROWS}."
    flag("--all", words, expose_value=False, callback=_whole)(command)
    form(command)
    return command


def _form(ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Take --format json for --json."""
    if not ctx.resilient_parsing:  # as `hpcsweep config` looks at every command
        answer.mode.json |= value == "json"
    return value


def _whole(ctx: click.Context, _param: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's
    if not ctx.resilient_parsing:
        answer.mode.whole = value


where_option = several(
    "--where A=B,...",
    "Take only rows with these values. A column given twice means either value; also A!=B, A<B, "
    "A<=B, A>B, A>=B (in quotes), and A=LOW..HIGH.",
    callback=lambda _ctx, _param, given: ",".join(given),
)
unreliable_option = flag("--unreliable", "Take unreliable points, too.")
layers_option = flag("--layers", "Show layers instead of points.")
# with its title and notes, such a table fits on a screen
top_option = option("--top N", "Show so many layers.", type=COUNT, default=20, show_default=True)
cluster_option = several("--cluster NAME|PATH", "Cluster profile, by name or file; repeatable.")
sample_option = option(
    "--sample N",
    "Take only N evenly spread values of input_size and batch_size for each combination of the "
    "other axes.",
    type=COUNT,
)
again_option = by_hand(
    "--again",
    "Measure everything once more, as a new run; go on with the last one if it lacks points.",
)
each_node_option = flag(
    "--each-node",
    "Measure all points on every node of the profile; `report` says which node is slow.",
)
workers_option = option(
    "--workers N", "Measure N points side by side (local runs only).", type=COUNT
)
# a job's limits are of one submission: set for good, they would be those of every profile
time_option = option(
    "--time LIMIT",
    "Jobs of this submission ask for this time instead of the profile's, such as 4h, 90m or as "
    "sbatch takes it.",
    allow_from_autoenv=False,
)
mem_option = option(
    "--mem SIZE",
    "Jobs of this submission ask for this memory instead of the profile's, such as 32G.",
    allow_from_autoenv=False,
)
doctor_option = off("--no-doctor", "Do not check the profile against its cluster first.", "doctor")


def tables(views: Sequence[View], form: str, files: Sequence[Path | None] = ()) -> Answer:
    """Return tables as an answer; where stdout is for programs, the files are told on stderr."""
    if form in {"csv", "md", "latex"}:
        # a pipe gets the table and nothing else
        for path in filter(None, files):
            messages.note(f"wrote {path}")
        files = ()
    return Answer(record=views[0].to_json, text=lambda: as_text(views, form), files=files)


def as_text(views: Sequence[View], form: str) -> str:
    """Return tables as this call of the program prints them."""
    from hpcsweep.analysis import formats

    return formats.written(views, form, answer.width(), None if answer.mode.whole else _ROWS)


def listed(text: str) -> list[str]:
    """Return the words of a list with commas."""
    words = map(str.strip, text.split(","))
    return [word for word in words if word]


def percentage(name: str, text: str) -> float:
    """Return ``3%`` as 0.03; `UsageError` for what is no percentage between 0 and 100."""
    number = text.strip().removesuffix("%").strip()
    try:
        share = float(number) / 100
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise UsageError(f"{name} {text}: needs a percentage above 0, such as {name} 3%")
    if not text.strip().endswith("%"):
        raise UsageError(f"{name} {text}: the percent sign is missing; write {name} {number}%")
    return share


def request_of(sweep: Sweep, cluster: str, **options: Any) -> Request:
    """Return the request that a sweep makes of a cluster, by the profile's name or file."""
    from hpcsweep.submit import request

    chosen = request.Options(argv=tuple(sys.argv[1:]), quiet=answer.mode.quiet, **options)
    try:
        return request.of_cluster(sweep, cluster, chosen)
    except ProfileError as error:
        raise ProfileError(f"{error}{settings.default_is_from('cluster')}") from error


def meant_for(sweep: Sweep, clusters: tuple[str, ...]) -> tuple[str, ...]:
    """Return the profiles to submit to: those that are named, or `local` if it is meant."""
    if clusters:
        return clusters
    from hpcsweep.cluster import slurm
    from hpcsweep.spec import lookup
    from hpcsweep.submit import request

    gpus = request.named_gpus(sweep)
    device = request.device_here(sweep).gpu if gpus else ""
    # a sweep that names GPUs is meant for a cluster, unless this machine has one of them
    if device and device not in gpus:
        why = f"the sweep asks for gpu: {', '.join(gpus)}; this machine has: {device}"
    elif slurm.available():
        why = "this machine has sbatch, so it may be a login node"
    else:
        return ("local",)
    names = ", ".join(lookup.names(lookup.PROFILES))
    raise UsageError(
        f"{sweep.name}: --cluster is missing: {why}. Name a profile ({names}; "
        f"local measures here), or set `cluster` with `hpcsweep init` or {environment.CLUSTER}"
    )


def tables_of(results: Path, text: str | None) -> SweepDir:
    """Return the results of ``SWEEP[@RUN]`` with tables of all rows that there are now."""
    from hpcsweep.store import runs

    return renewed(runs.of_run(results, text))


def renewed(sweep_dir: SweepDir) -> SweepDir:
    """Return a sweep's results with tables of all rows that there are now; say what is amiss."""
    from hpcsweep.store.collect import collector

    run_now, notes = collector.tables_of(sweep_dir)
    for line in notes:
        messages.note(f"{sweep_dir.name}: {line}")
    return run_now


def told_damage(sweep_dir: SweepDir) -> int:
    """Say which submissions are damaged; return the exit code for that, or 0."""
    from hpcsweep.errors import ResultsError

    problems = sweep_dir.damage()
    for problem in problems:
        show(f"hpcsweep: {problem}", file=sys.stderr)
    return ResultsError.exit_code if problems else 0
