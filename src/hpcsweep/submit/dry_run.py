"""`hpcsweep submit --dry-run`: everything that submit does, but for the submitting.

What would be sent is written byte for byte, outside of the results; Slurm is asked whether it
would take it; one point is measured here.
"""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcsweep import slurm
from hpcsweep.preflight import local_device
from hpcsweep.store import rundir
from hpcsweep.store.state import PointStatus
from hpcsweep.submit import precheck, prepare, script, workflow
from hpcsweep.submit.launchers import arrays, local, sbatch
from hpcsweep.text import tally
from hpcsweep.tracking import bad_nodes, journal

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcsweep.spec.profile import Profile
    from hpcsweep.store.rundir import SubmissionDir
    from hpcsweep.submit.prepare import Request

    Say = Callable[[str], None]


def run(results: Path, asked: Request, say: Say) -> int:
    """Show the plan and what would be sent, measure one point here, and submit nothing.

    Raises:
        Refused: the points would cost more than `max_gpu_hours`.
        SchedulerError: Slurm would refuse the job.

    """
    asked = replace(asked, argv=tuple(word for word in asked.argv if word != "--dry-run"))
    cost = workflow.cost(results, asked)
    say(cost.text())
    if not prepare.first_points(asked, 1):
        say("the profile takes no point of this sweep")
        return 0
    prepare.check_budget(sum(cost.seconds.values()), asked.max_gpu_hours)
    if asked.profile.launcher != "local" and cost.points:
        sweep = rundir.RunDir(results / asked.sweep.name)
        if asked.check:
            precheck.check(asked.profile, sweep.path, say)
        _show(sweep, asked, say)
    return _rehearse(asked, say)


def _show(sweep: rundir.RunDir, asked: Request, say: Say) -> None:
    """Write the files that would be sent, show the job script, and ask Slurm about it."""
    into = rundir.RunDir(Path(tempfile.mkdtemp(prefix="hpcsweep-dry-run-")) / sweep.name)
    queue = journal.ask(sweep.submissions())
    ready = prepare.prepare(sweep, asked, queue.live_chunks, into)
    draft = ready.submission
    if draft is None:  # measured by now
        return
    tasks = min(ready.chunks, arrays.max_size())
    profile = bad_nodes.avoiding(asked.profile, bad_nodes.current(sweep, queue))
    text, options = _job(sweep.submission(draft.id), profile, tasks)
    file = _file(draft, asked.profile)
    file.write_bytes(script.encoded(text))
    say(text)
    first = [] if asked.profile.launcher == "submitit" else ["0"]
    say(f"sbatch {shlex.join([*options, file.name, *first])}")
    say(f"these files would be sent: {draft.path}")
    answer = slurm.would_accept(file, options=options)
    if isinstance(answer, slurm.CouldNotAsk):
        say(f"Slurm was not asked: {answer}")
    else:
        say(f"Slurm would take it: partition {answer.partition}, nodes {answer.nodes}")


def _job(submission: SubmissionDir, profile: Profile, tasks: int) -> tuple[str, list[str]]:
    """Return the script of the first array, and the options of its call."""
    if profile.launcher == "submitit":
        from hpcsweep.submit.launchers import via_submitit  # noqa: PLC0415 - 0.2 s, only for who wants it

        return via_submitit.render(submission, profile, tasks), []
    return script.render(profile, submission), sbatch.options(submission, profile, tasks)


def _file(draft: SubmissionDir, profile: Profile) -> Path:
    """Return where the script goes; submitit would name its own after the job."""
    if profile.launcher != "submitit":
        return draft.script
    draft.submitit.mkdir()
    return draft.submitit / "submission.sh"


def _rehearse(asked: Request, say: Say) -> int:
    """Measure the first point on this machine, without a profiler; its row is not kept."""
    device = local_device.local_device()
    here = replace(asked, rehearsal=True, device=device, only=frozenset(), workers=1)
    point = prepare.first_points(here, 1)[0]
    here = replace(here, only=frozenset({point.point_id}))
    with tempfile.TemporaryDirectory(prefix="hpcsweep-") as folder:
        submission = prepare.prepare(
            rundir.RunDir(Path(folder) / asked.sweep.name), here
        ).submission
        assert submission is not None  # noqa: S101 - the folder is new, nothing is measured there
        say(f"rehearsing one point here: {point.label()} on {device}")
        local.announce(submission)
        result = local.launch(submission, asked.profile.env, lambda _status: None, lambda: None)
        log = submission.log(0, 0).read_text().splitlines()
    say("\n".join(f"  {line}" for line in log[-3:]))
    how = tally(result.by_status, PointStatus) or "; ".join(result.refusals)
    say(f"dry run: nothing was submitted (rehearsal: {how})")
    return result.exit_code
