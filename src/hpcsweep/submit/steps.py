"""`hpcsweep submit` in steps, from a request to an exit code.

A step that returns a number ends the command with this exit code. Steps that change the run folder,
or rely on nobody else changing it, hold its lock. A local run of what was never sent to Slurm
imports nothing that asks it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcsweep import extras, files, messages
from hpcsweep.catalog import WORKLOADS
from hpcsweep.catalog.gpus import vendor
from hpcsweep.cluster import launchers
from hpcsweep.cluster.local import progress, this_machine
from hpcsweep.errors import EXIT_INTERRUPTED, Incomplete, PointsFailed, Refused
from hpcsweep.store import folders, ledger, locks, outcomes, runs, shards
from hpcsweep.store.folders import ShardPath, SweepDir
from hpcsweep.store.outcomes import PointTally
from hpcsweep.store.state import FAILED
from hpcsweep.submit import changes, check_inputs, prepare, support
from hpcsweep.submit.prepare import LOCKED_BY, Submit
from hpcsweep.submit.request import Request, named_gpus
from hpcsweep.text import count

if TYPE_CHECKING:
    from hpcsweep.store.ledger import LiveChunks


def submit(results: Path, request: Request) -> int:
    """Submit what is missing; return 0, or the exit code for failed or missing points."""
    job = checked(results, request)
    with locks.held(job.sweep_dir, LOCKED_BY):
        if request.profile.in_slurm:
            return _send(job)
        queue = _queue(job.sweep_dir)
        ledger.fence_off_dead(job.sweep_dir)
        _write_submission(job, queue)
        code = _end_if_nothing_is_left(job)
        if code is None:
            ledger.note_start(job.submission)  # so that nobody else submits its points
    return _run_here(job) if code is None else code


def checked(results: Path, request: Request) -> Submit:
    """Return a request whose inputs are there, in its sweep's own folder; say what changed."""
    if not request.checked:
        (request,) = _tried(results, [request])
    _check_workers(request)
    sweep_dir = folders.SweepDir(results / request.sweep.name)
    prepare.check_same_name(sweep_dir, request)
    prepare.warn_of_results_elsewhere(sweep_dir, request)
    return Submit(sweep_dir, changes.told_of_changes(sweep_dir, request))


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


def _queue(sweep_dir: SweepDir) -> LiveChunks | None:
    """Return who knows what is in Slurm's queue, if this machine has it and something was sent."""
    if all(manifest.is_local for manifest in sweep_dir.manifests()):
        return None
    from hpcsweep.cluster import queue, slurm  # noqa: PLC0415 - as in `_send`

    return queue.ask_queue(sweep_dir).live_chunks_of if slurm.available() else None


def _send(job: Submit) -> int:
    from hpcsweep.cluster import queue  # noqa: PLC0415 - a local run needs nothing of Slurm

    answer = queue.ask_queue(job.sweep_dir)
    queue.fence_off_lost_attempts(job.sweep_dir, answer)
    _write_submission(job, answer.live_chunks_of)
    queue.fence_off_lost_attempts(job.sweep_dir, answer)  # those that began meanwhile
    bad = queue.learn(job.sweep_dir, answer)
    code = _end_if_nothing_is_left(job)
    if code is not None:
        return code
    profile = job.request.profile
    _tell_device(job.request)
    try:
        prepare.tell_templates(job.submission)
        if job.request.options.doctor:
            queue.check(profile, job.submission.path)
        ids = queue.send(job.submission, profile, bad)
    except BaseException:
        if not queue.went_in(job.submission):
            prepare.discard(job.submission)
            prepare.save_sweep(job.sweep_dir, job.sweep_before)
        raise
    messages.progress(job.headline)
    sent = f"{count(job.ready.chunks, 'chunk')} queued as {', '.join(ids)}"
    messages.progress(f"{sent}; you can log out")
    return 0


def _write_submission(job: Submit, queue: LiveChunks | None = None) -> None:
    with suppress(OSError):
        job.sweep_before = files.regular_bytes(job.sweep_dir.sweep_file)
    job.ready = prepare.prepare(job.sweep_dir, job.request, queue)
    if job.sweep_before in {None, job.request.sweep.text.encode()}:
        return
    gone = set(runs.statuses(job.sweep_dir)).difference(runs.points_of_file(job.sweep_dir))
    if gone:
        points = count(len(gone), "measured point")
        messages.note(f"{points} no longer in the sweep: orphans, which tables keep and mark")


def _end_if_nothing_is_left(job: Submit) -> int | None:
    if job.ready.submission:
        return None
    settled = dict(job.ready.settled)
    live = settled.pop(prepare.LIVE, 0)
    before = PointTally(Counter(settled))
    doubts = outcomes.doubts_in(job.counts.shards())
    before.doubt(filter(None, (doubts.get(point.point_id) for point in job.request.points())))
    done = f" ({before})" if str(before) else ""
    if not live:
        hint = _hint(job.sweep_dir, settled)
        messages.progress(f"{job.sweep_dir.name}: nothing to measure{done}{hint}")
        if before.not_valid:
            _tell_disturbed(job.sweep_dir, job.sweep_dir.shards())
        return _exit_code(job, {})
    verb = "is" if live == 1 else "are"
    where = f"{count(live, 'point')} {verb} already queued or running in"
    watch = f"watch with {job.sweep_dir.command('status', '--watch')}"
    ids = ", ".join(job.ready.live)
    messages.progress(f"{job.sweep_dir.name}: nothing to measure{done}: {where} {ids}; {watch}")
    return 0 if job.request.profile.in_slurm else _exit_code(job, {})


def _run_here(job: Submit) -> int:
    messages.progress(job.headline)
    if job.request.rehearsal:
        wants = ", ".join(named_gpus(job.request.sweep))
        has = job.request.device
        messages.note(f"the sweep asks for gpu: {wants}; this rehearsal's rows are of {has} alone")
    _tell_device(job.request)
    if WORKLOADS[job.request.sweep.workload].runs_network and (busy := this_machine.busy()):
        messages.warning(busy)
    launcher = launchers.launcher_here(job.request.profile)
    try:
        quiet = job.request.options.quiet
        with progress.shown_progress(job.ready.points, job.seconds, quiet=quiet) as shown:
            result = launcher.run(job.submission, job.request.profile, shown)
    finally:
        ledger.note_end(job.submission)
    for why in result.refusals:
        messages.warning(f"stopped: {why}")
    measured = f"{job.sweep_dir.name}: measured {str(result.tally) or 'nothing'}"
    if result.interrupted:
        messages.progress(f"{measured}; interrupted: run the same command again to resume")
        return EXIT_INTERRUPTED
    if result.tally.statuses.keys() - outcomes.WELL:
        attempts = job.sweep_dir.shards_of(job.submission.id)
        for failure in outcomes.failures_of(attempts, job.request.sweep.maps):
            messages.warning(f"{job.sweep_dir.name}: {failure}")
    hint = _hint(job.sweep_dir, result.tally.statuses)
    then = ""
    if result.tally.statuses and not job.request.options.suppress_next_hint:
        then = f"; next: {job.sweep_dir.command('collect')}"
    messages.progress(f"{measured}{then}{hint}")
    if result.tally.not_valid:
        _tell_disturbed(job.sweep_dir, job.sweep_dir.shards_of(job.submission.id))
    return result.exit_code or _exit_code(job, result.tally.statuses)


def _tell_disturbed(sweep_dir: SweepDir, attempts: Sequence[ShardPath]) -> None:
    rows = outcomes.rows_of(attempts, outcomes.told_of).values()
    if disturbance := outcomes.disturbance(sweep_dir, rows):
        messages.warning(f"{sweep_dir.name}: {disturbance}")


def _hint(sweep_dir: SweepDir, by_status: Mapping[str, int]) -> str:
    """Say what can be done about failed points, if there are some."""
    if not any(by_status.get(name) for name in FAILED):
        return ""
    return f"; failed points: {sweep_dir.command('show')}, {sweep_dir.command('retry')}"


def _exit_code(job: Submit, measured: Mapping[str, int]) -> int:
    """Return 0 when every point asked for is final and none failed."""
    if sum(measured.values()) < job.ready.points:  # whoever died before it told has its rows
        rows = dict(shards.keys_of(job.sweep_dir.shards_of(job.submission.id)))
        measured = Counter(rows.values())
    if sum(measured.values()) < job.ready.points or prepare.LIVE in job.ready.settled:
        return Incomplete.exit_code
    return PointsFailed.exit_code if FAILED & {*measured, *job.ready.settled} else 0


def check_all(results: Path, requests: Sequence[Request]) -> list[Request]:
    """Check every profile before anything enters the queue; return the requests, checked."""
    requests = _tried(results, requests)
    unchecked = [each for each in requests if each.options.doctor and each.profile.in_slurm]
    if unchecked:
        from hpcsweep.cluster import queue, slurm  # noqa: PLC0415 - as above
        from hpcsweep.cluster.slurm import site  # noqa: PLC0415 - as above
        from hpcsweep.submit import cost  # noqa: PLC0415 - as above

        described = site.describe() if slurm.available() else None
        for each in unchecked:
            try:
                queue.check(each.profile, results / each.sweep.name, described)
            except Refused:  # noqa: PERF203 - a few profiles
                if cost.cost_of(results, each).ready.chunks:
                    raise
    return [
        replace(request, options=replace(request.options, doctor=False)) for request in requests
    ]


def _tried(results: Path, requests: Sequence[Request]) -> list[Request]:
    """Return requests whose inputs are there, with the operations of their own networks."""
    operations = check_inputs.check_inputs(results, requests)
    support.warn(results, requests)
    return [replace(request, checked=True, operations=operations) for request in requests]
