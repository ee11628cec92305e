"""The commands `init`, from an unknown machine to one verified point, and `doctor`."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from hpcsweep import extras, messages, numerals
from hpcsweep.cli import common, settings
from hpcsweep.cli.answer import Answer
from hpcsweep.cli.settings import flag, option
from hpcsweep.errors import (
    EXIT_INTERRUPTED,
    Incomplete,
    PointsFailed,
    Refused,
    SchedulerError,
    UsageError,
)
from hpcsweep.spec import lookup

if TYPE_CHECKING:
    from hpcsweep.spec.profile import Profile
    from hpcsweep.store.folders import SweepDir
    from hpcsweep.submit.request import Request

_SWEEP: Final = "init"
_NETWORK: Final = """\
name: init
workload: inference
axes: {model: [resnet18], input_size: [64]}
measure: {iterations: 20}
"""
_NOTHING: Final = """\
name: init
workload: noop
axes: {model: [nothing]}
"""
_LOOK: Final = "name: doctor\nworkload: command\naxes: {{look: [node]}}\nrun: {}\n"
_WAIT: Final = 600  # seconds for a job to come to its end; a longer queue is left to `status`
_SLOWEST_POLL: Final = 10.0  # seconds; slurmctld has better things to do


@click.command()
@option(
    "--cluster NAME|PATH",
    "Default profile; without it the first one that fits.",
)
@flag(
    "--project", "Write into this folder (hpcsweep.toml, cluster_profiles/), not for your account."
)
@flag("--noop", "Verify with a point that measures nothing.")
@option(
    "--wait SECONDS",
    "Wait so long for the job of that point; 0: submit nothing.",
    type=click.FloatRange(min=0),
    default=_WAIT,
    show_default=True,
)
@click.pass_context
def init(
    ctx: click.Context,
    cluster: str | None,
    wait: float,
    *,
    project: bool,
    noop: bool,
) -> Answer:
    """Set up hpcsweep on this cluster, up to one verified point.

    Writes profiles of the cluster's GPUs, checks them, keeps a default profile in the configuration
    file, writes schemas for editors, and runs one point to its row. What exists is kept.

    \b
    hpcsweep init
    hpcsweep init --cluster l40 --project
    """
    results: Path = ctx.obj
    home = Path() if project else lookup.config_folder()
    # what somebody chose before goes first: a second `init` changes nothing
    set_already = settings.default_clusters(ctx.find_root().command)
    written = _profiles(home / lookup.PROFILES, cluster)
    names = [cluster] if cluster else list(dict.fromkeys([*set_already, *written]))
    chosen = _default(results, names)
    file = home / (lookup.PROJECT_FILE if project else lookup.USER_FILE)
    path = chosen.path.absolute()
    by_name = lookup.names(lookup.PROFILES).values()
    is_named = path in map(Path.absolute, by_name)
    messages.progress(_keep_default(file, chosen.name if is_named else str(path)))
    for line in _schemas(home):
        messages.progress(line)
    sweep = home / lookup.SWEEPS / f"{_SWEEP}.yaml"
    row = _verified(results, chosen, sweep, wait, noop=noop) if wait else {}
    return Answer(
        record=lambda: {"config": str(file), "cluster": chosen.name, "row": row},
        text=lambda: _told(row, chosen, results) if row else "no point was submitted (--wait 0)",
    )


def _profiles(folder: Path, cluster: str | None) -> list[str]:
    """Write a profile for each type of GPU here; return their names, or those that stand in."""
    from hpcsweep.cluster import slurm
    from hpcsweep.cluster.slurm import discover

    if cluster == "local":  # a cluster that does not answer is no news to who sets up this machine
        return []
    if not slurm.available():
        messages.progress("profiles: no sbatch here, so points run on this machine")
        return ["local"]
    try:
        profiles = discover.ask()
    except (Refused, SchedulerError) as none:
        if cluster is None:
            remedy = "`hpcsweep init --cluster local` sets up this machine alone"
            raise type(none)(f"{none}; {remedy}") from none
        messages.progress(f"profiles: {none}")
        return []
    for line in discover.write(profiles, folder, force=False):
        messages.progress(f"profiles: {line}")
    return [profile.name for profile in profiles]


def _default(results: Path, names: Sequence[str]) -> Profile:
    """Return the default profile: the first of these that fits."""
    from hpcsweep.cluster.doctor import examine
    from hpcsweep.spec import profile

    fits = []
    complaints = set[str]()
    for name in names:
        candidate = profile.load(name)
        may_run = True
        for finding in examine(candidate, results):
            # of what is well `doctor` tells
            if finding.level not in {"fail", "warn"}:
                continue
            complaint = finding.complaint()
            if complaint not in complaints:  # of the machine they are so for each profile
                messages.progress(f"doctor: {candidate.name}: {finding.level}: {complaint}")
                complaints.add(complaint)
            # `slurm`: there is no sbatch here, so the point that verifies it could not be sent
            if finding.level == "fail" or finding.what == "slurm":
                may_run = False
        if may_run:
            messages.progress(f"doctor: {candidate.name}: fits")
            fits.append(candidate)
    if not fits:
        tried = ", ".join(names)
        raise Refused(f"no profile fits: {tried}; do what doctor says, then run this again")
    return fits[0]


def _write(path: Path, text: str, *marks: str) -> None:
    """Write a file whole or not at all; one without any of these texts is a person's and stays."""
    from hpcsweep.store import named_file

    path.parent.mkdir(parents=True, exist_ok=True)
    with named_file.writing(path, lambda old: any(mark.encode() in old for mark in marks)) as file:
        file.write(text.encode())


def _keep_default(file: Path, cluster: str) -> str:
    """Set the key `cluster` of a configuration file, and leave the rest of it as it is."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    # keys of no table stand above the first one
    head, bracket, tables = text.partition("[")
    line = f"cluster = {json.dumps(cluster)}\n"
    head, times = re.subn(r"(?m)^cluster\s*=.*\n?", lambda _found: line, head, count=1)
    _write(file, f"{'' if times else line}{head}{bracket}{tables}", text)
    return f"configuration: {file}: {line.strip()}"


def _schemas(home: Path) -> Iterator[str]:
    """Write the JSON Schemas with which editors complete and check sweeps and profiles."""
    from hpcsweep.spec import profile, sweep_keys

    for kind, text in ((lookup.SWEEPS, sweep_keys.schema()), (lookup.PROFILES, profile.schema())):
        path = home / kind / "schema.json"
        _write(path, text, ' of hpcsweep"')
        yield f"editor: begin {kind} with  # yaml-language-server: $schema={path.absolute()}"


def _verified(
    results: Path, chosen: Profile, file: Path, wait: float, *, noop: bool
) -> Mapping[str, Any]:
    """Write a sweep of one point, run it anew, and return its row, or raise if none comes."""
    from hpcsweep.spec import sweep_file
    from hpcsweep.store import folders
    from hpcsweep.store.collect import collector
    from hpcsweep.store.state import PointStatus

    lack = [] if noop else _lacking(chosen)
    if lack:
        messages.progress(f"point: without {lack[0]} it measures nothing (workload noop)")
    sweep_dir = folders.SweepDir(results / _SWEEP)
    # a file of that name which a person changed is refused, not run
    _write(file, _NOTHING if noop or lack else _NETWORK, _NETWORK, _NOTHING)
    asked = common.request_of(sweep_file.load(file), str(chosen.path))
    row, trouble = _anew(results, asked, wait)
    if row.get("status") != PointStatus.OK:
        why = row.get("status_reason") or trouble or "its job ended without a row"
        raise PointsFailed(f"the point was not measured: {why}; see `{sweep_dir.command('logs')}`")
    collector.collect(sweep_dir)
    return {name: cell for name, cell in row.items() if cell and isinstance(cell, str)}


def _lacking(chosen: Profile) -> list[str]:
    """Return what a job lacks to measure a network."""
    return [] if chosen.own_python else extras.lacking("measure")


@click.command()
@common.cluster_option
@flag("--deep", "Also check torch and the GPU, in another process.")
@flag("--on-node", "Also look on a node of the profile, in a short job.")
@click.pass_obj
def doctor(results: Path, cluster: tuple[str, ...], *, deep: bool, on_node: bool) -> Answer:
    """Check this machine, and a profile against its cluster.

    Reports problems and suggests fixes.
    """
    from hpcsweep.cluster.doctor import as_text, examine
    from hpcsweep.spec import profile

    chosen = [profile.load(name) if name else None for name in cluster or (None,)]
    if on_node and not all(each and each.in_slurm for each in chosen):
        raise UsageError("--on-node looks where Slurm's jobs run; name a profile with --cluster")
    shown = []
    lines = []
    failed = False
    for each in chosen:
        findings = examine(each, results, deep=deep)
        lines.append(as_text(findings))
        # a job that cannot start would only wait
        well = all(finding.level != "fail" for finding in findings)
        on_it: list[str] = []
        if each and on_node and well:
            well, on_it = _on_node(results, each)
            lines += ["", *on_it]
        failed = failed or not well
        name = each.name if each else ""
        shown.append({"profile": name, "findings": [*map(asdict, findings)], "on_node": on_it})
    return Answer(
        record=lambda: {"machines": shown},
        text=lambda: lines,
        code=Refused.exit_code if failed else 0,
    )


def _on_node(results: Path, chosen: Profile) -> tuple[bool, list[str]]:
    """Run `doctor` in a job of the profile's launcher; return whether all is well, and its log."""
    from hpcsweep.cluster import logs
    from hpcsweep.cluster.slurm import job_script
    from hpcsweep.spec import sweep_file
    from hpcsweep.store import folders
    from hpcsweep.store.outcomes import WELL

    program = (job_script.interpreter(chosen), "-m", "hpcsweep", "--results", results.absolute())
    words = (*program, "doctor", "--deep", "--cluster", chosen.path.absolute())
    command = shlex.join(str(word) for word in words)
    file = results / "doctor.yaml"
    _write(file, _LOOK.format(json.dumps(command)), "name: doctor\n")
    asked = common.request_of(sweep_file.load(file), str(chosen.path), doctor=False)
    most = numerals.slurm_time(min(chosen.time_seconds or _WAIT, _WAIT))
    # the default of two minutes would leave little of a job of minutes
    short = asked.profile.model_copy(update={"time": most, "signal_lead": 30})
    row, trouble = _anew(results, replace(asked, profile=short), _WAIT)
    lines = [trouble] if trouble else []
    lines += logs.lines_of_logs(folders.SweepDir(results / "doctor"), None, follow=False)
    if not row:
        keys = "`init`, `modules`, `conda`, `venv`, `setup` or `python`"
        lines.append(f"-> correct {keys} in {chosen.path}")
    return row.get("status") in WELL, lines


def _anew(results: Path, asked: Request, wait: float) -> tuple[Mapping[str, Any], str]:
    """Measure a point anew; return its row, empty if none came, and what Slurm says went wrong."""
    from hpcsweep.store import folders, outcomes
    from hpcsweep.store.state import PointStatus
    from hpcsweep.submit import steps

    sweep_dir = folders.SweepDir(results / asked.sweep.name)
    alone = asked.profile.model_copy(update={"then": None})
    code = steps.submit(results, replace(asked, profile=alone, again=frozenset(PointStatus)))
    submissions = sweep_dir.submissions()
    if code == EXIT_INTERRUPTED or not submissions:
        raise Incomplete("the point was not measured; the same command again measures it")
    trouble = _await_end(results, sweep_dir, wait)
    (row,) = outcomes.rows_of(sweep_dir.shards_of(submissions[-1].id)).values() or ({},)
    return row, trouble


def _await_end(results: Path, sweep_dir: SweepDir, wait: float) -> str:
    """Wait until no job of the sweep is queued or running; return what Slurm says went wrong."""
    from hpcsweep.cluster import status

    until = time.monotonic() + wait
    pause = 0.5  # seconds, growing: a short job is seen at once
    before = ""
    while True:
        (sweep,) = status.read_status(results, [sweep_dir.name])
        live = [part for part in sweep.profiles if part.live]
        if not live:
            for part in sweep.profiles:
                if part.troubles:
                    return part.troubles[-1].why
            return ""
        why = "; ".join(live[0].reasons) or ", ".join(map(str, live[0].chunks))
        if why != before:
            messages.progress(f"point: {why}")
            before = why
        if time.monotonic() > until:
            watch = sweep_dir.command("status", "--watch")
            raise Incomplete(f"the job did not end in {wait:g} s ({why}); `{watch}` waits for it")
        time.sleep(pause)
        pause = min(pause * 1.5, _SLOWEST_POLL)


def _told(row: Mapping[str, Any], chosen: Profile, results: Path) -> list[str]:
    time_ms = f", {float(row['median_ms']):.3f} ms" if row.get("median_ms") else ""
    where = f"{row.get('node') or 'this machine'} ({row['gpu']})"
    flags = f"; unreliable: {row['flags']}" if row.get("valid") == "false" else ""
    return [
        f"verified: point {row['point_id']} is ok on {where}{time_ms}{flags}",
        f"its row is in {results / _SWEEP / 'overall.csv'}",
        _next(chosen),
    ]


def _next(chosen: Profile) -> str:
    """Say what comes next: the first sweep, or before it what measures it."""
    first = f"hpcsweep submit quickstart --sample 1   (on {chosen.name})"
    if not _lacking(chosen):
        return f"next: {first}"
    what = f"{extras.install('measure')} in the environment of the jobs"
    if chosen.in_slurm:
        what += f", and name it as `venv`, `conda` or `python` in {chosen.path}"
    return f"next: {what}; then: {first}"
