"""The version, which stands here alone; between releases with its commit.

It needs nothing of the package, so that every module may ask for it. The build of a wheel runs this
file, too: the version of the wheel keeps the commit.
"""

from __future__ import annotations

__version__ = "0.1.0"
_revision = ""  # git is asked once in a process; `functools.cache` would make its import slower


def revision() -> str:
    """Return the version, from a checkout between releases with its commit: 0.1.0+g1a2b3c4.

    Git is asked at the first call, so that no import waits for it.
    """
    global _revision  # noqa: PLW0603 - of the process, as its checkout is
    _revision = _revision or _described()
    return _revision


def take_over(revision: str) -> None:
    """Take over the revision of the process that started this one; git is asked if it is empty."""
    global _revision  # noqa: PLW0603 - as above
    _revision = revision


def _described() -> str:
    import subprocess  # noqa: PLC0415 - with it, `import hpcsweep` would take 20 ms more
    from pathlib import Path  # noqa: PLC0415

    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return _of_the_wheel()
    command = ["git", "describe", "--tags", "--always", "--long", "--dirty", "--abbrev=7"]
    command.append(f"--match=v{__version__}")
    try:  # git answers in milliseconds; on a slow disk a commit is worth no longer wait
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return __version__
    described, dirty, _ = done.stdout.strip().partition("-dirty")
    if described.startswith(f"v{__version__}-0-") and not dirty:
        return __version__
    commit = described.rpartition("-g")[2]
    return f"{__version__}+g{commit}.dirty" if dirty else f"{__version__}+g{commit}"


def _of_the_wheel() -> str:
    from importlib import metadata  # noqa: PLC0415 - 20 ms

    try:
        version = metadata.version("hpcsweep")
    except metadata.PackageNotFoundError:
        return __version__
    return version if version.startswith(f"{__version__}+") else __version__
