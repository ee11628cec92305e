"""What `hpcsweep submit` and `estimate` do, from a request to an exit code."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hpcsweep import slurm
from hpcsweep.errors import EXIT_INTERRUPTED, Incomplete, PointsFailed, Refused
from hpcsweep.preflight import local_device
from hpcsweep.store import ledger, locks, rundir
from hpcsweep.store.state import FAILED, PointStatus
from hpcsweep.submit import estimate, precheck, prepare, progress, to_slurm
from hpcsweep.submit.launchers import local
from hpcsweep.submit.prepare import Request
from hpcsweep.text import count, duration, tally
from hpcsweep.tracking import bad_nodes, journal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hpcsweep.spec.profile import Profile
    from hpcsweep.spec.space import Sweep
    from hpcsweep.store.rundir import RunDir

    Say = Callable[[str], None]


def request(  # noqa: PLR0913 - the options of a command
    sweep: Sweep,
    profile: Profile,
    *,
    sample: int | None = None,
    workers: int | None = None,
    max_gpu_hours: float | None = None,
    skip_dominated: bool = False,
    check: bool = True,
    argv: tuple[str, ...] = (),
) -> Request:
    """Return what a person asked for, with the device that it will run on.

    A local profile takes the device that is here. When the sweep names GPUs and this is none of
    them, it is a rehearsal: the points get the device's name and ids of their own.
    """
    device = profile.gpu or local_device.local_device()
    named = {str(gpu) for gpu in sweep.values("gpu") if gpu is not None}
    return Request(
        sweep=sweep,
        profile=profile,
        device=device,
        rehearsal=profile.launcher == "local" and bool(named) and device not in named,
        workers=workers or profile.workers,
        sample=sample,
        max_gpu_hours=max_gpu_hours,
        skip_dominated=skip_dominated,
        check=check,
        argv=argv,
    )


def check_all(results: Path, requests: Sequence[Request], say: Say) -> list[Request]:
    """Check every profile before anything enters the queue; return the requests, checked.

    A profile that has nothing to send may be unfit.
    """
    unchecked = [one for one in requests if one.check and one.profile.launcher != "local"]
    cluster = slurm.describe() if unchecked and slurm.available() else None
    for asked in unchecked:
        _check_ahead(results, asked, cluster, say)
    return [replace(asked, check=False) for asked in requests]


def _check_ahead(results: Path, asked: Request, cluster: slurm.Cluster | None, say: Say) -> None:
    try:
        precheck.check(asked.profile, results / asked.sweep.name, say, cluster)
    except Refused:
        if cost(results, asked).chunks:
            raise


def submit(results: Path, asked: Request, say: Say) -> int:
    """Submit what is missing; return 0, or the exit code for failed or missing points."""
    run = rundir.RunDir(results / asked.sweep.name)
    if asked.profile.launcher != "local":
        return _queue(run, asked, say)
    with locks.held(run, "hpcsweep submit"):
        ready = prepare.prepare(run, asked)
        if ready.submission is not None:
            local.announce(ready.submission)
    settled = tally(ready.settled, PointStatus)
    if ready.submission is None:
        say(_nothing_to_measure(run, asked, ready, settled))
        return _exit_code(run, asked)
    say(_headline(asked, ready, settled))
    with progress.bar(ready.points) as shown:
        result = local.launch(ready.submission, asked.profile.env, shown.point, shown.tick)
    for why in result.refusals:
        say(f"stopped: {why}")
    if result.interrupted:
        say(_measured(asked, result.by_status, "interrupted; next: the same command continues"))
        return EXIT_INTERRUPTED
    say(_measured(asked, result.by_status, _next(run, result.by_status)))
    return result.exit_code or _exit_code(run, asked)


def _queue(run: RunDir, asked: Request, say: Say) -> int:
    """Send what is missing to Slurm, and return at once."""
    with locks.held(run, "hpcsweep submit"):
        for found in journal.settle(run.submissions()):
            say(found)
        answer = journal.ask(run.submissions())
        if answer.silent:
            missing = "; ".join(map(str, answer.unanswered))
            say(f"{run.name}: {missing}; every chunk that was sent and lacks rows counts as live")
        to_slurm.fence_off(run, answer)
        ready = prepare.prepare(run, asked, answer.live_chunks)
        to_slurm.fence_off(run, answer)  # those that began meanwhile: see `Attempt._sent_again`
        bad = to_slurm.learn(run, answer)
        settled = tally(ready.settled, PointStatus)
        if ready.submission is None:
            why = settled or "the profile takes no point"
            say(f"{run.name}: nothing to send ({why}){_hint(run, ready.settled)}")
            return 0 if "pending" in ready.settled else _exit_code(run, asked)
        try:
            if asked.check:
                precheck.check(asked.profile, ready.submission.path, say)
            ids = to_slurm.send(ready.submission, asked.profile, bad, say)
        except BaseException:
            known = journal.sent(ready.submission)
            if not known.arrays and not known.unsure:
                prepare.discard(ready.submission)
            raise
    say(_headline(asked, ready, settled))
    sent = f"{count(ready.chunks, 'chunk')} in the queue as {', '.join(ids)}"
    say(f"{sent}; nothing has to stay open")
    return 0


def allow_nodes(results: Path, sweep: Sweep, names: Sequence[str]) -> None:
    """Let a sweep use nodes again that broke; `UsageError` names those that it avoids."""
    run = rundir.RunDir(results / sweep.name)
    with locks.held(run, "hpcsweep submit"):
        bad_nodes.allow(run, names, journal.ask(run.submissions()))


def _headline(asked: Request, ready: prepare.Prepared, settled: str) -> str:
    where = f"{asked.device}, a rehearsal" if asked.rehearsal else asked.device
    before = f"; already there: {settled}" if settled else ""
    return (
        f"{asked.sweep.name}: {count(ready.points, 'point')} on {where}, about "
        f"{duration(ready.seconds / max(asked.workers, 1))}{before}"
    )


def _nothing_to_measure(run: RunDir, asked: Request, ready: prepare.Prepared, settled: str) -> str:
    """Say why nothing is left: it is measured, or another submit is at it."""
    if not ready.live:
        why = settled or "the profile takes no point"
        return f"{asked.sweep.name}: nothing to measure ({why}){_hint(run, ready.settled)}"
    return (
        f"{asked.sweep.name}: nothing to measure ({settled}): what is pending is live in "
        f"{', '.join(ready.live)}; watch it: {run.command('status', '--watch')}"
    )


def _measured(asked: Request, by_status: dict[str, int], what_next: str) -> str:
    told = tally(by_status, PointStatus) or "none"
    return f"{asked.sweep.name}: measured now: {told}; {what_next}"


def _next(run: RunDir, by_status: dict[str, int]) -> str:
    return f"next: {run.command('collect')}{_hint(run, by_status)}"


def _hint(run: RunDir, by_status: dict[str, int]) -> str:
    """Say what can be done about failed points, if there are some."""
    if not any(by_status.get(name) for name in FAILED):
        return ""
    return f"; failed ones: {run.command('logs')}, {run.command('retry')}"


def _exit_code(run: RunDir, asked: Request) -> int:
    """Return 0 when every point asked for is final and none failed."""
    known = ledger.statuses(run)
    code = 0
    for point in asked.points():
        status = known.get(point.point_id)
        if status is None:
            return Incomplete.exit_code
        if status in FAILED:
            code = PointsFailed.exit_code
    return code


@dataclass
class Cost:
    """What a request is expected to cost."""

    sweep: str
    profile: str
    points: int = 0
    chunks: int = 0
    settled: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    measured: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        hours = {gpu: seconds / 3600 for gpu, seconds in self.seconds.items()}
        return {
            "sweep": self.sweep,
            "profile": self.profile,
            "points": self.points,
            "chunks": self.chunks,
            "already_measured": self.settled,
            "gpu_hours": hours,
            "share_from_rows": self.measured / self.points if self.points else 0.0,
        }

    def text(self) -> str:
        """Say it in two lines."""
        time = ", ".join(f"{duration(s)} on {gpu}" for gpu, s in self.seconds.items()) or "nothing"
        share = 100 * self.measured / self.points if self.points else 0.0
        return (
            f"{self.sweep} on {self.profile}: {count(self.points, 'point')} in "
            f"{count(self.chunks, 'chunk')}, {self.settled:,} measured already\n"
            f"expected: {time} ({share:.0f} % of the points estimated from rows, the rest from "
            "the catalogue)"
        )


def cost(results: Path, asked: Request) -> Cost:
    """Return what a request would cost, without writing anything."""
    run = rundir.RunDir(results / asked.sweep.name)
    seconds_of = estimate.estimator(run, asked.device)
    found = Cost(asked.sweep.name, asked.profile.name)
    tally: dict[str, int] = {}
    known = prepare.known(run, asked, journal.ask(run.submissions()).live_chunks)
    pending = list(prepare.pending(asked, known, tally))
    found.chunks = sum(1 for _chunk in prepare.chunks(asked, pending, seconds_of))
    found.points, found.settled = len(pending), sum(tally.values())
    found.measured, found.seconds = seconds_of.measured, dict(seconds_of.by_gpu)
    return found
