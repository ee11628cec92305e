"""Finds sweeps, profiles and templates by name, in the order of this list.

1. an explicit path; ``sweeps/quickstart.yaml`` also means that name where there is no `sweeps/`;
2. the folder in the working directory (`sweeps/`, `cluster_profiles/`, `jobs/templates/`);
3. the same folder below `~/.config/hpcsweep/` (`$XDG_CONFIG_HOME` is honoured);
4. the copy that came with the package (a source checkout: its own folders).
"""

from __future__ import annotations

import grp
import logging
import os
import pwd
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from hpcsweep.environment import config_folder as config_folder  # noqa: PLC0414 - as `shipped`
from hpcsweep.errors import BadInput, suggest
from hpcsweep.text import printable

SWEEPS: Final = "sweeps"
PROFILES: Final = "cluster_profiles"
TEMPLATES: Final = "jobs/templates"
SUFFIXES: Final = (".yaml", ".yml")

USER_FILE: Final = "config.toml"
_PROJECT_FILES: Final = (("hpcsweep.toml", ()), ("pyproject.toml", ("tool", "hpcsweep")))
_ACL: Final = "system.posix_acl_access"
_ACCOUNTS: Final = Path("/etc/passwd")
_LOGGER: Final = logging.getLogger(__name__)

# unlike the methods of Path, these are False for a name that no file can have
_exists, is_file = os.path.exists, os.path.isfile
_PACKAGE: Final = Path(__file__).resolve().parents[1]


def folders(kind: str) -> list[Path]:
    """Return the existing folders of a kind, in the order of the search."""
    own = [root for root in (Path(), config_folder()) if (root / kind).is_dir()]
    kept = [root / kind for root in own if is_safe(root / kind, root)]
    return [*kept, *(folder for folder in [shipped() / kind] if folder.is_dir())]


def config_files() -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield the configuration files that exist, each with the table that is ours; later ones win.

    These are `config.toml` in the user's configuration folder, and `hpcsweep.toml`, or the table
    `tool.hpcsweep` of `pyproject.toml`, in the working directory or the nearest folder above.
    """
    user = config_folder() / USER_FILE
    if user.is_file() and is_safe(user, user.parent):
        yield user, ()
    with suppress(FileNotFoundError):  # the working directory is gone
        here = Path.cwd()
        for folder in (here, *here.parents):
            for name, table in _PROJECT_FILES:
                path = folder / name
                if not path.is_file() or not _has_table(path, ".".join(table)):
                    continue
                if is_safe(path, folder):
                    yield path.relative_to(here) if folder == here else path, table
                    return


def results_folder() -> Path:
    """Return ``results`` beside the project's configuration file, else in the working directory."""
    user = config_folder() / USER_FILE
    project = [path.parent for path, _ in config_files() if path != user]
    return Path(*project, "results")


def _has_table(path: Path, name: str) -> bool:
    with suppress(OSError, UnicodeDecodeError):
        return not name or f"[{name}" in path.read_text(encoding="utf-8")
    return False


def is_safe(path: Path, root: Path) -> bool:
    """Say whether only this user and root may change a file, or a folder and the files in it.

    So must be what they lie in, up to `root`. What they hold may run as this user. A line says what
    is not taken. That the group may write is
    no danger where it is the user's private one, as with a umask of 002.
    """
    real = path.resolve()
    between = [path, *(one for one in path.parents if one.is_relative_to(root)), real, real.parent]
    inside = _inside(path) if path.is_dir() else []
    for place in [*between, *inside, *{one.resolve().parent for one in inside}]:
        found = place.stat()
        shared = found.st_mode & stat.S_IWGRP and (_has_acl(place) or not _is_private(found.st_gid))
        if shared or found.st_mode & stat.S_IWOTH or found.st_uid not in {0, os.getuid()}:
            _tell(
                f"note: {path} is not taken: others may write {place} (chmod go-w, or name a path)"
            )
            return False
    return True


@cache
def _is_private(gid: int) -> bool:
    """Say whether a group is this user's own: of the same name, and nobody else is known in it."""
    with suppress(KeyError, OSError):  # an account that nobody knows
        me, group = pwd.getpwuid(os.getuid()), grp.getgrgid(gid)
        accounts = [line.split(":") for line in _ACCOUNTS.read_text("utf-8", "replace").split("\n")]
        others = {one[2] for one in accounts if one[3:4] == [str(gid)]} - {str(me.pw_uid)}
        own = me.pw_gid == gid and group.gr_name == me.pw_name
        return own and not others and {*group.gr_mem} <= {me.pw_name}
    return False


def _has_acl(place: Path) -> bool:
    """Say whether a list of accounts that may write stands behind the bits of the group."""
    with suppress(OSError, AttributeError):  # a file system, or a system, without such lists
        return _ACL in os.listxattr(place)
    return False


@cache
def _tell(text: str) -> None:
    sys.stderr.write(f"{printable(text)}\n")


def shipped() -> Path:
    """Return the folder of the files that come with the program: in the wheel, or the checkout."""
    data = _PACKAGE / "_data"
    return data if data.is_dir() else _PACKAGE.parents[1]


def names(kind: str) -> dict[str, Path]:
    """Return every name that `find` knows, sorted, with its file."""
    found: dict[str, Path] = {}
    for folder in folders(kind):
        for path in _files(folder):
            found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def find(kind: str, name: str | os.PathLike[str], error: type[BadInput] = BadInput) -> Path:
    """Return the file of a name or a path.

    A text with a `/` or a YAML suffix is a path, and so is the name of an existing file. Any other
    text is a name. If nothing is found, `error` lists the names that exist and suggests one.
    """
    text = os.fspath(name)
    shown = text if text and text.isprintable() else repr(text)
    path = Path(text).expanduser() if text.startswith("~/") else Path(text)
    if is_path(text) or is_file(path):
        found = path if _exists(path) else _of_a_kind(kind, path)
        if found:
            _LOGGER.debug("reads %s", found)
            return found
        raise error(f"{shown}: no such file{_near_file(path)}")
    known = names(kind)
    if text in known:
        _LOGGER.debug("reads %s", known[text])
        return known[text]
    if text and _exists(path):
        return path  # a folder; reading it gives a better message
    for beside in filter(is_file, (Path(text + suffix) for suffix in SUFFIXES)):
        raise error(f"{shown}: no such name in {kind}/; for the file write {beside}")
    have = ", ".join(known) or "none"
    raise error(f"{shown}: no such name in {kind}/; there are {have}{suggest(text, known)}")


def is_path(text: str) -> bool:
    """Say whether a text can be a path only, and not a name."""
    return "/" in text or Path(text).suffix in SUFFIXES


def _of_a_kind(kind: str, path: Path) -> Path | None:
    """Return the file of ``sweeps/NAME.yaml`` where the working directory has no such folder."""
    if path.parent != Path(kind) or path.parent.is_dir():
        return None
    return next(filter(is_file, (folder / path.name for folder in folders(kind))), None)


def _near_file(path: Path) -> str:
    if not _exists(path.parent):
        return f"; nor is there a directory {path.parent}"
    return suggest(path.name, (other.name for other in _files(path.parent)))


def _files(folder: Path) -> Iterator[Path]:
    yield from (path for path in _inside(folder) if path.suffix in SUFFIXES and path.is_file())


def _inside(folder: Path) -> list[Path]:
    """Return what is in a folder, but links that lead nowhere; nothing where it cannot be read."""
    with suppress(OSError):
        return [path for path in sorted(folder.iterdir()) if _exists(path)]
    return []
