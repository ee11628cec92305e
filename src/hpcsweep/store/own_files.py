"""Keeps the user's own files behind networks and data sets, a folder per digest, as submitted.

What is large is not kept: a bundle takes it from where it lies, if it is still the same.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hpcsweep.sources import Sources
    from hpcsweep.store.folders import SweepDir

_MOST: Final = 16 << 20  # bytes of one digest: code is smaller, weights are not


def keep(sweep_dir: SweepDir, seen: Sources, axis: str, value: str) -> None:
    """Keep the files that an axis names; the caller holds the lock of the sweep's folder."""
    files = seen.files(axis, value)
    to = sweep_dir.own_files / seen.digest(axis, value)
    if not files or to.exists() or sum(path.stat().st_size for path in files.values()) > _MOST:
        return
    to.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=".") as aside:
        for place, path in files.items():
            copy = Path(aside, to.name, place)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        Path(aside, to.name).rename(to)


def listed(folder: Path) -> dict[str, Path]:
    """Return the files below a folder, by their places in it; none if there is no folder."""
    return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
