"""`hpcsweep submit` as a list of named steps, from a request to an exit code.

A step does one thing. One that returns a number ends the command with this exit code. Steps that
change the run folder, or rely on nobody else changing it, hold its lock.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from hpcsweep import slurm
from hpcsweep.errors import EXIT_INTERRUPTED, Incomplete, PointsFailed, Refused
from hpcsweep.preflight import local_device
from hpcsweep.store import failures, ledger, locks, rundir, tally
from hpcsweep.store.state import FAILED, PointStatus
from hpcsweep.store.tally import Tally
from hpcsweep.submit import (
    cost,
    launchers,
    own_files,
    precheck,
    prepare,
    progress,
    to_slurm,
)
from hpcsweep.text import count, duration
from hpcsweep.text import tally as counted
from hpcsweep.tracking import bad_nodes, journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from hpcsweep.spec.space import Sweep
    from hpcsweep.store.rundir import RunDir, SubmissionDir
    from hpcsweep.submit.prepare import Prepared
    from hpcsweep.submit.request import Request, Say
    from hpcsweep.tracking.bad_nodes import BadNode
    from hpcsweep.tracking.journal import Answer

    Step = Callable[["_Submit"], int | None]

_LOCKED_BY: Final = "hpcsweep submit"


class OutOfTime(Refused):
    """The seconds of `Options.stop_after` are over; the current points were finished."""


@dataclass
class _Submit:
    """What the steps of one `submit` share."""

    run: RunDir
    asked: Request
    say: Say
    ready: Prepared = field(default_factory=lambda: prepare.NOTHING)
    answer: Answer | None = None  # what Slurm said of earlier submissions, if it was asked
    bad_nodes: Sequence[BadNode] = ()
    sweep_before: bytes | None = None  # the sweep file of the submission before

    @property
    def submission(self) -> SubmissionDir:
        assert self.ready.submission  # noqa: S101 - `_end_if_nothing_is_left` came before
        return self.ready.submission

    @property
    def seconds(self) -> float:
        """What the estimate gives the points, workers side by side."""
        return self.ready.seconds / max(self.asked.workers, 1)


def submit(results: Path, asked: Request, say: Say) -> int:
    """Submit what is missing; return 0, or the exit code for failed or missing points."""
    if not asked.checked:
        own_files.check([asked], say)
    job = _Submit(rundir.RunDir(results / asked.sweep.name), asked, say)
    prepare.tell_namesake(job.run, asked, say)
    locked, unlocked = _IN_SLURM if asked.profile.in_slurm else _HERE
    with locks.held(job.run, _LOCKED_BY):
        code = _follow(locked, job)
    return code if code is not None else _follow(unlocked, job) or 0


def _follow(steps: Sequence[Step], job: _Submit) -> int | None:
    """Take one step after the other, until one returns an exit code."""
    return next((code for step in steps if (code := step(job)) is not None), None)


def _find_lost_arrays(job: _Submit) -> None:
    """Find out whether arrays are in the queue for which sbatch's answer was lost."""
    for found in journal.settle(job.run.submissions()):
        job.say(found)


def _ask_slurm(job: _Submit) -> None:
    job.answer = journal.ask(job.run.submissions())
    if job.answer.silent:
        missing = "; ".join(map(str, job.answer.unanswered))
        told = "every chunk that was sent and lacks rows counts as queued or running"
        job.say(f"{job.run.name}: {missing}; {told}")


def _fence_off_lost_attempts(job: _Submit) -> None:
    ledger.fence_off_unseen(job.run)
    if job.answer:
        to_slurm.fence_off(job.run, job.answer)


def _write_submission(job: _Submit) -> None:
    queue = job.answer.live_chunks if job.answer else None
    job.sweep_before = prepare.sweep_kept(job.run)
    job.ready = prepare.prepare(job.run, job.asked, queue)


def _learn_from_slurm(job: _Submit) -> None:
    """Keep which nodes broke, and which tasks are over."""
    if job.answer:
        job.bad_nodes = to_slurm.learn(job.run, job.answer)


def _end_if_nothing_is_left(job: _Submit) -> int | None:
    if job.ready.submission:
        return None
    settled = dict(job.ready.settled)
    live = settled.pop(prepare.LIVE, 0)
    done = f" ({told})" if (told := _measured_before(job, settled)) else ""
    if not live:
        job.say(f"{job.run.name}: nothing to measure{done}{_hint(job.run, settled)}")
        return _exit_code(job)
    verb = "is" if live == 1 else "are"
    where = f"{count(live, 'point')} {verb} already queued or running in"
    watch = f"watch with {job.run.command('status', '--watch')}"
    ids = ", ".join(job.ready.live)
    job.say(f"{job.run.name}: nothing to measure{done}: {where} {ids}; {watch}")
    return 0 if job.asked.profile.in_slurm else _exit_code(job)


def _check_and_send(job: _Submit) -> None:
    """Send the chunks to Slurm, if the profile fits the cluster."""
    with _discarded_unless_sent(job):
        prepare.tell_templates(job.submission, job.say)
        if job.asked.options.check:
            precheck.check(job.asked.profile, job.submission.path, job.say)
        ids = to_slurm.send(job.submission, job.asked.profile, job.bad_nodes, job.say)
    job.say(_headline(job))
    if job.ready.time_limit:
        asked_for = f"jobs ask for {job.ready.time_limit} instead of {job.asked.profile.time}"
        job.say(f"{asked_for}: points {job.ready.basis}")
    sent = f"{count(job.ready.chunks, 'chunk')} queued as {', '.join(ids)}"
    job.say(f"{sent}; you can log out")


@contextmanager
def _discarded_unless_sent(job: _Submit) -> Iterator[None]:
    try:
        yield
    except BaseException:
        known = journal.sent(job.submission)
        if not known.arrays and not known.unsure and not known.doubtful:
            prepare.discard(job.submission)
            prepare.keep_again(job.run, job.sweep_before)
        raise


def _announce(job: _Submit) -> None:
    """Record that this process runs the submission, so that nobody else submits its points."""
    ledger.note_start(job.submission)


def _run_here(job: _Submit) -> int:
    """Run the chunks on this machine, and tell how it went."""
    job.say(_headline(job))
    if job.asked.sweep.workload != "noop" and (busy := local_device.busy()):
        job.say(f"warning: {busy}")
    launcher = launchers.here(job.asked.profile)
    try:
        quiet = job.asked.options.quiet
        with progress.shown(job.ready.points, job.seconds, quiet=quiet) as shown:
            shown.stop_after = job.asked.options.stop_after
            result = launcher.run(job.submission, job.asked.profile, shown)
    finally:
        ledger.note_end(job.submission)
    for why in result.refusals:
        job.say(f"stopped: {why}")
    measured = f"{job.run.name}: measured {str(result.tally) or 'nothing'}"
    if result.interrupted:
        job.say(f"{measured}; interrupted: run the same command again to resume")
        return EXIT_INTERRUPTED
    if result.out_of_time:
        raise OutOfTime(f"{measured}; the time for it is over")
    if result.tally.statuses.keys() - failures.WELL:
        for failure in failures.of(job.run.shards_of(job.submission.id), job.asked.sweep.maps):
            job.say(f"  {failure}")
    hint = _hint(job.run, result.tally.statuses)
    then = "" if job.asked.options.is_round else f"; next: {job.run.command('collect')}"
    job.say(f"{measured}{then}{hint}")
    return result.exit_code or _exit_code(job)


# Steps that hold the run folder's lock, then steps that do not.
_IN_SLURM: Final[tuple[Sequence[Step], Sequence[Step]]] = (
    (
        _find_lost_arrays,
        _ask_slurm,
        _fence_off_lost_attempts,
        _write_submission,
        _fence_off_lost_attempts,  # those that began meanwhile
        _learn_from_slurm,
        _end_if_nothing_is_left,
        _check_and_send,
    ),
    (),
)
_HERE: Final[tuple[Sequence[Step], Sequence[Step]]] = (
    (
        _fence_off_lost_attempts,
        _write_submission,
        _end_if_nothing_is_left,
        _announce,
    ),
    (_run_here,),
)


def _headline(job: _Submit) -> str:
    asked, settled = job.asked, counted(job.ready.settled, PointStatus)
    where = f"{asked.device}, a rehearsal" if asked.rehearsal else asked.device
    before = f"; already measured or queued: {settled}" if settled else ""
    return (
        f"{asked.sweep.name}: {count(job.ready.points, 'point')} on {where}, about "
        f"{duration(job.seconds)}{before}"
    )


def _measured_before(job: _Submit, settled: dict[str, int]) -> str:
    """Return how many points were measured before, and how many of them are not valid."""
    doubts, asked = tally.doubts_in(job.run.shards()), job.asked.points()
    found = Tally(Counter(settled))
    found.doubt(filter(None, (doubts.get(point.point_id) for point in asked)))
    return str(found)


def _hint(run: RunDir, by_status: Mapping[str, int]) -> str:
    """Say what can be done about failed points, if there are some."""
    if not any(by_status.get(name) for name in FAILED):
        return ""
    return f"; failed points: {run.command('show')}, {run.command('retry')}"


def _exit_code(job: _Submit) -> int:
    """Return 0 when every point asked for is final and none failed."""
    known = ledger.statuses(job.run)
    found = {known.get(point.point_id) for point in job.asked.points()}
    if None in found:
        return Incomplete.exit_code
    return PointsFailed.exit_code if found & FAILED else 0


def check_all(results: Path, requests: Sequence[Request], say: Say) -> list[Request]:
    """Check every profile before anything enters the queue; return the requests, checked.

    A profile that has nothing to send may be unfit.
    """
    own_files.check(requests, say)
    unchecked = [one for one in requests if one.options.check and one.profile.in_slurm]
    cluster = slurm.describe() if unchecked and slurm.available() else None
    for asked in unchecked:
        _check_ahead(results, asked, cluster, say)
    return [
        replace(asked, checked=True, options=replace(asked.options, check=False))
        for asked in requests
    ]


def _check_ahead(results: Path, asked: Request, cluster: slurm.Cluster | None, say: Say) -> None:
    try:
        precheck.check(asked.profile, results / asked.sweep.name, say, cluster)
    except Refused:
        if cost.of(results, asked).chunks:
            raise


def allow_nodes(results: Path, sweep: Sweep, names: Sequence[str]) -> None:
    """Let a sweep use excluded nodes again; `UsageError` names those that it excludes."""
    run = rundir.RunDir(results / sweep.name)
    with locks.held(run, _LOCKED_BY):
        bad_nodes.allow(run, names, journal.ask(run.submissions()))
