"""`hpcsweep submit --dry-run`: does everything that `submit` does, but submits nothing.

It takes the steps of `submit` in a temporary folder. It writes there the files that would be
sent, byte for byte, asks Slurm whether it would accept the job, and measures one point here: the
smallest, with few passes and for a minute at most, since this machine may be a slow one.
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

from hpcsweep import extras, files, messages
from hpcsweep.catalog import WORKLOADS
from hpcsweep.cluster import launcher_to_slurm, slurm
from hpcsweep.cluster.local import supervisors, this_machine
from hpcsweep.cluster.slurm import bad_nodes, job_script, then_job
from hpcsweep.errors import EXIT_INTERRUPTED, MissingDependency, PointsFailed
from hpcsweep.point import Point
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.state import FAILED, PointStatus
from hpcsweep.submit import draft, each_node, passes, steps
from hpcsweep.submit.comparison import Submit, compare, in_results
from hpcsweep.submit.cost import Cost, ask_only, drafted
from hpcsweep.submit.estimate import estimator
from hpcsweep.submit.request import Request, points_of
from hpcsweep.text import duration

# For the trial here: whoever submits waits for it, and nobody reads its times.
_TRIAL_S: Final = 60.0
_FEW_PASSES: Final = {"warmup": 1, "iterations": 2, "stop": "fixed"}


def rehearse(results: Path, request: Request) -> int:
    """Show the plan and the files that would be sent, and measure one point; raises as `submit`."""
    argv = tuple(word for word in request.options.argv if word != "--dry-run")
    request = replace(request, options=replace(request.options, argv=argv))
    (job,) = steps.checked(results, [request])
    with tempfile.TemporaryDirectory(prefix="hpcsweep-") as folder:
        steps.through(DRY_RUN, drafted(job, folder))
    return _try_one(job)


def tell_cost(job: Submit) -> Submit:
    """Say how many points there are, and how long they may take."""
    messages.progress(Cost(job).text())
    return job


def show(job: Submit) -> Submit:
    """Show the job script of a draft beside its other files, and ask Slurm about it."""
    profile = job.profile
    if not job.new or not profile.in_slurm:
        return job
    draft.tell_surroundings(job.new)
    node = next(iter(job.nodes))
    tasks = ceil(job.nodes[node] / profile.gpus_per_job)
    array = job_script.Array(0, min(tasks, job_script.max_size(slurm.config())), node)
    assert job.answer  # noqa: S101 - `ask_only` came before
    profile = bad_nodes.avoiding(profile, bad_nodes.current(job.sweep_dir, job.answer))
    # with the paths that it will have
    submission = job.sweep_dir.submission(job.new.id)
    try:
        shown = launcher_to_slurm(profile).preview(submission, profile, array)
    except MissingDependency as error:  # submitit makes no script where srun is not
        messages.warning(f"{error}; so no job script is shown, and Slurm was not asked")
        return job
    kept = shutil.move(job.new.sweep_dir.path, tempfile.mkdtemp(prefix="hpcsweep-dry-run-"))
    kept_draft = SweepDir(Path(kept)).submission(job.new.id)
    file = kept_draft.path / shown.file
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(job_script.encoded(shown.script))
    messages.progress(shown.script)
    messages.progress(f"sbatch {shlex.join([*shown.options, file.name])}")
    others = [*job.nodes][1:]
    if others:
        messages.progress(f"the same for {', '.join(others)}")
    if job.request.then:
        name = kept_draft.then_script.name
        kept_draft.then_script.write_bytes(then_job.script(submission, profile, job.request.then))
        after = shlex.join([*then_job.options(submission, profile, ["JOB"]), name])
        messages.progress(f"then `{job.request.then}`:\nsbatch {after}")
    messages.progress(f"submit would send the files in {kept_draft.path}")
    answer = slurm.would_accept(file, options=shown.options)
    if isinstance(answer, slurm.CouldNotAsk):
        messages.warning(f"Slurm was not asked: {answer}")
    else:
        messages.progress(f"Slurm would accept this job: {answer}")
    return job


DRY_RUN: Final[Sequence[steps.Step]] = (
    ask_only, each_node.choose, compare, draft.pack, tell_cost, draft.estimate, steps.check_place,
    draft.write, show,
)  # fmt: skip
_ONE_POINT: Final[Sequence[steps.Step]] = (compare, draft.pack, draft.estimate, draft.write)


def _try_one(job: Submit) -> int:
    """Measure the smallest point on this machine, shortly and without a profiler.

    Returns the exit code. A node would fail as this machine does where the point ends in an error.
    That it is too large or slow for this machine, or that this machine is refused or kills it, says
    nothing of jobs; of a profile whose points run here it says what the run would.
    """
    request = job.request
    lack = extras.lacking("measure") if WORKLOADS[request.sweep.workload].runs_network else ()
    if lack:
        without = f"without {lack[0]} no point is measured here ({extras.install('measure')})"
        messages.progress(f"dry run: nothing was submitted; {without}")
        return 0
    here = _on_this_machine(request)
    here.tell_unseen_gpu()
    seconds_of = estimator(job.sweep_dir, here, job.operations)
    point = min(here.expansion, key=lambda each: (*_size(each), seconds_of(each)))
    seconds_of.counts.clear()
    about = seconds_of.about(seconds_of.start + seconds_of(point))
    limit = min(here.sweep.point_timeout, _TRIAL_S)
    epochs = int(point.axes.get("epochs") or 1)  # `point_timeout` is for each of them
    alone = replace(
        here,
        sweep=replace(here.sweep, point_timeout=limit / epochs),
        expansion=here.expansion.only(frozenset({point.point_id})),
    )
    label = f"{point.label(here.sweep.maps)} on {here.device}"
    messages.progress(f"measuring one point here: {label}, {about}; at most {duration(limit)}")
    with tempfile.TemporaryDirectory(prefix="hpcsweep-") as folder:
        submission = steps.through(_ONE_POINT, in_results(Path(folder), alone)).submission
        result = supervisors.run(submission, request.profile, supervisors.Counts(1))
        with submission.log(0, 0).open("rb") as file:
            log = files.last_lines(file)
    statuses = result.tally.statuses.keys()
    if PointStatus.TIMEOUT in statuses and limit < request.sweep.point_timeout:
        stopped = f"the point here was stopped after {duration(limit)}, and did not fail until then"
        messages.progress(f"dry run: nothing was submitted ({stopped})")
        return 0
    messages.progress("\n".join(f"  {line}" for line in log[-3:]))  # those that tell how it ended
    how = str(result.tally) or "; ".join(result.refusals)
    messages.progress(f"dry run: nothing was submitted (the point measured here: {how})")
    if result.interrupted:
        return EXIT_INTERRUPTED
    if request.profile.in_slurm:
        return PointsFailed.exit_code if PointStatus.ERROR in statuses else 0
    return result.exit_code or (PointsFailed.exit_code if FAILED & statuses else 0)


def _on_this_machine(request: Request) -> Request:
    """Return the request for this machine: a rehearsal, of as few passes as can be timed."""
    measure = {**request.sweep.measure}
    measure |= {name: few for name, few in _FEW_PASSES.items() if name in measure}
    sweep = replace(request.sweep, measure=measure)
    device = request.here.gpu if request.here else this_machine.local_device().gpu
    return replace(
        request,
        sweep=sweep,
        rehearsal=True,
        device=device,
        expansion=points_of(sweep, device, request.options.sample, rehearsal=True),
        options=replace(request.options, workers=1),
    )


def _size(point: Point) -> tuple[float, float]:
    """Return the pixels of an image of a point, and the images of a pass."""
    one_image = {**point.axes, "batch_size": 1}
    return passes.work(one_image), float(point.axes.get("batch_size") or 1)
