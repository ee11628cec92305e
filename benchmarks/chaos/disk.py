"""A small file system in memory that fills up, is read-only, and comes back (as root)."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_MIB: Final = 32
_INODES: Final = 20_000


@dataclass
class Disk:
    """A tmpfs at a folder of its own."""

    path: Path
    _mib: int = _MIB

    def mount(self) -> Disk:
        """Make it."""
        self.path.mkdir()
        options = f"size={_MIB}m,nr_inodes={_INODES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "chaos", self.path], check=True)
        return self

    def unmount(self) -> None:
        """Remove it, whoever has files open there."""
        subprocess.run(["umount", "--lazy", self.path], check=False, capture_output=True)
        with suppress(OSError):
            self.path.rmdir()

    def fill(self, left: int) -> None:
        """Leave so many bytes."""
        found = os.statvfs(self.path)
        with self._ballast.open("wb") as file, suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, max(1, found.f_bavail * found.f_frsize - left))

    def forbid_files(self, left: int) -> None:
        """Leave room for so many files, whatever their sizes."""
        found = os.statvfs(self.path)
        self._remount(f"nr_inodes={found.f_files - found.f_ffree + left}")

    def clean(self) -> None:
        """Remove what was filled in, and let there be as many files as before."""
        self._ballast.unlink(missing_ok=True)
        self._remount(f"nr_inodes={_INODES}")

    def enlarge(self) -> None:
        """Double it; what was filled in stays."""
        self._mib *= 2
        self._remount(f"size={self._mib}m")
        self._remount(f"nr_inodes={_INODES}")

    def forbid_writing(self) -> bool:
        """Make it read-only; false where the kernel refuses, since a file is open for writing."""
        return self._remount("ro")

    def allow_writing(self) -> None:
        """Make it writable again."""
        if not self._remount("rw"):
            raise RuntimeError(f"{self.path}: cannot be made writable again")

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"

    def _remount(self, options: str) -> bool:
        words = ["mount", "-o", f"remount,{options}", str(self.path)]
        return not subprocess.run(words, check=False, capture_output=True).returncode


def cover(folder: Path) -> None:
    """Make a folder read-only for whoever opens a file from now on; open files go on.

    It is covered by a mount that is read-only already: one that a file is being written through
    cannot become so.
    """
    aside = folder.parent / "read-only"
    aside.mkdir(exist_ok=True)
    for words in (
        ["mount", "--bind", str(folder), str(aside)],
        ["mount", "-o", "remount,bind,ro", str(aside)],
        ["mount", "--bind", str(aside), str(folder)],
        ["umount", str(aside)],
    ):
        subprocess.run(words, check=True)


def uncover(folder: Path) -> None:
    """Undo `cover`."""
    subprocess.run(["umount", "--lazy", folder], check=True)
