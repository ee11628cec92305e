"""Writes a file that a user names, such as a picture, a page or a bundle; not the files of results.

Such a file replaces what is not there, is empty, or was written as the same kind of output, and
nothing else; and nothing of a results folder. Each kind tells its own files by a mark inside of
them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from hpcsweep import files
from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.store import folders

IsOurs = Callable[[bytes], bool]  # tells by its bytes whether a file is an earlier output

# bytes that are read of a file to look for the mark: bundles have it at their end, and one that is
# larger than 256 MiB is rather kept than read into the memory of a login node
_MOST_READ: Final = 1 << 28
# what lies in the folder of a sweep: none of it may be replaced, whether it is there or not
_OF_A_SWEEP: Final = frozenset({
    "sweep.yaml", "layout.json", "nodes.json", "until.json", "overall.csv", "details.csv",
    "layers.csv", "samples.csv", "overall.parquet", "layers.parquet", "samples.parquet",
})  # fmt: skip


def check(path: Path, is_ours: IsOurs) -> Path | None:
    """Return the file to write, None for a device or a pipe; refuse to replace another's file.

    `UsageError` where it is another's file, a folder, or belongs to results.
    """
    with suppress(OSError):
        if _is_stream(path.stat()):
            return None
    real = Path(os.path.realpath(path))
    if real.is_dir():
        raise UsageError(f"{path}: is a folder; name a file in it, such as {path / 'NAME'}")
    if not real.parent.is_dir():
        raise UsageError(f"{path}: No such file or directory: there is no folder {path.parent}")
    if holds_results(real):
        raise UsageError(f"{path}: belongs to the results; choose a place outside of them")
    if real.exists() and not _may_go(real, is_ours):
        text = "exists, and hpcsweep did not write it as this output, or it was edited since"
        raise UsageError(f"{path}: {text}; remove it, or choose another name")
    return real


def holds_results(path: Path) -> bool:
    """Say whether a resolved path belongs to a results folder, on file systems without case too."""
    for folder in path.parents[:-1]:
        if not folders.is_results(folder.parent):
            continue
        for name in ("submissions", "shards"):
            with suppress(OSError):
                if folder.samefile(folder.parent / name):
                    return True
    own = path.name.startswith(".") or path.name.casefold() in _OF_A_SWEEP
    return own and folders.is_results(path.parent)


def _is_stream(state: os.stat_result) -> bool:
    """Say whether a path is a pipe or a terminal, or what stdout or stderr go to."""
    if stat.S_ISREG(state.st_mode):
        with suppress(OSError):  # closed
            return any(os.path.samestat(state, os.fstat(number)) for number in (1, 2))
    return stat.S_ISCHR(state.st_mode) or stat.S_ISFIFO(state.st_mode)


def _may_go(path: Path, is_ours: IsOurs) -> bool:
    try:
        with files.opened(path, most=_MOST_READ) as file:
            text = file.read()  # of a number of bytes Python would reserve all
    except ResultsError:
        return False
    return not text or is_ours(text)


@contextmanager
def writing(path: Path, is_ours: IsOurs, *, most: int = 0o666) -> Iterator[IO[bytes]]:
    """Write a file that a user names, whole or not at all; `UsageError` where `check` refuses.

    It gets no rights beyond `most`.
    """
    real = check(path, is_ours)
    try:
        with path.open("ab") if real is None else files.replacing(real, most=most) as file:
            yield file
    except (OSError, ResultsError) as error:
        cause = error.__cause__ if isinstance(error, ResultsError) else error
        raise UsageError(f"{path}: {getattr(cause, 'strerror', None) or error}") from error
