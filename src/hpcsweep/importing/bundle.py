"""Unpacks a bundle, as `analysis.bundle` writes it, and checks that it is as it was written."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcsweep import files
from hpcsweep.errors import HpcsweepError, ResultsError, UsageError
from hpcsweep.store import own_files
from hpcsweep.store.folders import SUMS


def is_one(path: Path) -> bool:
    """Say whether a path is a zip file; a pipe is not read."""
    return path.is_file() and zipfile.is_zipfile(path)


@contextmanager
def unpacked(path: Path, near: Path) -> Iterator[Path]:
    """Give the results folder of a bundle; errors meanwhile name the bundle instead.

    `UsageError` where it is none, `ResultsError` with the files that differ from its checksums.
    """
    place = next(folder for folder in (near, *near.absolute().parents) if folder.is_dir())
    with tempfile.TemporaryDirectory(dir=place, prefix=".import-") as aside:
        try:
            yield _unpack(path, Path(aside))
        except HpcsweepError as error:
            raise type(error)(str(error).replace(aside, str(path))) from error


def _unpack(path: Path, aside: Path) -> Path:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
            if size > (free := shutil.disk_usage(aside).free):
                raise ResultsError(f"{path}: has {size:,} bytes, {aside.parent} room for {free:,}")
            archive.extractall(aside)
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError) as error:
        raise ResultsError(f"{path}: is damaged ({error})") from error
    folder = next((found.parent for found in aside.glob(f"*/{SUMS}")), None)
    if folder is None:
        raise UsageError(f"{path}: is no bundle of hpcsweep, which has {SUMS}")
    lines = (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines()
    wanted = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    there = {name: files.sha256(at) for name, at in own_files.listed(folder).items()}
    del there[SUMS]
    told = {
        "missing": wanted.keys() - there.keys(),
        "new": there.keys() - wanted.keys(),
        "changed": {name for name in wanted.keys() & there if wanted[name] != there[name]},
    }
    wrong = "; ".join(f"{what}: {', '.join(sorted(of))}" for what, of in told.items() if of)
    if wrong:
        raise ResultsError(f"{path}: is not as it was written ({wrong}); ask for it again")
    return folder
