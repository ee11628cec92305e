"""Others who use the folder of results: a second cluster, a second user, and a squeue that lies."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.chaos.faults import Struck
from hpcsweep.cluster.slurm import journal
from hpcsweep.store.folders import SweepDir
from killing import command
from lab import Lab, Options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from benchmarks.chaos.slurm_place import SlurmPlace

_STRANGERS: Final = 400  # jobs on the second cluster whose numbers the first gives, too
_NOBODY: Final = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
_LIES: Final = {
    "a greeting and noise": "echo Welcome; echo 'maintenance on Monday'",
    "an error, exit code 0": "echo 'squeue: error: slurm_load_jobs' >&2",
    "nothing": "",
    "cut in a row": '{squeue} "$@" | head -c 9',
    "cut after a row": '{squeue} "$@" | head -n 1',
    "its heading": "echo 'JOBID STATE'",
    "an unknown job": "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
    "another job of the number": '{squeue} "$@" | sed "s|[^\\x1f]*$|/elsewhere|"',
    "all over, elsewhere": '{squeue} "$@" | sed "s|RUNNING|COMPLETED|; s|[^\\x1f]*$|/elsewhere|"',
    "an error and some rows": '{squeue} "$@" | head -n 1; echo "error: torn" >&2',
}


@contextmanager
def second_cluster() -> Iterator[Lab]:
    """Start a cluster whose queue is full of held jobs that are not ours."""
    where = Path(tempfile.gettempdir()) / f"hpcsweep-lab-{uuid.uuid4().hex[:12]}"
    lab = Lab(where, Options(name="second", accounting=False)).start()
    try:
        hold = f"for i in $(seq {_STRANGERS}); do sbatch -Q --hold -o/dev/null --wrap true; done"
        lab.run("sh", "-c", hold)
        yield lab
    finally:
        lab.stop()


def _alive(place: SlurmPlace) -> set[str]:
    """Return the tasks of this sweep that the first cluster runs."""
    return {job for job, _node in place.running_jobs()}


def _harm(place: SlurmPlace, before: set[str], fences: set[Path], told: str) -> None:
    """Raise an error where an attempt was fenced off whose task ran before and runs now."""
    run = SweepDir(place.sweep)
    both = before & _alive(place)
    chunks = {
        (one.id, chunk)
        for one in run.submissions()
        for chunk, (job, task) in journal.read_journal(one).task_of.items()
        if f"{job}_{task}" in both
    }
    for fence in _fences(place) - fences:
        if (fence.parent.name, int(fence.name.partition(".")[0])) in chunks:
            raise AssertionError(f"{told}: {fence.name} ended an attempt whose job runs")


def _fences(place: SlurmPlace) -> set[Path]:
    found = place.sweep.glob("shards/*/*.overall.csv")
    env = (path for path in found if not path.stat().st_size)
    return {path for path in env if not path.with_name(path.name[:-11] + "env.json").exists()}


def _while_jobs_run(place: SlurmPlace, told: str, words: list[str], **env: str) -> Struck | None:
    """Run a command as somebody who cannot see the jobs that run."""
    before = _alive(place)
    fences = _fences(place)
    if not before:
        return None
    place.hear(told, place.start(words, **env))
    time.sleep(1)
    _harm(place, before, fences, told)
    gone = {line.split()[0] for line in place.cluster.queue("-r", "-t", "CANCELLED", "-o", "%i")}
    if told.startswith("cancel") and before & gone:
        raise AssertionError(f"{told}: cancelled {before & gone}")
    return Struck(told.partition(":")[0], told)


def two_clusters(place: SlurmPlace, rng: Random) -> Struck | None:
    """Type a command on the second cluster, whose jobs have the same numbers."""
    second = place.cluster.second
    verb = rng.choice(("submit", "status", "cancel", "collect"))
    words = command(place.results, verb, place.spec.stem)
    words = place.submit() if verb == "submit" else words
    told = f"{verb} on another cluster: the folder is shared"
    struck = _while_jobs_run(place, told, words, **second.environment)
    name = f"--name=hpcsweep-{place.spec.stem}"
    while second.run("squeue", "-h", name).stdout.strip():  # what A's end had left to send
        time.sleep(0.5)
    held = second.run("squeue", "-h", "-o", "%T").stdout.split()
    if held.count("PENDING") != _STRANGERS:
        raise AssertionError(f"{told}: {held.count('PENDING')} strangers' jobs are left")
    return struck


def another_user(place: SlurmPlace, rng: Random) -> Struck | None:
    """Let a user type a command who may not see the jobs (PrivateData)."""
    if shutil.which(_NOBODY[0]) is None:
        return None
    subprocess.run(["chmod", "-R", "a+rX", place.folder], check=True)
    subprocess.run(["chmod", "-R", "a+rwX", place.results], check=True)
    verb = rng.choice(("submit", "status", "cancel"))
    words = command(place.results, verb, place.spec.stem)
    words = place.submit() if verb == "submit" else words
    told = f"{verb} by another user: jobs are private"
    return _while_jobs_run(place, told, [*_NOBODY, *words], HOME=str(place.folder))


def squeue_lies(place: SlurmPlace, rng: Random) -> Struck | None:
    """Put a squeue in front that prints something else, with exit code 0 mostly."""
    name = rng.choice([*_LIES])
    real = shutil.which("squeue")
    folder = place.folder / "lies"
    folder.mkdir(exist_ok=True)
    (folder / "squeue").write_text(f"#!/bin/bash\n{_LIES[name].format(squeue=real)}\n")
    (folder / "squeue").chmod(0o755)
    path = f"{folder}:{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin"
    return _while_jobs_run(place, f"squeue prints {name}: submit", place.submit(), PATH=path)
