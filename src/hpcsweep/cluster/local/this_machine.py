"""Finds the device of this machine without torch, which a login node may not have."""

from __future__ import annotations

import os
import platform
import re
import subprocess

from hpcsweep.catalog import gpus
from hpcsweep.text import count

_QUERIES = (
    ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"),
    ("rocm-smi", "--showproductname", "--csv"),
)


def local_device() -> str:
    """Return the catalogue's name of this machine's GPU, else `mps` or `cpu`."""
    apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    return next(filter(None, map(_first_gpu, _QUERIES)), "mps" if apple else "cpu")


def busy() -> str:
    """Return a warning if other programs use the cores that are about to be measured, else ""."""
    load = os.getloadavg()[0]
    cores = os.cpu_count() or 1
    if load < max(0.5, cores / 2):
        return ""
    return (
        f"this machine is busy (load {load:.1f} on {count(cores, 'core')}), so times will be "
        "noisy; stop other programs, or measure on a node of your own"
    )


def _first_gpu(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    for line in lines:
        for short in gpus.GPUS:
            if re.search(gpus.name_pattern(short), line):
                return short
    is_name = command[0] == "nvidia-smi" and lines
    return lines[0].split()[-1].lower() if is_name else ""
