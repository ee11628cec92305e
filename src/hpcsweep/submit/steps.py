"""`hpcsweep submit` in steps: each is a function from a frozen record, `Submit`, to the next.

read, expand    a sweep, a profile and options make a request; its points are made one by one in
                each run through them, and never listed (`request`)
check_inputs    what points need is there: packages, networks, files; torch is asked
check_support   the algorithms exist on the GPU, as far as libcudnn can tell without one
check_folder    the folder holds this sweep, and workers do not disturb each other
ask, compare    what became of what was sent before; which points are measured, or on their way?
                between them `each_node` gives every node its points, if that is asked for
pack            the others become chunks of a new submission
estimate        how long may they take, and is that within the budget?
check_place     would the cluster take a job of the profile?
write           the manifest, own files, and the sweep file, as it was submitted
send            to the queue; on this machine, measure

The checks are made of all requests before anything is sent, and without the lock of the folder,
since torch may take minutes. From `ask` on the lock is held: so `compare` knows what others have
measured meanwhile. A dry run takes the same steps in another folder, and shows instead of sending
(`dry_run`); an estimate ends earlier (`cost`). A local run of what was never sent to Slurm imports
nothing that asks it.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from hpcsweep import environment, extras, messages
from hpcsweep.catalog import WORKLOADS
from hpcsweep.catalog.gpus import vendor
from hpcsweep.cluster import launcher_here
from hpcsweep.cluster.local import supervisors, this_machine
from hpcsweep.errors import (
    EXIT_INTERRUPTED,
    CommandFailed,
    Incomplete,
    PartlySubmitted,
    PointsFailed,
    Refused,
)
from hpcsweep.store import ledger, locks, outcomes, runs
from hpcsweep.store.folders import ShardPath, SweepDir
from hpcsweep.store.outcomes import PointTally
from hpcsweep.store.row_reader import read_rows
from hpcsweep.store.state import FAILED
from hpcsweep.submit import comparison, draft, each_node
from hpcsweep.submit.check_inputs import check_inputs
from hpcsweep.submit.comparison import LIVE, SettledPoints, Submit
from hpcsweep.submit.request import Request, named_gpus
from hpcsweep.submit.support import check_support
from hpcsweep.text import count

LOCKED_BY: Final = "hpcsweep submit"
Step = Callable[[Submit], Submit]
Check = Callable[[Sequence[Submit]], Sequence[Submit]]


def submit(results: Path, *requests: Request) -> int:
    """Submit what is missing; return 0, or the exit code for failed or missing points."""
    jobs = checked(results, requests)
    if len(jobs) > 1:
        jobs = _check_places(jobs)
    return max([_submit(job) for job in jobs])


def checked(results: Path, requests: Iterable[Request]) -> Sequence[Submit]:
    """Return requests for one sweep after all checks, of which each is made of all of them."""
    jobs: Sequence[Submit] = [comparison.in_results(results, request) for request in requests]
    for check in CHECKS:
        jobs = check(jobs)
    return jobs


def _submit(job: Submit) -> int:
    with locks.held(job.sweep_dir, LOCKED_BY):
        job = through(STEPS, job)
    if not job.new:
        if job.request.then:
            messages.note(f"nothing was submitted, so `{job.request.then}` is not run")
        return _tell_nothing_left(job)
    return 0 if job.request.profile.in_slurm else _measure(job)


def through(steps: Iterable[Step], job: Submit) -> Submit:
    """Take a request through steps; where one fails, nothing stays of what was not sent."""
    try:
        for step in steps:
            job = step(job)
    except BaseException:
        from hpcsweep.cluster import queue  # noqa: PLC0415 - a local run needs nothing of Slurm

        if job.new and not queue.went_in(job.new):
            draft.discard(job.new)
            if job.is_written and not job.draft_dir:
                draft.save_sweep(job.sweep_dir, job.sweep_before)
        raise
    return job


def check_folder(jobs: Sequence[Submit]) -> Sequence[Submit]:
    """Refuse workers on one GPU, and the folder of another sweep; say where results stand."""
    for job in jobs:
        _check_workers(job.request)
    first = jobs[0]  # all are of one sweep, and so of one folder
    comparison.warn_of_results_elsewhere(first.sweep_dir, first.request)
    comparison.check_same_name(first.sweep_dir, first.request)
    return jobs


def _check_workers(request: Request) -> None:
    """Refuse several workers on one GPU, before anything runs: each would disturb the others."""
    on_gpu = request.device != "cpu" and WORKLOADS[request.sweep.workload].runs_network
    if request.profile.in_slurm or request.workers == 1 or not on_gpu:
        return
    place = request.profile.where("workers")
    remedy = "--workers 1" if request.options.workers else f"`workers: 1` ({place})"
    raise Refused(
        f"{request.workers} workers would share this machine's first GPU ({request.device}), and "
        f"disturb each other's times: submit with {remedy}"
    )


def _check_places(jobs: Sequence[Submit]) -> Sequence[Submit]:
    """Check every profile against its cluster before anything enters a queue."""
    unchecked = [job for job in jobs if _is_to_be_checked(job.request)]
    if not unchecked:
        return jobs
    from hpcsweep.cluster import queue, slurm  # noqa: PLC0415 - as above
    from hpcsweep.cluster.slurm import site  # noqa: PLC0415 - as above

    described = site.describe() if slurm.available() else None
    for job in unchecked:
        try:
            queue.check(job.request.profile, job.sweep_dir.path, described)
        except Refused:  # noqa: PERF203 - a few profiles
            if _has_left(job):
                raise
    trusted = []
    for job in jobs:
        options = replace(job.request.options, doctor=False)
        trusted.append(replace(job, request=replace(job.request, options=options)))
    return trusted


def _is_to_be_checked(request: Request) -> bool:
    return request.profile.in_slurm and request.options.doctor


def _has_left(job: Submit) -> bool:
    """Say whether points are left to measure, without the lock."""
    from hpcsweep.cluster.slurm import journal  # noqa: PLC0415 - as above

    job = each_node.choose(replace(job, answer=journal.ask_slurm(job.sweep_dir.submissions())))
    job = replace(job, known=comparison.known_points(job))
    return next(comparison.unmeasured(job, SettledPoints()), None) is not None


def ask(job: Submit) -> Submit:
    """Ask what became of what was sent before; stop attempts that nobody waits for any more."""
    sweep_dir = job.sweep_dir
    in_slurm = job.request.profile.in_slurm
    if not in_slurm and all(manifest.is_local for manifest in sweep_dir.manifests()):
        ledger.fence_off_dead(sweep_dir)
        return job
    from hpcsweep.cluster import queue, slurm  # noqa: PLC0415 - as above

    if not in_slurm:
        answer = queue.ask_queue(sweep_dir) if slurm.available() else None
        ledger.fence_off_dead(sweep_dir)
        return replace(job, answer=answer)
    answer = queue.ask_queue(sweep_dir)
    queue.fence_off_lost_attempts(sweep_dir, answer)
    return replace(job, answer=answer, bad_nodes=queue.learn(sweep_dir, answer))


def check_place(job: Submit) -> Submit:
    """Check the profile against its cluster, if something is to be sent there."""
    if job.new and _is_to_be_checked(job.request):
        from hpcsweep.cluster import queue  # noqa: PLC0415 - as above

        queue.check(job.request.profile, job.sweep_dir.submission(job.new.id).path)
    return job


def send(job: Submit) -> Submit:
    """Send a submission to the queue; one that is measured here is noted as begun."""
    if not job.new:
        return job
    if not job.request.profile.in_slurm:
        ledger.note_start(job.new)  # so that nobody else submits its points
        return job
    from hpcsweep.cluster import queue  # noqa: PLC0415 - as above
    from hpcsweep.cluster.slurm import journal, then_job  # noqa: PLC0415 - as above

    assert job.answer  # noqa: S101 - `ask` came before
    queue.fence_off_lost_attempts(job.sweep_dir, job.answer)  # those that began meanwhile
    _tell_device(job.request)
    draft.tell_surroundings(job.new)
    then = job.request.then
    if then:  # what is wrong with it is told before anything is sent
        then_job.write(job.new, job.profile, then)
    try:
        ids = queue.send(job.new, job.profile, job.bad_nodes)
    except PartlySubmitted:
        if then:
            messages.warning(f"`{then}` is not queued: it comes after the submit that sends all")
        raise
    messages.progress(job.headline)
    if job.time.why:
        messages.progress(job.time.why)
    sent = journal.read_journal(job.new).task_of  # a node may have refused its own
    queued = f"{count(len(sent), 'chunk')} queued as {', '.join(ids)}"
    messages.progress(f"{queued}; you can log out")
    if then:
        after = then_job.send(job.new, job.profile, ids)
        messages.progress(f"then `{then}`, queued as {after}")
    return job


CHECKS: Final[Sequence[Check]] = (check_inputs, check_support, check_folder)
STEPS: Final[Sequence[Step]] = (
    ask, each_node.choose, comparison.compare, draft.pack, draft.estimate, check_place, draft.write,
    send,
)  # fmt: skip


def _tell_nothing_left(job: Submit) -> int:
    settled = Counter(job.left_out.settled)
    live = settled.pop(LIVE, 0)
    before = PointTally(settled)
    again = job.request.options.again
    counted = runs.runs_of(job.sweep_dir)[-1].dir if again else job.sweep_dir
    doubts = outcomes.doubts_in(read_rows(counted.shards(), outcomes.DOUBTS))
    if any(doubts.values()):
        told = (doubts.get(point.point_id, "") for point in job.request.expansion)
        before.doubt(filter(None, told))
    done = f" ({before})" if str(before) else ""
    nothing = f"{job.sweep_dir.name}: nothing to measure{done}"
    if not live:
        messages.progress(f"{nothing}{_hint(job.sweep_dir, settled)}")
        if before.not_valid:
            _tell_disturbed(job.sweep_dir, job.sweep_dir.shards())
        return _exit_code(job, {})
    verb = "is" if live == 1 else "are"
    where = f"{count(live, 'point')} {verb} already queued or running in"
    watch = f"watch with {job.sweep_dir.command('status', '--watch')}"
    holders = ", ".join(sorted(job.left_out.holders))
    messages.progress(f"{nothing}: {where} {holders}; {watch}")
    return 0 if job.request.profile.in_slurm else _exit_code(job, {})


def _tell_device(request: Request) -> None:
    """Say which GPU of this machine is not measured, and which checks of a GPU are off."""
    if not WORKLOADS[request.sweep.workload].runs_network:
        return
    request.tell_unseen_gpu()
    lacking = ""
    if not request.profile.in_slurm and request.device not in {"cpu", "mps"}:
        lacking = this_machine.lacking_telemetry(request.profile.env)
    elif vendor(request.device) == "nvidia" and not request.profile.own_python:
        packages = ", ".join(extras.lacking("nvidia"))
        if packages:
            lacking = f"jobs run this Python, without {packages}: {extras.install('nvidia')}"
    if lacking:
        messages.warning(f"{lacking}; {this_machine.WITHOUT_TELEMETRY}")


def _measure(job: Submit) -> int:
    messages.progress(job.headline)
    if job.request.rehearsal:
        wants = ", ".join(named_gpus(job.request.sweep))
        has = job.request.device
        messages.note(f"the sweep asks for gpu: {wants}; this rehearsal's rows are of {has} alone")
    _tell_device(job.request)
    busy = this_machine.busy() if WORKLOADS[job.request.sweep.workload].runs_network else ""
    if busy:
        messages.warning(busy)
    launcher = launcher_here(job.request.profile)
    try:
        quiet = job.request.options.quiet
        with supervisors.shown_progress(job.points, job.wall_seconds, quiet=quiet) as shown:
            result = launcher.run(job.submission, job.request.profile, shown)
    finally:
        ledger.note_end(job.submission)
    for why in result.refusals:
        messages.warning(f"stopped: {why}")
    name = job.sweep_dir.name
    measured = f"{name}: measured {str(result.tally) or 'nothing'}"
    if result.interrupted:
        messages.progress(f"{measured}; interrupted: run the same command again to resume")
        return EXIT_INTERRUPTED
    statuses = result.tally.statuses
    attempts = job.sweep_dir.shards_of(job.submission.id)
    if statuses.keys() - outcomes.WELL:
        for failure in outcomes.failures_of(attempts, job.request.sweep.maps):
            messages.warning(f"{name}: {failure}")
    then = ""
    if statuses and not job.request.options.suppress_next_hint:
        then = f"; next: {job.sweep_dir.command('collect')}"
    messages.progress(f"{measured}{then}{_hint(job.sweep_dir, statuses)}")
    if result.tally.not_valid:
        _tell_disturbed(job.sweep_dir, attempts)
    code = result.exit_code or _exit_code(job, statuses)
    if job.request.then:
        ended_well = _run_then(job.request.then, job.request.profile.env)
        code = code or (0 if ended_well else CommandFailed.exit_code)
    return code


def _run_then(command: str, env: Mapping[str, str]) -> bool:
    """Run the command that comes after the last point; say whether it ended well.

    What it prints goes to stderr: stdout has what `submit` tells, with --json a document.
    """
    messages.progress(f"then `{command}`")
    path = environment.programs(env.get("PATH"))
    done = subprocess.run(
        ["bash", "-c", command], env={**os.environ, **env, "PATH": path}, stdout=2, check=False
    )
    if done.returncode:
        messages.warning(f"`{command}` ended with exit code {done.returncode}")
    return not done.returncode


def _tell_disturbed(sweep_dir: SweepDir, attempts: Sequence[ShardPath]) -> None:
    rows = outcomes.told_rows(attempts).values()
    if disturbance := outcomes.disturbance(sweep_dir, rows):
        messages.warning(f"{sweep_dir.name}: {disturbance}")


def _hint(sweep_dir: SweepDir, by_status: Mapping[str, int]) -> str:
    """Say what can be done about failed points, if there are some."""
    if not any(by_status.get(name) for name in FAILED):
        return ""
    return f"; failed points: {sweep_dir.command('show')}, {sweep_dir.command('retry')}"


def _exit_code(job: Submit, measured: Mapping[str, int]) -> int:
    """Return 0 when every point asked for is final and none failed."""
    if sum(measured.values()) < job.points:  # whoever died before it told has its rows
        rows = read_rows(job.sweep_dir.shards_of(job.submission.id))
        last = {row["point_id"]: row["status"] for row in rows}
        measured = Counter(last.values())
    if sum(measured.values()) < job.points or LIVE in job.left_out.settled:
        return Incomplete.exit_code
    return PointsFailed.exit_code if FAILED & {*measured, *job.left_out.settled} else 0
