"""The commands that run a sweep: submit, status, retry, logs, cancel, rm."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcsweep import extras, messages
from hpcsweep.cli import answer, common
from hpcsweep.cli.answer import Answer
from hpcsweep.cli.settings import by_hand, flag, option, several
from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    from hpcsweep.store.folders import SweepDir
    from hpcsweep.submit.request import Request


@click.command()
@click.argument("spec")
@common.cluster_option
@common.workers_option
@common.sample_option
@common.again_option
@common.each_node_option
@flag("--dry-run", "Show the plan and the job script, measure one point here, submit nothing.")
@flag("--download", "Download missing weights and CIFAR here first; no job downloads any.")
@option(
    "--max-gpu-hours H",
    "Abort if the estimate exceeds H GPU-hours; with --until-error, measure no longer.",
    type=click.FloatRange(min=0),
)
@option(
    "--until-error X%",
    "Measure only as many sizes and batches as it takes to predict the others within X %.",
)
@flag("--watch", "With --until-error: wait for each round, and send the next.")
@flag("--skip-dominated", "Skip points that are larger than one that ran out of memory.")
@by_hand("--join", "Go on in the results of another sweep file that has the same name.")
@option(
    "--then COMMAND",
    "Let bash run this after the last point, whatever became of the points; in Slurm in a job.",
)
@flag("--collect", "Merge the results into the tables at the end (local runs only).")
@common.time_option
@common.mem_option
@common.doctor_option
@click.pass_obj
@answer.forgiving()
def submit(  # noqa: PLR0913 - the others are `Options`
    results: Path,
    /,
    spec: str,
    cluster: tuple[str, ...],
    until_error: str | None,
    *,
    watch: bool,
    dry_run: bool,
    download: bool,
    collect: bool,
    **others: Any,
) -> Answer:
    """Run every point that has no result yet. Re-run to resume.

    \b
    hpcsweep submit sweeps/quickstart.yaml --cluster local --collect
    hpcsweep submit resnet152_gemm --cluster local --sample 1
    hpcsweep submit resnet152_gemm --cluster local --until-error 3%
    """
    from hpcsweep.spec import sweep_file
    from hpcsweep.store import folders
    from hpcsweep.submit import steps

    target = _target(until_error, watch=watch, dry=dry_run, more=others)
    # mistakes of the file are told before anything is asked of a cluster
    sweep = sweep_file.load(spec)
    sweep_dir = folders.SweepDir(results / sweep.name)
    others["suppress_next_hint"] = collect
    profiles = common.meant_for(sweep, cluster)
    requests = [common.request_of(sweep, name, **others) for name in profiles]
    for asked in requests:
        if collect and (dry_run or asked.profile.in_slurm):
            later = f"the jobs of '{asked.profile.name}' end later"
            why = "nothing is measured" if dry_run else later
            raise UsageError(f"--collect needs rows, and {why}; run `hpcsweep collect` then")
    if download:
        for asked in requests:
            _download(asked)
    if target is not None:
        from hpcsweep.forecast.until_error import UntilError
        from hpcsweep.submit.in_rounds import submit_in_rounds

        if len(requests) > 1:
            raise UsageError("--until-error takes one --cluster: run the command once for each")
        strategy = UntilError(sweep_dir, requests[0], target)
        code = submit_in_rounds(sweep_dir, requests[0], strategy, watch=watch)
    elif dry_run:
        from hpcsweep.submit.dry_run import rehearse

        code = max([rehearse(results, request) for request in requests])
    else:
        code = steps.submit(results, *requests)
    answer_of_run = _ran(sweep_dir, code)
    if not collect:
        return answer_of_run
    from hpcsweep.store.collect import collector

    report = collector.collect(sweep_dir)
    return replace(answer_of_run, text=report.text, error=report.error())


def _download(asked: Request) -> None:
    extras.need("measure", "submit --download")
    from hpcsweep import environment
    from hpcsweep.measure.data import downloads
    from hpcsweep.submit import questions, request

    env = asked.profile.env
    for name in request.names_on(asked.sweep, "dataset"):
        downloads.get_data(name, env)
    downloads.get_weights(questions.named_weights(asked), environment.torch_home(env))


def _target(
    until_error: str | None, *, watch: bool, dry: bool, more: Mapping[str, Any]
) -> float | None:
    """Return the target of --until-error; `UsageError` for what does not go with it."""
    if until_error is None:
        if watch:
            raise UsageError("--watch goes with --until-error; else: hpcsweep status SWEEP --watch")
        return None
    for name in ("again", "each_node"):
        if more[name]:
            option = name.replace("_", "-")
            raise UsageError(f"--until-error measures as little as it takes; leave out --{option}")
    share = common.percentage("--until-error", until_error)
    if dry:
        raise UsageError("--until-error chooses from what it measures; leave out --dry-run")
    extras.need("predict", "submit --until-error")
    return share


@click.command()
@click.argument("sweeps", nargs=-1)
@flag("--watch", "Refresh until no job is queued or running.")
@flag("--disk", "Show how many bytes each sweep holds instead, and of what.")
@click.pass_obj
def status(results: Path, sweeps: tuple[str, ...], *, watch: bool, disk: bool) -> Answer | None:
    """Show how many points are measured, running, queued and failed.

    Without SWEEPS: of every sweep.
    """
    from hpcsweep.cluster import sweep_status
    from hpcsweep.cluster.status import read_status, watch_status
    from hpcsweep.errors import ResultsError
    from hpcsweep.store import runs

    if disk:
        return _disk(results, runs.of_sweeps(results, sweeps))
    if watch:
        answer.refuse_json("--watch shows the status again and again")
        watch_status(results, sweeps)
        return None
    read = read_status(results, sweeps)
    return Answer(
        record=lambda: sweep_status.to_json(read),
        text=lambda: sweep_status.as_text(read, answer.width()),
        code=ResultsError.exit_code if any(sweep.problems for sweep in read) else 0,
    )


def _disk(results: Path, sweeps: Sequence[SweepDir]) -> Answer:
    from hpcsweep.cluster import disk

    for path in disk.unfinished(results):
        messages.note(
            f"{path}: of an import that runs, or was killed: the next one finishes or removes it"
        )
    used = {sweep_dir.name: disk.usage(sweep_dir) for sweep_dir in sweeps}
    lines = []
    for name, kinds in used.items():
        parts = ", ".join(f"{kind} {size:,}" for kind, size in kinds.most_common())
        lines.append(f"{name}: {kinds.total():,} bytes ({parts})")
    return Answer(record=lambda: {"bytes": used}, text=lambda: lines)


def _ran(sweep_dir: SweepDir, code: int) -> Answer:
    """Return the answer of a command that told its progress: in a document the sweep's status."""
    names = [sweep_dir.name] if sweep_dir.submissions() else []

    def record() -> Mapping[str, object]:
        from hpcsweep.cluster import status, sweep_status

        return sweep_status.to_json(status.read_status(sweep_dir.path.parent, names))

    return Answer(record=record, text=list, code=max(code, common.told_damage(sweep_dir)))


@click.command()
@click.argument("sweep", required=False)
@option(
    "--status A,B,...",
    "Measure points with these statuses again.",
    default="error,crashed,timeout",
    show_default=True,
)
@several(
    "--point ID",
    "Measure this point again, whatever its status (its id, or the beginning); repeatable.",
)
@flag(
    "--changed",
    "Measure points again that were measured with another version of your own network, data "
    "set or weights file, whatever their status.",
)
@flag("--invalid", "Measure points again whose newest times are not valid.")
@flag("--dry-run", "Say how many points; measure nothing.")
@common.cluster_option
@common.workers_option
@common.time_option
@common.mem_option
@common.doctor_option
@click.pass_obj
@answer.forgiving()
def retry(
    results: Path,
    /,
    sweep: str | None,
    status: str,
    **others: Any,
) -> Answer:
    """Measure points again: failed, invalid, or of changed files."""
    from hpcsweep.store import runs
    from hpcsweep.submit.request import Options
    from hpcsweep.submit.retry import measure_again

    run = runs.of_sweep(results, sweep)
    names = ("workers", "time", "mem", "doctor")
    options = Options(**{name: others.pop(name) for name in names})
    return _ran(run, measure_again(run, common.listed(status), options=options, **others))


@click.command("show")
@click.argument("sweep", required=False)
@click.argument("point", required=False)
@option("--status A,B,...", "Show only these.", default="")
@click.pass_obj
def points(results: Path, sweep: str | None, point: str | None, status: str) -> Answer:
    """Show the points of a sweep: how each ended, why, and where.

    POINT is the id of a point, or its beginning: shows all its cells, and its part of the log.

    \b
    hpcsweep show quickstart --status error,timeout
    hpcsweep show quickstart 3f2a9c11
    """
    from hpcsweep.cluster import points
    from hpcsweep.store import runs

    sweep_dir = runs.of_run(results, sweep)
    every = points.read_points(sweep_dir, whole=answer.mode.json and not point)
    wanted = common.listed(status)
    chosen = points.of_status(every, wanted)
    if point:
        named = points.whole(sweep_dir, points.named(chosen, point))
        return Answer(record=named.to_json, text=named.text)
    listed = runs.listed(sweep_dir)

    def record() -> Mapping[str, Any]:
        plain = (each.to_json() for each in chosen)
        return {"sweep": sweep_dir.name, "runs": [run.to_json() for run in listed], "points": plain}

    def text() -> Iterator[str]:
        yield from runs.lines(listed)
        yield from points.table(sweep_dir.name, every, wanted, answer.width())

    return Answer(record=record, text=text)


@click.command()
@click.argument("sweep", required=False)
@click.argument("what", required=False)
@flag("-f --follow", "Keep printing new lines.")
@click.pass_obj
def logs(results: Path, sweep: str | None, what: str | None, *, follow: bool) -> Answer:
    """Show the newest log, or the log of a submission, chunk or point.

    WHAT is a submission, SUBMISSION:CHUNK, a chunk of the newest submission, or the id of a point.
    """
    from hpcsweep.cluster.logs import lines_of_logs
    from hpcsweep.store import runs

    run = runs.of_sweep(results, sweep)
    if follow:
        answer.refuse_json("--follow never ends")
    return replace(_lines(run, lines_of_logs(run, what, follow=follow)), copy=True)


@click.command()
@click.argument("sweep", required=False)
@click.argument("submissions", nargs=-1)
@click.pass_obj
def cancel(results: Path, sweep: str | None, submissions: tuple[str, ...]) -> Answer:
    """Cancel jobs of submissions, by default of all; results are kept."""
    from hpcsweep.cluster import queue
    from hpcsweep.store import runs

    run = runs.of_sweep(results, sweep)
    return _lines(run, queue.cancel(run, submissions))


@click.command()
@click.argument("sweep")
@flag(
    "--old-attempts",
    "Remove only attempts that another one followed, no row of which counts.",
)
@flag("--dry-run", "Say what would be removed; remove nothing.")
@by_hand("--yes", "Do not ask.")
@click.pass_obj
def rm(results: Path, sweep: str, *, old_attempts: bool, dry_run: bool, yes: bool) -> Answer:
    """Remove a sweep, or a run of it, with all that was measured.

    Nothing is removed while a job of it may live. `status --disk` shows what sweeps hold.

    \b
    hpcsweep rm quickstart@1 --dry-run
    hpcsweep rm quickstart --old-attempts --yes
    """
    from hpcsweep.cluster import disk
    from hpcsweep.errors import ResultsError
    from hpcsweep.store import runs

    found = disk.removal(runs.of_run(results, sweep), old_attempts=old_attempts)
    record = {"sweep": sweep, "removed": not dry_run, "lost": found.lost, "bytes": found.bytes()}
    record["kept"] = [*found.kept]
    if not (dry_run or yes):
        # nobody can answer a question in a script
        if not sys.stdin.isatty():
            raise UsageError(f"{found} would be lost for good; --yes removes them")
        click.confirm(f"{found} are lost for good. Remove them?", abort=True, err=True)
    text = f"{found} {'would be' if dry_run else 'were'} removed"
    if not dry_run:
        found.remove()
    for line in found.kept:
        answer.show(f"hpcsweep: {line}", file=sys.stderr)
    code = ResultsError.exit_code if found.kept else 0
    return Answer(record=lambda: record, text=lambda: text, code=code)


def _lines(sweep_dir: SweepDir, lines: Iterator[str]) -> Answer:
    """Return the answer of a command that works while it prints its lines."""
    record = {"sweep": sweep_dir.name, "lines": lines}
    return Answer(record=lambda: record, text=lambda: lines, code=common.told_damage(sweep_dir))
