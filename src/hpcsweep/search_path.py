"""Where the networks, data sets and files of the user's own are looked for, here and in a job.

A sweep names them without a machine's path: `mymodel:net`, `weights: w.pt`. `submit` keeps the
folders in the manifest. Whoever measures a point calls `use` with them, so that a job in Slurm, a
worker here, the rehearsal and `verify` find the same.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

_PASSWORD: Final = re.compile(r"\w+://\S*@[^:]*")  # a URL, up to its host; it is no folder
# in these folders, too, code is not the user's own
_OTHERS: Final = re.compile(f"site-packages|{re.escape(str(Path(__file__).parent))}")
_FILE_SUFFIXES: Final = (".pt", ".pth", ".bin")
_in_use: list[str] = []  # as `sys.path`, it belongs to the process


def beside(sweep_file: Path) -> tuple[str, ...]:
    """Return where the names of a sweep file are looked for: its folder, this one, PYTHONPATH."""
    named = filter(None, _PASSWORD.sub("", os.environ.get("PYTHONPATH", "")).split(os.pathsep))
    folders = [sweep_file.parent, Path(), *map(Path, named)]
    return tuple(dict.fromkeys(str(folder.absolute()) for folder in folders))


def use(folders: Sequence[str]) -> None:
    """Look in these folders from now on, for modules after all other places."""
    _in_use[:] = folders
    if folders and sys.path and sys.path[0] in {"", str(Path.cwd())}:
        del sys.path[0]  # `python -m` looks there first, and a job has another one
    sys.path += [folder for folder in folders if folder not in sys.path]


def in_use() -> tuple[str, ...]:
    """Return the folders that this process looks in."""
    return tuple(_in_use)


def own_line(error: BaseException) -> str:
    """Return the innermost line of the user's own code in an error's trace; empty without one."""
    own = [
        f"{at.filename}:{at.lineno}"
        for at in traceback.extract_tb(error.__traceback__)
        if at.filename.startswith(in_use()) and not _OTHERS.search(at.filename)
    ]
    return own[-1] if own else ""


def file(name: str, folders: Iterable[str] | None = None) -> Path:
    """Return the first such file in the folders (those in use), else where the name would be."""
    path = Path(name).expanduser()
    places = [Path(folder) / path for folder in (_in_use if folders is None else folders)]
    return next((place for place in places if place.is_file()), places[0] if places else path)


def is_file(weights: str) -> bool:
    """Say whether weights are a file, and no name."""
    return "/" in weights or weights.endswith(_FILE_SUFFIXES)


def programs(path: str | None = None) -> str:
    """Return PATH, or another one, with the folder of this Python last: it has a `python`."""
    path = os.environ.get("PATH", os.defpath) if path is None else path
    return f"{path}{os.pathsep}{Path(sys.executable).parent}"


def torch_home(env: Mapping[str, str]) -> dict[str, str]:
    """Return TORCH_HOME as a job with these variables has it; empty: it is the user's own."""
    if home := env.get("TORCH_HOME") or os.environ.get("TORCH_HOME"):
        return {"TORCH_HOME": home}
    cache = env.get("XDG_CACHE_HOME") or os.environ.get("XDG_CACHE_HOME")
    return {"TORCH_HOME": f"{cache}/torch"} if cache else {}
