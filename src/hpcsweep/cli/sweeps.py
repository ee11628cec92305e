"""The commands that run a sweep: submit, status, retry, logs, cancel."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from hpcsweep.cli import common, streams
from hpcsweep.cli.common import (
    break_lock_option,
    check_option,
    cluster_option,
    json_option,
    meant_for,
    request_of,
    runs,
    sample_option,
    say,
    sweep_name,
    told_damage,
    workers_option,
)
from hpcsweep.cli.streams import show


@click.command()
@click.argument("spec")
@cluster_option
@workers_option
@sample_option
@click.option(
    "--dry-run",
    "dry",
    is_flag=True,
    help="Show the plan and the job script, measure one point here, submit nothing.",
)
@click.option(
    "--max-gpu-hours",
    type=click.FloatRange(min=0),
    metavar="H",
    help="Abort if the estimate exceeds H GPU-hours.",
)
@click.option(
    "--allow-node",
    "nodes",
    multiple=True,
    metavar="NODE",
    help="Allow a node that was excluded after a failure; repeatable.",
)
@click.option(
    "--skip-dominated",
    is_flag=True,
    help="Skip points that are larger than one that ran out of memory.",
)
@check_option
@break_lock_option
@click.pass_obj
@streams.forgiving()
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
    break_lock: bool,
) -> int:
    """Run every point that has no result yet. Re-run to resume.

    \b
    hpcsweep submit sweeps/quickstart.yaml --cluster local
    hpcsweep submit resnet152_gemm --cluster local --sample 1
    """
    from hpcsweep.spec import expansion, sweep_file
    from hpcsweep.store import rundir
    from hpcsweep.submit import dry_run, workflow
    from hpcsweep.submit.request import Options

    sweep = sweep_file.load(spec)
    for doubt in expansion.doubts(sweep):
        show(f"note: {doubt}", file=sys.stderr)
    if break_lock:
        common.break_lock(rundir.RunDir(results / sweep.name))
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
    requests = [request_of(sweep, name, options) for name in meant_for(sweep, clusters)]
    if len(requests) > 1 and not dry:
        requests = workflow.check_all(results, requests, say)
    for request in requests:
        code = max(code, action(results, request, say))
    return max(code, told_damage(rundir.RunDir(results / sweep.name)))


@click.command()
@click.argument("sweeps", nargs=-1)
@click.option("--watch", is_flag=True, help="Refresh until no job is queued or running.")
@json_option
@click.pass_obj
def status(results: Path, sweeps: tuple[str, ...], *, watch: bool, as_json: bool) -> int:
    """Show how many points are measured, running, queued and failed.

    Without SWEEPS: of every sweep.
    """
    from hpcsweep.errors import ResultsError
    from hpcsweep.tracking import status as states
    from hpcsweep.tracking import sweep_status

    names = [sweep_name(name) for name in sweeps]

    if watch:
        states.watch(results, names)
        return 0
    found = states.read(results, names)
    show(json.dumps(sweep_status.to_json(found)) if as_json else sweep_status.text(found))
    return ResultsError.exit_code if any(one.problems for one in found) else 0


@click.command()
@click.argument("sweep", required=False)
@click.option(
    "--status",
    "statuses",
    metavar="A,B,...",
    default="error,crashed,timeout",
    show_default=True,
    help="Measure points with these statuses again.",
)
@click.option(
    "--point",
    "point_ids",
    multiple=True,
    metavar="ID",
    help="Measure this point again, whatever its status (its id, or the beginning); repeatable.",
)
@cluster_option
@workers_option
@check_option
@break_lock_option
@click.pass_obj
@streams.forgiving()
def retry(  # noqa: PLR0913, PLR0917 - one argument per option
    results: Path,
    sweep: str | None,
    statuses: str,
    point_ids: tuple[str, ...],
    clusters: tuple[str, ...],
    workers: int | None,
    *,
    check: bool,
    break_lock: bool,
) -> int:
    """Measure failed points again."""
    from hpcsweep.submit.request import Options
    from hpcsweep.submit.retry import measure_again

    (one,) = runs(results, (sweep,) if sweep else (), single=True)
    if break_lock:
        common.break_lock(one)
    wanted = [name.strip() for name in statuses.split(",") if name.strip()]
    options = Options(workers=workers, check=check)
    code = measure_again(one, wanted, say, point_ids=point_ids, clusters=clusters, options=options)
    return max(code, told_damage(one))


@click.command("show")
@click.argument("sweep", required=False)
@click.argument("point", required=False)
@click.option("--status", "statuses", metavar="A,B,...", default="", help="Show only these.")
@json_option
@click.pass_obj
def points(
    results: Path, sweep: str | None, point: str | None, statuses: str, *, as_json: bool
) -> None:
    """Show the points of a sweep: how each ended, why, and where.

    POINT is the id of a point, or its beginning: shows all its cells, and its part of the log.

    \b
    hpcsweep show quickstart --status error,timeout
    hpcsweep show quickstart 3f2a9c11
    """
    import shutil

    from hpcsweep.tracking import points

    (one,) = runs(results, (sweep,) if sweep else (), single=True)
    found = points.read(one, [name.strip() for name in statuses.split(",") if name.strip()])
    if point:
        chosen = points.named(found, point)
        show(json.dumps(chosen.to_json()) if as_json else chosen.text())
    elif as_json:
        show(json.dumps({"sweep": one.name, "points": [each.to_json() for each in found]}))
    else:
        show(points.table(one.name, found, shutil.get_terminal_size().columns))


@click.command()
@click.argument("sweep", required=False)
@click.argument("what", required=False)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines.")
@click.pass_obj
def logs(results: Path, sweep: str | None, what: str | None, *, follow: bool) -> int:
    """Show the newest log, or the log of a submission, chunk or point.

    WHAT is a submission, SUBMISSION:CHUNK, a chunk of the newest submission, or the id of a point.
    """
    from hpcsweep.tracking import control

    (one,) = runs(results, (sweep,) if sweep else (), single=True)
    for line in control.logs(one, what, follow=follow):
        show(line)
    return told_damage(one)


@click.command()
@click.argument("sweep", required=False)
@click.argument("what", nargs=-1)
@click.pass_obj
def cancel(results: Path, sweep: str | None, what: tuple[str, ...]) -> int:
    """Cancel queued and running jobs; results are kept.

    WHAT is a submission, SUBMISSION:CHUNK, a chunk of the newest submission, or the id of a point,
    which cancels its chunk. Without WHAT: all jobs of the sweep.
    """
    from hpcsweep.tracking import control

    (one,) = runs(results, (sweep,) if sweep else (), single=True)
    for line in control.cancel(one, list(what)):
        show(line)
    return told_damage(one)
