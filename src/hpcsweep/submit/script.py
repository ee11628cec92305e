"""Renders a profile and a submission to the text of an sbatch script, through Jinja2.

Nothing in a profile can break out of its place: options and words of the shell are quoted, a line
end is refused, and a name that the template misspells is an error. Folder and range of the array
are in the call of sbatch, so that one script serves every array of a submission.
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any, Final

import jinja2

from hpcsweep.catalog import gpus
from hpcsweep.errors import ProfileError
from hpcsweep.spec import lookup

if TYPE_CHECKING:
    from hpcsweep.spec.profile import Profile
    from hpcsweep.store.rundir import SubmissionDir

__all__ = ["encoded", "interpreter", "quote", "render", "setup"]

TEMPLATE: Final = "job.sbatch.j2"
SETUP: Final = "setup.sh.j2"
RESTARTS: Final = 100  # requeues of one task before it is left to a person
_KEYS: Final = {
    "partition": "--partition",
    "constraint": "--constraint",
    "gres": "--gres",
    "time": "--time",
    "mem": "--mem",
    "cpus_per_task": "--cpus-per-task",
    "nodes": "--nodes",
    "nodelist": "--nodelist",
    "exclude": "--exclude",
    "account": "--account",
    "qos": "--qos",
}


def render(profile: Profile, submission: SubmissionDir) -> str:
    """Return the script that runs a submission's chunks; `ProfileError` where it cannot be."""
    return _template(TEMPLATE).render(
        **_preparation(profile),
        options=_options(profile, submission),
        more=profile.sbatch_options,
        python=interpreter(profile),
        wrapper=profile.wrapper,
        wrapper_options="".join(f" {quote(option)}" for option in profile.wrapper_options),
        shards=str(submission.shards.absolute()),
        submission=str(submission.path.absolute()),
        restarts=RESTARTS,
    )


def encoded(text: str) -> bytes:
    """Return a script as it is written; names of folders need not be UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def setup(profile: Profile) -> str:
    """Return the part of the script that prepares the environment of the worker."""
    return _template(SETUP).render(**_preparation(profile))


def _template(name: str) -> jinja2.Template:
    folders = [str(folder) for folder in lookup.folders(lookup.TEMPLATES)]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - a shell script; the filter `quote` guards it
    )
    environment.filters["quote"] = quote
    return environment.get_template(name)


def _preparation(profile: Profile) -> dict[str, Any]:
    vendor = gpus.vendor(profile.gpu or "")
    return {
        "time_seconds": profile.time_seconds,
        "setup": _setup(profile),
        "vendor": vendor,
        "scratch": vendor == "amd" or profile.wrapper != "none",
        "env": profile.env,
    }


def interpreter(profile: Profile) -> str:
    """Return the Python that runs the worker on the node."""
    if profile.python:
        return profile.python
    return "python" if profile.conda or profile.venv else sys.executable


def _options(profile: Profile, submission: SubmissionDir) -> list[tuple[str, str]]:
    own = [(option, getattr(profile, key)) for key, option in _KEYS.items()]
    fixed = [
        ("--job-name", f"hpcsweep-{submission.run.name}"),
        ("--output", "logs/slurm-%A_%a.out"),
        ("--open-mode", "append"),
        ("--signal", f"B:USR1@{profile.signal_lead}"),
    ]
    return [*fixed, *((name, str(value)) for name, value in own if value is not None)]


def _setup(profile: Profile) -> list[str]:
    lines = [f"module load {quote(name)}" for name in profile.modules]
    if profile.conda:
        # An activated conda exports CONDA_EXE; without it, conda has to be on PATH.
        lines += [
            'hook=$("${CONDA_EXE:-conda}" shell.bash hook) && eval "$hook"',
            f"conda activate {quote(profile.conda)}",
        ]
    if profile.venv:
        lines.append(f". {quote(profile.venv + '/bin/activate')}")
    return [*lines, *profile.setup]


def quote(value: object) -> str:
    """Return a word of the shell; `ProfileError` where it has a line end."""
    text = str(value)
    if not {"\n", "\r", "\0"}.isdisjoint(text):
        raise ProfileError(f"{text!r}: a line end cannot go into a job script; rename it")
    return shlex.quote(text)
