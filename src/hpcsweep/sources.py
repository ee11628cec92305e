"""The user's own files that a point is made of: where they are, their digests, and their copies.

A sweep names modules, weights and data without a machine's path: `mymodel:net`, `weights: w.pt`.
`submit` keeps the folders in the manifest. Whoever measures a point calls `look_in` with them, so
that a job in Slurm, a worker here, the rehearsal and `verify` find the same.

Modules are the factory's and all that it imports, at any place and through others, found as an
import would find them. They are read, not imported, so `submit` needs no torch. Those of the
standard library and of installed distributions are not the user's own; editable installs are. A
digest is of names and contents. Compute nodes take it before a module is imported first, and keep
keep it as Python keeps the module, so that a later edit does not count as what runs.

`submit` copies what is small into the results, a folder per digest. What is large stays where it
is: a bundle takes it from there, if it is still the same.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Final

from hpcsweep import files
from hpcsweep.catalog import workload_of
from hpcsweep.point import Point

FACTORIES: Final = ("model", "dataset")  # axes whose values may be `package.module:factory`
AXES: Final = (*FACTORIES, "weights", "resume_from")  # that name files of the user's own
# what rows name the version of, also where it is installed from a checkout
_LIBRARIES: Final = frozenset({*sys.stdlib_module_names, "hpcsweep", "torch", "torchvision"})
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
# files that a module may name in a text; others are rather what it writes
_READ: Final = (
    ".py", ".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".pt", ".pth", ".bin",
    ".onnx", ".safetensors", ".c", ".cc", ".cpp", ".cu", ".h", ".so",
)  # fmt: skip
_LONGEST: Final = 255  # bytes of a name, by most file systems; longer texts are prose
_LARGEST: Final = 1 << 30  # bytes of such a file; of a larger one the size counts
_MOST_KEPT: Final = 16 << 20  # bytes of one digest: code is smaller, weights are not
DIGITS: Final = 16  # 64 bits, as the id of a point
_DIGEST: Final = re.compile(f"[0-9a-f]{{{DIGITS}}}")
_PASSWORD: Final = re.compile(r"\w+://\S*@[^:]*")  # a URL, up to its host; it is no folder
# lines of code in these folders are not the user's own
_OTHERS: Final = re.compile(f"site-packages|{re.escape(str(Path(__file__).parent))}")
_WEIGHTS_SUFFIXES: Final = (".pt", ".pth", ".bin")  # as torch.save and Hugging Face name them
_in_use: list[str] = []  # as `sys.path`, it belongs to the process

# unlike the methods of Path, these are False for what may not be read
_is_file = os.path.isfile
_is_dir = os.path.isdir


def folders_for(sweep_file: Path) -> tuple[str, ...]:
    """Return where the names of a sweep file are looked for: its folder, this one, PYTHONPATH."""
    on_path = _PASSWORD.sub("", os.environ.get("PYTHONPATH", "")).split(os.pathsep)
    folders = [sweep_file.parent, Path(), *(Path(folder) for folder in on_path if folder)]
    return tuple(dict.fromkeys(str(folder.absolute()) for folder in folders))


def look_in(folders: Sequence[str]) -> None:
    """Look in these folders from now on, for modules after all other places."""
    _in_use[:] = folders
    if folders and sys.path and sys.path[0] in {"", str(Path.cwd())}:
        del sys.path[0]  # `python -m` looks there first, and a job has another one
    sys.path += [folder for folder in folders if folder not in sys.path]


def folders_in_use() -> tuple[str, ...]:
    """Return the folders that this process looks in."""
    return tuple(_in_use)


def file(name: str, folders: Iterable[str] | None = None) -> Path:
    """Return the first such file in the folders (those in use), else where the name would be."""
    path = Path(name).expanduser()
    places = [Path(folder) / path for folder in (_in_use if folders is None else folders)]
    for place in places:
        if place.is_file():
            return place
    return places[0] if places else path


def is_weights_file(weights: str) -> bool:
    """Say whether weights are a file, and no name."""
    return "/" in weights or weights.endswith(_WEIGHTS_SUFFIXES)


def own_line(error: BaseException) -> str:
    """Return the innermost line of the user's own code in an error's trace; empty without one."""
    line = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(folders_in_use()) and not _OTHERS.search(frame.filename):
            line = f"{frame.filename}:{frame.lineno}"
    return line


@dataclass(frozen=True)
class _OwnFile:
    """A file of the user's own: `place` is below a folder from which its modules are imported.

    Python reads an `imported` one once in a process.
    """

    name: str
    path: Path
    place: str
    imported: bool = False


class Sources:
    """The files of the user's own, as they are while this object lives; modules as first seen."""

    def __init__(self, folders: Sequence[str]) -> None:
        importlib.invalidate_caches()
        self._folders = [*folders]
        self._modules: dict[str, list[_OwnFile]] = {}
        self._digests: dict[tuple[object, ...], str] = {}

    def cell(self, point: Point) -> str:
        """Return the digests of what a point is made of, by axis; empty: nothing of one's own."""
        if not workload_of(point.workload).runs_network:
            return ""
        values = {**point.measure, **point.axes}
        digests = []
        for axis in AXES:
            digest = self.digest(axis, str(values.get(axis) or ""))
            if digest:
                digests.append(f"{axis}={digest}")
        return ";".join(digests)

    def digest(self, axis: str, value: str) -> str:
        """Return the digest of what an axis names; empty if that is not there, or not one's own."""
        lines = sorted({f"{file.name} {self._content(file)}" for file in self._named(axis, value)})
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:DIGITS] if lines else ""

    def files(self, axis: str, value: str) -> dict[str, Path]:
        """Return the files that an axis names, by their places in a folder that imports find."""
        return {file.place: file.path for file in self._named(axis, value)}

    def keep(self, axis: str, value: str, folder: Path) -> None:
        """Copy the files that an axis names below a folder; nobody else may write there."""
        own = self.files(axis, value)
        to = folder / self.digest(axis, value)
        if not own or to.exists() or sum(path.stat().st_size for path in own.values()) > _MOST_KEPT:
            return
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as aside:
            for place, path in own.items():
                copy = Path(aside, to.name, place)
                copy.parent.mkdir(parents=True, exist_ok=True)
                # a password beside the code is as private as it was, though results are shared
                rights = files.reach(path)
                with files.open_regular(path) as file, files.making(copy, rights) as made:
                    shutil.copyfileobj(file, made)
            Path(aside, to.name).rename(to)

    def _named(self, axis: str, value: str) -> list[_OwnFile]:
        if axis not in FACTORIES:
            path = file(value, self._folders)
            is_name = not value or (axis == "weights" and not is_weights_file(value))
            return [] if is_name or not path.is_file() else [_OwnFile("", path, path.name)]
        module, colon, _ = value.partition(":")
        if not colon:  # a name of torchvision
            return []
        if module not in self._modules:
            self._modules[module] = [*self._walk(module)]
        return self._modules[module]

    def spec(self, module: str) -> ModuleSpec | None:
        """Find a module as an import would, without importing it or its packages."""
        top, *below = module.split(".")
        this_folder = {"", str(Path.cwd())}  # comes last, if it is one of the folders
        outside = [entry for entry in sys.path if entry not in this_folder]
        spec = PathFinder.find_spec(top, [*outside, *self._folders])
        if spec is None:
            with suppress(ImportError, ValueError):  # an editable install has a finder of its own
                spec = importlib.util.find_spec(top)
        for part in below:
            spec = PathFinder.find_spec(part, _inside(spec)) if spec else None
        return spec

    def _walk(self, first: str) -> Iterator[_OwnFile]:
        """Yield the files of the user's own that importing a module leads to."""
        modules = [first]
        done = set[str]()
        while modules:
            module = modules.pop()
            # modules may import each other
            if module in done:
                continue
            done.add(module)
            above = module.rpartition(".")[0]
            if above:
                modules.append(above)
            path = self._own(module)
            if path is None:
                continue
            package = module if path.name.startswith("__init__.") else above
            folder = Path(*package.split("."))
            yield _OwnFile(module, path, str(folder / path.name), imported=True)
            imports, texts = _read(path, package)
            modules += imports
            for text, file in _files(texts, path.parent, self._folders):
                place = os.path.normpath(folder / os.path.relpath(file, path.parent))
                outside = place.startswith("..")
                yield _OwnFile(f"{module}:{text}", file, file.name if outside else place)

    def _own(self, module: str) -> Path | None:
        """Return the file of a module, if it is the user's own."""
        if module.partition(".")[0] in _LIBRARIES:
            return None
        spec = self.spec(module)
        path = Path(spec.origin or os.devnull) if spec and spec.has_location else None
        if path is None or not path.is_file():
            return None
        return path if _INSTALLED.isdisjoint(path.parts) else None

    def _content(self, own: _OwnFile) -> str:
        try:
            status = own.path.stat()
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            if own.name and not own.imported and status.st_size > _LARGEST:
                return f"{status.st_size} bytes"
            # of a module that Python keeps, a later edit does not count
            key = (own.path,) if own.imported else (own.path, *stamp)
            if key not in self._digests:
                self._digests[key] = files.sha256(own.path)
            return self._digests[key]
        except OSError as error:
            return f"unreadable: {error.strerror}"


_lasting = lru_cache(maxsize=4)(Sources)  # a process looks in one list of folders, tests in more


def own_files_here(point: Point) -> str:
    """Return the cell of a point in this process, which keeps the modules that it imported."""
    return _lasting(folders_in_use()).cell(point)


def parts(cell: str) -> dict[str, str]:
    """Return the digests of a cell by axis."""
    return dict(part.split("=", 1) for part in cell.split(";") if "=" in part)


def is_digest(text: str) -> bool:
    """Say whether a text that a record holds is a digest, which names a folder."""
    return bool(_DIGEST.fullmatch(text))


def kept(folder: Path, digest: str) -> dict[str, Path]:
    """Return the files that were kept below a folder under the digest of a row, by their places.

    None for a text that is no digest, and would lead elsewhere. `ResultsError` where one is a link.
    """
    found = files_below(folder / digest) if is_digest(digest) else {}
    for path in found.values():
        files.refuse_links(folder.parent, *path.relative_to(folder.parent).parts)
    return found


def files_below(folder: Path) -> dict[str, Path]:
    """Return the files below a folder, by their places in it; none if there is no folder."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path for path in found}


def _inside(spec: ModuleSpec) -> list[str]:
    """Return the folders of a package; none of a module.

    Those of a namespace package are taken as they are: it would ask its parent, not imported here.
    """
    folders = spec.submodule_search_locations or []
    return [*getattr(folders, "_path", folders)]


def _read(path: Path, package: str) -> tuple[set[str], set[str]]:
    """Return the modules that a module of a package may import, most of them none, and its texts.

    Nothing where it is no source, or broken.
    """
    imports = set[str]()
    texts = set[str]()
    with suppress(SyntaxError, ValueError, OSError), warnings.catch_warnings():
        # of escapes in somebody else's texts
        warnings.simplefilter("ignore")
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                imports.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")
                above = above[: len(above) - node.level + 1] if node.level else []
                # a module at the top has no package, and `from . import a` no module
                target = ".".join(filter(None, (*above, node.module)))
                imports.add(target)
                imports.update(f"{target}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
    return imports, texts


def _files(
    texts: Iterable[str], folder: Path, folders: Iterable[str]
) -> Iterator[tuple[str, Path]]:
    """Yield the texts that name files, each with the file that is found first.

    A module names files from its own folder, the next, a folder there that it names, or those that
    the sweep looks in.
    """
    names = sorted(text for text in texts if 0 < len(text) < _LONGEST and text.isprintable())
    near = (folder, folder.parent)
    named = [root / name for root in near for name in names if _is_dir(root / name)]
    roots = [*near, *named, *map(Path, folders)]
    for name in names:
        if not name.endswith(_READ):
            continue
        for root in roots:
            if _is_file(root / name):
                yield name, root / name
                break
