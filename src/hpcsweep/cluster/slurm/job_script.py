"""Renders the job script of a submission from its profile, with Jinja2.

All values of a profile are quoted for the shell, and a line end in one is refused. A misspelt name
in a template is an error. The call of sbatch names the folder and the range of the array, so one
script serves all arrays of a submission.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Any, Final

import jinja2

from hpcsweep import search_path
from hpcsweep.catalog import LAUNCHERS, gpus
from hpcsweep.cluster.slurm import job_request
from hpcsweep.cluster.slurm.sbatch import RESTARTS
from hpcsweep.errors import ProfileError, UsageError
from hpcsweep.processes import RUN_MODULE
from hpcsweep.spec import lookup
from hpcsweep.spec.profile import Profile
from hpcsweep.store.folders import SubmissionDir

_JOB: Final = LAUNCHERS["sbatch"].template
_SETUP: Final = LAUNCHERS["submitit"].template


def render(profile: Profile, submission: SubmissionDir) -> str:
    """Return the job script; raise where a value cannot be in it, or Slurm could write no log."""
    return _render(_JOB, {**_preparation(profile), **_job(profile, submission)})


def encoded(text: str) -> bytes:
    """Encode a script; names of folders need not be UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def setup(profile: Profile) -> str:
    """Return the part of the script that prepares the worker's environment."""
    return _render(_SETUP, _preparation(profile))


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
        "env": {**search_path.torch_home(profile.env), **profile.env},
    }


def _job(profile: Profile, submission: SubmissionDir) -> dict[str, Any]:
    return {
        "options": _options(profile, submission),
        "more": profile.sbatch_options,
        "python": interpreter(profile),
        "run_module": RUN_MODULE,
        "wrapper": profile.wrapper,
        "wrapper_options": "".join(f" {quote(option)}" for option in profile.wrapper_options),
        "shards": str(submission.shards.absolute()),
        "submission": str(submission.path.absolute()),
        "restarts": RESTARTS,
    }


def interpreter(profile: Profile) -> str:
    """Return the Python that runs the worker on the node."""
    if profile.python:
        return profile.python
    return "python" if profile.conda or profile.venv else sys.executable


def _options(profile: Profile, submission: SubmissionDir) -> list[tuple[str, str]]:
    fixed = [
        ("--job-name", f"hpcsweep-{submission.sweep_dir.name}"),
        ("--output", _output(submission)),
        ("--open-mode", "append"),
        ("--signal", f"B:USR1@{profile.signal_lead}"),
    ]
    return [*fixed, *job_request.own_options(profile)]


def _output(submission: SubmissionDir) -> str:
    """Return the pattern of logs; Slurm reads `%` in the working folder's name as one, too."""
    folder = str(submission.path.absolute())
    pattern = "logs/slurm-%A_%a.out"
    if "\\" in folder:
        text = "Slurm writes no logs below a folder with a backslash in its name"
        raise UsageError(f"{folder}: {text}; rename it, or choose another with --results")
    return f"{folder.replace('%', '%%')}/{pattern}" if "%" in folder else pattern


def _setup(profile: Profile) -> list[str]:
    lines = [f"module load {quote(name)}" for name in profile.modules]
    if profile.conda:
        # An activated conda exports CONDA_EXE; otherwise conda must be on PATH.
        lines += [
            'hook=$("${CONDA_EXE:-conda}" shell.bash hook) && eval "$hook"',
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
