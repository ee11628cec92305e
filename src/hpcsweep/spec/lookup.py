"""Finds sweeps, profiles and templates by name, in the order of this list.

1. an explicit path; ``sweeps/quickstart.yaml`` also means that name where there is no `sweeps/`;
2. the folder in the working directory (`sweeps/`, `cluster_profiles/`, `jobs/templates/`);
3. the same folder below `~/.config/hpcsweep/` (`$XDG_CONFIG_HOME` is honoured);
4. the copy that came with the package (a source checkout: its own folders).
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from hpcsweep import environment, messages
from hpcsweep.environment import config_folder as config_folder  # noqa: PLC0414 - as `shipped`
from hpcsweep.errors import BadInput, suggest

SWEEPS: Final = "sweeps"
PROFILES: Final = "cluster_profiles"
TEMPLATES: Final = "jobs/templates"
SUFFIXES: Final = (".yaml", ".yml")

USER_FILE: Final = "config.toml"
PROJECT_FILE: Final = "hpcsweep.toml"
_ACL: Final = "system.posix_acl_access"
_ACCOUNTS: Final = Path("/etc/passwd")

# unlike the methods of Path, these return False for impossible names
_exists = os.path.exists
is_file = os.path.isfile
_PACKAGE: Final = Path(__file__).resolve().parents[1]


def folders(kind: str) -> list[Path]:
    """Return the existing and safe folders of a kind, in the order of the search."""
    found = []
    for root in (Path(), config_folder()):
        folder = root / kind
        if folder.is_dir() and is_safe(folder, root):
            found.append(folder)
    of_the_program = shipped() / kind
    if of_the_program.is_dir():
        found.append(of_the_program)
    return found


def own_templates() -> tuple[str, ...]:
    """Return the templates of the user's own, which go before those shipped."""
    templates: list[Path] = []
    for folder in folders(TEMPLATES):
        if not folder.samefile(shipped() / TEMPLATES):
            templates += sorted(folder.glob("*.j2"))
    return tuple(str(path.absolute()) for path in templates)


def config_files() -> Iterator[Path]:
    """Yield the existing configuration files; later ones win.

    These are `config.toml` in the user's configuration folder, and `hpcsweep.toml` in the working
    directory or the nearest folder above.
    """
    user = config_folder() / USER_FILE
    if user.is_file() and is_safe(user, user.parent):
        yield user
    with suppress(FileNotFoundError):  # the working directory is gone
        here = Path.cwd()
        for folder in (here, *here.parents):
            path = folder / PROJECT_FILE
            if path.is_file() and is_safe(path, folder):
                yield Path(PROJECT_FILE) if folder == here else path
                return


def results_folder(given: str | os.PathLike[str] = "") -> Path:
    """Return the folder of all results: `given`, else by variable, by file, or ``results``.

    The last is beside the project's configuration file, else in the working directory.
    """
    named = given or os.environ.get(environment.RESULTS)
    if named:
        return Path(named)
    files = list(config_files())
    for path in files[::-1]:  # later files win
        from hpcsweep.spec import document  # noqa: PLC0415 - yaml, which names do without

        doc = document.read_toml(path)
        folder = doc.data.get("results", "")
        if not isinstance(folder, str):
            raise doc.complaint(("results",), "needs text; quote it if it is")
        if folder:
            return path.parent / Path(folder).expanduser()
    project = [path.parent for path in files if path.name == PROJECT_FILE]
    return Path(*project, "results")


def is_safe(path: Path, root: Path) -> bool:
    """Say whether only this user and root may change a file, or a folder and the files in it.

    The folders around it, up to `root`, must be safe, too, since the files' content may run as this
    user. A note names what is not safe. The user's private group (umask 002) may write.
    """
    real = path.resolve()
    above = [folder for folder in path.parents if folder.is_relative_to(root)]
    inside = _inside(path) if path.is_dir() else []
    targets = {inner.resolve().parent for inner in inside}  # a link's file lies elsewhere
    for place in [path, *above, real, real.parent, *inside, *targets]:
        if _others_may_write(place):
            text = f"{path} is not taken: others may write {place}"
            messages.note(text, "chmod go-w, or name a path")
            return False
    return True


def _others_may_write(place: Path) -> bool:
    status = place.stat()
    if status.st_uid not in {0, os.getuid()} or status.st_mode & stat.S_IWOTH:
        return True
    by_group = bool(status.st_mode & stat.S_IWGRP)
    return by_group and (_has_acl(place) or not _is_private(status.st_gid))


@cache
def _is_private(gid: int) -> bool:
    """Say whether a group is the user's private one: of the user's name, without other members."""
    with suppress(KeyError, OSError):  # the system lacks this account
        me = pwd.getpwuid(os.getuid())
        group = grp.getgrgid(gid)
        if me.pw_gid != gid or group.gr_name != me.pw_name or {*group.gr_mem} - {me.pw_name}:
            return False
        for line in _ACCOUNTS.read_text("utf-8", "replace").split("\n"):
            account = line.split(":")  # passwd(5): name, password, UID, GID, ...
            if account[3:4] == [str(gid)] and account[2] != str(me.pw_uid):
                return False
        return True
    return False


def _has_acl(place: Path) -> bool:
    """Say whether a file has an access control list, which may let other accounts write."""
    with suppress(OSError, AttributeError):  # a file system or an operating system without them
        return _ACL in os.listxattr(place)
    return False


def shipped() -> Path:
    """Return the folder of the program's own files: in the wheel, or the checkout."""
    data = _PACKAGE / "_data"
    return data if data.is_dir() else _PACKAGE.parents[1]


def names(kind: str) -> dict[str, Path]:
    """Return every name that `find` accepts, sorted, with its file."""
    paths: dict[str, Path] = {}
    for folder in folders(kind):
        for path in _files(folder):
            paths.setdefault(path.stem, path)
    return dict(sorted(paths.items()))


def find(kind: str, name: str | os.PathLike[str], error: type[BadInput] = BadInput) -> Path:
    """Return the file of a name or a path.

    A text with a `/` or a YAML suffix is a path, and so is the name of an existing file. Any other
    text is a name. If nothing is found, `error` lists the names that exist and suggests one.
    """
    text = os.fspath(name)
    shown = text if text and text.isprintable() else repr(text)
    path = Path(text).expanduser() if text.startswith("~/") else Path(text)
    if is_path(text) or is_file(path):
        file = path if _exists(path) else _shipped_file(kind, path)
        if file:
            return file
        hint = suggest(path.name, (other.name for other in _files(path.parent)))
        if not _exists(path.parent):
            hint = f"; nor is there a directory {path.parent}"
        raise error(f"{shown}: no such file{hint}")
    paths = names(kind)
    if text in paths:
        return paths[text]
    if text and _exists(path):
        return path  # a folder; reading it gives a better message
    for suffix in SUFFIXES:
        beside = Path(text + suffix)
        if is_file(beside):
            raise error(f"{shown}: no such name in {kind}/; for the file write {beside}")
    have = ", ".join(paths) or "none"
    raise error(f"{shown}: no such name in {kind}/; there are {have}{suggest(text, paths)}")


def _shipped_file(kind: str, path: Path) -> Path | None:
    """Return the file that ``sweeps/NAME.yaml`` means where no such folder is here."""
    if path.parent == Path(kind) and not path.parent.is_dir():
        for folder in folders(kind):
            if is_file(folder / path.name):
                return folder / path.name
    return None


def is_path(text: str) -> bool:
    """Say whether a text is a path, and not a name."""
    return "/" in text or Path(text).suffix in SUFFIXES


def _files(folder: Path) -> Iterator[Path]:
    for path in _inside(folder):
        if path.suffix in SUFFIXES and path.is_file():
            yield path


def _inside(folder: Path) -> list[Path]:
    """Return the entries of a folder without broken links; none if it cannot be read."""
    with suppress(OSError):
        return [path for path in sorted(folder.iterdir()) if _exists(path)]
    return []
