"""Sends a submission to Slurm through submitit: the same chunks as arrays, with checkpoints.

submitit writes the job script, and one pickle per chunk that names `Supervised` below. On the node
this starts the same supervisor as any other job. The node imports this module, too, so functions
import what only the submitting side needs.

hpcsweep does not use submitit's results and states, but rows and its own journal, so it works on a
cluster without accounting. `max_num_timeout` is large because submitit counts every signal to a job
of ten minutes or less as a time-out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import submitit
from submitit.core.utils import DelayedSubmission, FailedJobError

from hpcsweep import processes
from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm.sbatch import NOT_REQUEUED, RESTARTS, Preview, only_id
from hpcsweep.errors import EXIT_REQUEUE, MissingDependency, UsageError

if TYPE_CHECKING:
    from hpcsweep.cluster.slurm.job_script import Array
    from hpcsweep.spec.profile import Profile
    from hpcsweep.store.folders import SubmissionDir

_CHECKPOINT: Final = getattr(signal, f"SIG{submitit.JobEnvironment.USR_SIG}")
_STOP_SIGNALS: Final = tuple({signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, _CHECKPOINT})
# Seconds for the signal that asks for a checkpoint to come after SIGTERM, where a site sends both.
_PATIENCE: Final = 5.0
# submitit reckons in minutes and knows no `UNLIMITED`; more than any limit of a site.
_NO_LIMIT_MIN: Final = 366 * 24 * 60
_SAME_NAME: Final = ("partition", "constraint", "gres", "account", "qos", "nodelist", "exclude")


@dataclass(frozen=True)
class Supervised:
    """What the job runs: the supervisor of one chunk, and a requeue if points remain.

    Of a job with several GPUs it is the supervisors of the chunk and of the next ones.
    """

    submission: str
    gpus_per_job: int = 1

    def __call__(self, chunk: int) -> None:
        """Run the supervisor, and exit with its code; submitit's own signal requeues the job."""
        command = processes.python("hpcsweep.node.supervisor", self.submission, chunk)
        if self.gpus_per_job > 1:
            words = self.submission, chunk, self.gpus_per_job
            command = processes.python("hpcsweep.node.side_by_side", *words)
        code, came = _run(command)
        restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        # SIGTERM alone means a cancellation, which a requeue would undo, or a preemption, after
        # which Slurm requeues by itself.
        may_requeue = restarts < RESTARTS and set(came) != {signal.SIGTERM}
        if (code == EXIT_REQUEUE or -code in came) and may_requeue:
            try:
                signal.raise_signal(_CHECKPOINT)  # submitit checkpoints, requeues and exits
            except subprocess.CalledProcessError:  # which has told why
                sys.stderr.write(f"{NOT_REQUEUED}\n")
        if code:
            sys.exit(code if code > 0 else 128 - code)

    def checkpoint(self, chunk: int) -> DelayedSubmission:
        """Return the same call: the rows on disk are its state."""
        return DelayedSubmission(self, chunk)


def _run(command: list[str]) -> tuple[int, list[int]]:
    """Run a command, and pass on every signal to stop; return its code and these signals."""
    came: list[int] = []
    started: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        for process in started:
            process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _STOP_SIGNALS}
    try:
        with subprocess.Popen(command) as process:
            started.append(process)
            for number in came:
                process.send_signal(number)
            code = process.wait()
        # A site that preempts by submitit's rules sends SIGTERM first, then the checkpoint signal.
        until = time.monotonic() + _PATIENCE
        while code and came and _CHECKPOINT not in came and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code, came


def send(submission: SubmissionDir, profile: Profile) -> list[str]:
    """Submit every chunk; a full cluster takes two minutes to fail, since sbatch retries."""
    from hpcsweep.cluster.slurm import job_script  # noqa: PLC0415 - as in `_executor`

    executor = _executor(submission, profile)
    per_task = profile.gpus_per_job
    call = Supervised(str(submission.path.absolute()), per_task)

    def submit_one(array: Array) -> str:
        executor.update_parameters(**_parameters(submission, profile, array))
        first = array.first_chunk
        with _errors(submission.submitit):
            jobs = executor.map_array(call, range(first, first + array.tasks * per_task, per_task))
        job_id = str(jobs[0].job_id).partition("_")[0]
        if array.tasks == 1:  # submitit takes it for a job, we made it an array
            paths = jobs[0].paths
            paths.submitted_pickle.rename(paths.folder / f"{job_id}_0_submitted.pkl")
        return job_id

    with _environment(), _private(submission.submitit):
        return job_script.send_arrays(submission, profile, submit_one)


def preview(submission: SubmissionDir, profile: Profile, array: Array) -> Preview:
    """Return the script that submitit would send; it would name the file after the job."""
    executor = _executor(submission, profile)
    executor.update_parameters(**_parameters(submission, profile, array))
    inner = executor._executor  # noqa: SLF001 - nothing public shows the script
    inner.parameters["map_count"] = array.tasks
    text = inner._make_submission_file_text(inner._submitit_command_str, "")  # noqa: SLF001
    return Preview(script=str(text), file=f"{submission.submitit.name}/submission.sh")


def _executor(submission: SubmissionDir, profile: Profile) -> Any:  # noqa: ANN401 - untyped here
    from hpcsweep.cluster.slurm import job_script  # noqa: PLC0415 - jinja2 has no business on the node

    found = set("%\\\n\r") & set(str(submission.path.absolute()))
    if found:
        text = f"{submission.path}: {found.pop()!r} in a path has a meaning to submitit and Slurm"
        raise UsageError(f"{text}; rename the folder, or choose another with --results")
    try:
        executor = submitit.AutoExecutor(
            submission.submitit,
            cluster="slurm",
            slurm_max_num_timeout=RESTARTS,
            slurm_python=job_script.quote(job_script.interpreter(profile)),
        )
    except RuntimeError as error:  # it looks for srun
        raise MissingDependency(f"submitit: {error}") from error
    # submitit's own default, `submitit`, is no wckey of a site: one that enforces them refuses it
    executor._executor.parameters["wckey"] = None  # noqa: SLF001 - AutoExecutor takes None for no word
    # submitit would take any number behind the word "job" for the id, such as that of a site's
    # greeting; of the class, since it makes another executor for an array
    of_slurm = type(executor._executor)  # noqa: SLF001
    of_slurm._get_job_id_from_submission_command = staticmethod(_job_id)  # noqa: SLF001
    return executor


def _job_id(printed: str) -> str:
    return str(only_id(printed, "submitit").job)


def _parameters(submission: SubmissionDir, profile: Profile, array: Array) -> dict[str, Any]:
    """Return the keys of a profile by submitit's names; submitit leaves out None."""
    from hpcsweep.cluster.slurm import job_script, profile_wants  # noqa: PLC0415

    seconds = profile.time_seconds
    # One task, which starts every supervisor of the job; and srun has not taken sbatch's
    # --cpus-per-task since 22.05.
    srun = ["--nodes=1", "--ntasks=1"]
    cpus = profile_wants.options_of(profile)["cpus_per_task"]
    if cpus:
        srun.append(f"--cpus-per-task={cpus}")
    more = _more(profile)
    if array.node:
        more["nodelist"] = array.node
    if array.after:
        more["dependency"] = job_script.dependency(profile, array.after)
    return {
        **{f"slurm_{key}": getattr(profile, key) for key in _SAME_NAME},
        "name": f"hpcsweep-{submission.sweep_dir.name}",
        "timeout_min": _NO_LIMIT_MIN if seconds is None else ceil(seconds / 60),
        "nodes": profile.nodes,
        "cpus_per_task": profile.cpus_per_task,
        "stderr_to_stdout": True,
        "slurm_mem": profile.mem,
        "slurm_setup": job_script.setup(profile).splitlines(),
        "slurm_signal_delay_s": profile.signal_lead,
        "slurm_srun_args": srun,
        "slurm_additional_parameters": {
            "array": job_script.array_range(profile, array.tasks),
            "chdir": str(submission.path.absolute()),
            **({"time": "UNLIMITED"} if seconds is None else {}),
            **more,
        },
    }


def _more(profile: Profile) -> dict[str, str | bool]:
    """Return `sbatch_options` as submitit's parameters, which have a value each and no order."""
    from hpcsweep.spec import directives  # noqa: PLC0415

    found: dict[str, str | bool] = {}
    for name, value in directives.named(["--requeue", *profile.sbatch_options]).items():
        found[name.replace("-", "_")] = value or True
    return found


@contextmanager
def _errors(folder: Path) -> Iterator[None]:
    """Turn submitit's errors into ours."""
    folder.mkdir(exist_ok=True)
    try:
        yield
    except FileNotFoundError as error:
        raise MissingDependency(f"{error.filename}: not found; submit on a login node") from error
    except FailedJobError as error:
        ended = error.__cause__
        if not isinstance(ended, subprocess.CalledProcessError):  # submitit killed sbatch
            raise slurm.refusal(str(error), str(folder), None) from error
        refused = slurm.refusal(ended.stderr, str(folder), ended.returncode, output=ended.output)
        raise refused from error


@contextmanager
def _private(folder: Path) -> Iterator[None]:
    """Keep scripts from others: they hold the values of variables. Logs may be read."""
    folder.mkdir(parents=True, exist_ok=True)
    mode = folder.stat().st_mode
    folder.chmod(0o700)
    try:
        yield
    finally:
        for path in (*folder.glob("*.sh"), *folder.glob("*.pkl")):
            with suppress(FileNotFoundError):  # submitit renames them
                path.chmod(0o600)
        folder.chmod(mode)


@contextmanager
def _environment() -> Iterator[None]:
    """Hide environment variables from sbatch that would change its behaviour."""
    before = dict(os.environ)
    for name in before.keys() - slurm.environment("sbatch").keys():
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(before)
