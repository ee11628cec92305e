"""`hpcsweep submit --dry-run`: does everything that `submit` does, but submits nothing.

It takes the steps of `submit` in a temporary folder. It writes there the files that would be
sent, byte for byte, asks Slurm whether it would accept the job, and measures one point here, the
cheapest: this machine may be a slow one.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Final

from hpcsweep import extras, messages
from hpcsweep.catalog import WORKLOADS
from hpcsweep.cluster import launcher_to_slurm, slurm
from hpcsweep.cluster.local import supervisors, this_machine
from hpcsweep.cluster.slurm import bad_nodes, job_script
from hpcsweep.errors import PointsFailed
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.state import FAILED
from hpcsweep.submit import draft, steps
from hpcsweep.submit.comparison import Submit, compare, in_results
from hpcsweep.submit.cost import Cost, ask_only, drafted
from hpcsweep.submit.estimate import estimator
from hpcsweep.submit.request import Request, points_of
from hpcsweep.text import duration


def rehearse(results: Path, request: Request) -> int:
    """Show the plan and the files that would be sent, and measure one point; raises as `submit`."""
    argv = tuple(word for word in request.options.argv if word != "--dry-run")
    request = replace(request, options=replace(request.options, argv=argv))
    (job,) = steps.checked(results, [request])
    with tempfile.TemporaryDirectory(prefix="hpcsweep-") as folder:
        steps.through(DRY_RUN, drafted(job, folder))
    return _measure_cheapest(job)


def tell_cost(job: Submit) -> Submit:
    """Say how many points there are, and how long they may take."""
    messages.progress(Cost(job).text())
    return job


def show(job: Submit) -> Submit:
    """Show the job script of a draft beside its other files, and ask Slurm about it."""
    profile = job.profile
    if not job.new or not profile.in_slurm:
        return job
    kept = shutil.move(job.new.sweep_dir.path, tempfile.mkdtemp(prefix="hpcsweep-dry-run-"))
    kept_draft = SweepDir(Path(kept)).submission(job.new.id)
    draft.tell_templates(kept_draft)
    tasks = ceil(len(job.chunk_seconds) / profile.gpus_per_job)
    tasks = min(tasks, job_script.max_size(slurm.config()))
    assert job.answer  # noqa: S101 - `ask_only` came before
    profile = bad_nodes.avoiding(profile, bad_nodes.current(job.sweep_dir, job.answer))
    # with the paths that it will have
    submission = job.sweep_dir.submission(job.new.id)
    shown = launcher_to_slurm(profile).preview(submission, profile, tasks)
    file = kept_draft.path / shown.file
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(job_script.encoded(shown.script))
    messages.progress(shown.script)
    messages.progress(f"sbatch {shlex.join([*shown.options, file.name, *shown.arguments])}")
    messages.progress(f"submit would send the files in {kept_draft.path}")
    answer = slurm.would_accept(file, options=shown.options)
    if isinstance(answer, slurm.CouldNotAsk):
        messages.warning(f"Slurm was not asked: {answer}")
    else:
        messages.progress(f"Slurm would accept this job: {answer}")
    return job


DRY_RUN: Final[Sequence[steps.Step]] = (
    ask_only, compare, draft.pack, tell_cost, draft.estimate, steps.check_place, draft.write, show,
)  # fmt: skip
_ONE_POINT: Final[Sequence[steps.Step]] = (compare, draft.pack, draft.estimate, draft.write)


def _measure_cheapest(job: Submit) -> int:
    """Measure the cheapest point on this machine, without a profiler; return its exit code."""
    request = job.request
    sweep = request.sweep
    lack = extras.lacking("measure") if WORKLOADS[sweep.workload].runs_network else ()
    if lack:
        without = f"without {lack[0]} no point is measured here ({extras.install('measure')})"
        messages.progress(f"dry run: nothing was submitted; {without}")
        return 0
    device = request.here.gpu if request.here else this_machine.local_device().gpu
    here = replace(
        request,
        rehearsal=True,
        device=device,
        expansion=points_of(sweep, device, request.options.sample, rehearsal=True),
        options=replace(request.options, workers=1),
    )
    here.tell_unseen_gpu()
    seconds_of = estimator(job.sweep_dir, here, job.operations)
    point = min(here.expansion, key=seconds_of)
    about = duration(seconds_of.start + seconds_of(point))
    alone = replace(here, expansion=here.expansion.only(frozenset({point.point_id})))
    with tempfile.TemporaryDirectory(prefix="hpcsweep-") as folder:
        submission = steps.through(_ONE_POINT, in_results(Path(folder), alone)).submission
        label = point.label(sweep.maps)
        messages.progress(f"measuring one point here: {label} on {device}, about {about}")
        result = supervisors.run(submission, request.profile, supervisors.Counts(1))
        log = submission.log(0, 0).read_text().splitlines()
    messages.progress("\n".join(f"  {line}" for line in log[-3:]))  # those that tell how it ended
    how = str(result.tally) or "; ".join(result.refusals)
    messages.progress(f"dry run: nothing was submitted (the point measured here: {how})")
    failed = PointsFailed.exit_code if FAILED & result.tally.statuses.keys() else 0
    return result.exit_code or failed
