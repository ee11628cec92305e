"""`hpcsweep submit --dry-run`: does everything that `submit` does, but submits nothing.

It writes the files that would be sent, byte for byte, to a temporary folder, asks Slurm whether it
would accept the job, and measures one point here, the cheapest: this machine may be a slow one.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from hpcsweep import extras, messages
from hpcsweep.catalog import WORKLOADS
from hpcsweep.cluster import launchers, queue, slurm
from hpcsweep.cluster.local import progress, supervisors, this_machine
from hpcsweep.cluster.slurm import arrays, bad_nodes, job_script, liveness
from hpcsweep.cluster.slurm.liveness import SlurmAnswer
from hpcsweep.errors import PointsFailed
from hpcsweep.store import folders
from hpcsweep.store.state import FAILED
from hpcsweep.submit import cost, estimate, prepare, steps
from hpcsweep.submit.request import Request
from hpcsweep.text import duration


def rehearse(results: Path, request: Request) -> int:
    """Show the plan and the files that would be sent, and measure one point; raises as `submit`."""
    argv = tuple(word for word in request.options.argv if word != "--dry-run")
    job = steps.checked(results, replace(request, options=replace(request.options, argv=argv)))
    sweep = job.sweep_dir
    request = job.request
    told = liveness.ask_slurm(sweep.submissions())
    with tempfile.TemporaryDirectory(prefix="hpcsweep-") as folder:
        expected = cost.drafted(sweep, request, told, folder)
        messages.progress(expected.text())
        limit = request.options.max_gpu_hours
        prepare.check_budget(expected.seconds, limit, expected.ready.estimates)
        draft = expected.ready.submission
        if draft and request.profile.in_slurm:
            if request.options.doctor:
                queue.check(request.profile, sweep.path)
            kept = shutil.move(draft.sweep_dir.path, tempfile.mkdtemp(prefix="hpcsweep-dry-run-"))
            _show(sweep, request, told, folders.SweepDir(Path(kept)).submission(draft.id))
    return _rehearse(sweep, request)


def _show(
    sweep: folders.SweepDir, request: Request, told: SlurmAnswer, draft: folders.SubmissionDir
) -> None:
    """Show the job script of a draft beside its other files, and ask Slurm about it."""
    prepare.tell_templates(draft)
    tasks = min(draft.read_manifest().chunks, arrays.max_size(slurm.config()))
    profile = bad_nodes.avoiding(request.profile, bad_nodes.current(sweep, told))
    shown = launchers.launcher_to_slurm(profile).preview(sweep.submission(draft.id), profile, tasks)
    file = draft.path / shown.file
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(job_script.encoded(shown.script))
    messages.progress(shown.script)
    messages.progress(f"sbatch {shlex.join([*shown.options, file.name, *shown.arguments])}")
    messages.progress(f"submit would send the files in {draft.path}")
    answer = slurm.would_accept(file, options=shown.options)
    if isinstance(answer, slurm.CouldNotAsk):
        messages.warning(f"Slurm was not asked: {answer}")
    else:
        messages.progress(f"Slurm would accept this job: {answer}")


def _rehearse(sweep_dir: folders.SweepDir, request: Request) -> int:
    """Measure the cheapest point on this machine, without a profiler; return its exit code."""
    if WORKLOADS[request.sweep.workload].runs_network and (lack := extras.lacking("measure")):
        without = f"without {lack[0]} no point is measured here ({extras.install('measure')})"
        messages.progress(f"dry run: nothing was submitted; {without}")
        return 0
    device = request.here.gpu if request.here else this_machine.local_device().gpu
    options = replace(request.options, workers=1)
    here = replace(request, rehearsal=True, device=device, only=frozenset(), options=options)
    here.tell_unseen_gpu()
    seconds_of = estimate.estimator(sweep_dir, here)
    point = min(here.points(), key=seconds_of)
    here = replace(here, only=frozenset({point.point_id}))
    about = duration(seconds_of.start + seconds_of(point))
    with tempfile.TemporaryDirectory(prefix="hpcsweep-") as folder:
        alone = folders.SweepDir(Path(folder) / request.sweep.name)
        submission = prepare.prepare(alone, here).submission
        assert submission is not None  # noqa: S101 - the folder is new, nothing is measured there
        label = point.label(request.sweep.maps)
        messages.progress(f"measuring one point here: {label} on {here.device}, about {about}")
        result = supervisors.run(submission, request.profile, progress.Counts(1))
        log = submission.log(0, 0).read_text().splitlines()
    messages.progress("\n".join(f"  {line}" for line in log[-3:]))
    how = str(result.tally) or "; ".join(result.refusals)
    messages.progress(f"dry run: nothing was submitted (the point measured here: {how})")
    failed = PointsFailed.exit_code if FAILED & result.tally.statuses.keys() else 0
    return result.exit_code or failed
