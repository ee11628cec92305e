"""Finds processes by a variable of their environment, and gives supervisors other workers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import leaving


def marked(variable: str) -> list[str]:
    """Return the processes that have a variable, as NAME=value."""
    found = list[str]()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended
            found += [path.parent.name] if variable.encode() in path.read_bytes() else []
    return found


def patched(folder: Path) -> str:
    """Return a path whose `sitecustomize` gives supervisors the worker of `leaving`."""
    support = Path(leaving.__file__).parent
    (folder / "sitecustomize.py").write_text(
        f"import sys; sys.path.append({str(support)!r})\n"
        "from hpcsweep import processes\nimport leaving\nprocesses.python = leaving.worker\n"
    )
    return str(folder)
