"""Checks this machine, its Python environment and a profile, with advice for each failure.

Nothing here imports torch. With `deep`, another process imports it, so that a broken installation
is a finding and not a crash.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from hpcsweep import environment, extras, files
from hpcsweep.catalog import gpus
from hpcsweep.cluster import slurm
from hpcsweep.cluster.local import this_machine
from hpcsweep.cluster.local.this_machine import LocalDevice
from hpcsweep.cluster.slurm import profile_checks, profile_wants
from hpcsweep.cluster.slurm.profile_wants import ProfileFinding, Wants
from hpcsweep.spec.profile import Profile
from hpcsweep.text import aligned

# With less, a sweep may end on a full disk: samples grow with its points and their passes.
_MIN_FREE_GB: Final = 1.0
# An image of Apptainer or of enroot.
_IMAGE: Final = re.compile(r"[\w./~-]+\.(?:sif|sqsh)\b")
# Bytes that are read of what may be a script: wrappers of a container are short, interpreters long
_SCRIPT: Final = 1 << 16
_PROPERTIES: Final = "hpcsweep.conv.libraries.cudnn_plans"
# The class of an exception, before its words, in the last line of a trace.
_CLASS: Final = re.compile(r"^(?:\w+\.)+\w+: ")


def as_text(findings: Sequence[ProfileFinding]) -> str:
    """Return one line per finding, and a second one where there is something to do."""
    rows = []
    for finding in findings:
        place = f" ({finding.where})" if finding.where and finding.level != "ok" else ""
        rows.append((f"{finding.level:<4}", finding.what, f"{finding.detail}{place}"))
        if finding.do:
            rows.append(("", "", f"-> {finding.do}"))
    return "\n".join(aligned(rows))


def writable(results: Path) -> ProfileFinding:
    """Check that results can be written, by writing a file into the nearest folder that exists."""
    folders = (results, *results.absolute().parents)
    folder = next(folder for folder in folders if folder.exists())
    try:
        _write_in(folder)
    except OSError as error:
        do = "choose another folder with --results, or free disk space"
        return ProfileFinding("fail", "results", f"{folder}: {error.strerror or error}", do)
    free = shutil.disk_usage(folder).free / 1e9
    if free < _MIN_FREE_GB:
        return ProfileFinding(
            "warn", "results", f"{folder}: only {free:.2f} GB free", "free disk space"
        )
    return ProfileFinding("ok", "results", f"{folder.resolve()}: writable, {free:.0f} GB free")


def logs(wants: Wants, submission: Path | None = None) -> Iterator[ProfileFinding]:
    """Check the folders of `--output` and `--error`: if one is missing, a job fails without a log.

    Relative paths begin at the submission's folder, which has a folder `logs`.
    """
    for key in ("output", "error"):
        folder = Path(wants[key]).expanduser().parent
        if not wants[key] or "%" in str(folder) or str(folder) in {".", "logs"}:
            continue
        if not folder.is_absolute():
            folder = (submission or Path()) / folder
        try:
            _write_in(folder)
        except OSError as error:
            detail = f"{folder}: {error.strerror or error}; the job would fail without a log"
            do = f"create the folder, or remove --{key}: the submission has a folder for logs"
            yield ProfileFinding("fail", "logs", detail, do, wants.places.get(key, ""))


def paths(profile: Profile, *, in_job: bool) -> Iterator[ProfileFinding]:
    """Check the files that the profile's jobs need: environment, interpreter, image, data.

    Another machine, such as a login node, may lack what the nodes have; in a job of this profile
    they have to be there.
    """
    wanted = [
        ("venv", profile.venv and f"{profile.venv}/bin/activate"),
        ("python", profile.python),
        *(("python", image) for image in _images(profile.python or "")),
        ("env", profile.env.get(environment.DATA) or os.environ.get(environment.DATA)),
    ]
    for key, path in wanted:
        if path and path.startswith("/") and not Path(path).exists():
            detail = f"{path} is not there" if in_job else f"{path} is not on this machine"
            look = f"look on a node: hpcsweep doctor --cluster {profile.name} --on-node"
            do = f"correct `{key}`, or create it" + ("" if in_job else f"; {look}")
            yield ProfileFinding("fail" if in_job else "warn", key, detail, do, profile.where(key))


def _images(script: str) -> list[str]:
    """Return the container images that a script names; of another program, none."""
    with suppress(OSError):
        with Path(script).open("rb") as file:
            text = file.read(_SCRIPT)
        if text.startswith(b"#!"):
            folder = str(Path(script).parent).encode()
            script = text.replace(b'$(dirname "$0")', folder).decode(errors="replace")
            return _IMAGE.findall(script)
    return []


def _gpu(profile: Profile) -> Iterator[ProfileFinding]:
    """Check that the GPU of this job, or of this machine, is the one of the profile."""
    device = this_machine.local_device()
    wanted = gpus.by_label(profile.gpu or "") or profile.gpu
    if device.gpu == wanted:
        yield ProfileFinding("ok", "gpu", device.gpu)
    elif wanted not in {"cpu", "mps"}:
        who = "job" if profile.in_slurm else "machine"
        has = "sees no GPU" if device.gpu in {"cpu", "mps"} else f"has: {device.gpu}"
        why = f" ({device.unused})" if device.unused else ""
        detail = f"this {who} {has}{why}; the profile's is {wanted}"
        correct = "correct `gres` and `constraint`" if profile.in_slurm else "correct `gpu`"
        do = f"{correct}; {device.remedy}" if device.remedy else correct
        yield ProfileFinding("fail", "gpu", detail, do, profile.where("gpu"))


def _other_cudnn(profile: Profile) -> Iterator[ProfileFinding]:
    """Warn of modules that put another cuDNN before torch's own."""
    for module in profile.modules:
        if "cudnn" in module.lower():
            detail = f"'{module}' puts another cuDNN before torch's own; torch takes no older one"
            do = "remove it: torch's packages bring their cuDNN"
            yield ProfileFinding("warn", "modules", detail, do, profile.where("modules"))


def _write_in(folder: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".hpcsweep-") as file:
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())


def examine(profile: Profile | None, results: Path, *, deep: bool = False) -> list[ProfileFinding]:
    """Check this machine, the results folder, and the profile if one is given."""
    findings = [ProfileFinding("ok", "python", f"{platform.python_version()} at {sys.executable}")]
    sends = slurm.available() if profile is None else profile.in_slurm
    jobs_have_own = sends and profile is not None and profile.own_python
    findings += _packages({"measure", "nvidia"} if jobs_have_own else set())
    findings.append(writable(results))
    if not sends:
        findings.append(_device(this_machine.local_device()))
        busy = this_machine.busy()
        if busy:
            findings.append(ProfileFinding("warn", "load", busy))
    if deep:
        findings += _torch()
    if profile is not None:
        findings += [*_profile(profile), *_properties(profile)]
    return findings


def _device(device: LocalDevice) -> ProfileFinding:
    """Tell what is measured here, and which GPU is not."""
    if device.unused:
        return ProfileFinding(
            "warn", "device", f"sweeps run on the CPU: {device.unused}", device.remedy
        )
    name = "no GPU here: sweeps rehearse on the CPU" if device.gpu == "cpu" else device.gpu
    return ProfileFinding("ok", "device", name)


def _properties(profile: Profile) -> Iterator[ProfileFinding]:
    """On a GPU of the profile, write the device's properties by libcudnn beside the profile."""
    if profile.gpu in {"cpu", "mps"} or this_machine.local_device().gpu != profile.gpu:
        return
    printed, error = _run_module(_PROPERTIES)
    if error:
        do = "`expand --support` takes those of data sheets, where they are typed"
        yield ProfileFinding("warn", "properties", f"cuDNN does not tell the device's: {error}", do)
        return
    files.write_json(profile.device_file, json.loads(printed))
    yield ProfileFinding("ok", "properties", f"of this device: written to {profile.device_file}")


def _packages(of_jobs: set[str]) -> Iterator[ProfileFinding]:
    """Report the installed extras in one line, and the use of each missing one.

    Those `of_jobs` are not needed here: jobs have a Python of their own.
    """
    installed = []
    findings = []
    for name in extras.EXTRAS:
        if name in of_jobs:
            continue
        lack = extras.lacking(name)
        if lack:
            detail = f"not here ({', '.join(lack)}); without it: {extras.EXTRAS[name].serves}"
            findings.append(ProfileFinding("none", f"[{name}]", detail, extras.install(name)))
        else:
            installed.append(name)
    yield ProfileFinding("ok", "extras", ", ".join(installed) or "none")
    yield from findings
    with suppress(importlib.metadata.PackageNotFoundError):
        torch, vision = map(importlib.metadata.version, ("torch", "torchvision"))
        yield ProfileFinding(
            "ok", "torch", f"torch {torch}, torchvision {vision}; --deep imports them"
        )


def _torch() -> Iterator[ProfileFinding]:
    lack = extras.lacking("measure")
    if lack:
        yield ProfileFinding(
            "fail", "torch import", f"no {lack[0]} here", extras.install("measure")
        )
        return
    printed, error = _run_module("hpcsweep.measure.machine.fit")
    if error:
        do = "install torch and torchvision together, as PyPI pairs them"
        yield ProfileFinding("fail", "torch import", error, do)
        return
    report = json.loads(printed.splitlines()[-1])
    yield ProfileFinding(
        "ok", "torch import", f"{report['threads']} threads, oneDNN {report['mkldnn']}"
    )
    if report["refused"]:
        yield ProfileFinding("fail", "gpu", report["refused"], report["do"])
    elif report["gpu"]:
        yield ProfileFinding("ok", "gpu", f"{report['gpu']}, cuDNN {report['cudnn']}")
    if report["lacking"]:
        detail = f"{report['lacking']}; {this_machine.WITHOUT_TELEMETRY}"
        yield ProfileFinding("warn", "telemetry", detail)


def _run_module(name: str) -> tuple[str, str]:
    """Run a module in another process; return its output, and the last line of an error."""
    command = [sys.executable, "-m", name]
    # torch takes minutes to load where a network file system holds it and nobody used it yet
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    lines = done.stderr.strip().splitlines() or ["no message"]
    words = _CLASS.sub("", lines[-1])
    return done.stdout, words if done.returncode else ""


def _profile(profile: Profile) -> Iterator[ProfileFinding]:
    yield ProfileFinding(
        "ok", "profile", f"{profile.name} ({profile.path}), launcher {profile.launcher}"
    )
    lack = () if profile.own_python else extras.lacking("measure")
    if lack:
        do = f"{extras.install('measure')}, or name the `python`, `venv` or `conda` of its jobs"
        detail = f"its jobs run this Python, which has no {lack[0]}: only workload noop works"
        yield ProfileFinding("warn", "python", detail, do, profile.where("python"))
    if not profile.in_slurm:
        if profile.gpu in gpus.GPUS and not profile.gpu_name:
            yield from _gpu(profile)
        return
    yield from _other_cudnn(profile)
    # In a job of hpcsweep, as `doctor --on-node` sends it. A shell in an interactive job (salloc,
    # `srun --pty`) need not be on a node of the profile: it is as good as a login node.
    in_job = {"SLURM_JOB_ID", environment.WORKLOAD} <= os.environ.keys()
    yield from paths(profile, in_job=in_job)
    if in_job:  # on a node, which need not reach Slurm
        yield from _gpu(profile)
        return
    yield from logs(profile_wants.options_of(profile))
    if not slurm.available():
        do = "run doctor on a login node of the cluster"
        yield ProfileFinding("warn", "slurm", "not checked: no sbatch on this machine's PATH", do)
        return
    yield from profile_checks.look(profile)
