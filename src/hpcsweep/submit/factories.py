"""What of the user's own a sweep names: factories and files.

A login node may lack torch, so nothing of a factory runs here: its module is found as an import
would find it, and its source is read, whether it has the name.
"""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from hpcsweep import search_path, sources
from hpcsweep.errors import suggest
from hpcsweep.spec.space import Sweep

# a module with one of these may have names that its source does not show
_MAKE_NAMES: Final = re.compile(r"import \*|\b(?:__getattr__|exec|globals|locals|setattr|vars)\b")


def is_factory(name: str | None) -> bool:
    """Say whether a value of an axis is `package.module:factory`."""
    return name is not None and ":" in name


def named(sweep: Sweep, axis: str) -> Iterator[str]:
    """Yield the values of an axis, each once; none where the workload has no such axis.

    Where all points are those of `include`, the axes themselves name nothing.
    """
    if axis in sweep.space.defaults:
        yield from (value for value in dict.fromkeys(sweep.values(axis)) if value is not None)


def files_of(sweep: Sweep) -> dict[str, list[str]]:
    """Return the files that a sweep names, by the key under which it does."""
    resumed = sweep.measure.get("resume_from")
    return {
        "weights": [name for name in named(sweep, "weights") if search_path.is_file(name)],
        "resume_from": [resumed] if resumed else [],
    }


def problem(name: str, folders: Sequence[str]) -> tuple[str, bool]:
    """Return what is wrong with a factory, "" for nothing, and whether that is sure.

    The job's Python may have a module that is not here.
    """
    module, _, attribute = name.partition(":")
    spec = sources.Sources(folders).spec(module)
    if spec is None:
        where = f"in {' or '.join(folders)}, or where Python looks"
        known = [found.name for found in pkgutil.iter_modules(folders)]
        return f"no module '{module}' {where}{suggest(module, known)}", False
    source = Path(spec.origin or "")
    if source.suffix != ".py" or not source.is_file():  # it is compiled, or a namespace
        return "", True
    try:
        ast.parse(source.read_bytes())
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        return f"{source}{line}: is not Python: {error}", True
    text = source.read_text(errors="replace")
    words = {*re.findall(r"\w+", text)}
    if attribute in words or _MAKE_NAMES.search(text):
        return "", True
    return f"{source} has no '{attribute}'{suggest(attribute, words)}", True
