"""Unpacks a bundle, as `analysis.bundle` writes it, and checks that it is as it was written.

A bundle has one folder with files and their checksums, stored or deflated. Its directory is
compared with that before anything is unpacked; what is unpacked are regular files, whatever it
says.
"""

from __future__ import annotations

import errno
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hpcsweep import files
from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.importing import unpacking
from hpcsweep.store.folders import SUMS

_METHODS: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})  # bundles have no other
_MOST: Final = 1_000_000  # members; a sweep of 100,000 chunks has half of that, a disk few more
_SUMS_MOST: Final = 256 << 20  # bytes of checksums: those of as many members
_DEEPEST: Final = 32  # folders in each other, such as those of the user's own packages
_CLUSTER: Final = 4096  # bytes that the smallest file, and each folder, takes on a disk

# what `zipfile` raises; names that no disk can have held: two alike, too long, a file as a folder
_DAMAGE: Final = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, ValueError, EOFError)
_NO_NAMES: Final = frozenset({errno.EEXIST, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EINVAL})

Members = dict[str, zipfile.ZipInfo]  # by name in the bundle's folder


def is_one(path: Path) -> bool:
    """Say whether a path is a zip file; a pipe is not read."""
    return path.is_file() and zipfile.is_zipfile(path)


def name_of(path: Path) -> str:
    """Return the name of the sweep in a bundle.

    `UsageError` where it is none, `ResultsError` where it has what no bundle has.
    """
    with _opened(path) as archive:
        return _members(path, archive)[0]


def unpack(path: Path, aside: Path) -> Path:
    """Unpack a bundle into a new folder; return its results folder.

    `UsageError` where it is none; `ResultsError` with the files that differ from its checksums, or
    where it has what no bundle has.
    """
    aside.mkdir()
    with _opened(path) as archive:
        name, members = _members(path, archive)
        wanted = {}
        for line in archive.read(members.pop(SUMS)).decode("utf-8", "replace").splitlines():
            digest, _, place = line.partition("  ")
            wanted[place] = digest
        there = {}
        for place, member in members.items():
            file = Path(archive.extract(member, aside))
            rights = member.external_attr >> 16  # bundles of earlier versions have none
            if rights:
                file.chmod(file.stat().st_mode & rights)
            there[place] = files.sha256(file)
    told = []
    for what, places in (
        ("missing", wanted.keys() - there),
        ("new", there.keys() - wanted),
        ("changed", {place for place in wanted.keys() & there if wanted[place] != there[place]}),
    ):
        if places:
            told.append(f"{what}: {', '.join(sorted(places))}")
    if told:
        wrong = "; ".join(told)
        raise ResultsError(f"{path}: is not as it was written ({wrong}); ask for it again")
    return aside / name


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_NAMES:
            raise
        raise ResultsError(f"{path}: is damaged ({error})") from error


def _members(path: Path, archive: zipfile.ZipFile) -> tuple[str, Members]:
    """Return the name of a bundle's folder, and its members; nothing is unpacked yet."""
    every = [member for member in archive.infolist() if not member.filename.endswith("/")]
    sums = next((member for member in every if member.filename.endswith(f"/{SUMS}")), None)
    folder = sums.filename.removesuffix(SUMS) if sums else ""
    if folder.count("/") != 1:
        raise UsageError(f"{path}: is no bundle of hpcsweep, which has {SUMS}")
    members = {}
    for member in every:
        odd = _what_is_odd(member, folder)
        if odd:
            raise _refused(path, f"{member.orig_filename!r:.80} {odd}")
        members[member.filename.removeprefix(folder)] = member
    if len(members) < len(every):
        raise _refused(path, "two of its files have one name")
    size = 0
    for member in every:
        size += member.file_size + _CLUSTER * member.filename.count("/")
    packed = path.stat().st_size
    if size > unpacking.most(packed):
        raise _refused(path, f"its {packed:,} bytes would become {size:,}")
    if len(every) > _MOST or members[SUMS].file_size > _SUMS_MOST:
        raise _refused(path, f"it has more than {_MOST:,} files")
    return folder.removesuffix("/"), members


def _what_is_odd(member: zipfile.ZipInfo, folder: str) -> str:
    """Return what is wrong with a member by its entry in the directory, empty for nothing."""
    name = member.orig_filename  # `filename` ends at a NUL
    parts = name.split("/")
    if not {"", ".", ".."}.isdisjoint(parts) or len(parts) > _DEEPEST or not name.isprintable():
        return "is no name of a file"
    if not name.startswith(folder):
        return f"is outside of {folder}"
    if member.compress_type not in _METHODS:
        return f"is packed by method {member.compress_type} of zip, not by deflate"
    return ""


def _refused(path: Path, why: str) -> ResultsError:
    return ResultsError(
        f"{path}: {why}, which no bundle has; ask for it again, or unpack what you trust and "
        "import its folder"
    )
