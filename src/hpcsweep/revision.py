"""The version with its commit, between releases: so rows of two revisions are told apart.

The build of a wheel runs this file, too: the version of the wheel keeps the commit.
"""

from __future__ import annotations

import subprocess
from functools import lru_cache
from pathlib import Path

from hpcsweep import __version__


@lru_cache
def revision() -> str:
    """Return the version, from a checkout between releases with its commit: 0.1.0+g1a2b3c4.

    Git is asked at the first call, so that no import waits for it.
    """
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return _of_the_wheel()
    command = ["git", "describe", "--tags", "--always", "--long", "--dirty", "--abbrev=7"]
    command.append(f"--match=v{__version__}")
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return __version__
    at, dirty, _ = done.stdout.strip().partition("-dirty")
    if at.startswith(f"v{__version__}-0-") and not dirty:
        return __version__
    return f"{__version__}+g{at.rpartition('-g')[2]}{'.dirty' * bool(dirty)}"


def _of_the_wheel() -> str:
    from importlib import metadata  # noqa: PLC0415 - 20 ms

    try:
        version = metadata.version("hpcsweep")
    except metadata.PackageNotFoundError:
        return __version__
    return version if version.startswith(f"{__version__}+") else __version__
