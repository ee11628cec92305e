"""Renders the job script of a submission from its profile, and sends it to Slurm as job arrays.

All values of a profile are quoted for the shell, and a line end in one is refused. A misspelt name
in a template is an error. All options stand in the script, those of `sbatch_options` last, since
the last one counts: sbatch by hand sends the same job. One script serves all arrays of a
submission: for a later one the call names the range, and its first chunk as the argument.

`array_throttle` is of the submission, and `%` is of an array: an array waits for the end of an
earlier one where both together could run more tasks. It waits by `afterany`, which a cancelled
array fulfils, too.

The journal notes each array before sbatch is asked, and then the answer, so that an array whose
answer was lost can be found again. At a limit on submitted jobs, smaller arrays are tried. The next
`hpcsweep submit` sends the chunks that did not go in. `via_submitit` sends by `send_arrays`, too.

`--export=ALL,NAME=VALUE` would make every node run a login shell before each task.
"""

from __future__ import annotations

import os
import shlex
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import Any, Final

import jinja2

from hpcsweep import environment, files, messages
from hpcsweep.catalog import LAUNCHERS, gpus
from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm import journal, profile_wants
from hpcsweep.cluster.slurm.sbatch import NOT_REQUEUED, RESTARTS, Preview
from hpcsweep.errors import (
    HpcsweepError,
    PartlySubmitted,
    ProfileError,
    SchedulerError,
    UsageError,
)
from hpcsweep.processes import RUN_MODULE
from hpcsweep.spec import directives, lookup
from hpcsweep.spec.profile import Profile
from hpcsweep.store.folders import SubmissionDir

# Slurm's default (slurm.conf(5), MaxArraySize), where it cannot be asked.
_MAX_ARRAY_SIZE: Final = 1001
_JOB: Final = LAUNCHERS["sbatch"].template
_SETUP: Final = LAUNCHERS["submitit"].template
_THEN: Final = "then.sbatch.j2"


@dataclass(frozen=True)
class Array:
    """An array that is about to be sent; `node` and `after` may be empty."""

    first_chunk: int
    tasks: int
    node: str = ""  # on which all its tasks run
    after: str = ""  # the array that has to end before


SubmitOne = Callable[[Array], str]  # returns the id that Slurm gave it


def write(submission: SubmissionDir, profile: Profile, tasks: int) -> None:
    """Write the job script of a submission; it holds the values of the profile's variables."""
    text = encoded(render(profile, submission, tasks))
    try:
        with files.replacing(submission.script, most=0o600) as file:
            file.write(text)
    except OSError as error:
        raise files.cannot_write(submission.script, error) from error


def send(submission: SubmissionDir, profile: Profile) -> list[str]:
    """Submit every chunk; return the ids of the arrays."""

    def submit_one(array: Array) -> str:
        if array.first_chunk == 0:
            write(submission, profile, array.tasks)
        script = submission.script.absolute()
        arguments = [str(array.first_chunk)] if array.first_chunk else []
        return str(slurm.submit(script, options=_options(profile, array), arguments=arguments))

    return send_arrays(submission, profile, submit_one)


def _options(profile: Profile, array: Array) -> list[str]:
    """Return the options of sbatch's call, which stand over those in the script."""
    options = []
    if array.first_chunk:  # the script has the range of the first array
        options.append(f"--array={array_range(profile, array.tasks)}")
    if array.node:
        options.append(f"--nodelist={array.node}")
    if array.after:
        options.append(f"--dependency={dependency(profile, array.after)}")
    return options


def preview(submission: SubmissionDir, profile: Profile, array: Array) -> Preview:
    """Return the job script of the first array, and the options of sbatch's call."""
    script = render(profile, submission, array.tasks)
    return Preview(script=script, file=submission.script.name, options=_options(profile, array))


def array_range(profile: Profile, tasks: int) -> str:
    """Return the range of an array, with the number of tasks that may run at once."""
    throttle = f"%{profile.array_throttle}" if profile.array_throttle else ""
    return f"0-{tasks - 1}{throttle}"


def dependency(profile: Profile, after: str) -> str:
    """Return what a later array waits for: an earlier one, and what its profile says."""
    own = directives.named(profile.sbatch_options).get("dependency", "")
    if "?" in own:
        text = f"Slurm cannot join `{own}`, one of several, with the wait for {after}"
        raise ProfileError(f"{profile.path}: {text}; set array_throttle: null, or name one job")
    return f"afterany:{after},{own}" if own else f"afterany:{after}"


def send_arrays(submission: SubmissionDir, profile: Profile, submit_one: SubmitOne) -> list[str]:
    """Submit every chunk as `SendsToSlurm.send` does; `submit_one` sends one array.

    A task runs `gpus_per_job` chunks; the last one of an array may run fewer. Chunks that are
    pinned to nodes go node by node, each in arrays of its own.
    """
    per_task = profile.gpus_per_job
    manifest = submission.read_manifest()
    total = manifest.chunks
    clusters = os.environ.get("SLURM_CLUSTERS", "")
    if "," in clusters or clusters == "all":
        raise UsageError(f"SLURM_CLUSTERS={clusters}: name one cluster, where jobs can be found")
    answer = slurm.config()
    client = slurm.this_client(answer)
    largest = max_size(answer)
    of_nodes = manifest.chunks_of_nodes
    nodes = [*of_nodes]
    ends = [*accumulate(of_nodes.values())]
    tasks = [ceil(chunks / per_task) for chunks in of_nodes.values()]
    side_by_side = _side_by_side(profile, sum(tasks), min(largest, max(tasks)))
    sent = 0
    ids: list[str] = []
    refused = dict[str, slurm.Rejected]()
    while sent < total:
        place = bisect_right(ends, sent)
        size = min(largest, ceil((ends[place] - sent) / per_task))
        chunks = range(sent, min(sent + size * per_task, ends[place]))
        after = ids[-side_by_side] if len(ids) >= side_by_side else ""
        journal.note_sending(submission, chunks, per_task, client)
        try:
            job = submit_one(Array(sent, size, nodes[place], after))
        except HpcsweepError as error:
            maybe_in_queue = isinstance(error, SchedulerError) and error.maybe_accepted
            if not maybe_in_queue:
                journal.note_not_sent(submission, sent)
            # not at MaxJobCount: sbatch takes a minute to tell it
            at_limit = isinstance(error, slurm.LimitReached) and error.limit != "MaxJobCount"
            if at_limit and size > 1:
                largest = size // 2  # the limit may leave room for some: few tries find how many
                continue
            if nodes[place] and isinstance(error, slurm.Rejected):
                refused[nodes[place]] = error
                sent = ends[place]  # the other nodes may take theirs
                continue
            if not ids:
                raise
            raise PartlySubmitted(f"{sent} of {total} chunks went in; {error}") from error
        journal.note_array(submission, chunks, per_task, job, client)
        ids.append(job)
        sent = chunks.stop
    for node, refusal in refused.items():
        if not ids:
            raise refusal
        messages.warning(f"{node} got no points: {refusal}")
    return ids


def _side_by_side(profile: Profile, tasks: int, size: int) -> int:
    """Return how many arrays, of `size` tasks or less, may run together."""
    throttle = profile.array_throttle
    return tasks if not throttle or tasks <= throttle else max(1, throttle // size)


def max_size(answer: dict[str, str] | slurm.CouldNotAsk) -> int:
    """Return how many tasks one array may have: MaxArraySize in `config` limits the index."""
    found = None if isinstance(answer, slurm.CouldNotAsk) else answer.get("MaxArraySize")
    return max(1, slurm.number(found) or _MAX_ARRAY_SIZE)


def render(profile: Profile, submission: SubmissionDir, tasks: int) -> str:
    """Return the job script of a first array of so many tasks.

    Raise where a value cannot be in it, or Slurm could write no log.
    """
    return _render(_JOB, {**_preparation(profile), **_job(profile, submission, tasks)})


def encoded(text: str) -> bytes:
    """Encode a script; names of folders need not be UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def setup(profile: Profile) -> str:
    """Return the part of the script that prepares the worker's environment."""
    return _render(_SETUP, _preparation(profile))


def render_then(profile: Profile, submission: SubmissionDir, command: str, folder: Path) -> str:
    """Return the script of the job after the last array, which runs a command in a folder."""
    python = interpreter(profile)
    values = {
        "code_file": submission.then_code.absolute(),
        "programs": Path(python).parent if "/" in python else "",
        "folder": folder,
        "command": command,
    }
    return _render(_THEN, {**_preparation(profile), **values})


def _render(name: str, values: Mapping[str, Any]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(lookup.folders(lookup.TEMPLATES)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - a shell script; the filter `quote` guards it
    )
    environment.filters["quote"] = quote
    return environment.get_template(name).render(values)


def _preparation(profile: Profile) -> dict[str, Any]:
    return {
        "time_seconds": profile.time_seconds,
        "setup": _setup(profile),
        "vendor": gpus.vendor(profile.gpu or ""),
        "scratch": profile.wrapper != "none",
        "env": {**environment.torch_home(profile.env), **profile.env},
    }


def _job(profile: Profile, submission: SubmissionDir, tasks: int) -> dict[str, Any]:
    folder = str(submission.path.absolute())
    return {
        "options": [
            ("--job-name", f"hpcsweep-{submission.sweep_dir.name}"),
            ("--chdir", folder),
            ("--array", array_range(profile, tasks)),
            ("--output", output(submission)),
            ("--open-mode", "append"),
            ("--signal", f"B:USR1@{profile.signal_lead}"),
            *profile_wants.own_options(profile),
        ],
        "more": ["--requeue", *profile.sbatch_options],
        "python": interpreter(profile),
        "run_module": RUN_MODULE,
        "starts": "supervisor" if profile.gpus_per_job == 1 else "side_by_side",
        "gpus_per_job": profile.gpus_per_job,
        "wrapper": profile.wrapper,
        "wrapper_options": "".join(f" {quote(option)}" for option in profile.wrapper_options),
        "shards": str(submission.shards.absolute()),
        "submission": folder,
        "restarts": RESTARTS,
        "not_requeued": NOT_REQUEUED,
    }


def interpreter(profile: Profile) -> str:
    """Return the Python that runs the worker on the node."""
    if profile.python:
        return profile.python
    return "python" if profile.conda or profile.venv else sys.executable


def output(submission: SubmissionDir, pattern: str = "logs/slurm-%A_%a.out") -> str:
    """Return the pattern of logs; Slurm reads `%` in the working folder's name as one, too."""
    folder = str(submission.path.absolute())
    if "\\" in folder:
        text = "Slurm writes no logs below a folder with a backslash in its name"
        raise UsageError(f"{folder}: {text}; rename it, or choose another with --results")
    return f"{folder.replace('%', '%%')}/{pattern}" if "%" in folder else pattern


def _setup(profile: Profile) -> list[str]:
    lines = [*profile.init, *(f"module load {quote(name)}" for name in profile.modules)]
    if profile.conda:
        # An activated conda exports CONDA_EXE, also that of the submitting shell, which a node need
        # not have; otherwise `conda` must be on PATH, or be a function, by `init` or `modules`.
        lines += [
            '[ -x "${CONDA_EXE:-}" ] || CONDA_EXE=conda',
            'hook=$("$CONDA_EXE" shell.bash hook) && eval "$hook"',
            f"conda activate {quote(profile.conda)}",
        ]
    if profile.venv:
        lines.append(f". {quote(profile.venv + '/bin/activate')}")
    return [*lines, *profile.setup]


def quote(value: object) -> str:
    """Quote a word for the shell; `ProfileError` if it has a line end."""
    text = str(value)
    if not {"\n", "\r", "\0"}.isdisjoint(text):
        raise ProfileError(f"{text!r}: a job script cannot hold a line end; rename it")
    return shlex.quote(text)
