"""Checks whether results and logs can be written, and whether compute nodes will see them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hpcsweep.preflight.findings import Finding
from hpcsweep.preflight.request import Wants

_MIN_FREE_GB: Final = 1.0
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_OF_ONE_MACHINE: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay"})
_TEMPORARY: Final = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108 - only compared
_ELSEWHERE: Final = "choose a folder that every node mounts, with --results or HPCSWEEP_RESULTS"


def writable(results: Path) -> Finding:
    """Check that results can be written, by writing a file."""
    folder = _existing(results)
    try:
        _write_in(folder)
    except OSError as error:
        do = "choose another folder with --results, or free disk space"
        return Finding("fail", "results", f"{folder}: {error.strerror or error}", do)
    free = shutil.disk_usage(folder).free / 1e9
    if free < _MIN_FREE_GB:
        return Finding("warn", "results", f"{folder}: only {free:.2f} GB free", "free disk space")
    return Finding("ok", "results", f"{folder.resolve()}: writable, {free:.0f} GB free")


def shared(results: Path) -> Finding:
    """Say whether compute nodes will see the results, judging by the type of file system."""
    folder = _existing(results).resolve()
    kind = _file_system(folder)
    if kind in _IN_MEMORY or folder.is_relative_to("/dev/shm"):  # noqa: S108
        detail = f"{folder} is on {kind}, in the memory of this machine"
        return Finding("warn", "sharing", detail, _ELSEWHERE)
    if kind not in _OF_ONE_MACHINE:
        return Finding("ok", "sharing", f"{folder} is on {kind or 'an unknown file system'}")
    if any(folder.is_relative_to(name) for name in _TEMPORARY):
        detail = f"{folder} is a temporary folder on {kind}; each node has its own"
        return Finding("warn", "sharing", detail, _ELSEWHERE)
    detail = f"{folder} is on {kind}, a disk of this machine; do the nodes mount it?"
    return Finding("warn", "sharing", detail, f"if not, {_ELSEWHERE}")


def logs(wants: Wants, submission: Path | None = None) -> Iterator[Finding]:
    """Check the folders of `--output` and `--error`: if one is missing, a job fails without a log.

    They are relative to the submission's folder, which has a folder `logs`.
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
            yield Finding("fail", "logs", detail, do, wants.places.get(key, ""))


def _existing(path: Path) -> Path:
    """Return a path, or the nearest folder above it that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists())


def _write_in(folder: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".hpcsweep-") as file:
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())


def _file_system(folder: Path) -> str:
    """Return the type of a folder's file system by findmnt (util-linux); empty if unknown."""
    command = ["findmnt", "--noheadings", "--output", "FSTYPE", "--target", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout.split() or [""])[-1]
