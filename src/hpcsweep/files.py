"""Whole files, of which a reader sees the old or the new one, never half; names of folders."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from hpcsweep.errors import ResultsError, Unread

if TYPE_CHECKING:
    from io import BufferedReader

SWEEP_NAMES: Final = "needs letters, digits, `_`, `-`, `.`, not `-` or `.` first, no `..`"
_KINDS: Final = {
    stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip
_BLOCK: Final = 1 << 20  # bytes that are read at once: few calls, and little memory
# bytes that are searched at once: the allocator keeps so little at hand, so that a gigabyte takes
# 0.46 s instead of 0.76
_SEARCHED: Final = 1 << 16
_LEFTOVER_SECONDS: Final = 86400.0  # a day: nobody still writes such a file
COPY_IT: Final = "only regular files are taken; copy what you trust with `cp -rL` first"
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def may_name_a_file(name: str) -> bool:
    """Say whether a name that a record holds leads to a file in the folder that it is joined to."""
    return bool(_FILE_NAME.fullmatch(name))


def may_name_a_sweep(name: str) -> bool:
    """Say whether a sweep, and so its folder, may have this name: `SWEEP_NAMES` is the rule."""
    return may_name_a_file(name) and ".." not in name


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read it; `OSError` where it is a pipe or device, which may never end."""
    return open(descriptor(path), "rb")


def descriptor(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a file without waiting; `OSError` where it is a pipe, a socket or a device."""
    # to open a pipe that nobody writes to would wait for ever
    number = os.open(path, flags | os.O_NONBLOCK)
    kind = stat.S_IFMT(os.fstat(number).st_mode)
    if kind in _KINDS:
        os.close(number)
        raise OSError(errno.EINVAL, f"is {_KINDS[kind]}, no file", str(path))
    return number


def regular_bytes(path: Path) -> bytes:
    """Return what a file holds; `OSError` as `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def find(file: IO[bytes], text: bytes, begin: int = 0) -> int:
    """Return where a text first stands behind `begin`, or how long the file is if it does not.

    The file may be larger than the memory: it is read in blocks.
    """
    place = file.seek(begin)
    held = b""  # a text may lie across two blocks
    while block := file.read(_SEARCHED):
        held += block
        found = held.find(text)
        if found >= 0:
            return place + found
        kept = min(len(held), len(text) - 1)
        place += len(held) - kept
        held = held[len(held) - kept :]
    return place + len(held)


def last_bytes(file: IO[bytes], begin: int = 0, end: int | None = None) -> bytes:
    """Return the last MiB of a file, or of what lies from `begin` to `end` in it.

    It holds the last lines of a program that may have filled the disk.
    """
    end = file.seek(0, os.SEEK_END) if end is None else end
    begin = max(begin, end - _BLOCK)
    file.seek(begin)
    return file.read(end - begin)


def last_lines(file: IO[bytes], begin: int = 0, end: int | None = None) -> list[str]:
    """Return the lines of `last_bytes`."""
    return last_bytes(file, begin, end).decode("utf-8", "replace").splitlines()


def sha256(path: Path) -> str:
    """Return the checksum of what a file holds."""
    with path.open("rb", buffering=0) as file:
        return digest(file)


def digest(file: IO[bytes]) -> str:
    """Return the checksum of what is left to read of an open file."""
    found = hashlib.sha256()
    while block := file.read(_BLOCK):
        found.update(block)
    return found.hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object; `ResultsError` with the file's name when it cannot be."""
    try:
        record = json.loads(regular_bytes(path))
    except FileNotFoundError:
        raise ResultsError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ResultsError(f"{path}: cannot be read ({error})") from error
    if not isinstance(record, dict):
        raise ResultsError(f"{path}: not a JSON object")
    return record


@contextmanager
def opened(root: Path, *names: str, most: int) -> Iterator[BufferedReader]:
    """Open the regular file of these names below a folder: no link on the way, no device, no pipe.

    `ResultsError` where anything else is there, it has more than `most` bytes, or is unreadable.
    """
    path = root.joinpath(*names)
    try:
        refuse_links(root, *names)
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise ResultsError(f"{path}: has {size:,} bytes; {most:,} are taken at most")
            yield file
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read ({error.strerror or error})") from error


def refuse_links(root: Path, *names: str) -> None:
    """Raise `ResultsError` where a link, a pipe or a device is on the way to a file.

    The way begins below `root`; without names, `root` itself is the file.
    """
    steps = [root.joinpath(*names[:depth]) for depth in range(1, len(names) + 1)]
    for step in steps or [root]:
        kind = stat.S_IFMT(step.lstat().st_mode)
        if kind not in {stat.S_IFREG, stat.S_IFDIR}:
            what = f"{step.name!r} is {_KINDS.get(kind, 'no file')}"
            raise ResultsError(f"{root.joinpath(*names)}: {what}; {COPY_IT}")


def write_json(path: Path, record: Mapping[str, Any], *, lasting: bool = True) -> None:
    """Write one JSON object so that a reader sees the old or the new one, never half.

    What need not outlast a crash of the machine, and no person reads, is not `lasting`: to sync a
    file takes milliseconds, and to indent it ten times as long as to write it.
    """
    with replacing(path, lasting=lasting) as file:
        file.write(json.dumps(record, indent=1 if lasting else None).encode() + b"\n")


def see_anew(folder: Path) -> None:
    """Let a file come and go, after which NFS asks its server which files a folder has.

    A listing from its memory may be a minute old. A folder that we may not write stays as it is.
    """
    passing = folder / f"{aside(folder)}{os.getpid()}.tmp"
    with suppress(OSError):
        passing.touch()
        passing.unlink()


def aside(path: Path) -> str:
    """Return how the names of files begin that this host writes beside a file, to replace it."""
    # with what `tempfile` adds, a name stays below the 255 bytes that file systems allow
    return f".{path.name[:100]}.{os.uname().nodename[:60]}."


def remove_leftovers(folder: Path, mine: Iterable[Path]) -> None:
    """Remove what killed writers left: of `mine`, which nobody else writes, or older than a day."""
    begins = tuple(map(aside, mine))
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as now:
        latest = os.fstat(now.fileno()).st_mtime - _LEFTOVER_SECONDS  # by the file system's clock
        for path in folder.glob(".*.tmp"):
            if path.name.startswith(begins) or path.lstat().st_mtime < latest:
                path.unlink(missing_ok=True)


def reach(path: Path) -> int:
    """Return the rights of a file, without those that the folders above it withhold from others."""
    real = path.resolve()
    rights = stat.S_IMODE(real.stat().st_mode)
    for folder in real.parents:
        passes = folder.stat().st_mode
        if not passes & stat.S_IXGRP:
            rights &= ~stat.S_IRWXG
        if not passes & stat.S_IXOTH:
            rights &= ~stat.S_IRWXO
    return rights


def making(path: Path, most: int) -> IO[bytes]:
    """Make a file to write, with no rights beyond `most`; `FileExistsError` where one is."""
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, most & 0o666))


@contextmanager
def replacing(path: Path, *, most: int = 0o666, lasting: bool = True) -> Iterator[IO[bytes]]:
    """Open a file beside `path`; on success sync it, if it is to be `lasting`, and rename it.

    It gets the rights of the file before, else usual ones, but none beyond `most`. Who closes the
    file has synced it: where several files belong together, none is renamed before the last one is
    closed. `ResultsError` where the folder is read-only, full, or gone: `path` is as it was.
    """
    temporary = ""
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=aside(path), suffix=".tmp", delete=False
        ) as file:
            temporary = file.name
            yield file
            if lasting and not file.closed:
                file.flush()
                os.fsync(file.fileno())
        # `tempfile` makes files that nobody else can read
        Path(temporary).chmod(_usual_rights(path) & most & 0o666)
        Path(temporary).replace(path)
    except BaseException as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise cannot_write(path, error) from error
        raise


def _usual_rights(path: Path) -> int:
    """Return the rights of a file; of one that is not there those that others get."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        # it can be read only by setting it
        umask = os.umask(0)
        os.umask(umask)
        return 0o666 & ~umask


def cannot_read(path: Path, error: OSError) -> ResultsError:
    """Return `ResultsError` for a file that is gone, `Unread` if it cannot be read now."""
    kind = ResultsError if isinstance(error, FileNotFoundError) else Unread
    return kind(f"{path}: cannot be read ({error.strerror or error})")


def cannot_write(path: Path, error: OSError) -> ResultsError:
    """Return the message for a disk that is full, read-only or not ours."""
    remedy = "Free space" if error.errno in {errno.ENOSPC, errno.EDQUOT} else "Make it writable"
    return ResultsError(
        f"{path}: cannot be written ({error.strerror or error}); "
        f"what was measured before is kept. {remedy}, or choose another folder with --results"
    )


@contextmanager
def errors_named() -> Iterator[None]:
    """Turn an error of the system that nobody expected, such as a stale handle, into a message."""
    try:
        yield
    except OSError as error:
        if error.errno in {None, errno.EPIPE}:  # not of a file; a reader that left
            raise
        where = f"{error.filename}: " if error.filename else ""
        text = f"{where}{error.strerror}; what was measured before is kept. Run this command again"
        raise ResultsError(f"{text} when the file system is well") from error
