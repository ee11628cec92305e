"""Keeps the user's own files behind networks and data sets, a folder per digest, as submitted.

What is large is not kept: a bundle takes it from where it lies, if it is still the same.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcsweep import files
from hpcsweep.sources import is_digest

if TYPE_CHECKING:
    from hpcsweep.sources import Sources
    from hpcsweep.store.folders import SweepDir

_MOST: Final = 16 << 20  # bytes of one digest: code is smaller, weights are not


def keep(sweep_dir: SweepDir, seen: Sources, axis: str, value: str) -> None:
    """Keep the files that an axis names; the caller holds the lock of the sweep's folder."""
    own = seen.files(axis, value)
    to = sweep_dir.own_files / seen.digest(axis, value)
    if not own or to.exists() or sum(path.stat().st_size for path in own.values()) > _MOST:
        return
    to.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=".") as aside:
        for place, path in own.items():
            copy = Path(aside, to.name, place)
            copy.parent.mkdir(parents=True, exist_ok=True)
            # a password beside the code is as private as it was, though the results are shared
            with files.open_regular(path) as file, files.making(copy, files.reach(path)) as made:
                shutil.copyfileobj(file, made)
        Path(aside, to.name).rename(to)


def kept(sweep_dir: SweepDir, digest: str) -> dict[str, Path]:
    """Return the files that were kept under the digest of a row, by their places.

    None for a text that is no digest, and would lead elsewhere. `ResultsError` where one is a link.
    """
    root = sweep_dir.own_files.parent
    found = listed(sweep_dir.own_files / digest) if is_digest(digest) else {}
    for path in found.values():
        files.refuse_links(root, *path.relative_to(root).parts)
    return found


def listed(folder: Path) -> dict[str, Path]:
    """Return the files below a folder, by their places in it; none if there is no folder."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path for path in found}
