"""What a person does to a sweep: submit, status, retry, logs, cancel."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from hpcsweep.cli.common import (
    check_option,
    cluster_option,
    json_option,
    request_of,
    runs,
    sample_option,
    say,
    sweep_name,
    workers_option,
)

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("spec")
@cluster_option
@workers_option
@sample_option
@click.option(
    "--dry-run", "dry", is_flag=True, help="Show the plan, rehearse one point, submit nothing."
)
@click.option(
    "--max-gpu-hours",
    type=click.FloatRange(min=0),
    metavar="H",
    help="Refuse what is expected to cost more.",
)
@click.option(
    "--allow-node", "nodes", multiple=True, metavar="NODE", help="Use a node again that broke."
)
@click.option(
    "--skip-dominated",
    is_flag=True,
    help="Do not try what is larger than a point that ran out of memory.",
)
@check_option
@click.pass_obj
def submit(  # noqa: PLR0913, PLR0917 - one argument per option
    results: Path,
    spec: str,
    clusters: tuple[str, ...],
    workers: int | None,
    sample: int | None,
    max_gpu_hours: float | None,
    nodes: tuple[str, ...],
    *,
    dry: bool,
    skip_dominated: bool,
    check: bool,
) -> int:
    """Measure what is missing; the same command again continues.

    \b
    hpcsweep submit sweeps/quickstart.yaml --cluster local
    hpcsweep submit resnet152_gemm --cluster local --sample 1
    """
    from hpcsweep.spec import expansion, sweep_file
    from hpcsweep.submit import dry_run, workflow
    from hpcsweep.submit.request import Options

    sweep = sweep_file.load(spec)
    for doubt in expansion.doubts(sweep):
        print(f"note: {doubt}", file=sys.stderr)
    if nodes:
        workflow.allow_nodes(results, sweep, nodes)
    code = 0
    options = Options(
        sample=sample,
        workers=workers,
        max_gpu_hours=max_gpu_hours,
        skip_dominated=skip_dominated,
        check=check,
    )
    action = dry_run.run if dry else workflow.submit
    requests = [request_of(sweep, name, options) for name in clusters or ("local",)]
    if len(requests) > 1 and not dry:
        requests = workflow.check_all(results, requests, say)
    for request in requests:
        code = max(code, action(results, request, say))
    return code


@click.command()
@click.argument("sweeps", nargs=-1)
@click.option("--watch", is_flag=True, help="Refresh until nothing runs any more.")
@json_option
@click.pass_obj
def status(results: Path, sweeps: tuple[str, ...], *, watch: bool, as_json: bool) -> None:
    """Show what is measured, running, pending and failed.

    Of every sweep by default.
    """
    from hpcsweep.tracking import status as states

    names = [sweep_name(name) for name in sweeps]

    if watch:
        states.watch(results, names)
        return
    found = states.read(results, names)
    print(json.dumps(states.to_json(found)) if as_json else states.text(found))


@click.command()
@click.argument("sweep", required=False)
@click.option(
    "--status",
    "statuses",
    metavar="A,B,...",
    default="error,crashed,timeout",
    show_default=True,
    help="Statuses that are measured again, comma-separated.",
)
@click.option(
    "--point",
    "point_ids",
    multiple=True,
    metavar="ID",
    help="Only this point, whatever its status (id or its beginning); repeatable.",
)
@cluster_option
@workers_option
@check_option
@click.pass_obj
def retry(  # noqa: PLR0913, PLR0917 - one argument per option
    results: Path,
    sweep: str | None,
    statuses: str,
    point_ids: tuple[str, ...],
    clusters: tuple[str, ...],
    workers: int | None,
    *,
    check: bool,
) -> int:
    """Measure failed points again."""
    from hpcsweep.submit.request import Options
    from hpcsweep.submit.retry import measure_again

    (one,) = runs(results, (sweep,) if sweep else (), single=True)
    wanted = [name.strip() for name in statuses.split(",") if name.strip()]
    options = Options(workers=workers, check=check)
    return measure_again(one, wanted, say, point_ids=point_ids, clusters=clusters, options=options)


@click.command()
@click.argument("sweep", required=False)
@click.argument("what", required=False)
@click.option("-f", "--follow", is_flag=True, help="Wait for more.")
@click.pass_obj
def logs(results: Path, sweep: str | None, what: str | None, *, follow: bool) -> None:
    """Show the newest log, or that of a submission, chunk or point.

    WHAT is a submission, SUBMISSION:CHUNK, a chunk of the newest submission, or a point's id.
    """
    from hpcsweep.tracking import control

    (one,) = runs(results, (sweep,) if sweep else (), single=True)
    for line in control.logs(one, what, follow=follow):
        print(line)


@click.command()
@click.argument("sweep", required=False)
@click.argument("what", nargs=-1)
@click.pass_obj
def cancel(results: Path, sweep: str | None, what: tuple[str, ...]) -> None:
    """End what is live; what was measured stays.

    WHAT is a submission, SUBMISSION:CHUNK, a chunk of the newest submission, or a point's id (its
    chunk ends); by default everything ends.
    """
    from hpcsweep.tracking import control

    (one,) = runs(results, (sweep,) if sweep else (), single=True)
    for line in control.cancel(one, list(what)):
        print(line)
