"""Is this machine, this environment and this profile fit? Says what is wrong and what to do.

Nothing here imports torch: with `deep`, a process of its own does, so that a broken installation
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
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from hpcsweep import devices, slurm
from hpcsweep.errors import suggest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hpcsweep.profile import Profile

Level = Literal["ok", "warn", "fail"]

_MIN_FREE_GB: Final = 1.0
_NEEDED: Final = ("torch", "torchvision", "pandas", "pydantic", "jinja2", "filelock")
_BINARY: Final = re.compile(r"sm_(\d+)[a-z]?")
_TORCH_PIN: Final = re.compile(r"torch ?\(?==\s*([^;) ]+)\)?.*")
_DEEP: Final = """
import json, torch, torchvision
cuda = torch.cuda.is_available()
print(json.dumps({
    "torch": torch.__version__, "torchvision": torchvision.__version__,
    "device": torch.cuda.get_device_name() if cuda else "",
    "capability": list(torch.cuda.get_device_capability()) if cuda else [],
    "archs": torch.cuda.get_arch_list(), "cudnn": torch.backends.cudnn.version() if cuda else None,
    "mkldnn": torch.backends.mkldnn.is_available(), "threads": torch.get_num_threads(),
}))
"""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: how it is, and what to do where it is not well."""

    level: Level
    what: str
    detail: str
    do: str = ""


def examine(profile: Profile | None, results: Path, *, deep: bool = False) -> list[Finding]:
    """Look at this machine, the results folder, and the profile if one is given."""
    findings = [_python(), *_packages(), _disk(results), _load(), _device()]
    if deep:
        findings += _torch()
    if profile is not None:
        findings += _profile(profile)
    return findings


def text(findings: Sequence[Finding]) -> str:
    """Return one line per finding, and a second one where there is something to do."""
    width = max(len(finding.what) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:<4}  {finding.what:<{width}}  {finding.detail}")
        if finding.do:
            lines.append(f"{'':<4}  {'':<{width}}  -> {finding.do}")
    return "\n".join(lines)


def to_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return the plain records."""
    return [asdict(finding) for finding in findings]


def _python() -> Finding:
    version = platform.python_version()
    return Finding("ok", "python", f"{version} at {sys.executable}")


def _packages() -> Iterator[Finding]:
    versions = {name: _version(name) for name in _NEEDED}
    for name, version in versions.items():
        if version is None:
            yield Finding("fail", name, "not installed here", f"pip install {name}")
    if versions["torch"] and versions["torchvision"]:
        yield _pairing(versions["torch"], versions["torchvision"])


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _pairing(torch: str, vision: str) -> Finding:
    """Check torch against the release that torchvision itself asks for."""
    wanted = [
        _TORCH_PIN.fullmatch(line) for line in importlib.metadata.requires("torchvision") or ()
    ]
    pins = [match[1] for match in wanted if match]
    detail = f"torch {torch}, torchvision {vision}"
    if pins and torch.split("+", maxsplit=1)[0] != pins[0].split("+")[0]:
        do = f"install the two together: torchvision {vision} goes with torch {pins[0]}"
        return Finding("fail", "torch", f"{detail} are not of one release", do)
    return Finding("ok", "torch", detail)


def _disk(results: Path) -> Finding:
    """Check that results can be written, by writing."""
    folder = next(path for path in (results, *results.absolute().parents) if path.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".hpcsweep-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        do = "choose another folder with --results, or ask for room"
        return Finding("fail", "results", f"{folder}: {error.strerror or error}", do)
    free = shutil.disk_usage(folder).free / 1e9
    if free < _MIN_FREE_GB:
        return Finding("warn", "results", f"{folder}: only {free:.2f} GB free", "make room")
    return Finding("ok", "results", f"{folder.resolve()}: writable, {free:.0f} GB free")


def _load() -> Finding:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    detail = f"load {load:.2f} on {cores} cores"
    if load > 0.5 * cores:
        do = "CPU timings taken now are doubtful; wait until the machine is quiet"
        return Finding("warn", "load", detail, do)
    return Finding("ok", "load", detail)


def _device() -> Finding:
    name = devices.local_device()
    detail = "no GPU here: sweeps rehearse on the CPU" if name == "cpu" else name
    return Finding("ok", "device", detail)


def _torch() -> Iterator[Finding]:
    """Import torch in a process of its own and say what it sees."""
    done = subprocess.run(
        [sys.executable, "-c", _DEEP], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["no message"])[-1]
        do = "install torch and torchvision together, as PyPI pairs them"
        yield Finding("fail", "torch import", words, do)
        return
    seen = json.loads(done.stdout.splitlines()[-1])
    yield Finding("ok", "torch import", f"{seen['threads']} threads, oneDNN {seen['mkldnn']}")
    if seen["device"]:
        yield _gpu_code(seen)


def _gpu_code(seen: dict[str, Any]) -> Finding:
    """Check that this torch has code for the GPU: binaries serve their own major, minor and up."""
    major, minor = seen["capability"]
    matches = filter(None, (_BINARY.fullmatch(arch) for arch in seen["archs"]))
    known = [divmod(int(match[1]), 10) for match in matches]
    fits = any(theirs == major and least <= minor for theirs, least in known)
    code = f"sm_{major}{minor}"
    detail = f"{seen['device']} ({code}), cuDNN {seen['cudnn']}, code for {' '.join(seen['archs'])}"
    if not fits:
        do = "install a torch build that has code for this GPU (V100 needs CUDA 12.6 or older)"
        return Finding("fail", "gpu", detail, do)
    return Finding("ok", "gpu", detail)


def _profile(profile: Profile) -> Iterator[Finding]:
    """Check a profile against this machine, or against the cluster that Slurm shows."""
    yield Finding("ok", "profile", f"{profile.name} ({profile.path}), launcher {profile.launcher}")
    if profile.launcher == "local":
        return
    if not slurm.available():
        do = "run doctor on a login node of the cluster"
        yield Finding("fail", "slurm", "no sbatch on this machine's PATH", do)
        return
    yield from _against_cluster(profile)


def _against_cluster(profile: Profile) -> Iterator[Finding]:
    """Compare partition, constraint, GRES and limits with what the cluster has."""
    partitions, nodes = slurm.partitions(), slurm.nodes()
    if isinstance(partitions, slurm.CouldNotAsk) or isinstance(nodes, slurm.CouldNotAsk):
        told = partitions if isinstance(partitions, slurm.CouldNotAsk) else nodes
        yield Finding("warn", "slurm", str(told), "ask again when the controller answers")
        return
    names = {partition.name: partition for partition in partitions}
    if profile.partition and profile.partition not in names:
        yield _unknown("partition", profile.partition, names)
    features = {feature for node in nodes for feature in node.features}
    if profile.constraint and profile.constraint.isidentifier():
        known = profile.constraint in features
        yield (
            _known("constraint", profile.constraint)
            if known
            else _unknown("constraint", profile.constraint, features)
        )
    limit = names[profile.partition].max_time_s if profile.partition in names else None
    if limit and profile.time_seconds and profile.time_seconds > limit:
        detail = f"{profile.time} is over the partition's limit of {limit // 60} minutes"
        yield Finding("fail", "time", detail, "Slurm would take it and never run it: lower `time`")
    most = max((node.cpus for node in nodes), default=0)
    if profile.cpus_per_task and most and profile.cpus_per_task > most:
        detail = f"{profile.cpus_per_task} CPUs; the largest node has {most}"
        yield Finding("fail", "cpus_per_task", detail, "lower `cpus_per_task`")


def _known(key: str, value: str) -> Finding:
    return Finding("ok", key, value)


def _unknown(key: str, value: str, known: Any) -> Finding:  # noqa: ANN401 - any names

    have = ", ".join(sorted(known))
    return Finding(
        "fail", key, f"no '{value}' on this cluster{suggest(value, known)}", f"one of: {have}"
    )
